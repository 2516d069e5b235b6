"""Staged epochs while everything dies: tasks, drivers and appliers at every message, chosen by a seed."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest

from antiphon.client.blocking import Cluster
from antiphon.client.blocking_link import Link
from antiphon.errors import AntiphonError, ProducerFencedError
from antiphon.model.metadata import Kind
from antiphon.model.rows import Version
from antiphon.records.changes import decode_changes
from antiphon.spark.job import Job
from antiphon.spark.staging import housekeeper as staging_housekeeper
from antiphon.spark.staging.epochs import split_key
from antiphon.spark.staging.housekeeper import Housekeeper
from antiphon.spark.write.options import WriteOptions, parse_write
from antiphon.spark.write.task import Task, TaskResult, commit_results, write_rows
from tests.spark.native_server import NativeServer

Row = tuple[bytes | None, bytes | None]
TRIES_MAX = 60


class DiesError(RuntimeError):
    """Whoever runs in this thread is dead."""


class Fuse:
    """Kills who runs in this thread after so many messages that are sent or received."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left: int | None = None
        self._thread = 0
        for name in ("send", "receive"):
            monkeypatch.setattr(Link, name, self._burning(getattr(Link, name)))

    def _burning(self, method: Any) -> Any:
        def burning(*args: Any, **kwargs: Any) -> Any:
            if self._left is not None and threading.get_ident() == self._thread:
                self._left -= 1
                if self._left < 0:
                    raise DiesError
            return method(*args, **kwargs)

        return burning

    @contextmanager
    def lit(self, messages: int | None) -> Iterator[None]:
        self._left, self._thread = messages, threading.get_ident()
        try:
            yield
        finally:
            self._left = None


class World:
    """A query that writes epochs, each again and again until it is through, never twice in the same way."""

    def __init__(self, server: NativeServer, fuse: Fuse, seed: int, *, table: bool) -> None:
        self.server, self.fuse, self.random, self.table = server, fuse, random.Random(seed), table
        self.shards = server.create("out", 3, Kind.TABLE if table else Kind.TOPIC)
        target = {"table": "out"} if table else {"topic": "out"}
        raw = {"servers": server.address, "timeoutMs": "5000", "batchRows": "7", **target}
        self.options: WriteOptions = parse_write(raw, streaming=True)
        host, _, port = server.address.rpartition(":")
        self.address = (host, int(port))
        self.left_over: list[list[TaskResult]] = []

    def partitions(self, rows: list[Row]) -> list[list[Row]]:
        """Rows as a shuffle might deal them out."""
        count = self.random.randint(1, 4)
        dealt: list[list[Row]] = [[] for _ in range(count)]
        for row in self.random.sample(rows, len(rows)):
            dealt[self.random.randrange(count)].append(row)
        return dealt

    def task(self, epoch: int, partition: int, rows: list[Row]) -> TaskResult:
        keys, values = [key for key, _ in rows], [value for _, value in rows]
        columns = {"value": pa.array(values, pa.binary())}
        if self.table:
            columns["key"] = pa.array(keys, pa.binary())
        cut = self.random.randint(0, len(rows))
        batch = pa.record_batch(columns)
        job = Job("q", epoch, partition)
        return write_rows(Task(self.options, job, 5), iter([batch.slice(0, cut), batch.slice(cut)]))

    def attempt(self, epoch: int, rows: list[Row]) -> bool:
        """One run of an epoch; was Spark told that it is done?"""
        results = []
        for partition, part in enumerate(self.partitions(rows)):
            for _ in range(3):
                with self.fuse.lit(self.random.choice([None, self.random.randint(0, 40)])):
                    try:
                        found = self.task(epoch, partition, part)
                    except DiesError:
                        continue  # the task is tried again
                if self.random.random() < 0.2:
                    continue  # its worker died before it could say so
                results.append(found)
                break
            else:
                return False
        if self.random.random() < 0.3:
            self.left_over.append(results)
        with self.fuse.lit(self.random.choice([None, self.random.randint(0, 60)])):
            try:
                commit_results(self.options, results, b"plan %d" % epoch)
            except DiesError:
                return False
        return self.random.random() < 0.7  # else it dies before it notes that

    def disturb(self) -> None:
        """What others do meanwhile."""
        if self.random.random() < 0.3:
            self.server.faults.drop_after_append = self.random.randint(0, 2)
        if self.random.random() < 0.5:
            self.keep_house(self.random.choice([None, self.random.randint(0, 40)]))
        if self.left_over and self.random.random() < 0.5:
            late = self.left_over.pop(self.random.randrange(len(self.left_over)))
            # It is refused where a later epoch is there.
            fuse = self.fuse.lit(self.random.choice([None, self.random.randint(0, 60)]))
            with suppress(DiesError, ProducerFencedError), fuse:
                commit_results(self.options, late, b"plan %d" % late[0].epoch)

    def keep_house(self, messages: int | None) -> None:
        with self.fuse.lit(messages), Cluster([self.address], 5_000) as cluster, suppress(DiesError):
            Housekeeper([self.address], None, wait_s=0).look(cluster)

    def write(self, epoch: int, rows: list[Row]) -> None:
        for _ in range(TRIES_MAX):
            over = threading.Event()
            helper: threading.Thread | None = None
            if self.random.random() < 0.5:
                helper = threading.Thread(target=self.keep_house_beside, args=[over, self.random.random()])
                helper.start()
            try:
                done = self.attempt(epoch, rows)
            finally:
                over.set()
                if helper is not None:
                    helper.join()
            if done:
                return
            self.disturb()
        raise AssertionError(f"epoch {epoch} does not get through")

    def keep_house_beside(self, over: threading.Event, seed: float) -> None:
        chance = random.Random(seed)
        with Cluster([self.address], 5_000) as cluster:
            while not over.wait(chance.random() * 0.003):
                Housekeeper([self.address], None, wait_s=chance.choice([0, 60])).look(cluster)


@pytest.mark.parametrize("seed", range(8))
def test_every_row_of_a_topic_once(server: NativeServer, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    world = World(server, Fuse(monkeypatch), seed, table=False)
    expected: Counter[bytes | None] = Counter()
    for epoch in range(5):
        rows: list[Row] = [(None, b"%d/%d" % (epoch, n)) for n in range(world.random.randint(1, 60))]
        world.write(epoch, rows)
        expected.update(value for _, value in rows)
        assert _values(world) == expected, f"after epoch {epoch}"
        world.disturb()
    for _ in range(3):
        world.disturb()
    assert _values(world) == expected
    server.faults.drop_after_append = 0
    world.keep_house(None)
    (rows_left,) = server.shards_of("__epochs")
    assert [key for key in rows_left.rows if not key.startswith(b"head/")] == []
    assert all(shard.log_start == shard.end for shard in server.shards_of("__staged"))


def _values(world: World) -> Counter[bytes | None]:
    from antiphon.records.decode import decode_records

    return Counter(
        record.value
        for shard in world.shards
        for _, batch in shard.batches
        for record in decode_records(batch)
    )


@pytest.mark.parametrize("seed", range(8))
def test_every_row_of_a_table_once(server: NativeServer, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    world = World(server, Fuse(monkeypatch), seed, table=True)
    state: dict[bytes, bytes] = {}
    puts: Counter[bytes] = Counter()
    for epoch in range(6):
        keys = world.random.sample([b"k%d" % n for n in range(12)], world.random.randint(1, 12))
        rows: list[Row] = [
            (key, b"%d of %d" % (n, epoch) if world.random.random() < 0.5 else None)
            for n, key in enumerate(keys)
        ]
        world.write(epoch, rows)
        for key, value in rows:
            if key is None or value is None:
                state.pop(key or b"", None)
            else:
                state[key] = value
                puts[value] += 1
        world.disturb()
        assert {key: value for shard in world.shards for key, (value, _) in shard.rows.items()} == state
    changes = [
        change
        for shard in world.shards
        for _, batch in shard.batches
        for change in decode_changes([memoryview(batch)])
    ]
    assert Counter(change.value for change in changes if change.value is not None) == puts


def decided_and_not_applied(
    server: NativeServer, monkeypatch: pytest.MonkeyPatch
) -> tuple[World, list[TaskResult]]:
    """A driver that died after the decision, and what its one task had staged."""
    world = World(server, Fuse(monkeypatch), 1, table=False)
    results = [world.task(0, 0, [(None, b"a")])]
    with monkeypatch.context() as patch:
        patch.setattr("antiphon.spark.staging.commit.apply_epoch", _raises)
        with pytest.raises(AntiphonError):
            commit_results(world.options, results, b"")
    return world, results


def test_the_housekeeper_leaves_alone_what_is_being_applied(
    server: NativeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, results = decided_and_not_applied(server, monkeypatch)
    with Cluster([world.address], 5_000) as cluster:
        patient = Housekeeper([world.address], None, wait_s=60)
        assert patient.look(cluster).finished == 0
        (part,) = [result.part for result in results]
        assert part is not None
        assert server.shards[part.shard_id].log_start <= part.first_offset
        assert not _values(world)
        assert Housekeeper([world.address], None, wait_s=0).look(cluster).finished == 1
        assert _values(world) == Counter([b"a"])
        assert patient.look(cluster).finished == 0


def test_rows_that_cannot_be_read_do_not_keep_the_housekeeper_from_the_others(
    server: NativeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trims nothing while there are such: they may be of an epoch that needs what is staged."""
    world, _ = decided_and_not_applied(server, monkeypatch)
    (table,) = server.shards_of("__epochs")
    good = next(value for key, (value, _) in table.rows.items() if key.startswith(b"open/"))
    version = Version(99, 0, 0, 0)
    bad = {
        b"pending/": b"",
        b"pending/zz/q": b"\x01",
        b"pending/00/head is bad": b"\x01",
        b"head/00/head is bad": b"garbage",
        b"open/no slash": good,
        b"open/00/q": b"garbage",
    }
    table.rows.update({key: (value, version) for key, value in bad.items()})
    with Cluster([world.address], 5_000) as cluster:
        look = Housekeeper([world.address], None, wait_s=0).look(cluster)
        assert (look.finished, look.trimmed) == (1, 0)
        assert _values(world) == Counter([b"a"])
        for key in bad:
            assert table.rows.pop(key)
        assert Housekeeper([world.address], None, wait_s=0).look(cluster).trimmed > 0


def test_what_is_decided_in_the_middle_of_a_look_is_not_trimmed(
    server: NativeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(server, Fuse(monkeypatch), 1, table=False)
    results = [world.task(0, 0, [(None, b"a")])]
    undecided = [results]

    def then_decides(method: Any) -> Any:
        def looked(*args: Any) -> Any:
            found = method(*args)
            if undecided:
                with monkeypatch.context() as patch, suppress(AntiphonError):
                    patch.setattr("antiphon.spark.staging.commit.apply_epoch", _raises)
                    commit_results(world.options, undecided.pop(), b"")
            return found

        return looked

    for name in ("_open", "_pending"):
        monkeypatch.setattr(Housekeeper, name, then_decides(getattr(Housekeeper, name)))
    with Cluster([world.address], 5_000) as cluster:
        Housekeeper([world.address], None, wait_s=60).look(cluster)
    assert not undecided
    commit_results(world.options, results, b"")
    assert _values(world) == Counter([b"a"])


def test_old_rows_go(server: NativeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(server, Fuse(monkeypatch), 1, table=False)
    batch = pa.record_batch({"value": pa.array([b"a"])})
    for query in ("batch/anonymous", "stream"):
        results = [write_rows(Task(world.options, Job(query, 0, 0), 5), iter([batch]))]
        commit_results(world.options, results, b"")
    write_rows(Task(world.options, Job("never decided", 0, 0), 5), iter([batch]))
    (table,) = server.shards_of("__epochs")

    def kinds() -> list[tuple[str, str]]:
        found = [split_key(key) for key in table.rows]
        return sorted((kind, query) for kind, _, query in found)

    def keep_house(**ages: int) -> None:
        for name, age in ages.items():
            monkeypatch.setattr(staging_housekeeper, name, age)
        world.keep_house(None)

    keep_house()
    kept = [("head", "stream"), ("open", "never decided")]
    assert kinds() == [("head", "batch/anonymous"), *kept]
    keep_house(ONCE_MS_MAX=-1)
    assert kinds() == kept
    assert any(shard.log_start < shard.end for shard in server.shards_of("__staged"))
    keep_house(OPEN_MS_MAX=-1)
    assert kinds() == kept[:1]
    assert all(shard.log_start == shard.end for shard in server.shards_of("__staged"))
    keep_house(ROW_MS_MAX=-1)
    assert kinds() == []


def _raises(*_: object) -> None:
    raise AntiphonError("the driver dies here")
