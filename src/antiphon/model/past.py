"""Rows of a table's shard as of an offset of its log: what the shard was when its log ended there.

Where the log is whole, the changes before the offset make the rows. Otherwise, or where less is to be read, the rows of now
are taken back: a key that has not changed since then is as it is now, a key whose next change made it was not there, and any
other key is what its last change before the offset says. Where the log has no such change any more, the past of that key is
lost, and the error says from which offset on it is not.

A change of a transaction happens where its marker stands. Keys that were handed to another shard are no part of a shard from
the entry on that says so. Nothing here waits for anything but the `PastSource`.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from antiphon.errors import InvalidRequestError, LimitReachedError, OffsetOutOfRangeError
from antiphon.model.metadata import HASH_MAX, KeyRanges, ShardMeta, TopicMeta, key_hash
from antiphon.model.rows import Row, Version
from antiphon.model.shard_part import part_of
from antiphon.records.batch import BatchHeader, Buffer, iter_batches
from antiphon.records.builder import end_marker_of
from antiphon.records.changes import Change, ChangeKind, decode_changes
from antiphon.records.split_entries import Inherit, Release, split_entry_of

CHANGE_BYTES: Final = 256  # that a change takes beside its key and value, about


class Bounds(NamedTuple):
    """Of one shard.

    Attributes:
        start, end: where its log begins, and where what is committed ends.
        own_start: before it, its log repeats that of the shard that it was split off.
        first, last: hashes of its keys.
        last_ever: the last hash of its keys before any of them were handed over, unless its log says so.
    """

    start: int
    end: int
    own_start: int = 0
    first: int = 0
    last: int = HASH_MAX
    last_ever: int = HASH_MAX


class PastSource(Protocol):
    """One shard of a table, as whoever asks reaches it."""

    async def bounds(self) -> Bounds:
        """As they are now."""

    def log(self, start: int, end: int) -> AsyncIterator[memoryview]:
        """Whole batches from the one that holds `start`, up to `end`, also of transactions that were aborted or are open."""

    async def now(self) -> Iterable[Row]:
        """The rows as they are now, of those that are wanted."""


class Wanted(NamedTuple):
    """Which keys are asked for, and how many bytes of changes may be kept; None: any number."""

    holds: Callable[[bytes], bool]
    bytes_max: int | None = None


class PastRows(NamedTuple):
    """Rows as of an offset, by key; and the first and last hash of the keys that the shard held then."""

    rows: dict[bytes, Row]
    hashes: tuple[int, int]


class PastFold:
    """What a stretch of a log says of the keys that are wanted.

    Attributes:
        before: the last change of a key before the offset.
        after: the first one at or behind it, with where it happened.
        released: entries that hand keys over, with where they stand.
        inherited: which keys the shard took over, if the stretch says so.
        unknown: where the last marker stands that commits changes from before the stretch; -1: none does.
    """

    def __init__(self, as_of: int, wanted: Wanted) -> None:
        self.before: dict[bytes, Change] = {}
        self.after: dict[bytes, tuple[int, Change]] = {}
        self.released: list[tuple[int, Release]] = []
        self.unknown = -1
        self.inherited: Inherit | None = None
        self._as_of = as_of
        self._wanted = wanted
        self._at = -1
        self._open: dict[int, list[Change]] = {}
        self._bytes = 0

    def add(self, chunk: Buffer, end: int) -> None:
        """The next batches; those that were added before are passed over, as is what stands at `end` or behind it."""
        for header, batch in iter_batches(chunk):
            if header.next_offset <= self._at or header.base_offset >= end:
                continue
            self._at = header.next_offset
            if header.is_control:
                self._control(header, batch)
                continue
            changes = [
                one for one in decode_changes([batch]) if one.offset < end and self._wanted.holds(one.key)
            ]
            if header.is_transactional:
                self._open.setdefault(header.producer_id, []).extend(changes)
                continue
            for change in changes:
                self._take(change, change.offset)

    def _control(self, header: BatchHeader, batch: Buffer) -> None:
        marker = end_marker_of(batch)
        if marker is None:
            entry = split_entry_of(batch)
            if isinstance(entry, Release):
                self.released.append((header.base_offset, entry))
            elif isinstance(entry, Inherit):
                self.inherited = entry
            return
        changes = self._open.pop(header.producer_id, None)
        if not marker[0]:
            return
        if changes is None:
            self.unknown = header.base_offset
        for change in changes or ():
            self._take(change, header.base_offset)

    def _take(self, change: Change, at: int) -> None:
        if at < self._as_of:
            old = self.before.get(change.key)
            self.before[change.key] = change
            self._bytes -= 0 if old is None else _size_of(old)
        elif change.key in self.after:
            return
        else:
            self.after[change.key] = (at, change)
        self._bytes += _size_of(change)
        limit = self._wanted.bytes_max
        if limit is not None and self._bytes > limit:
            raise LimitReachedError(
                f"the rows as of offset {self._as_of} take more than {limit} bytes: ask for fewer keys, or read them with "
                "the client (table.scan(as_of=...)) or Spark (asOfOffset)",
                limit=limit,
            )


def _size_of(change: Change) -> int:
    return CHANGE_BYTES + len(change.key) + len(change.value or b"")


async def rows_as_of(source: PastSource, shard: int, as_of: int, wanted: Wanted) -> PastRows:
    """The rows of the shard with this index, as of an offset.

    Raises OffsetOutOfRangeError where the log ends before it, or does not say any more what was; its details say `start`,
    from which offset on that is possible.
    """
    bounds = await source.bounds()
    _check(bounds, shard, as_of)
    if bounds.start == 0 and as_of <= bounds.end - as_of:
        return await _forward(source, bounds, as_of, wanted)
    rows = {row.key: row for row in await source.now()}
    later = await source.bounds()  # what the rows may show is in the log before its end
    fold = await _folded(source, as_of, as_of, later.end, wanted)
    is_told = not fold.released and fold.unknown < 0 and all(_is_new(one) for _, one in fold.after.values())
    if not is_told and bounds.start == 0:
        return await _forward(source, bounds, as_of, wanted)
    if not is_told:
        fold = await _folded(source, as_of, bounds.start, later.end, wanted)
    return _taken_back(rows, fold, later, shard, as_of)


def _check(bounds: Bounds, shard: int, as_of: int) -> None:
    if as_of > bounds.end:
        raise OffsetOutOfRangeError(
            f"shard {shard} ends at offset {bounds.end}, and {as_of} is beyond: nothing is written there yet",
            shard=shard,
            asked=as_of,
            start=bounds.start,
            end=bounds.end,
        )
    if as_of < bounds.own_start:
        raise OffsetOutOfRangeError(
            f"shard {shard} was split off another one at offset {bounds.own_start}, and {as_of} is before: its keys were "
            "the other shard's then; it can be read as of that offset or a later one",
            shard=shard,
            asked=as_of,
            start=bounds.own_start,
            end=bounds.end,
        )
    if as_of < bounds.start:
        raise _lost(shard, as_of, bounds.start, "what was before is gone from its log")


def _lost(shard: int, as_of: int, start: int, why: str) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"shard {shard} cannot be read as of offset {as_of}: {why}. It can be read as of {start} or a later offset",
        shard=shard,
        asked=as_of,
        start=start,
    )


def _is_new(change: Change) -> bool:
    """Was the key not there before this change?"""
    return change.kind is ChangeKind.CREATED


async def _folded(source: PastSource, as_of: int, start: int, end: int, wanted: Wanted) -> PastFold:
    fold = PastFold(as_of, wanted)
    if start < end:
        async for chunk in source.log(start, end):
            fold.add(chunk, end)
    return fold


async def _forward(source: PastSource, bounds: Bounds, as_of: int, wanted: Wanted) -> PastRows:
    """Out of all changes before the offset."""
    fold = await _folded(source, as_of, 0, as_of, wanted)
    last = bounds.last_ever if fold.inherited is None else fold.inherited.last
    last = min([last, *(entry.first - 1 for _, entry in fold.released)])
    found = {
        key: _row(change)
        for key, change in fold.before.items()
        if change.value is not None and (last == HASH_MAX or key_hash(key) <= last)
    }
    return PastRows(found, (bounds.first, last))


def _taken_back(rows: dict[bytes, Row], fold: PastFold, now: Bounds, shard: int, as_of: int) -> PastRows:
    """The rows of now without what has changed since."""
    lost_until = fold.unknown if fold.unknown >= as_of else -1
    handed_over = [at for at, _ in fold.released if at >= as_of]
    if handed_over:
        lost_until = max(lost_until, *handed_over)
    for key, (at, change) in fold.after.items():
        before = fold.before.get(key)
        if before is not None and before.value is not None:
            rows[key] = _row(before)
            continue
        rows.pop(key, None)
        if before is None and not _is_new(change):
            lost_until = max(lost_until, at)
    if lost_until >= 0:
        raise _lost(shard, as_of, lost_until + 1, "what its log still has does not say what was there then")
    return PastRows(rows, (now.first, now.last))


def _row(change: Change) -> Row:
    version = Version(change.version_id, change.modifications, change.created_ms, change.modified_ms)
    return Row(change.key, change.value or b"", version, change.session_id)


def check_whole(found: Mapping[int, tuple[int, int]], name: str) -> None:
    """Raise InvalidRequestError unless what the shards held, by index, is each key once."""
    at, problem = 0, ""
    for index, (first, last) in sorted(found.items(), key=lambda one: one[1]):
        if first < at:
            problem = f"shard {index} is asked for as of when it had taken keys over, and another one as of before that"
        elif first > at:
            problem = f"the keys with hashes {at} to {first - 1} are missing"
        at = max(at, last + 1)
    if not problem and at <= HASH_MAX:
        problem = f"the keys with hashes from {at} on are missing"
    if problem:
        raise InvalidRequestError(
            f"these offsets are no moment of table {name!r}: {problem}. Name an offset for each shard that was there, "
            "shards that were split off later left out"
        )


def bounds_of(topic: TopicMeta, shard: ShardMeta, start: int, end: int) -> Bounds:
    """The bounds of a shard whose log begins and ends there."""
    first, last = KeyRanges(topic.shards).range_of(shard)
    part = part_of(topic, shard)
    last_ever = last if part is None else part.last_ever
    return Bounds(start, end, shard.own_start, first, last, last_ever)
