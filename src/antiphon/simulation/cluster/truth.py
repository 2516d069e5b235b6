"""What is committed: per shard the batches as the first replica that knew of them has them. All others are held to that."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from antiphon.records.batch import BatchHeader, Buffer
from antiphon.records.changes import Effect, effects_of
from antiphon.records.decode import Record, decode_records
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.simulation.violation import require


class Batch(NamedTuple):
    """A committed batch. `digest` is of all its bytes."""

    base_offset: int
    next_offset: int
    term: int
    digest: int
    data: bytes
    known_in: int = 0  # the term of who first knew it to be committed, in this one or before


class LeavesLess(Protocol):
    """Knows what compaction may make of a committed log."""

    def learn(self) -> None:
        """Take in what was committed since."""

    def copied(self, truth: "ShardTruth") -> "LeavesLess":
        """The same of a copy of the log, or of its beginning."""

    def check(self, header: BatchHeader, batch: Buffer, who: str) -> None:
        """Raise ViolationError unless this batch is what compaction may leave of what was committed."""


class ShardTruth:
    """The committed log of one shard."""

    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.batches: list[Batch] = []
        self.end = 0
        self.compaction: LeavesLess | None = None  # where replicas may keep less than was committed
        self.latest_start = 0  # of the log of any replica, ever: what is before it may be gone
        self.producers: dict[int, None] = {}  # who wrote any of it
        self.cuts = 0  # so often an operator gave up its end
        self._at: dict[int, int] = {}  # base offset -> place in `batches`

    def take(self, header: BatchHeader, batch: Buffer, who: str, known_in: int = 0) -> bool:
        """A replica says that this is committed: hold it against what is known, or learn it. True for something new."""
        at = self._at.get(header.base_offset)
        if at is not None:
            known = self.batches[at]
            if self.compaction is not None:
                self.compaction.check(header, batch, who)
                return False
            require(
                known.digest == xxh3_64_intdigest(batch) and known.term == header.leader_epoch,
                "log-matching",
                f"{who} has another batch at {header.base_offset} (term {header.leader_epoch}, to {header.next_offset}) "
                f"than was committed there (term {known.term}, to {known.next_offset})",
                self.shard_id,
            )
            return False
        require(
            header.base_offset == self.end,
            "log-matching",
            f"{who} has a batch {header.base_offset}..{header.next_offset} where others have other borders; {self.end} "
            "is the end of what is known to be committed",
            self.shard_id,
        )
        self._at[header.base_offset] = len(self.batches)
        data = bytes(batch)
        self.batches.append(
            Batch(
                header.base_offset,
                header.next_offset,
                header.leader_epoch,
                xxh3_64_intdigest(data),
                data,
                known_in,
            )
        )
        self.end = header.next_offset
        if header.producer_id >= 0:
            self.producers[header.producer_id] = None
        if self.compaction is not None:
            self.compaction.learn()
        return True

    def cut(self, end: int) -> None:
        """Who goes on from a log that ends there does without what came behind."""
        self.cuts += 1
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]
        self._at = {batch.base_offset: place for place, batch in enumerate(self.batches)}
        self.end = self.batches[-1].next_offset if self.batches else 0

    def up_to(self, end: int) -> "ShardTruth":
        """A copy that ends at `end`, or with what is committed."""
        copy = ShardTruth(self.shard_id)
        for batch in self.batches:
            if batch.next_offset > end:
                break
            copy._at[batch.base_offset] = len(copy.batches)
            copy.batches.append(batch)
            copy.end = batch.next_offset
        copy.latest_start, copy.producers = self.latest_start, dict(self.producers)
        copy.compaction = None if self.compaction is None else self.compaction.copied(copy)
        return copy

    def begins(self, log_start: int) -> None:
        """A replica's log begins there."""
        self.latest_start = max(self.latest_start, log_start)

    def before_term(self, term: int) -> EntryId:
        """Of the last batch that was committed before this term: one who leads it late need not have what came after."""
        found = (EntryId(one.term, one.next_offset) for one in reversed(self.batches) if one.known_in < term)
        return next(found, EMPTY)

    def records(self) -> Iterator[Record]:
        """What was written, in order."""
        for batch in self.batches:
            yield from decode_records(batch.data)

    def effects(self) -> Iterator[Effect]:
        """What was written of a table, in order: also what transactions wrote that did not commit."""
        for batch in self.batches:
            yield from effects_of(batch.data)

    def at(self, offset: int) -> Batch | None:
        """The committed batch that begins at `offset`."""
        place = self._at.get(offset)
        return None if place is None else self.batches[place]

    def first_within(self, offset: int) -> int | None:
        """Where the first batch begins that is wholly at or after `offset`; None where none is known."""
        if offset in self._at:
            return offset
        later = [batch.base_offset for batch in self.batches if batch.base_offset >= offset]
        return later[0] if later else None
