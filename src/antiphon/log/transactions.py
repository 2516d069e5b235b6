"""The transactions of a shard: which producers have one under way, and which marker ended the last one of each.

All of it follows from the log alone, on leaders, followers and at recovery alike (`took`): a batch with the transactional
bit opens its producer's transaction, a marker ends it. Beside that there is what a leader asks before it appends.

A marker has a number, one higher for each transaction of a producer (docs/decisions/0025-transactions.md). So one that comes
twice, or late, is recognised; and so is a batch that comes after the end of its transaction.

Changes are kept for a while, so that a cut of uncommitted entries undoes them exactly (`truncate`).
"""

from collections import deque
from typing import Final, NamedTuple

from antiphon.errors import InvalidTxnStateError, OverloadedError, ProducerFencedError
from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, Buffer
from antiphon.records.builder import end_marker_of

OPEN_MAX: Final = 10_000  # transactions of a shard under way at a time
MARKERS_MAX: Final = 50_000  # producers of a shard whose last marker is known
UNDO_MAX: Final = 1024  # changes that a cut can undo without reading the log
NEVER: Final = -1


class OpenTransaction(NamedTuple):
    """A transaction under way: its producer's epoch, its first offset, and the time of its first batch in ms."""

    epoch: int
    first_offset: int
    since_ms: int


class LastMarker(NamedTuple):
    """The marker that ended a producer's last transaction. `first_offset`: of that; -1 where it wrote nothing here."""

    epoch: int
    number: int
    offset: int
    first_offset: int


class Aborted(NamedTuple):
    """A transaction that was aborted: its offsets from the first batch to the marker, and which offset was stable then."""

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_offset: int


class _Change(NamedTuple):
    """What was known of a producer before the batch at `offset`."""

    offset: int
    producer_id: int
    open: OpenTransaction | None
    marker: LastMarker | None


class Known(NamedTuple):
    """What a snapshot says of the transactions, as of its offset."""

    exact_from: int
    open: list[tuple[int, OpenTransaction]]
    markers: list[tuple[int, LastMarker]]


class TransactionState:
    """Transactions of one shard.

    Attributes:
        open: those under way, by producer, in the order of their first offsets.
        markers: the last marker of each producer, the most recent one last.
        is_used: has there been any? Where not, nothing need be asked.
    """

    __slots__ = ("_changes", "_ended", "_exact_from", "_restored", "is_used", "markers", "open")

    def __init__(self) -> None:
        self.open: dict[int, OpenTransaction] = {}
        self.markers: dict[int, LastMarker] = {}
        self.is_used = False
        self._ended: deque[tuple[int, int]] = deque()  # marker, first offset; until the marker is committed
        # The same of what a snapshot said: the last ones of producers.
        self._restored: deque[tuple[int, int]] = deque()
        self._changes: deque[_Change] = deque()
        self._exact_from = 0  # a cut at or above this offset needs nothing that was forgotten

    # -- what a leader asks -------------------------------------------------------------------------------------

    def check_epoch(self, header: BatchHeader) -> None:
        """Raise ProducerFencedError for a batch of an older epoch than that of its producer's last marker."""
        marker = self.markers.get(header.producer_id)
        if marker is not None and header.producer_epoch < marker.epoch:
            raise ProducerFencedError(
                f"producer {header.producer_id} has epoch {header.producer_epoch}, and its last transaction was ended in "
                f"epoch {marker.epoch}",
                epoch=header.producer_epoch,
                current=marker.epoch,
            )

    def check(self, header: BatchHeader, number: int | None) -> None:
        """May this batch, which is no repeat, be appended?

        `number`: of the transaction that is under way at its producer's coordinator and takes in this shard, where that
        was asked.

        Raises:
            InvalidTxnStateError: a part of a transaction that is not under way; or no part of it, while one is.
            OverloadedError: too many transactions are under way here.
        """
        producer_id = header.producer_id
        known = self.open.get(producer_id)
        if not header.attributes & TRANSACTIONAL_BIT:
            if known is not None:
                raise InvalidTxnStateError(
                    f"producer {producer_id} has a transaction under way since offset {known.first_offset}, and this batch "
                    "is not part of it"
                )
            return
        if known is not None:
            if known.epoch != header.producer_epoch:
                raise InvalidTxnStateError(
                    f"producer {producer_id} has a transaction of epoch {known.epoch} under way, and this batch has epoch "
                    f"{header.producer_epoch}"
                )
            return
        marker = self.markers.get(producer_id)
        last = NEVER if marker is None else marker.number
        if number is None or number <= last:
            said = "nobody was asked for its number" if number is None else f"it would be number {number}"
            raise InvalidTxnStateError(
                f"producer {producer_id} has no transaction under way here; {said}, number {last} has ended"
            )
        if len(self.open) >= OPEN_MAX:
            raise OverloadedError(
                f"{OPEN_MAX} transactions are under way in this shard: retry when some have ended"
            )

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Has this producer a transaction of this epoch under way?"""
        known = self.open.get(producer_id)
        return known is not None and known.epoch == epoch

    # -- what the log says --------------------------------------------------------------------------------------

    def took(self, header: BatchHeader, batch: Buffer) -> Aborted | None:
        """A batch with the transactional bit is in the log; returns the transaction that it aborted, if it did.

        Raises CorruptBatchError for a marker that cannot be read.
        """
        producer_id = header.producer_id
        if not header.attributes & CONTROL_BIT:
            if producer_id not in self.open:
                self._note(header, producer_id)
                self.open[producer_id] = OpenTransaction(
                    header.producer_epoch, header.base_offset, header.max_timestamp
                )
            return None
        said = end_marker_of(batch)
        if said is None:
            return None
        commit, number = said
        self._note(header, producer_id)
        known = self.open.pop(producer_id, None)
        before = self.markers.pop(producer_id, None)
        epoch = header.producer_epoch if before is None else max(header.producer_epoch, before.epoch)
        offset = header.base_offset
        first_offset = NEVER if known is None else known.first_offset
        if before is None and len(self.markers) >= MARKERS_MAX:
            self._forget_oldest_marker(offset)
        self.markers[producer_id] = LastMarker(epoch, number, offset, first_offset)
        if known is None:
            return None
        self._ended.append((offset, known.first_offset))
        if commit:
            return None
        return Aborted(producer_id, known.first_offset, offset, self._first_open(offset + 1))

    def _note(self, header: BatchHeader, producer_id: int) -> None:
        self.is_used = True
        self._changes.append(
            _Change(
                header.base_offset, producer_id, self.open.get(producer_id), self.markers.get(producer_id)
            )
        )
        if len(self._changes) > UNDO_MAX:
            self._exact_from = max(self._exact_from, self._changes.popleft().offset + 1)

    def _forget_oldest_marker(self, at: int) -> None:
        """Never that of a producer with a transaction under way, of which there are fewer."""
        oldest = next(producer_id for producer_id in self.markers if producer_id not in self.open)
        del self.markers[oldest]
        self._exact_from = max(self._exact_from, at + 1)

    def committed(self, high_watermark: int) -> None:
        """What ended before this offset is over for good."""
        for ended in (self._ended, self._restored):
            while ended and ended[0][0] < high_watermark:
                ended.popleft()

    def last_stable(self, high_watermark: int) -> int:
        """The lowest first offset of a transaction whose marker is not committed, or else the high watermark.

        0 where that is not known: a snapshot has the last marker of each producer. Where the transaction of a marker that is
        not committed began there, too, the one before it may have ended behind the high watermark as well.
        """
        stable = self._first_open(high_watermark)
        for marker_offset, first_offset in self._ended:
            if marker_offset >= high_watermark:
                stable = min(stable, first_offset)
        for marker_offset, first_offset in self._restored:
            if marker_offset >= high_watermark:
                stable = min(stable, first_offset if NEVER < first_offset < high_watermark else 0)
        return min(stable, high_watermark)

    def _first_open(self, otherwise: int) -> int:
        return next(iter(self.open.values())).first_offset if self.open else otherwise

    def truncate(self, to_offset: int) -> bool:
        """Undo what the batches from `to_offset` on changed. False: more than is remembered; to be learned from the log."""
        if to_offset < self._exact_from:
            return False
        is_undone = False
        while self._changes and self._changes[-1].offset >= to_offset:
            change = self._changes.pop()
            is_undone = True
            for known, value in ((self.open, change.open), (self.markers, change.marker)):
                known.pop(change.producer_id, None)
                if value is not None:
                    known[change.producer_id] = value  # type: ignore[assignment]  # each of its own kind
        while self._ended and self._ended[-1][0] >= to_offset:
            self._ended.pop()
        if is_undone:
            self.open = dict(sorted(self.open.items(), key=lambda item: item[1].first_offset))
            self.markers = dict(sorted(self.markers.items(), key=lambda item: item[1].offset))
        return True

    # -- snapshots ----------------------------------------------------------------------------------------------

    def known(self, before: int | None = None) -> Known | None:
        """What a snapshot says; `before`: as of that offset. None where there is nothing to say.

        Whoever takes this over and then the log from `before` on knows what is known here, and may cut the log to any offset
        from `before` on. Where the changes that are kept do not reach back to `before`, less is known: a transaction that
        ended behind it, and after it another one of its producer, may be missing (its batches behind `before` open it
        again). If the last marker of a producer is cut off then, what is known of the one before is only that its number
        was lower.
        """
        if before is not None and before >= self._exact_from:
            return self._as_of(before).known()
        exact_from = max([self._exact_from, *(change.offset + 1 for change in list(self._changes)[-1:])])
        opened, markers = dict(self.open), dict(self.markers)
        if before is not None:
            exact_from = min(exact_from, before)
            opened = {one: found for one, found in opened.items() if found.first_offset < before}
            for producer_id, marker in self.markers.items():
                if marker.offset < before:
                    continue
                del markers[producer_id]
                if marker.number:  # whatever came before it is committed, and has a lower number
                    markers[producer_id] = LastMarker(0, marker.number - 1, before - 1, NEVER)
                if 0 <= marker.first_offset < before:
                    opened[producer_id] = OpenTransaction(marker.epoch, marker.first_offset, 0)
            opened = dict(sorted(opened.items(), key=lambda item: item[1].first_offset))
        return Known(exact_from, list(opened.items()), list(markers.items())) if opened or markers else None

    def _as_of(self, before: int) -> "TransactionState":
        """A copy without what changed from this offset on, to which the changes reach back."""
        state = TransactionState()
        state.open, state.markers = dict(self.open), dict(self.markers)
        state._exact_from, state._changes = self._exact_from, self._changes.copy()
        state.truncate(before)
        return state

    @classmethod
    def of(cls, known: Known) -> "TransactionState":
        """What a snapshot said."""
        state = cls()
        state.is_used = True
        state._exact_from = known.exact_from
        state.open, state.markers = dict(known.open), dict(known.markers)
        state._restored.extend(sorted((one.offset, one.first_offset) for _, one in known.markers))
        return state
