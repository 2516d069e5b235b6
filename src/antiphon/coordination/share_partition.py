"""A share-partition (KIP-932) as a pure state machine: no clock, socket, disk or randomness of its own.

It knows of the records from the start offset on that were given to anybody yet: neighbours in the same state are one span.
Members acquire records under a lock, which ends by itself, and acknowledge them. What is done at the start moves the start
offset on. So memory goes by the records in flight, of which there is a most.

`revision` rises with what has to be stored. What a member is told of its acknowledgements holds when that is stored; whoever
holds the share-partition must not tell it before. Locks are not stored: whoever makes it again from a row (`restored`) ends
them all, as if their time had come.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from antiphon.coordination.share_terms import (
    TERMINAL,
    Ack,
    AckType,
    Acquired,
    LogBatch,
    RecordState,
    ShareBounds,
    ShareCounts,
    ShareRefused,
    Span,
)
from antiphon.invariants import invariant

_STATES = {
    AckType.GAP: RecordState.ARCHIVED,
    AckType.ACCEPT: RecordState.ACKNOWLEDGED,
    AckType.REJECT: RecordState.ARCHIVED,
}
Run = tuple[int, int, AckType]  # first, end


@dataclass(slots=True)
class SharePartition:
    """One share-partition. `start`: the start offset. `spans` lie side by side from there on."""

    start: int
    bounds: ShareBounds = field(default_factory=ShareBounds)
    spans: list[Span] = field(default_factory=list)
    revision: int = 0
    counts: ShareCounts = field(default_factory=ShareCounts)

    @classmethod
    def restored(
        cls,
        bounds: ShareBounds,
        start: int,
        stored: Iterable[tuple[int, int, int]],
        counts: ShareCounts | None = None,
    ) -> "SharePartition":
        """As it was stored; what happens is added to `counts`. Raises ValueError for what is no state of one."""
        found = cls(start, bounds, counts=counts or ShareCounts())
        at = start
        for length, state, count in stored:
            if length <= 0 or count < 0 or at < 0:
                raise ValueError(f"{length} offsets from {at} on, {count} times delivered")
            span = Span(at, at + length, RecordState(state), count)
            at = span.end
            if span.state is RecordState.ACQUIRED:
                raise ValueError("locks are not stored")
            if span.state is RecordState.AVAILABLE and count >= bounds.delivery_count_limit:
                found.counts.exhausted += length
                span = span._replace(state=RecordState.ARCHIVED)
            found.spans.append(span)
        found._tidy()
        return found

    def stored(self) -> tuple[tuple[int, int, int], ...]:
        """What follows the start offset, as `restored` takes it. What nobody was given yet is left out at the end."""
        kept: list[Span] = []
        for span in self.spans:
            bare = span._replace(holder="", lock_ms=0)
            if span.state is RecordState.ACQUIRED:
                bare = bare._replace(state=RecordState.AVAILABLE)
            _put(kept, bare)
        while kept and kept[-1].state is RecordState.AVAILABLE and not kept[-1].deliveries:
            kept.pop()
        return tuple((span.end - span.first, int(span.state), span.deliveries) for span in kept)

    # -- what there is ----------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The first offset that was given to nobody yet."""
        return self.spans[-1].end if self.spans else self.start

    @property
    def room(self) -> int:
        """So many more offsets may be in flight."""
        held = sum(span.end - span.first for span in self.spans if not span.is_gap)
        return max(0, self.bounds.partition_max_record_locks - held)

    def next_offset(self) -> int | None:
        """Where the log has to be read for records to be given; None: nothing may be given now."""
        for span in self.spans:
            if span.state is RecordState.AVAILABLE:
                return span.first
        return self.end if self.room else None

    def holds(self, member: str) -> bool:
        """Has the member acquired anything?"""
        return any(span.holder == member for span in self.spans)

    def done(self) -> int:
        """Offsets after the start offset that are done."""
        return sum(span.end - span.first for span in self.spans if span.state in TERMINAL)

    def locked(self) -> int:
        """Offsets that members work on."""
        return sum(span.end - span.first for span in self.spans if span.state is RecordState.ACQUIRED)

    def deadline_ms(self) -> int | None:
        """When the first lock ends."""
        return min((s.lock_ms for s in self.spans if s.state is RecordState.ACQUIRED), default=None)

    # -- acquiring --------------------------------------------------------------------------------------------------

    def acquire(
        self,
        now_ms: int,
        member: str,
        at: int,
        batches: Sequence[LogBatch],
        records_max: int,
        *,
        strict: bool = False,
    ) -> list[Acquired]:
        """Give a member what is available in these batches, which were read from `at` on.

        Whole batches until there are `records_max` records or more; with `strict` never more. Offsets that no batch has are
        done: the log is not going to have them.
        """
        self.tick(now_ms)
        found: list[Acquired] = []
        left = records_max
        for batch in batches:
            if left <= 0:
                break
            self._skip(max(at, self.start), batch.first)
            at = batch.end
            first = max(batch.first, self.start)
            if not batch.visible:
                self._skip(first, batch.end)
                continue
            self._reach(min(batch.end, self.end + self.room))
            for span in self._take(first, batch.end, left if strict else batch.end - batch.first):
                taken = span._replace(
                    state=RecordState.ACQUIRED,
                    deliveries=span.deliveries + 1,
                    holder=member,
                    lock_ms=now_ms + self.bounds.record_lock_duration_ms,
                )
                self._set(taken)
                _add_acquired(found, taken)
                left -= span.end - span.first
                self.counts.delivered += span.end - span.first
            if self.end < batch.end:
                break  # what is left of it is known to nobody: it is no gap
        self._tidy()
        return found

    def _reach(self, end: int) -> None:
        """Know of offsets up to there."""
        if end > self.end:
            _put(self.spans, Span(self.end, end, RecordState.AVAILABLE))

    def _take(self, first: int, end: int, most: int) -> list[Span]:
        """What is available there, cut to so many offsets."""
        found = []
        for span in self._within(first, end):
            if span.state is RecordState.AVAILABLE and most > 0:
                found.append(span._replace(end=min(span.end, span.first + most)))
                most -= found[-1].end - span.first
        return found

    def _skip(self, first: int, end: int) -> None:
        """There is nothing for anybody at these offsets."""
        if first >= end:
            return
        if end > self.end:
            known = self.end
            _put(self.spans, Span(known, end, RecordState.ARCHIVED))
            end = known
            self.revision += 1
        if any(span.state is RecordState.AVAILABLE for span in self._within(first, end)):
            self.revision += 1
            self._replace(first, end, _archived_if_available)

    # -- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, now_ms: int, member: str, acks: Sequence[Ack]) -> ShareRefused | None:
        """Take acknowledgements: all, or none of them. What lies before the start offset is done, whatever is said of it."""
        self.tick(now_ms)
        runs: list[Run] = []
        for ack in acks:
            told = _runs(ack)
            if told is None or (runs and told and told[0][0] < runs[-1][1]):
                return ShareRefused.BAD_RANGE
            runs += told
        runs = [(max(first, self.start), end, kind) for first, end, kind in runs if end > self.start]
        for first, end, _ in runs:
            if end > self.end or any(
                span.state is not RecordState.ACQUIRED or span.holder != member
                for span in self._within(first, end)
            ):
                return ShareRefused.BAD_STATE
        for first, end, kind in runs:
            self._acknowledge(now_ms, first, end, kind)
        self._tidy()
        return None

    def _acknowledge(self, now_ms: int, first: int, end: int, kind: AckType) -> None:
        self.counts.acknowledged[kind] += end - first
        if kind is AckType.RENEW:
            lock_ms = now_ms + self.bounds.record_lock_duration_ms
            self._replace(first, end, lambda span: span._replace(lock_ms=lock_ms))
            return
        self.revision += 1
        if kind is AckType.RELEASE:
            self._replace(first, end, self._freed)
        else:
            state = _STATES[kind]
            self._replace(first, end, lambda span: _settled(span, state))

    def release(self, now_ms: int, member: str, *, unseen: bool = False) -> bool:
        """Free what a member has acquired; was there anything? `unseen`: it counts as not delivered."""
        self.tick(now_ms)
        held = [span for span in self.spans if span.holder == member]
        for span in held:
            freed = self._freed(span._replace(deliveries=span.deliveries - 1) if unseen else span)
            self._set(freed)
        if held:
            self.revision += 1
            self._tidy()
        return bool(held)

    def _freed(self, span: Span) -> Span:
        """After a delivery that ended without a result."""
        spent = span.deliveries >= self.bounds.delivery_count_limit
        if spent:
            self.counts.exhausted += span.end - span.first
        return _settled(span, RecordState.ARCHIVED if spent else RecordState.AVAILABLE)

    # -- time, and what else may happen -----------------------------------------------------------------------------

    def tick(self, now_ms: int) -> bool:
        """Time passed: locks end; did any?"""
        late = [s for s in self.spans if s.state is RecordState.ACQUIRED and s.lock_ms <= now_ms]
        for span in late:
            self.counts.timed_out += span.end - span.first
            freed = self._freed(span)
            self._set(freed)
        if late:
            self.revision += 1
            self._tidy()
        return bool(late)

    def trim(self, log_start: int) -> None:
        """The log begins there now: what was before is done, whoever works on it."""
        if log_start <= self.start:
            return
        self.revision += 1
        if log_start >= self.end:
            self.spans.clear()
            self.start = log_start
            return
        self._replace(self.start, log_start, lambda span: _settled(span, RecordState.ARCHIVED))
        self._tidy()

    # -- spans ------------------------------------------------------------------------------------------------------

    def _within(self, first: int, end: int) -> Iterator[Span]:
        """What lies in a range, cut to it."""
        at = max(0, bisect_right(self.spans, first, key=lambda span: span.first) - 1)
        for span in self.spans[at:]:
            if span.first >= end:
                return
            if span.end > first:
                yield span._replace(first=max(first, span.first), end=min(end, span.end))

    def _replace(self, first: int, end: int, change: Callable[[Span], Span]) -> None:
        """Change what lies in a range; spans that reach over its ends are cut there."""
        at = max(0, bisect_right(self.spans, first, key=lambda span: span.first) - 1)
        until = at
        made: list[Span] = []
        while until < len(self.spans) and self.spans[until].first < end:
            span = self.spans[until]
            until += 1
            if span.first < first:
                made.append(span._replace(end=min(span.end, first)))
            if span.end > first:
                made.append(change(span._replace(first=max(first, span.first), end=min(end, span.end))))
            if span.end > end:
                made.append(span._replace(first=end))
        self.spans[at:until] = made

    def _set(self, made: Span) -> None:
        self._replace(made.first, made.end, lambda _: made)

    def _tidy(self) -> None:
        """Join neighbours that are alike, and move the start offset over what is done."""
        joined: list[Span] = []
        for span in self.spans:
            _put(joined, span)
        done = 0
        while done < len(joined) and joined[done].state in TERMINAL:
            self.start = joined[done].end
            done += 1
        if done:
            self.revision += 1
        self.spans = joined[done:]
        invariant(
            not self.spans or self.spans[0].first == self.start,
            f"spans begin at {self.spans[:1]}, and the start offset is {self.start}",
        )


def _put(spans: list[Span], span: Span) -> None:
    """Add a span behind others, as part of the last one if it is alike."""
    last = spans[-1] if spans else None
    if last is not None and last[2:] == span[2:] and last.end == span.first:
        spans[-1] = last._replace(end=span.end)
    else:
        spans.append(span)


def _add_acquired(found: list[Acquired], taken: Span) -> None:
    last = found[-1] if found else None
    if last is not None and last.end == taken.first and last.deliveries == taken.deliveries:
        found[-1] = last._replace(end=taken.end)
    else:
        found.append(Acquired(taken.first, taken.end, taken.deliveries))


def _settled(span: Span, state: RecordState) -> Span:
    return span._replace(state=state, holder="", lock_ms=0)


def _archived_if_available(span: Span) -> Span:
    return _settled(span, RecordState.ARCHIVED) if span.state is RecordState.AVAILABLE else span


def _runs(ack: Ack) -> list[Run] | None:
    """Neighbours with the same acknowledgement; None where it makes no sense."""
    length = ack.end - ack.first
    if ack.first < 0 or length <= 0 or len(ack.types) not in {1, length}:
        return None
    if any(kind not in AckType._value2member_map_ for kind in ack.types):
        return None
    if len(ack.types) == 1:
        return [(ack.first, ack.end, AckType(ack.types[0]))]
    runs: list[Run] = []
    at = ack.first
    for kind, same in groupby(ack.types):
        end = at + sum(1 for _ in same)
        runs.append((at, end, AckType(kind)))
        at = end
    return runs
