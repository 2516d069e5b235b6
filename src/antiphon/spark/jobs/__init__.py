"""Jobs that read all of the data, as plain functions: call them with any SparkSession, or by `antiphon audit`, `archive`,
`replay` and `pipeline`.

The jobs of the archive and of lake tables are in packages above this one (`antiphon.archive`, `antiphon.lake`), and have
their names here too.
"""

from importlib import import_module
from typing import Any, Final

# Name -> module: each is loaded when it is first used, so that one job does not need the libraries of the others.
_JOBS: Final[dict[str, str]] = {
    "ArchiveReport": "archive.job.run",
    "archive": "archive.job.run",
    "AuditReport": "spark.jobs.audit_job",
    "audit": "spark.jobs.audit_job",
    "compact": "lake.upkeep",
    "expire": "lake.upkeep",
    "mirror_table": "lake.table_mirror",
    "mirror_topic": "lake.topic_mirror",
    "open_target": "lake.targets.target",
    "BulkLoaded": "spark.jobs.bulk_load_job",
    "Compared": "spark.jobs.replay_compare",
    "FoldRecord": "spark.jobs.replay_frames",
    "Replayed": "spark.jobs.replay_job",
    "bulk_load": "spark.jobs.bulk_load_job",
    "compare_table": "spark.jobs.replay_compare",
    "fold_topic": "spark.jobs.replay_job",
    "replay_table": "spark.jobs.replay_job",
}


def __getattr__(name: str) -> Any:
    module = _JOBS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"antiphon.{module}"), name)


def __dir__() -> list[str]:
    return sorted(_JOBS)
