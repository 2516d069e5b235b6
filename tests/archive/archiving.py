"""The archive job without Spark, for tests of those who read what it wrote."""

from pathlib import Path
from typing import Any

from antiphon.archive.job.plan import Limits
from antiphon.archive.job.run import ArchiveRun, addresses
from antiphon.archive.job.tasks import run_task
from tests.spark.nodes_in_thread import LiveNodes


def archive(live: LiveNodes, name: str, to: Path, up_to: Any = None, *, file_bytes: int = 1500) -> None:
    """Move records of a topic or table to files of about so many bytes."""
    run = ArchiveRun(addresses(live.servers), name, str(to), Limits(up_to=up_to), file_bytes=file_bytes)
    run.run(lambda tasks: [run_task(task) for task in tasks])
