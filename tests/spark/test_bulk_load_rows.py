"""Requests of a load are cut, numbered and summed up as they were when each row was handled by itself."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from antiphon.client.blocking import ShardCall
from antiphon.client.blocking_link import Answer
from antiphon.errors import InvalidRequestError
from antiphon.model.loads import LoadRows
from antiphon.model.metadata import Kind, ShardMeta, TopicMeta
from antiphon.model.requests import Appended, Delete, Put, TableWrite, TableWritten
from antiphon.records.packed_rows import PackedRow, packed
from antiphon.spark.job import Job
from antiphon.spark.jobs.bulk_load_rows import ROW_OVERHEAD_BYTES, Request, RequestMaker
from antiphon.spark.jobs.bulk_load_writer import BulkWriters
from antiphon.spark.jobs.digests import Digest, digest_of, digest_of_packed
from antiphon.spark.rows import RowData
from antiphon.spark.shard_writers import sequence_of, table_request


def drawn(random: Random, count: int) -> list[PackedRow]:
    """Sorted by key, some of which come several times; some removals."""
    keys = sorted(b"%d" % random.randrange(count) + b"k" * random.randrange(300) for _ in range(count))
    return [(key, None if random.random() < 0.1 else random.randbytes(random.randrange(400))) for key in keys]


def cut(rows: Sequence[PackedRow], rows_max: int, bytes_max: int) -> list[list[PackedRow]]:
    """Row by row: a request is full with the row that fills it."""
    newest = [
        row for row, after in zip(rows, [*rows[1:], None], strict=True) if not after or after[0] != row[0]
    ]
    found: list[list[PackedRow]] = [[]]
    size = 0
    for key, value in newest:
        found[-1].append((key, value))
        size += ROW_OVERHEAD_BYTES + len(key) + len(value or b"")
        if len(found[-1]) >= rows_max or size >= bytes_max:
            found.append([])
            size = 0
    return [one for one in found if one]


def column(values: Sequence[bytes | None], kind: Any) -> pa.Array:
    return pa.array(values, kind)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize(("rows_max", "bytes_max"), [(1, 10**6), (7, 10**6), (500, 3_000), (50, 1)])
def test_requests_are_cut_as_ever_however_rows_come(kind: Any, rows_max: int, bytes_max: int) -> None:
    random = Random(rows_max)
    rows = drawn(random, 700)
    expected = cut(rows, rows_max, bytes_max)
    maker, found, at = RequestMaker(rows_max, bytes_max), list[Request](), 0
    while at < len(rows):
        end = at + random.choice((1, 2, 100, 300))
        part = rows[at:end]
        keys, values = column([key for key, _ in rows], kind), column([value for _, value in rows], kind)
        found += maker.add(keys.slice(at, len(part)), values.slice(at, len(part)))
        at = end
    found += maker.rest()
    assert [one.payload for one in found] == [packed(one) for one in expected]
    assert maker.superseded == len(rows) - sum(map(len, expected))
    for number, (request, part) in enumerate(zip(found, expected, strict=True)):
        assert request.rows == len(part)
        assert request.removals == sum(value is None for _, value in part)
        assert request.content_bytes == sum(len(key) + len(value or b"") for key, value in part)
        assert request.size_bytes == request.content_bytes + ROW_OVERHEAD_BYTES * len(part)
        assert request.digest() == digest_of(part)
        before = table_request(number, [RowData(*row) for row in part])
        assert sequence_of(number, request.checksum) == before.sequence
    assert not list(maker.rest())


@pytest.mark.parametrize("value_bytes", [0, 1, 8, 100, 229, 230, 231, 5_000])
def test_the_digest_of_packed_rows_is_that_of_rows(value_bytes: int) -> None:
    rows: list[PackedRow] = [(b"k2", bytes(range(256)) * 20), (b"gone", None), (b"", b"")]
    rows = [(key, None if value is None else value[:value_bytes]) for key, value in rows]
    assert digest_of_packed(packed(rows), 3) == digest_of(rows)
    assert digest_of_packed(packed(rows[1:2]), 1) == Digest()


TABLE = TopicMeta("t", bytes(16), Kind.TABLE, 1, "oxia", (ShardMeta(5, 0, (0,)),))


class EarlierVersion:
    """A cluster whose nodes do not know loads."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call_all(self, calls: Sequence[ShardCall]) -> list[Answer]:
        self.calls += [call.body for call in calls]
        if any(isinstance(call.body, LoadRows) for call in calls):
            raise InvalidRequestError("a message that this version cannot read")
        return [Answer(TableWritten((), 0), memoryview(b"")) for _ in calls]


def test_nodes_of_an_earlier_version_get_puts_with_the_same_sequences() -> None:
    cluster: Any = EarlierVersion()
    writers = BulkWriters(cluster, TABLE, Job("load/x", 0, 3), 1_000)
    rows: list[PackedRow] = [(b"a", b"1"), (b"b", None)]
    for _ in range(2):
        request = Request(packed(rows), 2, 1, 100)
        writers.load(0, request)
        writers.finish()
    first, again, second = cluster.calls
    assert isinstance(first, LoadRows)
    for write in (again, second):
        assert isinstance(write, TableWrite)
        assert write.bulk
        assert write.ops == (Put(b"a", b"1"), Delete(b"b"))
    assert again.sequence == first.sequence
    assert again.producer_id == first.producer_id
    assert second.sequence >> 16 == first.sequence >> 16 | 1


def test_a_load_that_was_carried_out_before_counts_as_such() -> None:
    cluster: Any = EarlierVersion()
    cluster.call_all = lambda calls: [
        Answer(Appended(0, 1, 1, duplicate=True), memoryview(b"")) for _ in calls
    ]
    writers = BulkWriters(cluster, TABLE, Job("load/x", 0, 3), 1_000)
    writers.load(0, Request(packed([(b"a", b"1")]), 1, 0, 100))
    writers.finish()
    assert writers.duplicates == 1
