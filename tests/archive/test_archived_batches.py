"""Rows of archived files as batches again: every offset once, each record as it was, never more than asked for."""

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.archive.batches import BATCH_BYTES, BATCH_OFFSETS, ROWS_MAX, batches_of
from antiphon.archive.files import OpenFile, RowGroup
from antiphon.records.arrow import SCHEMA_WITH_HEADERS
from antiphon.records.batch import HEADER_BYTES, BatchHeader, validate_batch
from antiphon.records.decode import Record, decode_records
from tests.archive.test_archive_files import written

MANY: Final = 1 << 24


def row(offset: int, **values: Any) -> dict[str, Any]:
    plain = {"key": b"k", "value": b"v", "topic": "t", "partition": 3, "offset": offset, "timestamp": 1_000}
    made = {**plain, "timestampType": 0, "headers": [], "term": 1, **values}
    return {**made, "timestamp": made["timestamp"] * 1000}


def group(start: int, end: int, rows: list[dict[str, Any]]) -> RowGroup:
    return RowGroup(start, end, pa.Table.from_pylist(rows, SCHEMA_WITH_HEADERS))


def made(
    of: RowGroup, offset: int, max_bytes: int = MANY, *, at_least_one: bool = True
) -> tuple[list[BatchHeader], list[Record]]:
    """Headers and records of what was made, which follows on `offset` without a gap."""
    found = batches_of(of, offset, max_bytes, lambda: None, at_least_one=at_least_one)
    headers = [validate_batch(one) for one in found.batches]
    assert found.size_bytes == sum(map(len, found.batches))
    for header in headers:
        assert header.base_offset == offset
        offset = header.next_offset
    return headers, decode_records(b"".join(found.batches))


@pytest.mark.parametrize("max_bytes", [100, 300, 1_000, MANY])
def test_a_file_is_read_to_its_end_in_batches(tmp_path: Path, max_bytes: int) -> None:
    file, records = written(tmp_path / "a.parquet")
    at, found = file.start, []
    with OpenFile(file) as opened:
        while at < file.end:
            of = opened.group_at(at)
            assert of.start <= at < of.end
            headers, some = made(of, at, max_bytes)
            size = sum(header.size_bytes for header in headers)
            assert size <= max_bytes or sum(header.record_count for header in headers) == 1
            found += some
            at = headers[-1].next_offset
    assert at == file.end
    assert found == records


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_made_of_any_rows_is_what_they_say(data: st.DataObject) -> None:
    gaps = data.draw(
        st.lists(st.sampled_from([1, 1, 1, 2, 7, BATCH_OFFSETS, 3 * BATCH_OFFSETS]), min_size=1, max_size=12)
    )
    start = data.draw(st.integers(0, 1 << 40))
    rows, at = [], start - 1
    for gap in gaps:
        at += gap
        headers = data.draw(
            st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
        )
        time_ms = data.draw(st.integers(-1, 3))
        rows.append(
            row(
                at,
                key=data.draw(st.none() | st.binary(max_size=4)),
                value=data.draw(st.none() | st.binary(max_size=40)),
                timestamp=time_ms,
                timestampType=data.draw(st.sampled_from([0, 0, 1])) if time_ms >= 0 else 0,
                term=data.draw(st.sampled_from([1, 1, 1, 2])),
                headers=[{"key": name, "value": value} for name, value in headers],
            )
        )
    of = group(start, at + data.draw(st.integers(1, 9)), rows)
    offset = data.draw(st.integers(start, of.end - 1))
    headers_made, records = made(of, offset)
    assert headers_made[-1].next_offset == of.end
    wanted = [one for one in rows if one["offset"] >= offset]
    assert [
        (r.offset, r.timestamp_ms, r.key, r.value, [{"key": k, "value": v} for k, v in r.headers])
        for r in records
    ] == [(w["offset"], w["timestamp"] // 1000, w["key"], w["value"], w["headers"]) for w in wanted]
    for one in wanted:
        holder = next(
            h for h in headers_made if h.base_offset <= one["offset"] < h.next_offset and h.record_count
        )
        assert holder.leader_epoch == one["term"]
        assert holder.is_log_append_time == bool(one["timestampType"])


def test_batches_have_bounds_and_a_larger_record_one_of_its_own() -> None:
    rows = [row(at, value=b"x" * 10_000) for at in range(100)] + [
        row(100, value=b"x" * 3 * BATCH_BYTES),
        row(101),
    ]
    headers, records = made(group(0, 102, rows), 0)
    assert len(records) == 102
    sizes = [header.size_bytes for header in headers]
    assert max(sizes) > 3 * BATCH_BYTES
    assert sorted(sizes)[-2] < BATCH_BYTES + HEADER_BYTES
    assert len(sizes) < 9


def test_one_call_makes_so_many_rows_and_no_more() -> None:
    of = group(0, ROWS_MAX + 9, [row(at) for at in range(ROWS_MAX + 9)])
    headers, records = made(of, 4)
    assert (records[0].offset, len(records)) == (4, ROWS_MAX)
    assert made(of, headers[-1].next_offset)[0][-1].next_offset == of.end


def test_a_record_that_does_not_fit_comes_only_where_one_has_to() -> None:
    of = group(5, 9, [row(5, value=b"x" * 500), row(6)])
    assert made(of, 5, 300, at_least_one=False) == ([], [])
    assert [record.offset for record in made(of, 5, 300)[1]] == [5]
    assert [record.offset for record in made(of, 6, 300, at_least_one=False)[1]] == [6]


def test_offsets_without_a_row_are_taken_by_batches_too() -> None:
    of = group(10, 40, [row(20, term=7), row(25, term=7)])
    headers, _ = made(of, 12)
    assert [(one.base_offset, one.next_offset, one.record_count) for one in headers] == [
        (12, 20, 0),
        (20, 40, 2),
    ]
    assert [one.leader_epoch for one in headers] == [7, 7]
    assert [(one.base_offset, one.next_offset, one.record_count) for one in made(of, 30)[0]] == [(30, 40, 0)]
    empty = group(3, 6, [])
    assert [(one.base_offset, one.next_offset, one.record_count) for one in made(empty, 3)[0]] == [(3, 6, 0)]
