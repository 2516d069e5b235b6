"""Rows of tables: attributes, entries of indexes, transactions that are prepared; against a plain model of each."""

import struct
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import msgspec

from antiphon.errors import (
    UNDECODABLE,
    CorruptBatchError,
    InvalidRequestError,
    StorageFailedError,
)
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.attributes import PutAttributed
from antiphon.records.attributes import Attributes, pack, unpack
from antiphon.records.batch import TRANSACTIONAL_BIT
from antiphon.records.builder import build_batch, build_end_marker
from antiphon.records.changes import (
    ATTRIBUTES_HEADER,
    VERSION,
    VERSION_HEADER,
    attributed_version,
    owned_version,
    stored_row,
    stored_version,
)
from antiphon.simulation.memory_store import MemoryEngine
from antiphon.table.attributed import check_attributes
from antiphon.table.index_reads import find_by_index, scan_index
from antiphon.table.indexes import entry_key, parsed, prefix_of
from antiphon.table.neighbours import CEILING, EQUAL, FLOOR, HIGHER, LOWER
from antiphon.table.prepared_rows import PREPARED, PRODUCER, read_prepared
from antiphon.table.state import TableState, open_state
from tests.fuzz.target import Target, check
from tests.fuzz.targets.batches import sealed

STORE: Final = "/store"
NAMES: Final = ("i", "", "i\x00", "j")
PRODUCERS: Final = (7, 8, -1)
OPERATIONS_MAX: Final = 40
ATTRIBUTES_AT: Final = 22  # the byte of a batch that has the transactional bit
COMMIT: Final = 3
_put = msgspec.msgpack.Decoder(PutAttributed)


def opened() -> tuple[TableState, MemoryEngine]:
    """An empty store of a shard."""
    engine = MemoryEngine(SimulatedDisk(Random(0), lambda: 0.0), Random(0))
    return open_state(STORE, engine), engine


class Fields:
    """Small pieces of an input, one after the other; nothing where it has ended."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def number(self, below: int) -> int:
        self._at += 1
        return self._data[self._at - 1] % below if self._at <= len(self._data) else 0

    def text(self, most: int = 4) -> bytes:
        size = self.number(most + 1)
        self._at += size
        return self._data[self._at - size : self._at]


class RowAttributes(Target):
    """0: packed attributes. 1: a put of a client. 2: a row as stores keep it."""

    slow_s = 0.5

    def seeds(self) -> list[bytes]:
        attributes = Attributes("me", b"p", 5, (("i", b"x"), ("j", b"\x00")))
        plain = VERSION.pack(1, 2, 3, 4)
        stored = attributed_version(owned_version(plain, 9), pack(attributes)) + b"value"
        put = msgspec.msgpack.encode(PutAttributed(b"k", b"v", attributes, 3, 9, (1, 2)))
        return [b"\x00" + pack(attributes), b"\x01" + put, b"\x02" + stored, b"\x02" + plain + b"value"]

    def run(self, data: bytes) -> None:
        kind, rest = data[:1], data[1:]
        if kind == b"\x01":
            self._of_client(rest)
        elif kind == b"\x02":
            self._of_store(rest)
        else:
            self._packed(rest)

    def _packed(self, data: bytes) -> None:
        try:
            found = unpack(data)
        except UNDECODABLE:
            return
        check(unpack(pack(found)) == found, "attributes are others after they were packed again")

    def _of_client(self, data: bytes) -> None:
        try:
            put = _put.decode(data)
        except UNDECODABLE:
            return
        try:
            check_attributes(put)
        except InvalidRequestError:
            return
        check(unpack(pack(put.attributes)) == put.attributes, "what was taken cannot be read again")

    def _of_store(self, data: bytes) -> None:
        try:
            version, session_id, attributes, at = stored_row(data)
        except struct.error:
            return  # its block has a CRC: these bytes are no row
        check(stored_version(data) == (version, session_id, at), "two readers see two versions")
        again = VERSION.pack(*version)
        if session_id is not None:
            again = owned_version(again, session_id)
        if attributes is not None:
            again = attributed_version(again, attributes)
        if at <= len(data):
            check(again + data[at:] == data, "a row is another one after it was written")


class IndexEntries(Target):
    """Puts and removals of rows with entries, then reads by each index, against sorted lists; a restart in between."""

    slow_s = 1.0

    def seeds(self) -> list[bytes]:
        return [
            bytes(range(60)),
            b"\x00\x01a\x02\x00\x01a\x01\x01b" * 6,
            b"\x00\x01k\x01\x00\x02\x00\x00" * 8,
        ]

    def run(self, data: bytes) -> None:
        fields = Fields(data)
        state, engine = opened()
        rows: dict[bytes, tuple[tuple[str, bytes], ...]] = {}
        for number in range(OPERATIONS_MAX):
            if fields.is_over:
                break
            key, kind = fields.text(2), fields.number(8)
            entries = tuple(
                (NAMES[fields.number(len(NAMES))], fields.text(3)) for _ in range(fields.number(4))
            )
            value = None if kind == 0 else b"v%d" % number
            headers: list[tuple[str, bytes | None]] = [(VERSION_HEADER, VERSION.pack(number, 0, 1, 1))]
            if value is not None and entries:
                headers.append((ATTRIBUTES_HEADER, pack(Attributes(indexes=entries))))
            state.apply([bytes(build_batch([(key, value, headers, 1)], base_offset=number))])
            rows.pop(key, None)
            if value is not None:
                rows[key] = entries
            if kind == 1:
                state.close()
                state = open_state(STORE, engine)
        self._look(state, rows, fields.text(3))
        state.close()

    def _look(self, state: TableState, rows: dict[bytes, Any], wanted: bytes) -> None:
        for name in NAMES:
            expected = sorted(
                {(secondary, key) for key, entries in rows.items() for of, secondary in entries if of == name}
            )
            found, more = scan_index(state, name, (b"", b""), None, 1_000)
            check(
                [(one, row.key) for one, row in found] == expected,
                f"index {name!r} has other entries than rows",
            )
            check(not more, "there is more behind the end of an index")
            prefix = prefix_of(name)
            for one in expected:
                check(parsed(entry_key(name, *one), prefix) == one, f"entry {one} is read as another one")
                after, _ = scan_index(state, name, (b"", b""), one, 1_000)
                behind = [other for other in expected if other > one]
                check([(s, row.key) for s, row in after] == behind, f"what comes behind {one}")
            for comparison in range(HIGHER + 1):
                near = find_by_index(state, name, wanted, comparison)
                told = None if near is None else (near[0], near[1].key)
                check(
                    told in expected_of(expected, wanted, comparison),
                    f"{wanted!r} by {comparison} in {expected}: {told}",
                )


def expected_of(entries: list[tuple[bytes, bytes]], wanted: bytes, comparison: int) -> list[Any]:
    """The entries that a comparison may find: those of the secondary key that it means; [None] where there is none."""
    keys = [secondary for secondary, _ in entries]
    near = {
        EQUAL: [one for one in keys if one == wanted],
        FLOOR: [one for one in keys if one <= wanted][-1:],
        CEILING: [one for one in keys if one >= wanted][:1],
        LOWER: [one for one in keys if one < wanted][-1:],
        HIGHER: [one for one in keys if one > wanted][:1],
    }[comparison]
    return [one for one in entries if near and one[0] == near[0]] or [None]


class PreparedBatches(Target):
    """0: transactions that are prepared and end, with rows and restarts in between. 1: a hostile batch of a transaction.
    2: what a store keeps of one.
    """

    slow_s = 1.0

    def seeds(self) -> list[bytes]:
        good = batch_of(0, 7, [(b"k", b"v")])
        stored = msgspec.msgpack.encode(
            [(b"k", b"v", VERSION.pack(1, 2, 3, 4)), (b"l", None, VERSION.pack(2, 0, 3, 4))]
        )
        marker = build_end_marker(
            commit=True, number=1, producer=(7, 0), term=1, base_offset=0, timestamp_ms=1
        )
        return [
            b"\x00" + bytes(range(50)),
            b"\x00" + b"\x00\x01\x01a\x01\x00\x01" * 8,
            b"\x01" + good,
            b"\x01" + bytes(marker),
            b"\x02" + stored,
        ]

    def run(self, data: bytes) -> None:
        kind, rest = data[:1], data[1:]
        if kind == b"\x01":
            self._hostile(bytes(sealed(rest)))
        elif kind == b"\x02":
            self._stored(rest)
        else:
            self._history(Fields(rest))

    def _hostile(self, batch: bytes) -> None:
        if len(batch) > ATTRIBUTES_AT:
            flags = bytes([batch[ATTRIBUTES_AT] | TRANSACTIONAL_BIT])
            batch = bytes(sealed(batch[:ATTRIBUTES_AT] + flags + batch[ATTRIBUTES_AT + 1 :]))
        state, engine = opened()
        state.apply([bytes(build_batch([(b"a", b"1", [(VERSION_HEADER, VERSION.pack(0, 0, 1, 1))], 1)]))])
        before = dict(rows_of(state)), state.applied_offset
        try:
            state.apply([moved(batch, 1)])
        except CorruptBatchError:
            check((dict(rows_of(state)), state.applied_offset) == before, "a batch was refused and applied")
            return
        except msgspec.MsgspecError:
            return  # attributes that no leader has packed
        told = state.transactions.by_producer
        state.close()
        again = open_state(STORE, engine)
        check(again.transactions.by_producer == told, "a restart finds other prepared transactions")
        again.close()

    def _stored(self, value: bytes) -> None:
        state, engine = opened()
        batch = state.batch()
        batch.put(PREPARED + PRODUCER.pack(7), value)
        state.apply_prepared(batch, 1, 1)
        try:
            found = read_prepared(state.store)
            state.close()
            again = open_state(STORE, engine)
        except StorageFailedError:
            return
        check(again.transactions.by_producer == found.by_producer, "two reads find two transactions")
        check(all(key in found.locked for key, *_ in found.by_producer.get(7, [])), "a key is not locked")
        again.close()

    def _history(self, fields: Fields) -> None:
        state, engine = opened()
        rows: dict[bytes, bytes] = {}
        prepared: dict[int, list[tuple[bytes, bytes | None]]] = {}
        offset = 0
        while offset < OPERATIONS_MAX and not fields.is_over:
            kind, producer = fields.number(5), PRODUCERS[fields.number(len(PRODUCERS))]
            if kind == 0:
                changes = [(fields.text(2), fields.text(2) if fields.number(3) else None)]
                state.apply([batch_of(offset, -1, changes)])
                put_rows(rows, changes)
                offset += 1
            elif kind in {1, 2} and producer >= 0:
                changes = [
                    (fields.text(2), fields.text(2) if fields.number(3) else None) for _ in range(kind)
                ]
                state.apply([batch_of(offset, producer, changes)])
                prepared.setdefault(producer, []).extend(changes)
                offset += kind
            else:
                commit = kind == COMMIT
                marker = build_end_marker(
                    commit=commit,
                    number=1,
                    producer=(producer, 0),
                    term=1,
                    base_offset=offset,
                    timestamp_ms=1,
                )
                state.apply([bytes(marker)])
                offset += 1
                ended = prepared.pop(producer, [])
                if commit:
                    put_rows(rows, ended)
            if fields.number(4) == 1:
                state.close()
                state = open_state(STORE, engine)
        self._look(state, rows, prepared)
        state.close()

    def _look(self, state: TableState, rows: dict[bytes, bytes], prepared: dict[int, Any]) -> None:
        check(dict(rows_of(state)) == rows, "the table has other rows than were committed")
        told = {
            p: [(key, value) for key, value, _ in one] for p, one in state.transactions.by_producer.items()
        }
        check(told == prepared, "other transactions are prepared than were")
        keys = {key for changes in prepared.values() for key, _ in changes}
        check(set(state.transactions.locked) <= keys, "a key is locked that nobody has prepared")


def batch_of(offset: int, producer_id: int, changes: list[tuple[bytes, bytes | None]]) -> bytes:
    """A batch of a table's log; of a producer's transaction, unless its id is -1."""
    headers = [(VERSION_HEADER, VERSION.pack(offset, 0, 1, 1))]
    records: list[Any] = [(key, value, headers, 1) for key, value in changes]
    how: dict[str, Any] = (
        {} if producer_id < 0 else {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    )
    built = build_batch(records, is_transactional=producer_id >= 0, **how)
    return moved(bytes(built), offset)


def moved(batch: bytes, offset: int) -> bytes:
    """The batch at another place of the log."""
    if len(batch) < 8:
        return batch
    changed = bytearray(batch)
    struct.pack_into(">q", changed, 0, offset)
    return bytes(changed)


def put_rows(rows: dict[bytes, bytes], changes: list[tuple[bytes, bytes | None]]) -> None:
    """What changes come to."""
    for key, value in changes:
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value


def rows_of(state: TableState) -> Iterator[tuple[bytes, bytes]]:
    """All rows of a shard."""
    rows, _ = state.scan(b"", b"", 10_000)
    yield from ((row.key, row.value or b"") for row in rows)
