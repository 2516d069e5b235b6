"""What compaction may make of a committed log, judged batch by batch beside what was committed there.

- `compaction-offsets`: a batch has the first and last offset, and the term, of one that was committed, or of neighbours that
  it stands for.
- `compaction-invents`: its records are some of those that were committed there, with every field.
- `compaction-loses`: a record that is not there any more was aborted, or a newer one with its key is committed; or it is a
  tombstone, and has been there for `delete.retention.ms`.
- `compaction-markers`: control batches are as they were, but for those that only tell of a commit.
- `compaction-producers`: of each producer the last batch is there, or what it says in front.
- `compaction-resurrects`: no record is there whose key's newest record was a tombstone that is gone. That is judged where no
  replica was away for long.

The code of the product decodes records, and nothing else of it is used here.
"""

from bisect import bisect_right, insort
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Final

from antiphon.errors import CorruptBatchError
from antiphon.records.batch import BatchHeader, Buffer, read_header
from antiphon.records.builder import committed_of, end_marker_of
from antiphon.records.decode import Record, decode_records
from antiphon.simulation.violation import ViolationError, require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.truth import Batch, ShardTruth

SLOWEST_CLOCK: Final = 0.85  # a node's own time may pass so much faster than the world's
SET_ANEW_S: Final = 2.0  # how far apart the clocks of a machine may be before and after it was started again


class CompactionJudge:
    """Of one shard. `clock` tells the world's time, `started` when a node was started last."""

    def __init__(
        self,
        truth: "ShardTruth",
        delete_retention_ms: int,
        clock: Callable[[], float],
        started: Callable[[], float],
    ) -> None:
        self._truth = truth
        self._retention_s = delete_retention_ms / 1000 * SLOWEST_CLOCK
        self._clock = clock
        self._started = started
        self._learned = 0
        self._open: dict[int, list[Record]] = {}  # by producer: of its transaction
        self._known_s: dict[int, float] = {}  # since when a record is known to be committed
        self._last: dict[int, int] = {}  # by producer: the first offset of its last batch
        self.records: dict[int, Record] = {}  # by offset
        self.committed: dict[bytes, list[int]] = {}  # by key: offsets of records that count
        self.aborted: set[int] = set()

    def copied(self, truth: "ShardTruth") -> "CompactionJudge":
        """See `LeavesLess`. Records are as old there as here."""
        made = copy(self)
        made.judge(truth)
        return made

    def judge(self, truth: "ShardTruth") -> None:
        """From now on judge this log, which is a copy of that of before, or of its beginning."""
        known_s = self._known_s
        self._truth, self._learned = truth, 0
        self._open, self._known_s, self._last = {}, {}, {}
        self.records, self.committed, self.aborted = {}, {}, set()
        self.learn()
        self._known_s |= {at: since for at, since in known_s.items() if at in self._known_s}

    # -- what is committed -----------------------------------------------------------------------------------------

    def learn(self) -> None:
        """Take in what was committed since."""
        batches = self._truth.batches
        for one in batches[self._learned :]:
            self._learn(read_header(one.data), one)
        self._learned = len(batches)

    def _learn(self, header: BatchHeader, one: "Batch") -> None:
        producer = header.producer_id
        if header.is_control:
            said = end_marker_of(one.data)
            if said is not None:
                ended = self._open.pop(producer, [])
                self.aborted.update(() if said[0] else (record.offset for record in ended))
                self._count(ended if said[0] else [])
            return
        found = decode_records(one.data)
        self.records.update((record.offset, record) for record in found)
        if producer >= 0:
            self._last[producer] = header.base_offset
        if header.is_transactional:
            self._open.setdefault(producer, []).extend(found)
        else:
            self._count(found)

    def _count(self, records: list[Record]) -> None:
        for record in records:
            self._known_s[record.offset] = self._clock()
            if record.key is not None:
                insort(self.committed.setdefault(record.key, []), record.offset)

    def fold(self, end: int) -> dict[bytes, Record]:
        """The newest record of each key below `end`."""
        self.learn()
        found = {}
        for key, offsets in self.committed.items():
            place = bisect_right(offsets, end - 1)
            if place:
                found[key] = self.records[offsets[place - 1]]
        return found

    # -- what is there now -----------------------------------------------------------------------------------------

    def check(self, header: BatchHeader, batch: Buffer, who: str) -> None:
        """Raise ViolationError unless this batch is what compaction may leave of what was committed."""
        self.learn()
        originals = self._originals(header, who)
        if len(originals) == 1 and originals[0].data == batch:
            return
        shard_id = self._truth.shard_id
        place = f"{who} has {header.base_offset}..{header.next_offset}"
        for one in originals:
            old = read_header(one.data)
            require(
                not old.is_control or committed_of(one.data) is not None,
                "compaction-markers",
                f"{place}, and a control batch was committed at {one.base_offset}",
                shard_id,
            )
            self._check_producer(header, old, place)
        found = {record.offset: record for record in self._decoded(batch, place)}
        for offset, record in found.items():
            require(
                self.records.get(offset) == record,
                "compaction-invents",
                f"{place} with {record}; committed there is {self.records.get(offset)}",
                shard_id,
            )
        for offset in range(header.base_offset, header.next_offset):
            if offset in self.records and offset not in found:
                self._check_gone(self.records[offset], place)

    def _decoded(self, batch: Buffer, place: str) -> list[Record]:
        try:
            return decode_records(bytes(batch))
        except CorruptBatchError as error:
            raise ViolationError(
                "log-matching", f"{place}, and {error.message}", self._truth.shard_id
            ) from error

    def _originals(self, header: BatchHeader, who: str) -> "list[Batch]":
        at, found = header.base_offset, []
        while at < header.next_offset:
            one = self._truth.at(at)
            if one is None or one.term != header.leader_epoch:
                break
            found.append(one)
            at = one.next_offset
        require(
            at == header.next_offset
            and (len(found) == 1 or (header.producer_id < 0 and not header.record_count)),
            "compaction-offsets",
            f"{who} has a batch {header.base_offset}..{header.next_offset} of term {header.leader_epoch}; committed there "
            f"are {[(one.base_offset, one.next_offset, one.term) for one in found]}",
            self._truth.shard_id,
        )
        return found

    def _check_producer(self, header: BatchHeader, old: BatchHeader, place: str) -> None:
        said = (header.producer_id, header.producer_epoch, header.base_sequence)
        is_same = said == (old.producer_id, old.producer_epoch, old.base_sequence)
        is_last = old.producer_id >= 0 and self._last.get(old.producer_id) == old.base_offset
        require(
            is_same or (header.producer_id < 0 and not header.record_count and not is_last),
            "compaction-producers",
            f"{place} of producer, epoch and sequence {said}; committed at {old.base_offset} is {old}",
            self._truth.shard_id,
        )

    def _check_gone(self, record: Record, place: str) -> None:
        offset, key = record.offset, record.key
        if offset in self.aborted:
            return
        counted = [] if key is None else self.committed.get(key, [])
        known_s = self._known_s.get(offset, self._clock())
        age_s = self._clock() - known_s
        set_anew_s = SET_ANEW_S if self._started() > known_s else 0.0
        is_old = age_s + set_anew_s >= self._retention_s
        require(
            offset in counted and (counted[-1] > offset or (record.value is None and is_old)),
            "compaction-loses",
            f"{place} without the record {record}, {age_s:.3f} s old, and the committed ones of its key are {counted}",
            self._truth.shard_id,
        )

    def check_resurrected(self, records: list[Record], who: str) -> None:
        """`records`: all that a replica has."""
        there = {record.offset for record in records}
        for record in records:
            newest = self.committed.get(record.key or b"", [record.offset])[-1]
            require(
                self.records[newest].value is not None or newest in there or record.offset in self.aborted,
                "compaction-resurrects",
                f"{who} has {record}, and not the tombstone of its key at {newest}",
                self._truth.shard_id,
            )
