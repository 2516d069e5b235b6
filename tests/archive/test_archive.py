"""Archiving on real nodes, without Spark: what is moved, read, refused, and what a crash leaves."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import antiphon
from antiphon.archive.catalog import (
    Catalog,
    archived_offset_at,
    archived_rows,
    archived_start,
    topic_named,
)
from antiphon.archive.files import verify
from antiphon.archive.format import ArchivedFile
from antiphon.archive.job import run as archive_job
from antiphon.archive.job.plan import Limits
from antiphon.archive.job.run import ArchiveReport, ArchiveRun, Runner, addresses
from antiphon.archive.job.tasks import run_task
from antiphon.client.blocking import Cluster
from antiphon.errors import ArchiveError, InvalidRequestError, OffsetOutOfRangeError, UnknownTopicError
from antiphon.node.trimming import trim_replica
from antiphon.records.arrow import to_arrow
from antiphon.records.decode import Record
from tests.spark.nodes_in_thread import LiveNodes, live_nodes

SMALL_BYTES: Final = 1000
_names = count()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path_factory.mktemp("archive"), 3) as running:
        yield running


@pytest.fixture(scope="module")
def db(live: LiveNodes) -> Iterator[antiphon.Client]:
    with antiphon.connect(live.servers, timeout_s=20) as client:
        yield client


class Topic:
    """A topic with some history, and how to archive it."""

    def __init__(self, live: LiveNodes, db: antiphon.Client, root: Path, batches: int = 30) -> None:
        self.live, self.db, self.root = live, db, root
        self.name = f"history{next(_names)}"
        db.create_topic(self.name, shards=1, config={"retention.ms": "-1"})  # their records are of 1970
        self.log = db.topic(self.name)
        self.appended = 0
        self.append(batches // 2)
        db.elect_leader(self.name, 0)  # which leaves an entry that is no record
        self.append(batches // 2)
        self.records = list(self.log.read(start=0))
        self.cluster = Cluster(addresses(live.servers), 20_000)
        self.shard_id = topic_named(self.cluster, self.name, refresh=True).shards[0].shard_id

    def append(self, batches: int) -> None:
        """Batches of seven records of every sort; each batch is a second later than the one before."""
        for number in range(self.appended, self.appended + batches):
            messages: list[Any] = [
                (f"key{at}" if at % 3 else None, f"{number}.{at}" * at if at != 2 else None, self.headers(at))
                for at in range(7)
            ]
            self.log.append_batch(messages, shard=0, timestamp_ms=1_000_000 + 1000 * number)

        self.appended += batches

    @staticmethod
    def headers(at: int) -> tuple[tuple[str, bytes | None], ...]:
        return (("a", b"1"), ("b", None), ("a", b""))[: at % 4]

    @property
    def end(self) -> int:
        return self.log.offsets()[1]

    def run(self, runner: Runner | None = None, *, trim: bool = True, **how: Any) -> ArchiveReport:
        how = {"file_bytes": SMALL_BYTES, "up_to": None, **how}
        limits = Limits(how.pop("older_than_ms", None), how.pop("keep_bytes", None), how.pop("up_to"))
        self.live.all_settled(self.shard_id)
        made = ArchiveRun(
            addresses(self.live.servers), self.name, str(self.root), limits, timeout_ms=20_000, **how
        )
        return made.run(runner or one_by_one, trim=trim)

    @property
    def catalog(self) -> list[ArchivedFile]:
        self.cluster.metadata()
        return Catalog(self.cluster).of_shard(topic_named(self.cluster, self.name), 0)

    def files_on_disk(self) -> list[str]:
        return sorted(path.as_uri() for path in self.root.rglob("*.parquet"))

    def check(self, since: int | None = None) -> None:
        """Everything is there once, for both clients, and the catalog is a chain of good files."""
        known = [record for record in self.records if since is None or record.offset >= since]
        assert list(self.log.read(start=-2 if since is None else since)) == known
        files = self.catalog
        assert [file.start for file in files[1:]] == [file.end for file in files[:-1]]
        for file in files:
            verify(file)
        start, log_start = files[0].start, self.log.offsets()[0]
        assert archived_start(self.cluster, self.name, 0, log_start, 0) == min(start, log_start)
        rows = [row for batch in self.rows(start, files[-1].end) for row in batch]
        assert [row["offset"] for row in rows] == [r.offset for r in known if r.offset < files[-1].end]

    def rows(self, start: int, end: int) -> Iterator[list[dict[str, Any]]]:
        for batch in archived_rows(self.cluster, self.name, 0, start, end):
            yield batch.to_pylist()


@pytest.fixture
def topic(live: LiveNodes, db: antiphon.Client, tmp_path: Path) -> Iterator[Topic]:
    made = Topic(live, db, tmp_path / "archive")
    with made.cluster:
        yield made


def one_by_one(tasks: Any) -> list[ArchivedFile | None]:
    return [run_task(task) for task in tasks]


def test_old_records_move_and_stay_one_topic(topic: Topic) -> None:
    cut = topic.records[100].offset
    report = topic.run(up_to=cut)
    assert report.files == len(topic.catalog) > 2
    assert report.shards[0].archived == (0, cut)
    assert report.rows == 100
    starts = topic.live.log_starts(topic.shard_id)
    assert starts == report.shards[0].log_starts
    assert all(cut - 7 < start <= cut for start in starts.values())
    topic.check()
    for start in (0, 1, 57, cut - 1, cut, cut + 1):
        assert next(iter(topic.log.read(start=start))) == next(r for r in topic.records if r.offset >= start)
    assert list(topic.log.read(start=0, isolation="uncommitted")) == topic.records
    assert list(islice(topic.log.read(start=-2, follow=True), len(topic.records))) == topic.records
    assert list(topic.log.read(start=10, end=20)) == [r for r in topic.records if 10 <= r.offset < 20]
    topic.append(5)
    topic.records = list(topic.log.read(start=0))
    assert len(topic.records) == 35 * 7
    assert topic.run().shards[0].archived == (0, topic.end)
    topic.check()
    assert topic.run().files == 0


def test_nothing_of_a_record_is_lost(topic: Topic) -> None:
    topic.run()
    rows = [row for batch in topic.rows(0, topic.end) for row in batch]
    assert [
        Record(
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
            0,
        )
        for row in rows
    ] == topic.records
    first = rows[0]
    assert (first["topic"], first["partition"], first["timestampType"]) == (topic.name, 0, 0)
    assert first["term"] > 0
    assert sum(file.controls for file in topic.catalog) == topic.end - len(topic.records) > 0


class CrashError(Exception):
    """What a test raises in the middle."""


STEPS: Final = ("before a task", "after a task", "in a task", "before the catalog", "between rows", "before the trim",
                "between trims")  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_and_doubles_nothing(
    topic: Topic, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a run that ends has left behind, the next one completes it, and removes what nobody knows of."""
    cut = topic.records[150].offset
    with monkeypatch.context() as patch, pytest.raises(CrashError):
        topic.run(crashing(step, patch), up_to=cut)
    topic.records = list(topic.log.read(start=-2))
    assert len(topic.records) == 30 * 7
    before = topic.files_on_disk()
    report = topic.run(up_to=cut, orphan_age_ms=0)
    topic.check()
    assert report.shards[0].archived == (0, cut)
    assert topic.files_on_disk() == sorted(file.uri for file in topic.catalog)
    assert set(report.orphans) == set(before) - {file.uri for file in topic.catalog}
    assert bool(report.orphans) == (
        step in {"after a task", "in a task", "before the catalog", "between rows"}
    )
    assert all(start > cut - 7 for start in topic.live.log_starts(topic.shard_id).values())


def crashing(step: str, patch: pytest.MonkeyPatch) -> Runner:
    """A runner of tasks that crashes, or one that comes before a crash later on."""

    def runner(tasks: Any) -> list[ArchivedFile | None]:
        if step == "before a task":
            raise CrashError
        if step == "in a task":
            patch.setattr("antiphon.archive.job.tasks._prove", crash)
            patch.setattr("antiphon.archive.job.tasks.remove_file", lambda *_: None)
        found = one_by_one(tasks)
        if step == "after a task":
            raise CrashError
        return found

    if step == "before the catalog":
        patch.setattr(Catalog, "put", crash)
    elif step == "between rows":
        patch.setattr(Catalog, "put", after(2, Catalog.put))
    elif step == "before the trim":
        patch.setattr(ArchiveRun, "_trim", crash)
    elif step == "between trims":
        asked = after(1, Cluster.ask, kind="TrimShard")
        patch.setattr(Cluster, "ask", asked)
    return runner


def crash(*_: Any) -> Any:
    raise CrashError


def after(times: int, real: Callable[..., Any], kind: str = "") -> Callable[..., Any]:
    """`real` so many times, then a crash."""
    done = count()

    def call(self: Any, *arguments: Any) -> Any:
        if (not kind or type(arguments[-1]).__name__ == kind) and next(done) >= times:
            raise CrashError
        return real(self, *arguments)

    return call


@pytest.mark.parametrize("when", ["before it reads", "after it read"])
def test_of_two_runs_at_once_the_first_counts(topic: Topic, when: str) -> None:
    """The other run archives something else in between: what was written in vain is removed, the rest goes on."""
    cut = topic.records[120].offset
    others: list[ArchiveReport] = []

    def overtaken(tasks: Any) -> list[ArchivedFile | None]:
        found = one_by_one(tasks) if when == "after it read" else []
        if not others:
            others.append(topic.run(up_to=topic.records[80].offset, file_bytes=SMALL_BYTES // 2 * 3))
        return found or one_by_one(tasks)

    report = topic.run(overtaken, up_to=cut)
    assert report.shards[0].archived == (0, cut)
    assert others[0].rows + report.rows == 120
    topic.check()
    assert topic.files_on_disk() == sorted(file.uri for file in topic.catalog)


def test_many_runs_writes_and_reads_at_once(topic: Topic) -> None:
    """Nobody ever misses or repeats a record, and what is left is a chain of files and nothing else."""
    stop = threading.Event()
    found: list[Exception] = []

    def again_and_again(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                while not stop.is_set():
                    work()
            except Exception as error:  # noqa: BLE001 - told at the end, in the test's own thread
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def archive(file_bytes: int) -> Callable[[], None]:
        made = ArchiveRun(
            addresses(topic.live.servers),
            topic.name,
            str(topic.root),
            Limits(),
            file_bytes=file_bytes,
            timeout_ms=20_000,
        )
        return lambda: void(made.run(one_by_one))

    def read() -> None:
        end = topic.end
        offsets = [record.offset for record in topic.log.read(start=-2)]
        missing = set(range(end)) - set(offsets)
        assert offsets == sorted(set(offsets))
        assert len(missing) == 1  # the entry of the election

    threads = [again_and_again(work) for work in (archive(500), archive(1300), read, lambda: topic.append(1))]
    time.sleep(1.2)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert found == []
    topic.records = list(topic.log.read(start=0))
    assert len(topic.records) == topic.appended * 7
    topic.check()
    assert topic.files_on_disk() == sorted(file.uri for file in topic.catalog)


def void(_: object) -> None:
    """For its effect only."""


def test_a_file_of_a_run_that_is_under_way_is_left_alone(topic: Topic) -> None:
    def other_run_at_the_same_time(tasks: Any) -> list[ArchivedFile | None]:
        found = one_by_one(tasks)
        assert topic.run(up_to=0).orphans == []
        return found

    topic.run(other_run_at_the_same_time)
    topic.check()
    topic.append(1)
    with pytest.raises(ArchiveError, match="took so long"):
        topic.run(slowly, orphan_age_ms=20)


def slowly(tasks: Any) -> list[ArchivedFile | None]:
    found = one_by_one(tasks)
    time.sleep(0.02)
    return found


def test_a_replica_that_is_away_is_trimmed_by_the_next_run(topic: Topic) -> None:
    away = next(n for n in (0, 1, 2) if n != topic.live.run(leader_of(topic)))
    topic.live.stop(away)
    try:
        report = topic.run(up_to=100)
        assert list(report.shards[0].behind) == [away]
        assert len(report.shards[0].log_starts) == 2
    finally:
        topic.live.start(away)
    topic.live.until(lambda: topic.shard_id in topic.live.nodes.nodes[away].hosts)
    report = topic.run(up_to=100)
    assert (report.files, report.shards[0].behind) == (0, {})
    assert min(topic.live.log_starts(topic.shard_id).values()) > 93
    topic.check()


async def leader_of(topic: Topic) -> int:
    return (await topic.live.nodes.leader(topic.shard_id)).services.node_id


def test_the_log_start_moves_while_somebody_reads(topic: Topic) -> None:
    reader = topic.log.read(start=0)
    found = [next(reader)]
    cluster = Cluster(addresses(topic.live.servers), 20_000)
    with cluster:
        topic.run(up_to=topic.records[60].offset)
        found += [next(reader) for _ in range(20)]
        topic.run(up_to=topic.records[-5].offset)
        found += list(reader)
    assert found == topic.records


def test_what_is_archived_without_a_trim_is_trimmed_by_a_later_run(topic: Topic) -> None:
    topic.run(up_to=100, trim=False)
    assert set(topic.live.log_starts(topic.shard_id).values()) == {0}
    topic.check()
    topic.run(up_to=50)
    assert max(topic.live.log_starts(topic.shard_id).values()) <= 50
    Path(topic.catalog[-1].uri.removeprefix("file://")).unlink()
    with pytest.raises(ArchiveError, match="not there any more"):
        topic.run(up_to=100)
    assert max(topic.live.log_starts(topic.shard_id).values()) <= 50


def test_limits(topic: Topic) -> None:
    now_ms = time.time_ns() // 1_000_000
    assert topic.run(older_than_ms=now_ms, up_to=500).files == 0
    tenth = next(r for r in topic.records if r.timestamp_ms == 1_010_000)
    age_ms = now_ms - tenth.timestamp_ms
    assert topic.run(older_than_ms=age_ms + 500, trim=False).shards[0].archived[1] in range(
        1, tenth.offset + 1
    )
    status = topic.live.run(size_of(topic))
    cut = topic.run(keep_bytes=status // 3, trim=False).shards[0].archived[1]
    assert topic.end * 0.6 < cut < topic.end * 0.73
    for limits in ({"older_than_ms": -1}, {"keep_bytes": -1}, {"up_to": -1}, {"up_to": {7: 1}}):
        with pytest.raises(InvalidRequestError):
            topic.run(**limits)
    assert topic.run(up_to={}).files == 0
    assert topic.run(up_to={0: 1 << 40}).shards[0].archived == (0, topic.end)


async def size_of(topic: Topic) -> int:
    return (await topic.live.nodes.leader(topic.shard_id)).log.size_bytes


def test_times_are_found_in_the_archive(topic: Topic) -> None:
    topic.run(up_to=topic.records[140].offset)
    log_start = topic.log.offsets()[0]
    for number in (0, 5, 12, 25, 29):
        wanted = 1_000_000 + 1000 * number
        first = next(r.offset for r in topic.records if r.timestamp_ms >= wanted - 999)
        assert topic.log.offset_at(wanted - 999) == first
        found = archived_offset_at(topic.cluster, topic.name, 0, wanted - 999, log_start, 0)
        assert found == (first if first < log_start else None)
    assert topic.log.offset_at(1 << 41) == topic.end


def test_records_that_were_deleted_are_in_no_archive_that_anybody_is_shown(topic: Topic) -> None:
    """The files that hold them stay as they are. What is deleted before it is archived is no gap, either."""
    topic.run(up_to=100)
    node = topic.live.nodes.nodes[topic.live.run(leader_of(topic))]
    assert topic.live.run(node.gateway.trim(topic.shard_id, 45, 10.0)) == 98
    log_start = topic.log.offsets()[0]
    assert archived_start(topic.cluster, topic.name, 0, log_start, 45) == 45
    assert [one.offset for one in topic.log.read(start=-2)][:2] == [45, 46]
    for start in (0, 44):
        with pytest.raises(OffsetOutOfRangeError):
            list(topic.log.read(start=start))
    assert topic.log.offset_at(0) == 45
    assert archived_offset_at(topic.cluster, topic.name, 0, 0, log_start, 45) == 45
    assert topic.live.run(node.gateway.trim(topic.shard_id, 150, 10.0)) == 150
    assert [one.offset for one in topic.log.read(start=-2)][:2] == [150, 151]
    assert topic.run(up_to=None).shards[0].lost == 0


def test_a_node_with_old_metadata_does_not_hide_the_archive(topic: Topic) -> None:
    """One that was just started may know neither the catalog nor the newest topics for a moment."""
    topic.run(up_to=100)
    now = topic.cluster.metadata()
    others = tuple(one for one in now.topics if one.name != "__archive")
    topic.cluster._routes.meta = msgspec.structs.replace(now, version=now.version - 1, topics=others)
    assert archived_start(topic.cluster, topic.name, 0, 100, 0) == 0


def test_what_is_neither_in_the_log_nor_in_the_archive_is_told(topic: Topic) -> None:
    node = topic.live.nodes.nodes[topic.live.run(leader_of(topic))]
    before = topic.live.run(trim_replica(node.replicas, topic.shard_id, 50))
    with pytest.raises(OffsetOutOfRangeError, match="outside the shard's log"):
        list(topic.log.read(start=0))  # as ever: nothing of it was archived
    topic.run(up_to=100)
    topic.check(since=before)
    with pytest.raises(OffsetOutOfRangeError, match=f"its archive begins at {before}"):
        list(topic.log.read(start=0))
    with pytest.raises(antiphon.AntiphonError, match=f"start at {before}"):
        list(topic.rows(before - 1, 100))
    topic.live.run(trim_replica(node.replicas, topic.shard_id, 150))
    report = topic.run(up_to=180)
    assert report.shards[0].lost > 40
    since = report.shards[0].archived[0]
    assert list(topic.log.read(start=-2)) == [r for r in topic.records if r.offset >= since]


def test_a_table_s_log_is_archived_like_a_topic_s(
    live: LiveNodes, db: antiphon.Client, tmp_path: Path
) -> None:
    db.create_table("rows", shards=1)
    rows = db.table("rows")
    for number in range(60):
        rows.put(f"k{number % 7}", f"v{number}")
    rows.delete("k3")
    log = db.topic("rows", any_kind=True)
    before = list(log.read(start=0))
    run = ArchiveRun(addresses(live.servers), "rows", str(tmp_path), Limits(), timeout_ms=20_000)
    report = run.run(one_by_one)
    assert report.rows == len(before) == 61
    assert max(report.shards[0].log_starts.values()) == log.offsets()[1]
    assert list(log.read(start=0)) == before
    assert rows.get("k4").value == b"v53"
    rows.put("k3", "again")
    assert [record.key for record in log.read(start=0)][-2:] == [b"k3", b"k3"]


def test_what_cannot_be_archived_is_refused(live: LiveNodes, db: antiphon.Client, tmp_path: Path) -> None:
    def run(name: str, uri: str = "") -> None:
        ArchiveRun(addresses(live.servers), name, uri or str(tmp_path), Limits()).run(one_by_one)

    db.create_topic("everybody", config={"writers": "multi"})
    with pytest.raises(InvalidRequestError, match="written by every replica"):
        run("everybody")
    with pytest.raises(UnknownTopicError):
        run("nobody")
    db.create_topic("somebody")
    with pytest.raises(ArchiveError, match="nofs"):
        run("somebody", "nofs://x/y")
    db.topic("somebody").append(b"x")
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="could not be written"):
        run("somebody", str(tmp_path / "file"))
    with pytest.raises(InvalidRequestError, match="chained"):
        run("somebody", "simplecache::file:///tmp")


def test_an_unfit_task_leaves_no_file(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that loses a record is found out by the digest, and what it wrote is removed."""
    from antiphon.archive.job import tasks as archive_tasks

    monkeypatch.setattr(archive_tasks, "to_arrow", lambda *a, **k: to_arrow(*a, **k).slice(1))
    with pytest.raises(ArchiveError, match="records were written"):
        topic.run()
    assert topic.files_on_disk() == []

    def twisted(*arguments: Any, **named: Any) -> Any:
        import pyarrow as pa

        batch = to_arrow(*arguments, **named)
        values = pa.array(
            [b"x" if value else value for value in batch.column("value").to_pylist()], pa.binary()
        )
        return batch.set_column(1, batch.schema.field("value"), values)

    monkeypatch.setattr(archive_tasks, "to_arrow", twisted)
    with pytest.raises(ArchiveError, match="digest"):
        topic.run()
    assert topic.files_on_disk() == []
    assert topic.catalog == []


def test_memory_and_other_file_systems(topic: Topic) -> None:
    topic.root = "memory://bucket/archive"  # type: ignore[assignment]
    topic.run(up_to=100)
    assert topic.catalog[0].uri.startswith("memory://")
    topic.check()


def test_the_run_reports_in_json(topic: Topic) -> None:
    found = topic.run(up_to=100).as_dict()
    assert found["shards"][0]["log_starts"].keys() == {"0", "1", "2"}
    assert archive_job.addresses("[::1]:7400, h:1") == (("::1", 7400), ("h", 1))
