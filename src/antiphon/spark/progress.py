"""Progress bars for batch jobs in a terminal: which job Spark is at, how many of its tasks are through, rows read so far.

    with job_progress(spark, "archiving") as progress:
        ...                              # any actions on DataFrames
        progress.describe("verifying")
        ...

Spark is asked five times a second from a thread of its own. It counts a task's rows when the task ends. Where stderr is not
a terminal nothing is drawn and nobody asked. A bar that cannot be drawn never stops the job that it is about.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console
    from rich.progress import Progress, TaskID

INTERVAL_S: Final = 0.2
PENDING: Final = "PENDING"


class Stage(NamedTuple):
    """A stage as Spark's status store has it."""

    status: str
    tasks: int
    completed: int
    failed: int
    rows_read: int


class Seen(NamedTuple):
    """The jobs that run now, all together; `rows_read` and `jobs` are sums since the beginning."""

    jobs: int
    tasks: int
    completed: int
    failed: int
    rows_read: int


class JobTracker:
    """What the jobs of a session have done since this object was made. `tracker` and `store` are Spark's."""

    def __init__(self, tracker: Any, store: Any) -> None:
        self._tracker = tracker
        self._store = store
        self._before = frozenset(tracker.getActiveJobsIds())  # somebody else's
        self._jobs: set[int] = set()  # that run
        self._jobs_ended = 0
        self._stages: set[int] = set()  # of the jobs that run
        self._rows_ended = 0  # of stages that are over

    @classmethod
    def of(cls, spark: "SparkSession") -> "JobTracker | None":
        """None for a session of Spark Connect, whose client cannot ask for jobs."""
        try:
            context = spark.sparkContext
            return cls(context.statusTracker(), context._jsc.sc().statusStore())  # noqa: SLF001 - it has no public name
        except Exception:  # noqa: BLE001 - whatever it is, the job can do without a bar
            return None

    def look(self) -> Seen:
        """Ask Spark. Raises what py4j raises when Spark has stopped."""
        jobs = {job for job in self._tracker.getActiveJobsIds() if job not in self._before}
        self._jobs_ended += len(self._jobs - jobs)
        self._jobs = jobs
        stages: dict[int, Stage] = {}
        for job in jobs:
            info = self._tracker.getJobInfo(job)
            stages |= self._of_job(sorted(info.stageIds) if info is not None else [])
        over = self._stages - stages.keys()
        self._rows_ended += sum(
            stage.rows_read for number in over if (stage := self._stage(number)) is not None
        )
        self._stages = set(stages)
        return Seen(
            self._jobs_ended + len(jobs),
            sum(stage.tasks for stage in stages.values()),
            sum(stage.completed for stage in stages.values()),
            sum(stage.failed for stage in stages.values()),
            self._rows_ended + sum(stage.rows_read for stage in stages.values()),
        )

    def _of_job(self, numbers: list[int]) -> dict[int, Stage]:
        """A job's stages, without those whose results are there already: they stay pending when the last stage runs."""
        found = {number: stage for number in numbers if (stage := self._stage(number)) is not None}
        if numbers and numbers[-1] in found and found[numbers[-1]].status != PENDING:
            return {number: stage for number, stage in found.items() if stage.status != PENDING}
        return found

    def _stage(self, number: int) -> Stage | None:
        if self._tracker.getStageInfo(number) is None:  # not known yet, or no more
            return None
        data = self._store.lastStageAttempt(number)
        return Stage(
            str(data.status().toString()),
            data.numTasks(),
            data.numCompleteTasks(),
            data.numFailedTasks(),
            data.inputRecords(),
        )


class JobProgress:
    """What `job_progress` yields."""

    def __init__(self, bar: "_Bar | None", description: str) -> None:
        self._bar = bar
        self.description = description
        self.describe(description)

    def describe(self, description: str) -> None:
        """Say what is going on now, in a word or two."""
        self.description = description
        if self._bar is not None:
            self._bar.describe(description)


class _Bar:
    """A line at the bottom of the terminal, and the thread that keeps it up to date."""

    def __init__(self, console: "Console", jobs: JobTracker | None) -> None:
        self._jobs = jobs
        self._progress: Progress = _display(console)
        self._task: TaskID = self._progress.add_task("", total=None, detail="")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-progress", daemon=True)
        self.description = ""

    def describe(self, description: str) -> None:
        self.description = description
        self._progress.update(self._task, description=description)

    def start(self) -> None:
        self._progress.start()
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._progress.stop()

    def _run(self) -> None:
        jobs = self._jobs
        while jobs is not None and not self._ended.wait(INTERVAL_S):
            try:
                seen = jobs.look()
            except Exception:  # noqa: BLE001 - Spark has stopped, or does not tell: the line stays without figures
                return
            # A bar without a total moves to and fro: between jobs there is nothing to count.
            total = seen.tasks or None
            self._progress.update(self._task, total=total, completed=seen.completed, detail=_detail(seen))


def _display(console: "Console") -> "Progress":
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # What a command prints goes above the bar, if it goes to the same terminal; into a file or pipe as it is.
        redirect_stdout=sys.stdout.isatty(),
    )


def _detail(seen: Seen) -> str:
    parts = [f"job {seen.jobs}"] if seen.jobs else []
    if seen.tasks:
        parts.append(f"{seen.completed}/{seen.tasks} tasks")
    if seen.failed:
        parts.append(f"{seen.failed} failed and tried again")
    if seen.rows_read:
        parts.append(f"{_short(seen.rows_read)} rows read")
    return ", ".join(parts)


def _short(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


_shown: _Bar | None = None  # there is one terminal


@contextmanager
def job_progress(
    spark: "SparkSession", description: str, *, console: "Console | None" = None
) -> Iterator[JobProgress]:
    """Show a bar for the Spark jobs that run within, while stderr is a terminal.

    Within another one it only changes the words in front of that one's bar, and puts them back at its end.

    Args:
        spark: the session whose jobs are meant. One of Spark Connect tells nothing about jobs: no figures then.
        description: a word or two, such as "archiving".
        console: draw there instead of on stderr.
    """
    global _shown  # noqa: PLW0603 - as the terminal is one for the process
    outer = _shown
    if outer is not None:
        before = outer.description
        try:
            yield JobProgress(outer, description)
        finally:
            outer.describe(before)
        return
    if console is None:
        from rich.console import Console

        console = Console(stderr=True)
    if not console.is_terminal:
        yield JobProgress(None, description)
        return
    bar = _Bar(console, JobTracker.of(spark))
    _shown = bar
    try:
        handle = JobProgress(bar, description)
        bar.start()
        yield handle
    finally:
        _shown = None
        bar.stop()
