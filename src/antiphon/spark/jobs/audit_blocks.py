"""Looks at the batches of one replica, one by one, and tells per block what is there: per batch, never per record.

`BlockScanner` takes whatever the replica answers and trusts none of it: lengths are checked before they are used, each
batch's CRC, counts, codec, offset and term are checked, and its producer's marker against the one before. The digest of a
block is over every byte of its batches. `scan_replica` drives it over a range: it fetches one answer ahead, goes on behind
what cannot be read at the next border of a block, and gives up on a replica that fails again and again.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from crc32c import crc32c
from xxhash import xxh3_128

from antiphon.errors import AntiphonError, DamagedLogError, OffsetOutOfRangeError, UnreachableError
from antiphon.model.requests import Fetched
from antiphon.records.batch import (
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_BIT,
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    UNCHECKED_BYTES,
)
from antiphon.spark.jobs.audit_markers import JOB_ID_MIN, marker_problem
from antiphon.spark.jobs.audit_model import (
    DIFFERS,
    INCOMPLETE,
    NOTE,
    NOWHERE,
    READ,
    TRIMMED,
    UNREAD,
    Block,
    Finding,
    Marker,
    MarkerSpan,
)
from antiphon.spark.jobs.audit_origins import OriginScanner

FINDINGS_PER_BLOCK: Final = 20
FAILURES_MAX: Final = 3  # of one range; then the rest of it is left unread
_SEQUENCE_MASK: Final = 0x7FFF_FFFF
_CODEC_OR_CONTROL: Final = CODEC_MASK | CONTROL_BIT
CODEC_MAX: Final = len(CODEC_NAMES) - 1


class ReplicaLog(Protocol):
    """What a range is read from: `NodeLink`, or a test's list of batches."""

    node: int

    def fetch(self, shard_id: int, offset: int) -> tuple[Fetched, memoryview]:
        """Whole batches from the one that holds `offset`."""

    def fetch_ahead(self, shard_id: int, offset: int) -> None:
        """The same fetch is about to be made."""

    def known_damage(self, shard_id: int) -> str | None:
        """What the node knows to be damaged of this replica, in its own words."""


class _Markers:
    """One producer's first batch in a block, and its newest so far."""

    __slots__ = ("epoch", "first", "last", "offset", "oldest")

    def __init__(self, marker: Marker) -> None:
        self.oldest = marker
        self.go_on(marker)

    def go_on(self, marker: Marker) -> None:
        """Take `marker` for the newest."""
        self.epoch, self.first, self.last, self.offset = (
            marker.epoch,
            marker.first,
            marker.last,
            marker.offset,
        )

    def newest(self) -> Marker:
        """The newest one."""
        return Marker(self.epoch, self.first, self.last, self.offset)


class BlockScanner:
    """The blocks between `bounds` of one replica. `offset` is where the next batch has to begin."""

    def __init__(
        self,
        shard_id: int,
        node: int,
        bounds: Sequence[int],
        *,
        is_table: bool = False,
        origins: Sequence[int] = (),
        every_replica_writes: bool = False,
    ) -> None:
        self.shard_id = shard_id
        self.node = node
        self.offset = bounds[0]
        self.done: list[Block] = []
        self.is_torn = False  # what stands at `offset` is no batch: there is no way on but by the next border
        self._bounds = bounds
        self._at = 0  # index of the lower border of the block that is being filled
        self._is_table = is_table
        self._term = -1
        self._is_first = True
        self._origins = OriginScanner(origins) if every_replica_writes else None
        self._begin()

    # -- blocks ---------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Where the range ends."""
        return self._bounds[-1]

    @property
    def is_done(self) -> bool:
        """Is every block closed?"""
        return self._at + 1 >= len(self._bounds)

    def _begin(self) -> None:
        self._state = READ
        self._hash = xxh3_128()
        self._batches = 0
        self._bytes = 0
        self._entry = self.offset
        self._next = NOWHERE
        self._terms = (-1, -1)
        self._markers: dict[int, _Markers] = {}
        self._findings: list[Finding] = []

    def _close(self) -> None:
        markers = tuple(MarkerSpan(who, seen.oldest, seen.newest()) for who, seen in self._markers.items())
        self.done.append(
            Block(
                self.shard_id,
                self.node,
                self._bounds[self._at],
                self._bounds[self._at + 1],
                self._state,
                self._hash.digest(),
                self._batches,
                self._bytes,
                self._entry,
                self._next,
                *self._terms,
                markers=markers,
                origins=() if self._origins is None else self._origins.take(),
                findings=tuple(self._findings),
            )
        )
        self._at += 1
        self._begin()

    def found(self, verdict: str, kind: str, offset: int, what: str) -> None:
        """Note a finding in the block that is being filled."""
        if len(self._findings) < FINDINGS_PER_BLOCK:
            self._findings.append(Finding(verdict, kind, self.shard_id, self.node, offset, what))

    def skip(self, state: str, to: int | None = None) -> None:
        """Leave this block as it is, and those up to offset `to`, in `state`; go on at the next border."""
        while not self.is_done:
            self._state = state
            border = self._bounds[self._at + 1]
            self.offset = border
            self._is_first = True
            self._term = -1
            self._close()
            if to is None or border >= to:
                break

    def finish(self) -> None:
        """Close the block in which the range's last batch is, and those in which none begins."""
        while not self.is_done:
            self._close()

    # -- batches --------------------------------------------------------------------------------------------------

    def feed(self, payload: memoryview) -> None:
        """Look at whole batches that continue the log at `offset`. The outermost may lie outside of the range."""
        at = 0
        while not self.is_done:
            at = self._run(payload, at)
            size_left = len(payload) - at
            if size_left == 0:
                break
            if size_left < HEADER_BYTES:
                self._torn(f"{size_left} bytes stand where a batch has to begin")
                break
            header = HEADER_STRUCT.unpack_from(payload, at)
            base, size = header[0], header[1] + LENGTH_PREFIX_BYTES
            if header[3] != MAGIC or not HEADER_BYTES <= size <= size_left:
                self._torn(f"no whole batch stands there: magic {header[3]}, {size} bytes of {size_left}")
                break
            if base >= self.end:
                self._reached(base)
                return
            if self._is_first and base < self.offset:
                # The batch that holds the first offset belongs to the range before, which looks at it.
                self._straddles(header)
            else:
                if base >= self._bounds[self._at + 1]:
                    self._reached(base)
                self._look(header, payload[at : at + size])
            at += size
        if not self.is_done and self.offset >= self.end:
            self.finish()

    def _run(self, payload: memoryview, at: int) -> int:
        """Take in the batches from byte `at` on that nothing is wrong with, within this block; returns where they end.

        All that is out of the ordinary, a producer's first batch in a block for one, is left to `_look`.
        """
        if self._origins is not None:
            return at
        unpack, known_of, end = HEADER_STRUCT.unpack_from, self._markers.get, len(payload)
        offset, bound, term = self.offset, self._bounds[self._at + 1], self._term
        dense, began, batches, first_term = not self._is_table, at, 0, -1
        while end - at >= HEADER_BYTES and offset < bound:
            base, length, own, magic, crc, attributes, delta, _, _, producer, epoch, sequence, count = unpack(
                payload, at
            )
            after = at + length + LENGTH_PREFIX_BYTES
            if base != offset or magic != MAGIC or own < term or count != delta + 1 or count < 1:
                break
            if attributes & _CODEC_OR_CONTROL > CODEC_MAX or not at + HEADER_BYTES <= after <= end:
                break
            if crc32c(payload[at + UNCHECKED_BYTES : after]) != crc:
                break
            if producer >= 0:
                known = known_of(producer)
                if known is None or known.epoch != epoch:
                    break
                if sequence != known.last + 1 if dense else sequence <= known.first or producer >= JOB_ID_MIN:
                    break
                known.first, known.offset = sequence, offset
                known.last = (sequence + delta) & _SEQUENCE_MASK
            if batches == 0:
                first_term = own
            batches += 1
            term, offset, at = own, offset + count, after
        if batches:
            self._hash.update(payload[began:at])
            self._is_first = False
            self._term, self.offset, self._next = term, offset, offset
            self._terms = (first_term if self._terms[0] < 0 else self._terms[0], term)
            self._batches += batches
            self._bytes += at - began
        return at

    def _torn(self, what: str) -> None:
        self.found(DIFFERS, "not_a_batch", self.offset, what)
        self.is_torn = True

    def _reached(self, base: int) -> None:
        """The next batch begins at `base`, at or beyond the end of this block: close what lies before it."""
        if base > self.offset:
            self._gap(base)
        while not self.is_done and self._bounds[self._at + 1] <= base:
            self._close()

    def _gap(self, base: int) -> None:
        self.found(
            DIFFERS,
            "gap",
            self.offset,
            f"offsets {self.offset} to {base - 1} are missing: the next batch is at {base}",
        )
        self.offset = base

    def _straddles(self, header: tuple[int, ...]) -> None:
        following = header[0] + header[6] + 1
        if following > self.offset:
            self.offset = self._entry = following
            self._is_first = False
            self._term = header[2]

    def _look(self, header: tuple[int, ...], batch: memoryview) -> None:
        (base, _, term, _, crc, attributes, delta, _, _, producer, epoch, sequence, count) = header
        self._is_first = False
        self._hash.update(batch)
        if base != self.offset:
            if base > self.offset:
                self._gap(base)
            else:
                self.found(
                    DIFFERS,
                    "repeat",
                    base,
                    f"a batch begins at {base}, the one before ended at {self.offset}",
                )
        if crc32c(batch[UNCHECKED_BYTES:]) != crc:
            self.found(DIFFERS, "bad_crc", base, f"the batch's bytes do not fit its CRC {crc:#010x}")
        if count <= 0 or delta + 1 != count or attributes & CODEC_MASK >= len(CODEC_NAMES):
            self.found(
                DIFFERS,
                "bad_header",
                base,
                f"the batch has {count} records, takes {delta + 1} offsets, codec {attributes & CODEC_MASK}",
            )
        if term < self._term:
            self.found(DIFFERS, "falling_term", base, f"term {term} comes behind term {self._term}")
        self._term = term
        self._batches += 1
        self._bytes += len(batch)
        self._terms = (term if self._terms[0] < 0 else self._terms[0], term)
        if self._origins is not None:
            for verdict, kind, what in self._origins.look(producer, epoch, crc, len(batch), base):
                self.found(verdict, kind, base, what)
        elif producer >= 0 and not attributes & CONTROL_BIT:
            self._mark(producer, Marker(epoch, sequence, (sequence + delta) & _SEQUENCE_MASK, base))
        following = base + max(delta, 0) + 1
        self.offset = self._next = max(self.offset, following)

    def _mark(self, producer: int, marker: Marker) -> None:
        known = self._markers.get(producer)
        if known is None:
            self._markers[producer] = _Markers(marker)
            return
        problem = marker_problem(producer, known.newest(), marker, is_table=self._is_table)
        if problem is not None:
            self.found(DIFFERS, problem.kind, marker.offset, problem.what)
        known.go_on(marker)


def scan_replica(scanner: BlockScanner, log: ReplicaLog) -> Iterator[Block]:
    """Read a range of a replica; the blocks as they are done, every block of the range once, in order."""
    failures = 0
    while not scanner.is_done:
        before = scanner.offset
        try:
            reply, payload = log.fetch(scanner.shard_id, before)
            last = _end_of(payload)
            if before < last < scanner.end:
                log.fetch_ahead(scanner.shard_id, last)
            _take(scanner, log, reply, payload)
        except OffsetOutOfRangeError as error:
            _out_of_range(scanner, log, error)
        except DamagedLogError as error:
            said = error.details.get("offset")
            at = said if isinstance(said, int) else before
            scanner.found(DIFFERS, "damaged", at, f"the node found damage itself: {error.message}")
            scanner.skip(UNREAD)
            failures += 1
        except UnreachableError as error:
            scanner.found(INCOMPLETE, "unreachable", before, error.message)
            scanner.skip(UNREAD, scanner.end)
        except AntiphonError as error:
            scanner.found(INCOMPLETE, "refused", before, f"{error.code}: {error.message}")
            scanner.skip(UNREAD)
            failures += 1
        if scanner.is_torn:
            scanner.is_torn = False
            scanner.skip(UNREAD)
            failures += 1
        if failures >= FAILURES_MAX:
            scanner.skip(UNREAD, scanner.end)
        yield from scanner.done
        scanner.done.clear()


def _end_of(payload: memoryview) -> int:
    """Offset after the last whole batch, by the headers alone; -1 where they make no sense."""
    at, end = 0, -1
    size_left = len(payload)
    while size_left >= HEADER_BYTES:
        header = HEADER_STRUCT.unpack_from(payload, at)
        size = header[1] + LENGTH_PREFIX_BYTES
        if not HEADER_BYTES <= size <= size_left:
            break
        end = header[0] + header[6] + 1
        at += size
        size_left -= size
    return end


def _take(scanner: BlockScanner, log: ReplicaLog, reply: Fetched, payload: memoryview) -> None:
    before, blocks = scanner.offset, len(scanner.done)
    scanner.feed(payload)
    if scanner.offset > before or len(scanner.done) > blocks or scanner.is_done or scanner.is_torn:
        return
    said = f"it has {reply.log_start} to {reply.log_end}, committed up to {reply.high_watermark}"
    if payload:
        scanner.found(
            DIFFERS, "missing", before, f"asked for offset {before}, it gave batches before it; {said}"
        )
    elif reply.log_end <= before:
        _lacks(scanner, log, f"the log ends before the cut at {scanner.end}; {said}")
    else:
        scanner.found(INCOMPLETE, "silent", before, f"it gave nothing at offset {before}; {said}")
    scanner.skip(UNREAD)


def _lacks(scanner: BlockScanner, log: ReplicaLog, what: str) -> None:
    """Offsets that were committed are not there. A node that knows why has stopped counting on this replica.

    Whoever meets a damaged batch first, a reader or the scrub, has the node cut the log there and fetch the rest again.
    """
    try:
        damage = log.known_damage(scanner.shard_id)
    except AntiphonError:  # it has answered a moment ago; what it gave is what counts
        damage = None
    if damage is None:
        scanner.found(DIFFERS, "missing", scanner.offset, what)
    else:
        scanner.found(DIFFERS, "damaged", scanner.offset, f"the node found damage itself: {damage}")


def _out_of_range(scanner: BlockScanner, log: ReplicaLog, error: AntiphonError) -> None:
    start = error.details.get("start", -1)
    if isinstance(start, int) and start > scanner.offset:
        scanner.found(NOTE, "trimmed", start, f"the log's start moved to {start} while it was read")
        scanner.skip(TRIMMED, start)
        return
    _lacks(scanner, log, f"the log was cut below what was committed: {error.message}")
    scanner.skip(UNREAD, scanner.end)
