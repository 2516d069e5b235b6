"""What a replica knows of its own log: where terms begin, what is durable, what is committed, which writes are underway.

No entry is kept here. Storage is asynchronous: a write is *staged* (it counts as part of the log at once) and later
*persisted*. Writes carry ids that rise by one and become durable in that order, so one number says how far the disk is.

What is committed has two ends. `settled` is the safe one: no election loses what is below, it is told to
followers and written down, and nothing below is ever cut. `acknowledged` is beyond it only where a rule acknowledges
sooner (`local`, small `at_least(k)`): as far as this replica, as a leader, has told clients that entries are committed.
When a later leader's log has something else there, that tail is lost, and `LostTail` says so (S4.28).

`durable_end` is the end of the part of the log *as staged* that is on disk. It is not the end of what the disk holds:
when the log is cut while earlier appends are still underway, those appends, once durable, prove no more than the prefix
that survived the cut, so a cut lowers what every write underway will prove.
"""

from collections import deque
from collections.abc import Sequence

from antiphon.invariants import invariant, unreachable
from antiphon.records.entry_id import EntryId, TermIndex
from antiphon.replication.actions import Action, AppendLog, LostTail, PersistTerm, ResetLog, TruncateLog
from antiphon.replication.messages import Entry, NodeId

NOTHING = 0  # durable end that a write proves when the log it belonged to is gone


class LocalLog:
    """Ends, terms and pending writes of one log. All offsets are exclusive ends."""

    __slots__ = (
        "_underway",
        "acknowledged",
        "durable_end",
        "persisted_id",
        "settled",
        "term_write_id",
        "terms",
        "write_id",
    )

    def __init__(self, terms: TermIndex, high_watermark: int) -> None:
        self.terms = terms
        self.durable_end = terms.log_end
        # The checkpoint of the high watermark may be ahead of a log that lost its unsynced or damaged end.
        self.settled = min(max(high_watermark, terms.log_start), terms.log_end)
        # Where a leader acknowledges what is not settled; matters while beyond `settled`
        self.acknowledged = 0
        self.write_id = 0  # of the last write that was staged
        self.persisted_id = 0  # of the last write that is durable
        # Of the last PersistTerm: nothing may be promised in the term before it is durable
        self.term_write_id = 0
        self._underway: deque[tuple[int, int]] = deque()  # (write id, durable end that it proves)

    def append(self, entries: Sequence[Entry]) -> AppendLog:
        """Stage contiguous entries at the log's end."""
        terms = self.terms
        if entries[0].base_offset != terms.log_end:
            unreachable(f"{entries[0]!r:.80} does not continue a log of {terms.log_end}")
        last = entries[-1]
        if entries[0].term == last.term:
            terms.append(last.term, last.next_offset)
        else:
            for entry in entries:
                terms.append(entry.term, entry.next_offset)
        self.write_id += 1
        self._underway.append((self.write_id, last.next_offset))
        return AppendLog(self.write_id, tuple(entries))

    def append_one(self, entry: Entry) -> AppendLog:
        """`append` of one entry that was made for the log's end and is no members entry."""
        self.terms.append(entry.term, entry.next_offset)
        self.write_id += 1
        self._underway.append((self.write_id, entry.next_offset))
        return AppendLog(self.write_id, (entry,))

    @property
    def commit_mark(self) -> int:
        """First offset that this replica has not told anybody is committed."""
        return max(self.settled, self.acknowledged)

    def cut(self, to_offset: int, out: list[Action]) -> None:
        """Stage a cut, and say what is lost by it."""
        self.lose_tail(to_offset, out)
        out.append(self.truncate(to_offset))

    def give_up(self, from_offset: int, out: list[Action]) -> None:
        """The leader of an unclean election lacks what was settled here from `from_offset` on (C10): so it is lost."""
        if from_offset < self.settled:
            self.acknowledged = self.commit_mark
            self.settled = from_offset
            self.lose_tail(from_offset, out)

    def lose_tail(self, from_offset: int, out: list[Action]) -> None:
        """What was acknowledged from `from_offset` on is about to go, or cannot be shown to stay."""
        if from_offset < self.acknowledged:
            out.append(LostTail(from_offset, self.acknowledged))
            self.acknowledged = from_offset

    def truncate(self, to_offset: int) -> TruncateLog:
        """Stage a cut. What is settled is never cut."""
        invariant(
            to_offset >= self.settled,
            f"cut at {to_offset} below the high watermark {self.settled}",
        )
        self.terms.truncate(to_offset)
        self.durable_end = min(self.durable_end, to_offset)
        self._underway = deque((write_id, min(end, to_offset)) for write_id, end in self._underway)
        self.write_id += 1
        return TruncateLog(self.write_id, to_offset)

    def reset(self, at: EntryId) -> ResetLog:
        """Stage the replacement of the whole log by a snapshot of committed state up to `at`.

        The high watermark follows when this is durable; until then the disk may come back with the old log.
        """
        invariant(
            at.offset >= self.settled,
            f"snapshot at {at} is behind the high watermark {self.settled}",
        )
        self.terms.reset(at)
        self.durable_end = NOTHING
        self.write_id += 1
        self._underway.clear()
        self._underway.append((self.write_id, at.offset))
        return ResetLog(self.write_id, at)

    def persist_term(self, term: int, voted_for: NodeId | None) -> PersistTerm:
        """Stage the promise of a term."""
        self.write_id += 1
        self.term_write_id = self.write_id
        return PersistTerm(self.write_id, term, voted_for)

    def persisted(self, write_id: int) -> bool:
        """Everything up to `write_id` is durable. True when `durable_end` moved."""
        if write_id <= self.persisted_id:
            return False
        if write_id > self.write_id:
            unreachable(f"write {write_id} is durable but was never staged")
        self.persisted_id = write_id
        before = self.durable_end
        underway = self._underway
        while underway and underway[0][0] <= write_id:
            end = underway.popleft()[1]
            if end > self.durable_end:
                self.durable_end = end
        return self.durable_end != before

    @property
    def is_term_durable(self) -> bool:
        """May this replica speak for its term?"""
        return self.persisted_id >= self.term_write_id

    @property
    def durable_head(self) -> EntryId:
        """Id of the durable log; the start of the log while a snapshot is being put in its place."""
        return self.point(max(self.durable_end, self.terms.log_start))

    def point(self, offset: int) -> EntryId:
        """Id of the prefix that ends at `offset`, which lies within the log."""
        return EntryId(self.terms.term_before(offset), offset)

    def common_point(self, hint: EntryId) -> EntryId | None:
        """The longest prefix of this log that a log ending in `hint` may share; None where our log begins too late.

        The other log's terms end at `hint.term`, so anything of a later term here is not shared, nor anything beyond
        `hint.offset`. If `hint` itself is in this log, that is the answer.
        """
        terms = self.terms
        if hint.offset < terms.log_start:
            return None
        point = terms.end_of_term(hint.term)
        if point.offset > hint.offset:
            point = self.point(hint.offset)
        return None if point.term > hint.term else point
