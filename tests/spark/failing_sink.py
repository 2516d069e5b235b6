"""The sink with failures asked for by files, as a format of its own: `format("failing")`.

A file in DIR strikes once: `kill-N` makes the task of partition N kill its own process after its rows are written (staged or
appended); `fail-commit` makes `commit` fail before it does anything, `fail-apply` after the epoch is decided and before
anything of it is in the target, `fail-end` after everything is done. `die-apply` kills the driver with all its processes at
the same place as `fail-apply`; its process group is in the environment as DRIVER_GROUP.
"""

import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from antiphon.spark.source import AntiphonDataSource
from antiphon.spark.staging import commit as staging_commit
from antiphon.spark.write.options import parse_write
from antiphon.spark.write.sink import StreamSink, Written


def _strikes(folder: str, name: str) -> bool:
    """Was the failure asked for? It strikes once."""
    try:
        (Path(folder) / name).unlink()
    except FileNotFoundError:
        return False
    return True


def _kill_driver(*_: object) -> None:
    os.killpg(int(os.environ["DRIVER_GROUP"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class FailingSink(StreamSink):
    faults: str = ""

    def write(self, iterator: Any) -> Written:
        written = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if _strikes(self.faults, f"kill-{context.partitionId()}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if _strikes(self.faults, "fail-commit"):
            raise RuntimeError("commit fails as asked")
        if _strikes(self.faults, "fail-apply"):
            failure = RuntimeError("commit fails as asked")
            with mock.patch.object(staging_commit, "apply_epoch", side_effect=failure):
                super().commit(messages, batchId)
        if _strikes(self.faults, "die-apply"):
            with mock.patch.object(staging_commit, "apply_epoch", side_effect=_kill_driver):
                super().commit(messages, batchId)
        super().commit(messages, batchId)
        if _strikes(self.faults, "fail-end"):
            raise RuntimeError("commit fails as asked")


class FailingSource(AntiphonDataSource):
    @classmethod
    def name(cls) -> str:
        return "failing"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamSink:  # noqa: N802 - Spark's name
        raw = {name: value for name, value in self.options.items() if name != "faults"}
        failing = FailingSink(parse_write(raw, streaming=True), schema, overwrite=overwrite)
        failing.faults = self.options["faults"]
        return failing
