"""Jobs that read all of the data, as plain functions: call them with any SparkSession, or by the command of each.

The jobs of the archive and of lake tables are in packages above this one (`antiphon.archive`, `antiphon.lake`), and have
their names here too. One row per job: these names, the command line and the table in docs/jobs.md follow from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job, or several that one command runs.

    Attributes:
        called: in the docs.
        section: of the docs, as a link from docs/jobs.md.
        functions: name -> module, loaded when it is first used: one job does not need the libraries of the others.
        results: the same of types that the functions return, or take.
        command: that runs it.
        declared_by: the module of `antiphon.cli` that declares the command.
    """

    called: str
    section: str
    functions: Mapping[str, str]
    results: Mapping[str, str] = field(default_factory=dict)
    command: str
    declared_by: str


JOBS: Final = (
    Job(
        called="archive",
        section="#archive",
        functions={"archive": "archive.job.run"},
        results={"ArchiveReport": "archive.job.run"},
        command="antiphon archive",
        declared_by="archive_commands",
    ),
    Job(
        called="audit",
        section="#audit",
        functions={"audit": "spark.jobs.audit_job"},
        results={"AuditReport": "spark.jobs.audit_job"},
        command="antiphon audit",
        declared_by="audit_commands",
    ),
    Job(
        called="replay",
        section="#replay",
        functions={
            "replay_table": "spark.jobs.replay_job",
            "fold_topic": "spark.jobs.replay_job",
            "compare_table": "spark.jobs.replay_compare",
        },
        results={
            "Compared": "spark.jobs.replay_compare",
            "FoldRecord": "spark.jobs.replay_frames",
            "Replayed": "spark.jobs.replay_job",
        },
        command="antiphon replay",
        declared_by="replay_commands",
    ),
    Job(
        called="bulk load",
        section="#bulk-load",
        functions={"bulk_load": "spark.jobs.bulk_load_job"},
        results={"BulkLoaded": "spark.jobs.bulk_load_job"},
        command="antiphon load",
        declared_by="replay_commands",
    ),
    Job(
        called="lake tables",
        section="lake.md",
        functions={
            "mirror_topic": "lake.topic_mirror",
            "mirror_table": "lake.table_mirror",
            "compact": "lake.upkeep",
            "expire": "lake.upkeep",
        },
        results={"open_target": "lake.targets.target"},
        command="antiphon pipeline",
        declared_by="pipeline_commands",
    ),
)
_NAMES: Final = {
    name: module for job in JOBS for name, module in (*job.functions.items(), *job.results.items())
}


def table_of_jobs() -> str:
    """The rows as a table for the docs."""
    lines = ["| job | function | command |", "|---|---|---|"]
    for job in JOBS:
        functions = ", ".join(f"`jobs.{name}`" for name in job.functions)
        lines.append(f"| [{job.called}]({job.section}) | {functions} | `{job.command}` |")
    return "\n".join(lines)


def __getattr__(name: str) -> Any:
    module = _NAMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"antiphon.{module}"), name)


def __dir__() -> list[str]:
    return sorted(_NAMES)
