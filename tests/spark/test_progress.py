"""The progress bar of batch jobs: what it counts, and what a terminal shows."""

import io
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

import antiphon.spark
from antiphon.records.builder import build_batch
from antiphon.spark.progress import JobTracker, Seen

if TYPE_CHECKING:
    from tests.spark.conftest import Reader
    from tests.spark.native_server import NativeServer


class FakeSpark:
    """Status tracker and store at once: jobs with their stages, stages with (status, tasks, completed, failed, rows)."""

    def __init__(self) -> None:
        self.jobs: dict[int, tuple[int, ...]] = {}
        self.stages: dict[int, tuple[str, int, int, int, int]] = {}

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - Spark's name
        return list(self.jobs)

    def getJobInfo(self, job: int) -> Any:  # noqa: N802 - Spark's name
        return SimpleNamespace(stageIds=self.jobs[job]) if job in self.jobs else None

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802 - Spark's name
        return self.stages.get(stage)

    def lastStageAttempt(self, stage: int) -> Any:  # noqa: N802 - Spark's name
        status, tasks, completed, failed, rows = self.stages[stage]
        return SimpleNamespace(
            status=lambda: SimpleNamespace(toString=lambda: status),
            numTasks=lambda: tasks,
            numCompleteTasks=lambda: completed,
            numFailedTasks=lambda: failed,
            inputRecords=lambda: rows,
        )


def test_what_is_counted() -> None:
    fake = FakeSpark()
    fake.jobs[0], fake.stages[0] = (0,), ("ACTIVE", 9, 0, 0, 70)
    jobs = JobTracker(fake, fake)
    assert jobs.look() == Seen(0, 0, 0, 0, 0), "a job that ran before is somebody else's"
    fake.jobs[1] = (1, 2)
    fake.stages |= {1: ("ACTIVE", 8, 3, 1, 300), 2: ("PENDING", 2, 0, 0, 0)}
    assert jobs.look() == Seen(1, 10, 3, 1, 300)
    # Its last stage reads what the first has written; then the next job finds the same result there already.
    fake.stages |= {1: ("COMPLETE", 8, 8, 1, 800), 2: ("ACTIVE", 2, 1, 0, 0)}
    assert jobs.look() == Seen(1, 10, 9, 1, 800)
    del fake.jobs[1]
    fake.jobs[2] = (3, 4, 5)
    fake.stages |= {3: ("PENDING", 8, 0, 0, 0), 4: ("ACTIVE", 1, 0, 0, 11)}
    assert jobs.look() == Seen(2, 9, 0, 0, 811), "the job's last stage is not known yet"
    fake.stages[5] = ("ACTIVE", 4, 1, 0, 0)
    assert jobs.look() == Seen(2, 5, 1, 0, 811)
    fake.jobs.clear()
    fake.stages[4] = ("COMPLETE", 1, 1, 0, 13)
    assert jobs.look() == Seen(2, 0, 0, 0, 813)


def test_no_terminal_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    spark: Any = object()
    with antiphon.spark.job_progress(spark, "archiving") as progress:
        progress.describe("verifying")
    assert capfd.readouterr() == ("", "")


def test_a_session_that_tells_nothing_gets_a_line_all_the_same() -> None:
    screen = io.StringIO()
    spark: Any = object()
    with antiphon.spark.job_progress(spark, "archiving", console=Console(file=screen, force_terminal=True)):
        time.sleep(0.3)
    assert "archiving" in screen.getvalue()


@pytest.mark.spark
def test_a_terminal_shows_jobs_tasks_and_rows(
    server: "NativeServer", antiphon_reader: "Reader", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.spark.progress.INTERVAL_S", 0.02)
    (shard,) = server.create("flights")
    for _ in range(10):
        shard.put(build_batch([(b"k", b"v", (), 5)] * 120))
    screen = io.StringIO()
    out = sys.stdout
    with antiphon.spark.job_progress(
        antiphon_reader.spark, "counting", console=Console(file=screen, force_terminal=True, width=120)
    ) as progress:
        assert antiphon_reader.batch(topic="flights", minPartitions=3).count() == 1200
        progress.describe("counting again")
        with antiphon.spark.job_progress(antiphon_reader.spark, "an inner job"):
            assert antiphon_reader.batch(topic="flights", minPartitions=3).count() == 1200
            time.sleep(0.3)
        assert progress.description == "counting again"
    assert sys.stdout is out
    shown = screen.getvalue()
    for words in ("counting", "an inner job", "job 1", "/3 tasks", "1.2 k rows read"):
        assert words in shown
    assert shown.rindex("an inner job") < shown.rindex("counting again")
