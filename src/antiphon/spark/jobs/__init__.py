"""Jobs that read all of the data, as plain functions: call them with any SparkSession, or by `antiphon audit`, `archive`,
`replay` and `pipeline`.
"""

from importlib import import_module
from typing import Any, Final

# Name -> module: each is loaded when it is first used, so that one job does not need the libraries of the others.
_JOBS: Final[dict[str, str]] = {
    "ArchiveReport": "archive_job",
    "archive": "archive_job",
    "AuditReport": "audit_job",
    "audit": "audit_job",
    "compact": "lake_upkeep",
    "expire": "lake_upkeep",
    "mirror_table": "lake_table",
    "mirror_topic": "lake_topic",
    "BulkLoaded": "bulk_load_job",
    "Compared": "replay_compare",
    "FoldRecord": "replay_frames",
    "Replayed": "replay_job",
    "bulk_load": "bulk_load_job",
    "compare_table": "replay_compare",
    "fold_topic": "replay_job",
    "replay_table": "replay_job",
}


def __getattr__(name: str) -> Any:
    module = _JOBS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(_JOBS)
