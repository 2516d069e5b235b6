"""Is a table's store, on every replica, what its log folds into? Row by row, by digests, in buckets of key hashes.

Tasks of two kinds read: *folds* go through a range of the log and keep the last change of each key below the cut, *stores*
scan one replica's rows as they are. A scan takes a while and writes go on, so its task then reads the log on from the cut to
where the store was at the end: the keys that changed there are not judged on that replica, all others must be as they were
at the cut. Rows travel as (key, version, hash of the value), in chunks for each bucket; one bucket fits into memory wherever
it is judged.

Rows of transactions count where the range that has them has their marker, too; others are not judged.

The log is folded once, from one replica: that the logs are equal is proved by the audit of the logs. Where its beginning was
trimmed, keys without a change in it can only be compared between replicas.

Where every replica writes, changes are merged by the table's conflict rule instead: for the two that come with Antiphon the
fold takes the change with the greatest, or smallest, stamp; with any other rule replicas are compared with each other only.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from antiphon.errors import (
    AntiphonError,
    CorruptBatchError,
    ProtocolViolationError,
    UnavailableError,
    WrongShardError,
)
from antiphon.model.metadata import HASH_MAX
from antiphon.model.requests import TableRows, TableScan
from antiphon.records.batch import BatchHeader, Buffer, iter_batches
from antiphon.records.builder import end_marker_of
from antiphon.records.changes import VERSION, VERSION_HEADER
from antiphon.records.decode import raw_records
from antiphon.spark.jobs.audit_blocks import ReplicaLog
from antiphon.spark.jobs.audit_judge import limited, odd_ones
from antiphon.spark.jobs.audit_link import NodeLink
from antiphon.spark.jobs.audit_model import DIFFERS, INCOMPLETE, NOWHERE, Finding, ShardPlan, ShardResult

KEYS_PER_BUCKET: Final = 50_000
BUCKETS_MAX: Final = 4096
CHUNK_BYTES: Final = 4 * 1024 * 1024
SCAN_ROWS: Final = 10_000
FINDINGS_PER_BUCKET: Final = 50
LAST_WRITER: Final = "last-writer-wins"
FIRST_WRITER: Final = "first-writer-wins"
LOG, STORE, CHANGED = "log", "store", "changed"

UNDECIDED: Final = b"?"  # a row of a transaction whose marker was not seen
_OFFSET: Final = struct.Struct(">q")
_STAMP: Final = struct.Struct(
    ">qqqq"
)  # modified ms, origin, LSN, operation: how writers of one key are ordered
_ROW_COST_BYTES: Final = 100

Folded = dict[bytes, tuple[bytes, bytes]]
"""By key: where its change stands in the order of changes, and its row (empty: removed)."""


class KeyChunk(msgspec.Struct, frozen=True, array_like=True):
    """Keys of one bucket. `source` is LOG (with `orders` and `rows`), STORE (with `rows`) or CHANGED.

    `part` counts the ranges of the log; a last chunk, `final`, says that this source is through.
    """

    source: str
    node: int
    part: int
    keys: list[bytes]
    rows: list[bytes] = []
    orders: list[bytes] = []
    final: bool = False


def buckets_of(plan: ShardPlan) -> int:
    """Into how many buckets a shard's keys are cut: a log of n changes has at most n keys."""
    return min(BUCKETS_MAX, plan.cut // KEYS_PER_BUCKET + 1)


def is_folded(plan: ShardPlan) -> bool:
    """Can the log be folded here?"""
    return not plan.conflict or plan.conflict in {LAST_WRITER, FIRST_WRITER}


def row_of(version: bytes, value: bytes) -> bytes:
    """What is compared of a row: the packed version and a hash of the value."""
    return version + xxh3_128_digest(value)


class Buckets:
    """Gathers keys by bucket and hands them out in chunks; knows which hashes are the shard's."""

    def __init__(self, plan: ShardPlan, source: str, node: int, part: int = 0) -> None:
        self.count = buckets_of(plan)
        self._low, self._high = plan.hashes or (0, HASH_MAX)
        self._source, self._node, self._part = source, node, part
        self._chunks: dict[int, KeyChunk] = {}
        self._bytes = 0

    def add(self, key: bytes, row: bytes = b"", order: bytes = b"") -> None:
        """Take in a key, unless it is another shard's."""
        place = xxh3_64_intdigest(key) & HASH_MAX
        if not self._low <= place <= self._high:
            return
        bucket = place % self.count
        chunk = self._chunks.get(bucket)
        if chunk is None:
            chunk = self._chunks[bucket] = KeyChunk(self._source, self._node, self._part, [], [], [])
        chunk.keys.append(key)
        if self._source != CHANGED:
            chunk.rows.append(row)
        if self._source == LOG:
            chunk.orders.append(order)
        self._bytes += len(key) + _ROW_COST_BYTES

    def full(self) -> Iterator[tuple[int, KeyChunk]]:
        """All that was gathered, once that is enough."""
        if self._bytes >= CHUNK_BYTES:
            yield from self._chunks.items()
            self._chunks = {}
            self._bytes = 0

    def rest(self) -> Iterator[tuple[int, KeyChunk]]:
        """The rest, and to every bucket the word that this was all."""
        for bucket in range(self.count):
            chunk = self._chunks.get(bucket) or KeyChunk(self._source, self._node, self._part, [], [], [])
            yield bucket, msgspec.structs.replace(chunk, final=True)
        self._chunks = {}


# -- folding a range of the log ---------------------------------------------------------------------------------------


def fold_range(
    logs: Sequence[ReplicaLog], plan: ShardPlan, start: int, end: int, part: int
) -> Iterator[tuple[int, KeyChunk]]:
    """The last changes in a range of the log, by bucket; from the first of `logs` that gives it whole.

    Raises the last one's error where none does.
    """
    problem: AntiphonError | None = None
    for log in logs:
        try:
            folded = _fold(log, plan, start, end)
        except AntiphonError as error:
            problem = error
            continue
        gathered = Buckets(plan, LOG, log.node, part)
        for key, (order, row) in folded.items():
            gathered.add(key, row, order)
            yield from gathered.full()
        yield from gathered.rest()
        return
    raise problem or UnavailableError("no replica holds this range of the log whole")


def _fold(log: ReplicaLog, plan: ShardPlan, start: int, end: int) -> Folded:
    folded: Folded = {}
    prepared: dict[int, Folded] = {}  # by producer: what becomes rows if its transaction is committed
    smallest = plan.conflict == FIRST_WRITER
    for header, batch in _batches(log, plan, start, end, below_cut=True):
        if header.is_transactional and header.is_control:
            said = end_marker_of(batch)
            effects = prepared.pop(header.producer_id, {})
            folded.update(effects if said is not None and said[0] else {})
            continue
        into = prepared.setdefault(header.producer_id, {}) if header.is_transactional else folded
        for record in raw_records(batch):
            version = _version(record)
            if version is None:
                continue
            if plan.conflict:
                order = _stamp(version)
                known = folded.get(record.key or b"")
                if known is not None and (order < known[0]) != smallest:
                    continue
            else:
                order = _OFFSET.pack(record.offset)
            value = record.value
            into[record.key or b""] = (order, b"" if value is None else row_of(version, value))
    for effects in prepared.values():  # whether they are rows is said behind this range
        folded.update({key: (order, UNDECIDED) for key, (order, _) in effects.items()})
    return folded


def _version(record: Any) -> bytes | None:
    for name, packed in record.headers:
        if name == VERSION_HEADER:
            return packed if packed is not None and len(packed) == VERSION.size else None
    return None


def _stamp(version: bytes) -> bytes:
    """As `antiphon.table.merge` orders changes: version ids are LSN << 22 | origin << 17 | operation."""
    number, _, _, modified_ms = VERSION.unpack(version)
    return _STAMP.pack(modified_ms, number >> 17 & 31, number >> 22, number & 0x1FFFF)


def _batches(
    log: ReplicaLog, plan: ShardPlan, start: int, end: int, *, below_cut: bool
) -> Iterator[tuple[BatchHeader, Buffer]]:
    """The batches that begin in [start, end): those below the cut, or those beyond it.

    Raises CorruptBatchError for what is no batch, OffsetOutOfRangeError, UnavailableError where the log ends too early.
    """
    offset = start
    while offset < end:
        _, payload = log.fetch(plan.shard_id, offset)
        before, wanted = offset, list[tuple[BatchHeader, Buffer]]()
        for header, batch in iter_batches(payload):
            if header.base_offset >= end:
                offset = end
                break
            if header.base_offset > offset:
                raise CorruptBatchError(f"offsets {offset} to {header.base_offset - 1} are missing")
            if header.next_offset > offset:
                offset = header.next_offset
            if header.base_offset >= start and _is_below(plan, header) == below_cut:
                wanted.append((header, batch))
        if before < offset < end:
            log.fetch_ahead(plan.shard_id, offset)
        yield from wanted
        if offset == before:
            raise UnavailableError(f"node {log.node} gave nothing at offset {offset} of {end}")


def _is_below(plan: ShardPlan, header: BatchHeader) -> bool:
    if not plan.every_replica_writes:
        return header.base_offset < plan.cut
    origin, lsn = header.producer_epoch, -1 - header.producer_id
    return 0 < origin < len(plan.origins) and 0 < lsn <= plan.origins[origin]


# -- scanning a store ---------------------------------------------------------------------------------------------------


def scan_store(link: NodeLink, plan: ShardPlan) -> Iterator[tuple[int, KeyChunk]]:
    """A replica's rows, then the keys that changed since the cut, by bucket.

    Raises UnavailableError where the replica did not stay whole meanwhile, WrongShardError where the shard was split.
    """
    began = _applied(link, plan)
    gathered = Buckets(plan, STORE, link.node)
    start = b""
    while True:
        body = TableScan(plan.shard_id, start, b"", SCAN_ROWS, consistency="local", hashes=plan.hashes)
        reply: TableRows = link.ask(body).body
        last = b""
        for row in reply.rows:
            if row is None:
                continue
            if row.key < start:
                raise ProtocolViolationError(
                    f"node {link.node} gave key {row.key!r} to a scan from {start!r}"
                )
            last, version = row.key, row.version
            packed = VERSION.pack(version.id, version.modifications, version.created_ms, version.modified_ms)
            gathered.add(last, row_of(packed, row.value or b""))
        yield from gathered.full()
        if not reply.more or not reply.rows:
            break
        start = last + b"\0"
    yield from gathered.rest()
    ended = _applied(link, plan)
    if ended < began:
        raise UnavailableError(
            f"the store of node {link.node} was made anew while it was read; run the audit again"
        )
    changed = Buckets(plan, CHANGED, link.node)
    first = plan.cut
    if plan.every_replica_writes:
        first = next(replica.start for replica in plan.replicas if replica.node == link.node)
    keys: set[bytes] = set()
    for _, batch in _batches(link, plan, first, ended, below_cut=False):
        keys.update(record.key or b"" for record in raw_records(batch))
    for key in keys:
        changed.add(key)
        yield from changed.full()
    yield from changed.rest()


def _applied(link: NodeLink, plan: ShardPlan) -> int:
    """How far the store has applied the log; at least to the cut."""
    status = link.statuses().get(plan.shard_id)
    if status is None or status.state not in {"ok", "disk_full"}:
        state = "gone" if status is None else status.state
        raise UnavailableError(f"the replica on node {link.node} is {state}: its store is not compared")
    if not plan.every_replica_writes and status.applied < plan.cut:
        raise UnavailableError(
            f"the store of node {link.node} is at {status.applied}, the cut is at {plan.cut}"
        )
    return status.applied


def store_problem(plan: ShardPlan, node: int, error: AntiphonError) -> Finding:
    """Why a store, or a range of the log, is not compared."""
    what = error.message
    if isinstance(error, WrongShardError):
        what = f"the shard was split while it was audited, run the audit again: {what}"
    return Finding(INCOMPLETE, "store_unread", plan.shard_id, node, NOWHERE, what)


# -- judging a bucket ---------------------------------------------------------------------------------------------------


def judge_bucket(plan: ShardPlan, chunks: Iterable[KeyChunk], ranges: int) -> ShardResult:
    """The verdict on the keys of one bucket. `ranges`: how many ranges of the log were to be folded."""
    folded: Folded = {}
    stores: dict[int, dict[bytes, bytes]] = defaultdict(dict)
    changed: dict[int, set[bytes]] = defaultdict(set)
    whole: dict[str, set[int]] = defaultdict(set)
    smallest = plan.conflict == FIRST_WRITER
    for chunk in chunks:
        if chunk.final:
            whole[chunk.source].add(chunk.part if chunk.source == LOG else chunk.node)
        if chunk.source == STORE:
            stores[chunk.node].update(zip(chunk.keys, chunk.rows, strict=True))
        elif chunk.source == CHANGED:
            changed[chunk.node].update(chunk.keys)
        else:
            for key, row, order in zip(chunk.keys, chunk.rows, chunk.orders, strict=True):
                known = folded.get(key)
                if known is None or (order < known[0]) == smallest:
                    folded[key] = (order, row)
    nodes = sorted(whole[STORE] & whole[CHANGED])
    has_log = is_folded(plan) and len(whole[LOG]) == ranges
    judge = _KeyJudge(plan, folded, has_log=has_log)
    result = ShardResult(plan.shard_id)
    keys = set(folded) if has_log else set()
    for node in nodes:
        keys.update(stores[node])
    for key in keys:
        rows = {node: stores[node].get(key, b"") for node in nodes if key not in changed[node]}
        result.rows += len(rows)
        result.rows_skipped += len(nodes) - len(rows)
        judge.look(key, rows)
    result.findings, result.omitted = limited(judge.found, FINDINGS_PER_BUCKET)
    return result


class _KeyJudge:
    def __init__(self, plan: ShardPlan, folded: Folded, *, has_log: bool) -> None:
        self.found: list[Finding] = []
        self._plan = plan
        self._folded = folded
        self._has_log = has_log
        self._trimmed = min((replica.start for replica in plan.replicas), default=0) > 0

    def look(self, key: bytes, rows: dict[int, bytes]) -> None:
        """Judge the rows of one key, by node (empty: no such row)."""
        change = self._folded.get(key) if self._has_log else None
        if change is not None and change[1] == UNDECIDED:
            return  # a transaction was prepared, and its marker lies behind the range, or behind the cut
        if self._has_log and (change is not None or not self._trimmed):
            order, wanted = change or (b"", b"")
            offset = NOWHERE if len(order) != _OFFSET.size else _OFFSET.unpack(order)[0]
            for node, row in rows.items():
                if row != wanted:
                    self._note(
                        node,
                        offset,
                        key,
                        f"{_described(row)}, its log says {_described(wanted)}",
                        row,
                        wanted,
                    )
            return
        for node in odd_ones(rows):
            other = next(one for one in rows.values() if one != rows[node])
            others = ", ".join(str(one) for one, row in rows.items() if row == other)
            self._note(
                node,
                NOWHERE,
                key,
                f"{_described(rows[node])}, node {others} has {_described(other)}",
                rows[node],
                other,
            )

    def _note(self, node: int, offset: int, key: bytes, what: str, row: bytes, wanted: bytes) -> None:
        kind = "row_missing" if not row else "row_extra" if not wanted else "row_differs"
        shown = key[:100].decode("utf-8", "backslashreplace")
        self.found.append(
            Finding(
                DIFFERS,
                kind,
                self._plan.shard_id,
                node,
                offset,
                f"key {shown!r}: its store has {what}",
                key[:1000],
            )
        )


def _described(row: bytes) -> str:
    if not row:
        return "no row"
    number, modifications, _, _ = VERSION.unpack_from(row)
    return f"version {number} ({modifications} modifications, value {row[VERSION.size :].hex()[:8]})"
