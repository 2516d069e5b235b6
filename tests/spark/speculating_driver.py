"""A driver of its own for a standalone cluster: streams a topic into another one while Spark runs slow tasks a second time.

Run as `python speculating_driver.py MASTER SERVERS FOLDER PROTOCOL...`; prints a line of JSON per protocol with the attempts
that Spark made. The format `slow` is Antiphon's, held up by files in FOLDER/PROTOCOL, which all machines see:

- partition 0: both copies of the task write at the same time, and neither returns before both have written everything;
- partition 1: the first copy takes its rows and only writes them when the epoch has been committed without it;
- partition 2 is quick: Spark needs a task that is through to call others slow.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

import antiphon.spark
from antiphon.spark.source import AntiphonDataSource

WAIT_S = 90.0  # on a machine that runs other tests beside it
CONFIG = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.efficiency.enabled": "false",
    "spark.python.task.killTimeout": "120s",  # the copy that Spark gives up on gets that long to do harm
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.cores.max": "4",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "30s",
}


class Files:
    """Marks that attempts leave for each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def leave(self, *words: object) -> None:
        (self.folder / "-".join(map(str, words))).touch()

    def wait(self, *words: object) -> None:
        deadline = time.monotonic() + WAIT_S
        while not (self.folder / "-".join(map(str, words))).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing left {words} in {self.folder}")
            time.sleep(0.01)


class SlowSink(DataSourceStreamArrowWriter):
    def __init__(self, inner: Any, files: Files) -> None:
        self.inner = inner
        self.files = files

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        files = self.files
        if partition == 0:
            message = self.inner.write(self._side_by_side(iterator, attempt))
            files.leave("written", 0, attempt)
            files.wait("written", 0, 1 - attempt)
            return message
        if partition == 1 and attempt == 0:
            rows = list(iterator)
            files.wait("committed")
            message = self.inner.write(iter(rows))
            files.leave("written", 1, "too-late")
            return message
        if partition == 1:
            files.wait("written", 0, 0)
            files.wait("written", 0, 1)
        return self.inner.write(iterator)

    def _side_by_side(self, iterator: Iterator[Any], attempt: int) -> Iterator[Any]:
        for number, batch in enumerate(iterator):
            if number == 1:
                self.files.leave("begun", attempt)
                self.files.wait("begun", 1 - attempt)
            yield batch

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.inner.commit(messages, batchId)
        self.files.leave("committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.inner.abort(messages, batchId)


class SlowSource(AntiphonDataSource):
    @classmethod
    def name(cls) -> str:
        return "slow"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        options = {name: value for name, value in self.options.items() if name != "folder"}
        inner = AntiphonDataSource(options).streamWriter(schema=schema, overwrite=overwrite)
        return SlowSink(inner, Files(Path(self.options["folder"])))


def _attempts(spark: Any, run_id: str) -> list[dict[str, Any]]:
    """Every attempt of every task of a query's run, as Spark's own books have it."""
    tracker, store = spark.sparkContext.statusTracker(), spark.sparkContext._jsc.sc().statusStore()
    found: list[dict[str, Any]] = []
    for job in tracker.getJobIdsForGroup(run_id):
        for stage in tracker.getJobInfo(job).stageIds:
            tasks = store.taskList(stage, 0, 1000)
            found += [_attempt(tasks.apply(number)) for number in range(tasks.size())]
    return found


def _attempt(task: Any) -> dict[str, Any]:
    return {
        "partition": task.index(),
        "attempt": task.attempt(),
        "speculative": task.speculative(),
        "host": task.host(),
        "status": task.status(),
    }


def main(master: str, servers: str, folder: str, *protocols: str) -> None:
    spark = antiphon.spark.session("speculation", master=master, config=CONFIG)
    spark.dataSource.register(SlowSource)
    for protocol in protocols:
        here = Path(folder) / protocol
        here.mkdir()
        query = (
            spark.readStream.format("antiphon")
            .options(servers=servers, topic="in", startingOffsets="earliest")
            .load()
            .select("key", "value", "partition")
            .writeStream.format("slow")
            .options(
                servers=servers, topic=f"out-{protocol}", protocol=protocol, folder=str(here), batchRows="50"
            )
            .option("checkpointLocation", str(here / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        Files(here).wait("written", 1, "too-late")
        print(json.dumps(_attempts(spark, str(query.runId))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
