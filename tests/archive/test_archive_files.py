"""Files of the archive without a cluster: what is in them, and what happens to those that were damaged."""

import random
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.archive import files
from antiphon.archive import format as archive_format
from antiphon.archive.digest import digest_of_batches, digest_of_rows
from antiphon.archive.files import (
    OpenFile,
    as_records,
    file_system,
    options_from_environment,
    rows_of,
    verify,
)
from antiphon.archive.format import (
    ArchivedFile,
    archived_until,
    decode_row,
    encode_row,
    holder,
    in_order,
    reaching,
)
from antiphon.archive.writer import FileWriter
from antiphon.errors import ArchiveError, InvalidRequestError
from antiphon.model.rows import Row, Version
from antiphon.records.arrow import to_arrow
from antiphon.records.builder import build_batch, build_term_start
from antiphon.records.decode import Record, decode_records

TOPIC_ID: Final = bytes(range(16))
VERSION: Final = Version(0, 0, 0, 0)


def planned(uri: str, start: int, end: int) -> ArchivedFile:
    return ArchivedFile(
        format=1, topic="t", topic_id=TOPIC_ID.hex(), shard=3, start=start, end=end, rows=0, controls=0, uri=uri,
        size_bytes=0, checksum="", digest="", earliest_ms=-1, latest_ms=-1, archived_ms=7,
    )  # fmt: skip


def some_batches(count: int = 40) -> tuple[list[bytes], list[Record]]:
    """Batches of a log with an entry of the log's own now and then, and their records."""
    draw = random.Random(11)
    batches: list[bytes] = []
    at = 0
    for number in range(count):
        if number % 9 == 0:
            batches.append(bytes(build_term_start(1 + number // 9, at, 5)))
            at += 1
        records: list[Any] = [
            (
                draw.choice([None, b"", b"key%d" % at]),
                draw.choice([None, b"", draw.randbytes(draw.randrange(60))]),
                tuple((f"h{n}", draw.choice([None, b"", b"v"])) for n in range(draw.randrange(3))),
                1000 * number + draw.randrange(999),
            )
            for _ in range(draw.randrange(1, 9))
        ]
        batch = build_batch(
            records,
            base_offset=at,
            leader_epoch=1 + number // 9,
            compression="zstd" if number % 2 else "none",
        )
        batches.append(bytes(batch))
        at += len(records)
    return batches, decode_records(b"".join(batches))


def written(path: Path, group_rows: int = 16) -> tuple[ArchivedFile, list[Record]]:
    """A file with some records from offset 5 on, in several row groups."""
    batches, records = some_batches()
    end = records[-1].offset + 1
    records = [record for record in records if record.offset >= 5]
    digest, rows, controls = digest_of_batches(batches, 5, end)
    assert rows == len(records)
    with FileWriter(planned(str(path), 5, end), None, group_rows) as writer:
        for batch in batches:
            writer.add(to_arrow([batch], start=5, end=end, topic="t", partition=3, include_headers=True))
        return writer.finish(controls, digest), records


def read(file: ArchivedFile, start: int, end: int) -> list[Record]:
    return [record for batch in rows_of(file, start, end) for record in as_records(batch)]


def test_a_file_gives_back_what_was_put_in(tmp_path: Path) -> None:
    file, records = written(tmp_path / "a.parquet")
    verify(file)
    assert (file.rows, file.earliest_ms) == (len(records), min(r.timestamp_ms for r in records))
    assert file.latest_ms == max(r.timestamp_ms for r in records)
    for start, end in (
        (0, 10**6),
        (5, 6),
        (30, 77),
        (60, 61),
        (file.end - 1, file.end),
        (file.end, file.end + 5),
        (9, 9),
    ):
        assert read(file, start, end) == [r for r in records if start <= r.offset < end]
    with OpenFile(file) as opened:
        assert opened.parquet.metadata.num_row_groups > 5
        for wanted in (0, 7500, 20_001, file.latest_ms, file.latest_ms + 1):
            first = next((r for r in records if r.timestamp_ms >= wanted), None)
            assert opened.first_since(wanted, 0) == (
                None if first is None else (first.offset, first.timestamp_ms)
            )
        assert opened.first_since(0, 61) == (61, next(r.timestamp_ms for r in records if r.offset == 61))


def test_a_reader_fetches_only_the_groups_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    file, _ = written(tmp_path / "a.parquet")
    seen: list[int] = []
    real = pq.ParquetFile.read_row_group

    def spy(self: Any, number: int, *arguments: Any, **named: Any) -> Any:
        seen.append(number)
        return real(self, number, *arguments, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    assert len(read(file, file.end - 3, file.end)) == 3
    assert len(seen) == 1


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.none() | st.binary(max_size=5),
                st.none() | st.binary(max_size=9),
                st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3),
                st.integers(-(1 << 40), 1 << 60),
            ),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_both_sides_have_the_same_digest_and_it_tells_records_apart(rows: Any, data: Any) -> None:
    batches: list[bytes] = []
    at = 0
    for records in rows:
        batches.append(bytes(build_batch(records, base_offset=at, leader_epoch=2)))
        at += len(records)
    start, end = sorted((data.draw(st.integers(0, at)), data.draw(st.integers(0, at))))
    columns = to_arrow(batches, start=start, end=end, topic="t", partition=0, include_headers=True)
    cut = data.draw(st.integers(0, columns.num_rows))
    digest, count, controls = digest_of_batches(batches, start, end)
    assert (digest, count) == digest_of_rows([columns.slice(0, cut), columns.slice(cut)])
    assert (count, controls) == (end - start, 0)
    number = data.draw(st.integers(0, len(rows) - 1))
    key, value, headers, time_ms = rows[number][0]
    for other in (
        (value, key, headers, time_ms),
        (key, value, [*headers, ("", None)], time_ms),
        (key, value, headers, 0 if time_ms else 1),  # times beyond what columns hold are all the same to them
        ((key or b"") + b"x", value, headers, time_ms),
    ):
        changed = list(batches)
        base = sum(map(len, rows[:number]))
        changed[number] = bytes(build_batch([other, *rows[number][1:]], base_offset=base, leader_epoch=2))
        is_same = other == (key, value, headers, time_ms)
        assert (digest_of_batches(changed, 0, at)[0] == digest_of_batches(batches, 0, at)[0]) is is_same


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """`verify` finds all; a reader either says so or gives exactly what was written, where the bits mean nothing to it."""
    path = tmp_path / "a.parquet"
    file, records = written(path)
    good = path.read_bytes()
    refusals: list[str] = []
    draw = random.Random(5)
    for _ in range(250):
        at = draw.randrange(len(good))
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << draw.randrange(8)]) + good[at + 1 :])
        with pytest.raises(ArchiveError, match="checksum"):
            verify(file)
        try:
            assert read(file, 0, file.end) == records
        except ArchiveError as error:
            refusals.append(error.message)
    assert len(refusals) > 125
    assert all(str(path) in message for message in refusals)
    path.write_bytes(good)
    verify(file)


def test_a_row_group_larger_than_any_that_is_written_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, records = written(tmp_path / "a.parquet")
    with OpenFile(file) as opened:
        assert opened.group_at(records[0].offset).rows.num_rows
        for name in ("GROUP_BYTES_MAX", "GROUP_ROWS_MAX"):
            with monkeypatch.context() as patched:
                patched.setattr(files, name, 3)
                with pytest.raises(ArchiveError, match="more than is read"):
                    opened.group_at(records[0].offset)


def test_a_file_that_is_not_the_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    file, _ = written(path)
    good = path.read_bytes()
    for content, why in ((good[:-1], "bytes"), (good + b"x", "bytes"), (bytes(len(good)), "cannot be read")):
        path.write_bytes(content)
        with pytest.raises(ArchiveError, match=why):
            read(file, 0, file.end)
    path.write_bytes(good)
    for changed, why in (
        ({"rows": file.rows - 1, "controls": file.controls + 1}, "something else"),
        ({"shard": 4}, "something else"),
        ({"start": 6, "rows": file.rows - 1}, "something else"),
        ({"digest": "0" * 32}, "digest"),
    ):
        with pytest.raises(ArchiveError, match=why):
            verify(msgspec.structs.replace(file, **changed))
    path.unlink()
    with pytest.raises(ArchiveError, match="not there any more"):
        read(file, 0, file.end)


def test_rows_of_the_catalog(tmp_path: Path) -> None:
    name = f"{5:020d}-{9:020d}-{7:013d}-0a1b2c3d.parquet"
    uri = f"file:///x/t-{TOPIC_ID.hex()[:8]}/00003/{name}"
    file = msgspec.structs.replace(planned(uri, 5, 9), rows=3, controls=1)
    assert decode_row(Row(file.key, encode_row(file), VERSION)) == file
    assert file.key == TOPIC_ID.hex().encode() + b"/00000003/00000000000000000005"
    future = encode_row(msgspec.structs.replace(file, format=2))
    for value, why in (
        (future, "newer Antiphon"),
        (b"", "does not describe"),
        (b"{}", "does not describe"),
        (encode_row(msgspec.structs.replace(file, rows=4)), "contradicts itself"),
        (encode_row(msgspec.structs.replace(file, start=6)), "contradicts itself"),
        (encode_row(msgspec.structs.replace(file, topic_id="zz")), "does not describe"),
    ):
        with pytest.raises(ArchiveError, match=why):
            decode_row(Row(file.key, value, VERSION))


def chain(*spans: tuple[int, int]) -> list[ArchivedFile]:
    return in_order([planned(f"memory://{start}", start, end) for start, end in spans])


@pytest.mark.parametrize(
    ("files", "log_start", "start"),
    [
        ([], 10, 10),
        ([(0, 5), (5, 10)], 10, 0),
        ([(0, 5), (5, 10)], 7, 0),
        ([(0, 5), (6, 10)], 10, 6),
        ([(0, 5), (5, 9)], 10, 10),
        ([(0, 100), (50, 60)], 80, 0),
        ([(0, 20), (10, 30), (30, 31)], 31, 0),
        ([(12, 20)], 10, 10),
        ([(0, 5)], 0, 0),
    ],
)
def test_from_where_on_the_archive_reaches_the_log(
    files: list[tuple[int, int]], log_start: int, start: int
) -> None:
    made = chain(*files)
    assert reaching(made, log_start) == start
    assert archived_until(made, start) >= log_start
    at = start
    while at < log_start:
        file = holder(made, at)
        assert file is not None
        at = file.end


def test_without_the_libraries_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("fsspec", "pyarrow.parquet"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            with pytest.raises(ArchiveError, match=r"pip install 'antiphon\[archive\]'"):
                file_system("file:///x")
    assert archive_format.ARCHIVE_TABLE not in sys.modules


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_ARCHIVE_OPTIONS", '{"auto_mkdir": true}')
    assert options_from_environment() == {"auto_mkdir": True}
    assert file_system("file:///x")[0].auto_mkdir is True
    for wrong in ("{", "[1]"):
        monkeypatch.setenv("ANTIPHON_ARCHIVE_OPTIONS", wrong)
        with pytest.raises(InvalidRequestError, match="ANTIPHON_ARCHIVE_OPTIONS"):
            options_from_environment()
