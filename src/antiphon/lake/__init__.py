"""Lake tables: targets (Delta Lake, Iceberg, Parquet) that are written exactly once, and the jobs that fill them.

`open_target` opens one. `mirror_topic` and `mirror_table` keep one equal to a topic or a table, `compact` and `expire` keep
one in shape, and a pipeline is a TOML file of such jobs.
"""

from importlib import import_module
from typing import Any, Final

# Name -> module: each is loaded when it is first used, because the libraries of lake tables take long to load.
_NAMES: Final[dict[str, str]] = {
    "compact": "upkeep",
    "expire": "upkeep",
    "mirror_table": "table_mirror",
    "mirror_topic": "topic_mirror",
    "open_target": "targets.target",
    "read_pipeline": "pipeline",
    "run_pipeline": "pipeline",
}


def __getattr__(name: str) -> Any:
    module = _NAMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(_NAMES)
