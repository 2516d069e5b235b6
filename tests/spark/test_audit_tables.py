"""A table's stores against the fold of its log, key by key: what the audit's tasks send and what is made of it. No JVM."""

import struct
from collections.abc import Iterable

import msgspec
import pytest

from antiphon.errors import CorruptBatchError, UnavailableError
from antiphon.model.metadata import HASH_MAX, key_hash
from antiphon.records.builder import RecordInput, build_batch, build_end_marker, seal
from antiphon.records.changes import VERSION, VERSION_HEADER
from antiphon.spark.jobs.audit_model import ReplicaPlan, ShardPlan, ShardResult
from antiphon.spark.jobs.audit_tables import (
    CHANGED,
    FIRST_WRITER,
    LAST_WRITER,
    LOG,
    STORE,
    Buckets,
    KeyChunk,
    buckets_of,
    fold_range,
    judge_bucket,
    row_of,
)
from antiphon.table.merge import pack_id
from tests.spark.audit_replicas import SHARD, FakeReplica

NODES = (0, 1, 2)


def version(number: int, modified_ms: int = 1_000) -> bytes:
    return VERSION.pack(number, 0, 1_000, modified_ms)


def changes(offset: int, *effects: tuple[str, str | None, bytes]) -> bytes:
    """One request's batch: (key, value or None, packed version)."""
    records: list[RecordInput] = [
        (key.encode(), None if value is None else value.encode(), [(VERSION_HEADER, packed)], 1_000)
        for key, value, packed in effects
    ]
    return bytes(build_batch(records, base_offset=offset, leader_epoch=1))


LOG_BATCHES = [
    changes(0, ("a", "1", version(0)), ("b", "2", version(1))),
    changes(2, ("c", "3", version(2))),
    changes(3, ("a", "4", version(3)), ("c", None, version(2))),
    changes(5, ("d", "5", version(4))),
]
ROWS = {
    b"a": row_of(version(3), b"4"),
    b"b": row_of(version(1), b"2"),
    b"d": row_of(version(4), b"5"),
}


def table_plan(*, start: int = 0, conflict: str = "", hashes: tuple[int, ...] = ()) -> ShardPlan:
    replicas = tuple(ReplicaPlan(node, start, 6) for node in NODES)
    return ShardPlan(
        "t",
        True,
        0,
        SHARD,
        6,
        (start, 6),
        replicas,
        NODES,
        hashes,
        conflict=conflict,
        every_replica_writes=bool(conflict),
        origins=(0, 9, 9) if conflict else (),
        reference=0,
    )


def folded(plan: ShardPlan, batches: list[bytes], ranges: Iterable[tuple[int, int]]) -> list[KeyChunk]:
    replica = FakeReplica(0, batches, answer_bytes=1, log_start=plan.start)
    return [
        chunk
        for part, (start, end) in enumerate(ranges)
        for _, chunk in fold_range([replica], plan, start, end, part)
    ]


def store(
    plan: ShardPlan, node: int, rows: dict[bytes, bytes], changed: Iterable[bytes] = ()
) -> list[KeyChunk]:
    found = []
    for source in (STORE, CHANGED):
        gathered = Buckets(plan, source, node)
        for key in rows if source == STORE else changed:
            gathered.add(key, rows.get(key, b""))
        found += [chunk for _, chunk in gathered.rest()]
    return found


def judged(
    stores: dict[int, dict[bytes, bytes]],
    *,
    plan: ShardPlan | None = None,
    batches: list[bytes] = LOG_BATCHES,
    changed: dict[int, set[bytes]] | None = None,
    ranges: tuple[tuple[int, int], ...] = ((0, 3), (3, 6)),
) -> ShardResult:
    plan = plan or table_plan()
    chunks = folded(plan, batches, ranges)
    for node, rows in stores.items():
        chunks += store(plan, node, rows, (changed or {}).get(node, ()))
    return judge_bucket(plan, chunks, len(ranges))


def problems(result: ShardResult) -> set[tuple[str, int, int, bytes | None]]:
    return {(one.kind, one.node, one.offset, one.key) for one in result.findings}


def three(**odd: dict[bytes, bytes]) -> dict[int, dict[bytes, bytes]]:
    return {node: odd.get(f"node{node}", dict(ROWS)) for node in NODES}


def test_stores_that_are_the_fold_of_the_log() -> None:
    result = judged(three())
    assert not result.findings
    assert (result.rows, result.rows_skipped) == (12, 0)  # the removed key was looked at, too


def test_rows_that_the_log_does_not_say() -> None:
    other_value = {**ROWS, b"a": row_of(version(3), b"5")}
    missing = {key: row for key, row in ROWS.items() if key != b"b"}
    back_again = {**ROWS, b"c": row_of(version(2), b"3"), b"x": row_of(version(9), b"x")}
    result = judged({0: other_value, 1: missing, 2: back_again})
    assert problems(result) == {
        ("row_differs", 0, 3, b"a"),
        ("row_missing", 1, 1, b"b"),
        ("row_extra", 2, 4, b"c"),
        ("row_extra", 2, -1, b"x"),
    }


def test_another_version_of_the_same_value_is_a_difference() -> None:
    result = judged(three(node1={**ROWS, b"d": row_of(version(3), b"5")}))
    assert problems(result) == {("row_differs", 1, 5, b"d")}
    assert "version 3" in result.findings[0].what
    assert "its log says version 4" in result.findings[0].what


def test_all_stores_wrong_in_the_same_way_are_still_wrong() -> None:
    same = {**ROWS, b"b": row_of(version(1), b"X")}
    assert {node for _, node, _, _ in problems(judged(dict.fromkeys(NODES, same)))} == {0, 1, 2}


def test_keys_that_changed_meanwhile_are_left_out_where_they_did() -> None:
    newer = {**ROWS, b"a": row_of(version(7), b"7")}
    result = judged(three(node1=newer), changed={1: {b"a"}})
    assert not result.findings
    assert result.rows_skipped == 1
    assert problems(judged(three(node1=newer), changed={2: {b"a"}})) == {("row_differs", 1, 3, b"a")}


def test_a_store_that_was_not_read_to_its_end_is_not_judged() -> None:
    plan = table_plan()
    chunks = folded(plan, LOG_BATCHES, [(0, 6)])
    chunks += store(plan, 0, ROWS)
    chunks += [msgspec.structs.replace(chunk, final=False) for chunk in store(plan, 1, {})]
    result = judge_bucket(plan, chunks, 1)
    assert not result.findings
    assert result.rows == 4


def test_without_the_whole_log_replicas_are_compared() -> None:
    plan = table_plan()
    chunks = folded(plan, LOG_BATCHES, [(0, 3)])
    for node in NODES:
        chunks += store(plan, node, {b"a": row_of(version(0), b"1")} if node == 2 else ROWS)
    result = judge_bucket(plan, chunks, 2)
    assert {(kind, node) for kind, node, _, _ in problems(result)} == {("row_differs", 2), ("row_missing", 2)}


def test_below_a_trimmed_log_replicas_are_compared() -> None:
    plan = table_plan(start=3)
    trimmed = LOG_BATCHES[2:]
    assert not judged(three(), plan=plan, batches=trimmed, ranges=((3, 6),)).findings
    odd = three(node0={**ROWS, b"b": row_of(version(1), b"X"), b"d": row_of(version(4), b"Y")})
    result = judged(odd, plan=plan, batches=trimmed, ranges=((3, 6),))
    assert problems(result) == {("row_differs", 0, -1, b"b"), ("row_differs", 0, 5, b"d")}


def test_keys_of_another_shard_are_left_out() -> None:
    place = key_hash(b"b")
    plan = table_plan(hashes=(0, place - 1))
    without_b = {key: row for key, row in ROWS.items() if key_hash(key) < place}
    assert not judged(dict.fromkeys(NODES, without_b), plan=plan).findings
    plan = table_plan(hashes=(0, HASH_MAX))
    assert {key for *_, key in problems(judged(dict.fromkeys(NODES, without_b), plan=plan))} >= {b"b"}


def in_transaction(offset: int, producer: int, *effects: tuple[str, str | None, bytes]) -> bytes:
    """What a transaction has prepared."""
    records: list[RecordInput] = [
        (key.encode(), None if value is None else value.encode(), [(VERSION_HEADER, packed)], 1_000)
        for key, value, packed in effects
    ]
    batch = build_batch(
        records,
        base_offset=offset,
        leader_epoch=1,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    return bytes(batch)


def ended(offset: int, producer: int, *, commit: bool) -> bytes:
    marker = build_end_marker(
        commit=commit, number=1, producer=(producer, 0), term=1, base_offset=offset, timestamp_ms=1_000
    )
    return bytes(marker)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    "ranges", [((0, 6),), ((0, 4), (4, 6))], ids=["one range", "the marker is in another range"]
)
def test_rows_of_transactions_are_judged_by_their_markers(
    commit: bool, ranges: tuple[tuple[int, int], ...]
) -> None:
    batches = [
        changes(0, ("a", "1", version(0)), ("b", "1", version(1))),
        in_transaction(2, 7, ("a", "2", version(2)), ("b", None, version(1))),
        changes(4, ("c", "3", version(4))),
        ended(5, 7, commit=commit),
    ]
    before = {b"a": row_of(version(0), b"1"), b"b": row_of(version(1), b"1"), b"c": row_of(version(4), b"3")}
    after = {b"a": row_of(version(2), b"2"), b"c": row_of(version(4), b"3")}
    right, wrong = (after, before) if commit else (before, after)
    assert not judged(dict.fromkeys(NODES, right), batches=batches, ranges=ranges).findings
    found = judged({0: right, 1: wrong, 2: right}, batches=batches, ranges=ranges)
    is_known = len(ranges) == 1
    assert {(node, key) for _, node, _, key in problems(found)} == (
        {(1, b"a"), (1, b"b")} if is_known else set()
    )


def test_the_fold_takes_another_replica_where_one_has_no_whole_log() -> None:
    plan = table_plan()
    torn = FakeReplica(1, [LOG_BATCHES[0], *LOG_BATCHES[2:]])
    whole = FakeReplica(2, LOG_BATCHES)
    (found,) = [chunk for _, chunk in fold_range([torn, whole], plan, 0, 6, 0)]
    assert found.node == 2
    assert dict(zip(found.keys, found.rows, strict=True)) == {**ROWS, b"c": b""}
    with pytest.raises(CorruptBatchError, match="missing"):
        list(fold_range([torn], plan, 0, 6, 0))
    with pytest.raises(UnavailableError, match="nothing at offset 6"):
        list(fold_range([FakeReplica(0, LOG_BATCHES)], plan, 0, 9, 0))


def test_buckets_hold_every_key_once() -> None:
    plan = msgspec.structs.replace(table_plan(), cut=1_000_000)
    assert buckets_of(plan) == 21
    gathered = Buckets(plan, STORE, 0)
    keys = {b"key %d" % n for n in range(5_000)}
    found: dict[int, set[bytes]] = {}
    for key in keys:
        gathered.add(key, b"r" * 48)
        for bucket, chunk in gathered.full():
            found.setdefault(bucket, set()).update(chunk.keys)
    rest = list(gathered.rest())
    assert [bucket for bucket, chunk in rest if chunk.final] == list(range(21))
    for bucket, chunk in rest:
        found.setdefault(bucket, set()).update(chunk.keys)
    assert set().union(*found.values()) == keys
    assert sum(map(len, found.values())) == len(keys)


@pytest.mark.parametrize(
    ("rule", "winner"), [(LAST_WRITER, "late"), (FIRST_WRITER, "early"), ("largest", None)]
)
def test_tables_that_every_replica_writes_fold_by_their_rule(rule: str, winner: str | None) -> None:
    def entry(offset: int, lsn: int, key: str, value: str | None, modified_ms: int) -> bytes:
        made = changes(offset, (key, value, version(pack_id(lsn, 1, 0), modified_ms)))
        buffer = bytearray(made)
        struct.pack_into(">qhi", buffer, 43, -1 - lsn, 1, -1)
        seal(buffer)
        return bytes(buffer)

    # The later change arrived first; beyond the common clock (LSN 9) nothing counts.
    batches = [
        entry(0, 2, "k", "late", 2_000),
        entry(1, 1, "k", "early", 1_000),
        entry(2, 10, "k", "new", 9_000),
    ]
    plan = table_plan(conflict=rule)
    rows = {
        "late": row_of(version(pack_id(2, 1, 0), 2_000), b"late"),
        "early": row_of(version(pack_id(1, 1, 0), 1_000), b"early"),
    }
    for value, row in rows.items():
        stores = {node: {b"k": row} for node in NODES}
        result = judged(stores, plan=plan, batches=batches, ranges=((0, 1), (1, 3)))
        assert bool(result.findings) == (winner not in {None, value})
    stores = {0: {b"k": rows["late"]}, 1: {b"k": rows["late"]}, 2: {}}
    result = judged(stores, plan=plan, batches=batches, ranges=((0, 1), (1, 3)))
    assert 2 in {one.node for one in result.findings}


def test_chunks_name_their_source() -> None:
    (chunk,) = folded(table_plan(), LOG_BATCHES, [(0, 6)])
    assert (chunk.source, chunk.final, len(chunk.keys)) == (LOG, True, 4)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(chunk), type=KeyChunk) == chunk
