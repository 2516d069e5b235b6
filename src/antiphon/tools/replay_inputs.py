"""What `antiphon replay` and `antiphon load` are given: a fold of one's own, and files."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.kinds import KINDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAST_PER_KEY: Final = "last-per-key"
LAKE_MARKERS: Final = {kind.name: kind.marker for kind in KINDS.values() if kind.marker is not None}
FORMATS: Final = ("parquet", "json", "csv", *LAKE_MARKERS)
SUFFIXES: Final = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}
FILES_LOOKED_AT: Final = 1_000


def load_fold(text: str) -> Callable[..., Any]:
    """The function that MODULE:FUNCTION names, from the working directory or what is installed; it travels to workers."""
    from pyspark import cloudpickle

    module_name, _, function_name = text.partition(":")
    if not module_name or not function_name:
        raise InvalidRequestError(f"--fold is {LAST_PER_KEY} or MODULE:FUNCTION, not {text!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidRequestError(
            f"--fold {text}: module {module_name!r} cannot be imported from {here} ({error})"
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InvalidRequestError(f"--fold {text}: {module_name} has no function {function_name!r}")
    cloudpickle.register_pickle_by_value(module)
    found: Callable[..., Any] = function
    return found


def guess_format(source: str) -> str:
    """By the names of files; raises InvalidRequestError where they do not tell."""
    path = Path(source)
    if path.is_dir():
        for kind, marker in LAKE_MARKERS.items():
            if (path / marker).is_dir():
                return kind
        for number, file in enumerate(path.rglob("*")):
            if number >= FILES_LOOKED_AT:
                break
            if file.is_file() and not file.name.startswith((".", "_")) and _suffix(file) in SUFFIXES:
                return SUFFIXES[_suffix(file)]
    elif "://" not in source and not path.exists():
        raise InvalidRequestError(f"there is no file or folder {source}")
    elif _suffix(path) in SUFFIXES:
        return SUFFIXES[_suffix(path)]
    raise InvalidRequestError(
        f"the names in {source} do not show a format: give --format {', '.join(FORMATS)}"
    )


def _suffix(path: Path) -> str:
    """Without a compression's."""
    return Path(path.stem).suffix if path.suffix in {".gz", ".zst", ".bz2"} else path.suffix


def read_files(spark: "SparkSession", source: str, kind: str) -> "DataFrame":
    """The rows; raises InvalidRequestError where they cannot be read."""
    from pyspark.errors import AnalysisException

    where = source if "://" in source else str(Path(source).absolute())
    if kind in LAKE_MARKERS:
        from antiphon.lake.targets.target import open_target

        found: DataFrame = open_target(f"{kind}:{where}").read(spark)
        return found
    try:
        reader = spark.read.option("header", "true") if kind == "csv" else spark.read
        return reader.format(kind).load(where)
    except AnalysisException as error:
        raise InvalidRequestError(
            f"{source} cannot be read as {kind}: {str(error).splitlines()[0]}"
        ) from error
