"""Staged writes without Spark: tasks, drivers and the cluster's own hand, against an in-process server."""

import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.client.blocking import Cluster
from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    CorruptBatchError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    ReplayConflictError,
    UnavailableError,
    UnknownTopicError,
)
from antiphon.model.metadata import Kind
from antiphon.model.rows import Row, Version
from antiphon.records.batch import validate_batch
from antiphon.records.decode import decode_records
from antiphon.spark.job import Job
from antiphon.spark.staging import commit as staging_commit
from antiphon.spark.staging import task as staging_task
from antiphon.spark.staging.blobs import (
    EPOCHS_TABLE,
    STAGED_TOPIC,
    BlobAt,
    BlobHead,
    Wanted,
    decode_blob,
    encode_blob,
    ensure_internal,
    read_blobs,
)
from antiphon.spark.staging.epochs import Epoch, Epochs, Opened, Part, Stored, opened_of, stored_of
from antiphon.spark.staging.housekeeper import Housekeeper
from antiphon.spark.write.options import WriteOptions, parse_write
from antiphon.spark.write.task import Task, TaskResult, commit_results, write_rows
from tests.spark.native_server import MemoryShard, NativeServer

VERSION = Version(1, 0, 0, 0)


def options_for(server: NativeServer, **more: str) -> WriteOptions:
    target = {} if "table" in more else {"topic": "out"}
    return parse_write(
        {"servers": server.address, "timeoutMs": "3000", "batchRows": "10", **target, **more}, streaming=True
    )


def rows(first: int, count: int, *, key: bool = False, **more: pa.Array) -> pa.RecordBatch:
    values = [str(n).encode() for n in range(first, first + count)]
    columns: dict[str, pa.Array] = {"value": pa.array(values, pa.binary())}
    if key:
        columns["key"] = columns["value"]
    return pa.record_batch({**columns, **more})


def staged(options: WriteOptions, job: Job, *batches: pa.RecordBatch) -> TaskResult:
    """A task's write, as the driver hears of it."""
    result: TaskResult = pickle.loads(pickle.dumps(write_rows(Task(options, job, 1_000), iter(batches))))
    return result


def epoch_of(
    options: WriteOptions, number: int, *parts: pa.RecordBatch, query: str = "q"
) -> list[TaskResult]:
    """All tasks of an epoch, a batch each."""
    return [staged(options, Job(query, number, at), part) for at, part in enumerate(parts)]


def values(shards: list[MemoryShard]) -> Counter[bytes | None]:
    return Counter(
        record.value for shard in shards for _, batch in shard.batches for record in decode_records(batch)
    )


def numbers(first: int, count: int) -> Counter[bytes | None]:
    return Counter(str(n).encode() for n in range(first, first + count))


def stored(server: NativeServer) -> list[Epoch]:
    (shard,) = server.shards_of(EPOCHS_TABLE)
    heads = [value for key, (value, _) in sorted(shard.rows.items()) if key.startswith(b"head/")]
    return [msgspec.msgpack.decode(value, type=Epoch) for value in heads]


def pending(server: NativeServer) -> int:
    (shard,) = server.shards_of(EPOCHS_TABLE)
    return sum(key.startswith(b"pending/") for key in shard.rows)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(-1, 2**40))
def test_a_blob_is_a_batch_of_one_record(parts: list[bytes], number: int) -> None:
    head = BlobHead(b"a" * 16, number, tuple((at, len(part)) for at, part in enumerate(parts)))
    batch = bytearray(b"".join(encode_blob(head, parts, 1_234)))
    (record,) = decode_records(batch)
    assert (record.value, record.timestamp_ms) == (b"".join(parts), 1_234)
    assert validate_batch(batch).record_count == 1
    blob = decode_blob(memoryview(batch))
    assert blob.head == head
    assert [(shard, bytes(data)) for shard, data in blob.parts()] == list(enumerate(parts))


def test_what_is_no_blob_is_refused() -> None:
    from antiphon.records.builder import build_batch

    wrong = [
        build_batch([(b"key", b"value", (), 0)]),
        build_batch([(msgspec.msgpack.encode(BlobHead(b"", 0, ((0, 9),))), b"value", (), 0)]),
        build_batch([(msgspec.msgpack.encode(BlobHead(b"", 0, ((0, 5),))), b"value", (), 0)] * 2),
        build_batch([(None, None, (), 0)]),
        build_batch([(msgspec.msgpack.encode(BlobHead(b"", 0, ((0, -4), (1, 9)))), b"value", (), 0)]),
        build_batch([(b"\xa3\xff\xff\xff", b"value", (), 0)]),  # a text that is not UTF-8
    ]
    for batch in wrong:
        with pytest.raises(CorruptBatchError):
            decode_blob(memoryview(batch))


def test_a_row_of_epochs_that_says_what_cannot_be_is_refused() -> None:
    """Whoever looks after the cluster's epochs passes such rows over; any other error would end its look at all of them."""
    part = Part(0, b"a" * 16, 3, 7, ((10, 200),))
    epoch = Epoch("ü", 4, "t", b"t" * 16, False, b"", 3, 1000, 0, {7: 10}, (part,))
    good = msgspec.msgpack.encode(epoch)
    assert stored_of(Row(b"head/k", good, VERSION)).epoch == epoch
    for wrong in (
        good.replace("ü".encode(), b"\xff\xff"),
        msgspec.msgpack.encode(
            msgspec.structs.replace(epoch, parts=(part, msgspec.structs.replace(part, blobs=((10, -1),))))
        ),
        msgspec.msgpack.encode(msgspec.structs.replace(epoch, oldest={7: -1})),
        msgspec.msgpack.encode(msgspec.structs.replace(epoch, spilled=(7, -3, 8))),
    ):
        with pytest.raises(CorruptBatchError, match="no epoch"):
            stored_of(Row(b"head/k", wrong, VERSION))
    for wrong in (b"\xff", msgspec.msgpack.encode(Opened(1, 2, {7: -1}))):
        with pytest.raises(CorruptBatchError, match="no open epoch"):
            opened_of(Row(b"open/k", wrong, VERSION))
    with pytest.raises(CorruptBatchError, match="cannot be read"):
        staging_commit.decode_blobs(memoryview(msgspec.msgpack.encode(((1, 0),))))


def test_an_epoch_is_staged_and_then_there(server: NativeServer) -> None:
    shards = server.create("out", 3)
    options = options_for(server)
    results = epoch_of(options, 0, rows(0, 40), rows(40, 60, key=True))
    assert not values(shards)
    commit_results(options, results, b"plan")
    assert values(shards) == numbers(0, 100)
    (epoch,) = stored(server)
    assert (epoch.number, epoch.rows, epoch.is_applied, epoch.parts) == (0, 100, True, ())
    assert pending(server) == 0
    # The driver died before it told Spark: all of it once more, with other rows.
    again = epoch_of(options, 0, rows(500, 20))
    assert again[0].is_decided
    commit_results(options, again, b"plan")
    assert values(shards) == numbers(0, 100)
    commit_results(options, epoch_of(options, 1, rows(100, 5)), b"next plan")
    assert values(shards) == numbers(0, 105)


def test_the_first_manifest_counts_whoever_comes_second(server: NativeServer) -> None:
    shards = server.create("out", 2)
    options = options_for(server)
    first, second = epoch_of(options, 0, rows(0, 30)), epoch_of(options, 0, rows(7, 9), rows(0, 30))
    commit_results(options, first, b"")
    commit_results(options, second, b"")
    assert values(shards) == numbers(0, 30)


def test_an_older_epoch_is_refused(server: NativeServer) -> None:
    shards = server.create("out", 2)
    options = options_for(server)
    left_over = epoch_of(options, 1, rows(0, 3))
    for number in range(3):
        commit_results(options, epoch_of(options, number, rows(10 * number, 10)), b"")
    with pytest.raises(ProducerFencedError, match="old copy of its checkpoint"):
        commit_results(options, left_over, b"")
    with pytest.raises(ProducerFencedError, match="written already"):
        epoch_of(options, 1, rows(0, 3))
    assert values(shards) == numbers(0, 30)


def test_an_epoch_that_was_planned_anew_is_refused(server: NativeServer) -> None:
    shards = server.create("out")
    options = options_for(server)
    commit_results(options, epoch_of(options, 0, rows(0, 10)), b"from 0 to 10")
    again = epoch_of(options, 0, rows(0, 20))
    with pytest.raises(ProducerFencedError, match="planned this epoch anew"):
        commit_results(options, again, b"from 0 to 20")
    assert values(shards) == numbers(0, 10)


def test_queries_and_targets_do_not_meet(server: NativeServer) -> None:
    shards, others = server.create("out"), server.create("other")
    options = options_for(server)
    commit_results(options, epoch_of(options, 5, rows(0, 10)), b"")
    commit_results(options, epoch_of(options, 2, rows(10, 10), query="p"), b"")
    elsewhere = options_for(server, topic="other")
    commit_results(elsewhere, epoch_of(elsewhere, 3, rows(0, 10)), b"")
    assert values(shards) == numbers(0, 20)
    assert values(others) == numbers(0, 10)


def test_an_epoch_without_rows_leaves_nothing(server: NativeServer) -> None:
    server.create("out")
    options = options_for(server)
    assert commit_results(options, [], b"") is None
    assert commit_results(options, epoch_of(options, 0, rows(0, 0)), b"") is None
    assert not server.shards_of(STAGED_TOPIC)


class DriverDiesError(RuntimeError):
    pass


def dies(*_: object, **__: object) -> None:
    raise DriverDiesError


def test_a_driver_that_dies_after_its_decision(server: NativeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = server.create("out", 2)
    options = options_for(server)
    with monkeypatch.context() as patch:
        patch.setattr(staging_commit, "apply_epoch", dies)
        with pytest.raises(DriverDiesError):
            commit_results(options, epoch_of(options, 0, rows(0, 30)), b"")
    assert not values(shards)
    assert pending(server) == 1
    # Its successor repeats the epoch, in another order and with other partitions.
    again = [
        TaskResult("q", 0, first.target_id, 30, 3, part=first.part) for first in _restaged(server, options)
    ]
    commit_results(options, again, b"")
    assert values(shards) == numbers(0, 30)
    assert pending(server) == 0


def _restaged(server: NativeServer, options: WriteOptions) -> list[TaskResult]:
    """What the tasks of an epoch stage that do not know yet that it is decided."""
    other = epoch_of(options, 0, rows(15, 15), rows(0, 15), query="late")
    del server.shards_of(EPOCHS_TABLE)[0].rows[
        next(key for key in server.shards_of(EPOCHS_TABLE)[0].rows if key.endswith(b"/late"))
    ]
    return other


def test_the_next_version_finishes_the_one_before(
    server: NativeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = server.create("out", 2)
    options = options_for(server)
    with monkeypatch.context() as patch:
        patch.setattr(staging_commit, "apply_epoch", dies)
        with pytest.raises(DriverDiesError):
            commit_results(options, epoch_of(options, 0, rows(0, 30)), b"")
    commit_results(options, epoch_of(options, 1, rows(30, 30)), b"")
    assert values(shards) == numbers(0, 60)
    assert [epoch.number for epoch in stored(server)] == [1]


def test_what_was_trimmed_is_not_decided(server: NativeServer) -> None:
    shards = server.create("out")
    options = options_for(server)
    results = epoch_of(options, 0, rows(0, 30))
    for shard in server.shards_of(STAGED_TOPIC):
        shard.trim(shard.end)
    with pytest.raises(OffsetOutOfRangeError, match="run the epoch again"):
        commit_results(options, results, b"")
    assert not values(shards)
    assert stored(server) == []
    commit_results(options, epoch_of(options, 0, rows(0, 30)), b"")
    assert values(shards) == numbers(0, 30)


def test_a_target_that_was_made_anew_is_another_one(
    server: NativeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create("out")
    options = options_for(server)
    with monkeypatch.context() as patch:
        patch.setattr(staging_commit, "apply_epoch", dies)
        with pytest.raises(DriverDiesError):
            commit_results(options, epoch_of(options, 0, rows(0, 3)), b"")
    results = epoch_of(options, 0, rows(0, 3))
    server.delete("out")
    shards = server.create("out")
    with pytest.raises(UnknownTopicError, match="is another one"):
        commit_results(options, results, b"")
    host, _, port = server.address.rpartition(":")
    with Cluster([(host, int(port))], 3_000) as cluster:
        keeper = Housekeeper([(host, int(port))], None, wait_s=0)
        assert keeper.look(cluster).finished == 1  # there is nothing to finish it in
        assert keeper.look(cluster).finished == 0
    assert pending(server) == 0
    assert not values(shards)


def test_a_decision_that_is_gone_is_not_made_up(server: NativeServer) -> None:
    server.create("out")
    options = options_for(server)
    commit_results(options, epoch_of(options, 0, rows(0, 3)), b"")
    again = epoch_of(options, 0, rows(0, 3))
    server.shards_of(EPOCHS_TABLE)[0].rows.clear()
    with pytest.raises(UnavailableError, match="run it again"):
        commit_results(options, again, b"")


def test_many_blobs_and_many_tasks_make_a_small_manifest(
    server: NativeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = server.create("out", 2)
    options = options_for(server)
    monkeypatch.setattr(staging_task, "BLOB_BYTES", 500)
    monkeypatch.setattr(staging_commit, "ROW_BYTES_MAX", 600)
    results = epoch_of(options, 0, *[rows(1_000 * n, 300) for n in range(8)])
    assert all(len(pickle.dumps(result)) < 1_000 for result in results)
    monkeypatch.setattr(staging_commit, "apply_epoch", dies)
    with pytest.raises(DriverDiesError):
        commit_results(options, results, b"")
    (epoch,) = stored(server)
    assert epoch.spilled is not None
    assert not epoch.parts
    monkeypatch.undo()
    commit_results(options, epoch_of(options, 0, rows(0, 1)), b"")
    assert values(shards) == sum((numbers(1_000 * n, 300) for n in range(8)), Counter())


def test_answers_that_are_lost_double_nothing(server: NativeServer) -> None:
    shards = server.create("out", 3)
    options = options_for(server)
    results = epoch_of(options, 0, rows(0, 200), rows(200, 200))
    server.faults.drop_after_append = 6
    server.faults.deny_leadership = 5
    commit_results(options, results, b"")
    server.faults.drop_after_append = 3
    commit_results(options, epoch_of(options, 1, rows(400, 100)), b"")
    assert values(shards) == numbers(0, 500)


def test_a_table(server: NativeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = server.create("state", 2, Kind.TABLE)
    options = options_for(server, table="state")

    def table_rows(first: int, count: int, deleted: int) -> pa.RecordBatch:
        keys = [b"k%d" % n for n in range(first, first + count)]
        after = [None if n % deleted == 0 else b"%d" % n for n in range(first, first + count)]
        return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(after, pa.binary())})

    commit_results(options, epoch_of(options, 0, table_rows(0, 50, 7), table_rows(50, 50, 7)), b"")
    monkeypatch.setattr(staging_commit, "apply_epoch", dies)
    results = epoch_of(options, 1, table_rows(0, 100, 5))
    with pytest.raises(DriverDiesError):
        commit_results(options, results, b"")
    monkeypatch.undo()
    before = sum(len(shard.batches) for shard in shards)
    commit_results(options, results, b"")
    after = sum(len(shard.batches) for shard in shards)
    commit_results(options, results, b"")
    assert after > before
    assert sum(len(shard.batches) for shard in shards) == after
    found = {key: value for shard in shards for key, (value, _) in shard.rows.items()}
    assert found == {b"k%d" % n: b"%d" % n for n in range(100) if n % 5}
    written = [shard.rows[key][1].modifications for shard in shards for key in shard.rows]
    assert max(written) <= 1


def test_rows_that_cannot_be_written_are_named_and_nothing_is(server: NativeServer) -> None:
    out, state = server.create("out", 1), server.create("state", 1, Kind.TABLE)
    large = pa.record_batch({"value": pa.array([b"x", b"y" * 1_100_000], pa.binary())})
    with pytest.raises(BatchTooLargeError, match=r"epoch 0 of q, partition 0: row 1 .* takes 1048588"):
        staged(options_for(server), Job("q", 0, 0), large)
    table = options_for(server, table="state")
    for key, value, message in [
        (None, b"v", "row 1 has no key"),
        (b"k" * 70_000, b"v", "a key of 70000 bytes"),
        (b"k", b"v" * 1_048_588, r"row 1 takes \d+ bytes"),
    ]:
        batch = pa.record_batch(
            {"key": pa.array([b"a", key], pa.binary()), "value": pa.array([b"a", value], pa.binary())}
        )
        with pytest.raises((InvalidRequestError, BatchTooLargeError), match=message):
            staged(table, Job("q", 0, 0), batch)
    assert not values(out)
    assert not values(state)


def test_blobs_are_read_in_order_and_checked(server: NativeServer) -> None:
    server.create("out")
    options = options_for(server)
    results = epoch_of(options, 0, *[rows(100 * n, 100) for n in range(5)])
    host, _, port = server.address.rpartition(":")
    with Cluster([(host, int(port))], 3_000) as cluster:
        parts = [result.part for result in results if result.part is not None]
        wanted = [Wanted(part.shard_id, part.attempt, [BlobAt(*at) for at in part.blobs]) for part in parts]
        assert [index for index, _ in read_blobs(cluster, wanted)] == [0, 1, 2, 3, 4]
        with pytest.raises(CorruptBatchError, match="another attempt's"):
            list(read_blobs(cluster, [wanted[0]._replace(attempt=b"?" * 16)]))


@pytest.fixture
def epochs(server: NativeServer) -> Iterator[Epochs]:
    host, _, port = server.address.rpartition(":")
    with Cluster([(host, int(port))], 3_000) as cluster:
        yield Epochs(cluster, ensure_internal(cluster, 1)[1])


def _epoch(number: int) -> Epoch:
    return Epoch("q", number, "out", b"id", False, b"", 1, 1, 0, {}, ())


def test_an_epoch_is_decided_once_and_marked_once(epochs: Epochs) -> None:
    first = epochs.decide(_epoch(0), None)
    assert isinstance(first, Stored)
    assert epochs.decide(msgspec.structs.replace(_epoch(0), rows=2), None) is None
    assert epochs.applied(first)
    assert not epochs.applied(first)
    now = epochs.newest(b"id", "q")
    assert now is not None
    second = epochs.decide(_epoch(1), now)
    assert second is not None
    late = msgspec.structs.replace(_epoch(1), rows=3)  # by a driver that saw an older row
    assert epochs.decide(late, first._replace(epoch=now.epoch)) is None
    assert not epochs.applied(first)
    newest = epochs.newest(b"id", "q")
    assert newest is not None
    assert (newest.epoch.number, newest.epoch.is_applied) == (1, False)


def test_an_answer_to_a_decision_that_is_lost(server: NativeServer, epochs: Epochs) -> None:
    server.faults.drop_after_append = 1
    stored = epochs.decide(_epoch(0), None)
    assert stored is not None
    server.faults.drop_after_append = 1
    epochs.applied(stored)
    newest = epochs.newest(b"id", "q")
    assert newest is not None
    assert newest.epoch.is_applied


def test_a_delete_that_comes_late_deletes_nothing(
    server: NativeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = server.create("state", 1, Kind.TABLE)
    options = options_for(server, table="state")

    def change(value: bytes | None) -> pa.RecordBatch:
        return pa.record_batch(
            {"key": pa.array([b"k"], pa.binary()), "value": pa.array([value], pa.binary())}
        )

    applied: list[tuple[Any, ...]] = []
    apply_epoch = staging_commit.apply_epoch

    def noted(*args: Any) -> None:
        applied.append(args)
        apply_epoch(*args)

    monkeypatch.setattr(staging_commit, "apply_epoch", noted)
    commit_results(options, epoch_of(options, 0, change(None)), b"")
    # The next epoch puts the key, from another partition: nothing of the first one's producer is in the log.
    nothing = change(None).slice(0, 0)
    commit_results(options, epoch_of(options, 1, nothing, change(b"later")), b"")
    place, _, epoch, _ = applied[0]
    with Cluster(place.servers, 3_000) as cluster:
        table = ensure_internal(cluster, 1)[1]
        # Somebody who was slow applies the first one again: what it has to delete is there now.
        staging_commit.finish_epoch(place, cluster, Epochs(cluster, table), Stored(epoch, 0))
    assert {key: value for key, (value, _) in shard.rows.items()} == {b"k": b"later"}


def test_a_cluster_that_is_away_and_comes_back(server: NativeServer) -> None:
    shards = server.create("out", 2)
    options = options_for(server, timeoutMs="300")
    server.faults.away = True
    with pytest.raises(AntiphonError, match="is the cluster up"):
        epoch_of(options, 0, rows(0, 30))
    server.faults.away = False
    results = epoch_of(options, 0, rows(0, 30))
    server.faults.away = True
    with pytest.raises(AntiphonError, match="is the cluster up"):
        commit_results(options, results, b"")
    patient = options_for(server, timeoutMs="8000")
    back = threading.Timer(0.4, lambda: setattr(server.faults, "away", False))
    back.start()
    commit_results(patient, results, b"")
    back.join()
    assert values(shards) == numbers(0, 30)


def test_a_protocol_that_changes_in_the_middle_of_an_epoch_is_noticed(server: NativeServer) -> None:
    shards = server.create("out")
    direct, options = options_for(server, protocol="direct"), options_for(server)
    write_rows(Task(direct, Job("q", 0, 0), 1_000), iter([rows(0, 10)]))
    with pytest.raises(ReplayConflictError, match="only when its last epoch is complete"):
        commit_results(options, epoch_of(options, 0, rows(5, 10)), b"")
    assert values(shards) == numbers(0, 10)
    # With the same rows it is a repeat like any other.
    write_rows(Task(direct, Job("p", 0, 0), 1_000), iter([rows(10, 10)]))
    commit_results(options, epoch_of(options, 0, rows(10, 10), rows(20, 10), query="p"), b"")
    assert values(shards) == numbers(0, 30)
