"""RecordBatches: what a node takes, what readers make of it, and what is written again."""

import struct
from typing import Any, Final

from antiphon.errors import CorruptBatchError
from antiphon.records import arrow
from antiphon.records.batch import CODEC_NAMES, HEADER_BYTES, check_batch, iter_batches, read_header
from antiphon.records.builder import (
    build_batch,
    build_control,
    build_members,
    build_term_start,
    committed_of,
    members_of,
    recompress,
    seal,
)
from antiphon.records.changes import (
    VERSION,
    VERSION_HEADER,
    decode_changes,
    effects_of,
    pack_outcomes,
    unpack_outcomes,
)
from antiphon.records.compression import compress, decompress
from antiphon.records.decode import Record, decode_records
from antiphon.records.intake import FULL, IntakeRules, RecordWalker, check_outside
from antiphon.records.members import Members
from antiphon.records.split_entries import Inherit, Release, build_split_entry, split_entry_of
from tests.fuzz.target import Target, check

PLAIN_BYTES_MAX: Final = 1024 * 1024
RULES: Final = IntakeRules(FULL, 10_000, PLAIN_BYTES_MAX)
SEAL: Final = (
    1  # of the first byte: length and CRC are made right, so that the records behind them are looked at
)
OFFSET_MAX: Final = 2**62


def sealed(data: bytes) -> bytearray:
    """The batch with the length and the CRC that its bytes have."""
    batch = bytearray(data)
    if len(batch) >= HEADER_BYTES:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        batch[16] = 2
        seal(batch)
    return batch


def rows(batch: bytes) -> list[Record]:
    """The records as the columns have them."""
    found = arrow.decode(
        [batch], start=-(2**63), end=2**63 - 1, columns=("key", "value", "offset", "headers", "timestamp")
    )
    columns = {name: column.to_pylist() for name, column in found.columns.items() if name != "timestamp"}
    return [
        Record(
            columns["offset"][at],
            0,
            columns["key"][at],
            columns["value"][at],
            tuple((header["key"], header["value"]) for header in columns["headers"][at] or ()),
        )
        for at in range(found.rows)
    ]


class Batches(Target):
    """One batch, as a client sends it: the first byte says whether length and CRC are made right."""

    slow_s = 2.0

    def __init__(self) -> None:
        self._compiled = RecordWalker(lambda work: None)
        self._compiled.load_kernel()
        self._decoding = RecordWalker(lambda work: None)
        self.run(self.seeds()[0])  # what is compiled at first use is compiled now

    def seeds(self) -> list[bytes]:
        records = [(b"k%d" % n, b"value %d" % n, [("h", b"x"), ("n", None)], 1000 + n) for n in range(5)]
        plain = build_batch(records)
        change = [(b"k", b"v", [(VERSION_HEADER, VERSION.pack(1, 0, 1, 1))], 1)]
        found = [
            plain,
            build_batch(records, producer_id=7, producer_epoch=0, base_sequence=3),
            build_batch([(None, None, (), 0)]),
            build_batch(change, producer_id=1 << 61, producer_epoch=0, base_sequence=1),
            *(recompress(bytearray(plain), number) for number in range(1, len(CODEC_NAMES))),
        ]
        return [bytes([flag]) + bytes(batch) for batch in found for flag in (SEAL, 0)]

    def run(self, data: bytes) -> None:
        batch = bytes(sealed(data[1:]) if data[:1] and data[0] & SEAL else data[1:])
        try:
            records: list[Record] | None = decode_records(batch, limit_bytes=PLAIN_BYTES_MAX)
        except CorruptBatchError:
            records = None
        for read in (effects_of, lambda one: list(decode_changes([one])), members_of, split_entry_of):
            try:
                read(batch)
            except CorruptBatchError:
                continue
        self._columns(batch, records)
        self._taken(batch, records)

    def _columns(self, batch: bytes, records: list[Record] | None) -> None:
        """The compiled decoder of columns finds the same as the one of records, or refuses."""
        try:
            found = rows(batch)
        except CorruptBatchError:
            return
        if records is not None:
            expected = [record._replace(timestamp_ms=0) for record in records]
            check(found == expected, "columns hold other records than the decoder of records finds")

    def _taken(self, batch: bytes, records: list[Record] | None) -> None:
        """What a node takes, by either of its two ways to look, every reader can read; and the two agree."""
        try:
            header = read_header(batch)
            check_batch(header, batch)
            check_outside(header, batch, RULES)
        except CorruptBatchError:
            return
        if header.is_control:
            return
        verdicts = []
        for walker in (self._compiled, self._decoding):
            try:
                walker.walk(header, batch, RULES)
                verdicts.append("")
            except CorruptBatchError as error:
                verdicts.append(error.message)
        check(bool(verdicts[0]) == bool(verdicts[1]), f"the kernel and the decoder do not agree: {verdicts}")
        if verdicts[0]:
            return
        check(records is not None, "a batch that a node takes cannot be read")
        assert records is not None
        check(len(records) == header.record_count, "a batch that a node takes has another number of records")
        check(
            [r.offset for r in records] == list(range(header.base_offset, header.next_offset)),
            "offsets with gaps",
        )
        self._again(records)

    def _again(self, records: list[Record]) -> None:
        """Written again and read again, records are the same."""
        made = build_batch(
            [(r.key, r.value, r.headers, r.timestamp_ms) for r in records], base_offset=records[0].offset
        )
        check(decode_records(bytes(made)) == records, "records are others after they were written again")


class Compressed(Target):
    """Compressed bytes: the first byte is the codec. Bounded, refused or undone."""

    slow_s = 2.0
    memory_bytes = 24 * 1024 * 1024

    def seeds(self) -> list[bytes]:
        plain = b"".join(b"%d," % n for n in range(400))
        made = [bytes([codec]) + compress(codec, plain) for codec in range(1, 5)]
        zeros = [bytes([codec]) + compress(codec, bytes(1 << 16)) for codec in range(1, 5)]
        return [*made, *zeros, b"\x02" + _raw_snappy(plain)]

    def run(self, data: bytes) -> None:
        if not data:
            return
        try:
            plain = decompress(data[0] % 8, data[1:], PLAIN_BYTES_MAX)
        except CorruptBatchError:
            return
        check(len(plain) <= PLAIN_BYTES_MAX or data[0] % 8 == 0, "more than the limit was unpacked")
        codec = data[0] % 8
        check(
            bytes(decompress(codec, compress(codec, plain))) == bytes(plain),
            "packed again it is something else",
        )


def _raw_snappy(plain: bytes) -> bytes:
    """As librdkafka sends it."""
    import pyarrow as pa

    return bytes(pa.Codec("snappy").compress(plain, asbytes=True))


class LogEntries(Target):
    """Entries of logs that nodes act on: changes of tables, splits, members, terms, outcomes of requests."""

    def seeds(self) -> list[bytes]:
        members = Members((1, 2, 3), (), ())
        entries = [
            build_term_start(3, 0, 1),
            build_members(members, 3, 0, 1),
            build_split_entry(Release(1, 5, 9, 0), 1, 0, 1),
            build_split_entry(Inherit(0, 9, 3, 4, 5, b"jobs"), 1, 0, 1),
            build_batch([(b"k", b"v", [(VERSION_HEADER, VERSION.pack(1, 2, 3, 4))], 1)]),
        ]
        outcomes = pack_outcomes([(0, None), (2, (1, 2, 3, 4))])
        return [b"\x00" + bytes(entry) for entry in entries] + [b"\x01" + outcomes]

    def run(self, data: bytes) -> None:
        if data[:1] == b"\x01":
            self._outcomes(data[1:])
        elif data[:1] == b"\x02":
            self._control(data[1:])
        else:
            self._batch(bytes(sealed(data[1:])))

    def _outcomes(self, packed: bytes) -> None:
        try:
            found = unpack_outcomes(packed)
        except CorruptBatchError:
            return
        check(pack_outcomes(found) == packed, "outcomes are others after they were packed again")

    def _control(self, data: bytes) -> None:
        """A well-formed control batch around hostile bytes."""
        if data:
            self._batch(bytes(build_control(data[0] % 8, data[1:], 1, 0, 1)))

    def _batch(self, batch: bytes) -> None:
        for read in _READERS:
            try:
                read(batch)
            except CorruptBatchError:
                continue


def _batches(data: bytes) -> Any:
    return [bytes(batch) for _, batch in iter_batches(data)]


_READERS: Final = (
    members_of,
    split_entry_of,
    committed_of,
    effects_of,
    lambda batch: list(decode_changes([batch])),
    _batches,
)
