"""The following half of a replica: check each Append against the own log, take what is new, acknowledge what is durable.

Three numbers, never mixed up:

* `log_end`: what is in the log, perhaps of an older leader's making;
* `verified`: up to where the log is known to be the current leader's. It starts at the high watermark, since what is
  committed is in the log of every later leader, and grows with each Append whose preceding entry matches;
* `durable_end`: what is on this disk.

The acknowledgement is min(verified, durable_end), never the log's end (hazard H2): a longer tail of older terms says
nothing about the leader's log. The high watermark is min(leader's, verified, durable_end): not beyond what is verified
(hazard H5), and not beyond what is durable either, so that it may be written down and applied at any time. (If a cut is
underway, the disk still has other entries in the place of those that are committed.) The check of the preceding entry
is made for an empty log as for any other (hazard H3): the empty log holds exactly the prefix `EntryId(0, 0)`.

Where an unclean election is allowed (C10), a leader may lack what is committed here. Then nothing is taken for verified
but what this leader has shown to have, and what it contradicts is given up, below the high watermark too; `LostTail`
tells.

An Append that was delayed or duplicated is harmless (S1.8): entries that are there are skipped, and nothing is cut
unless an entry of another term stands in the place of one that was sent (S1.9).
"""

from collections.abc import Sequence

from antiphon.errors import ProtocolViolationError
from antiphon.invariants import unreachable
from antiphon.records.batch import read_header
from antiphon.records.compacted import is_filler, rest_of
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action, Commit, Send
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.local_log import LocalLog
from antiphon.replication.messages import Ack, Append, Entry, NodeId, Reject, ShardId, Truncate, TruncateReply
from antiphon.replication.promise import Promise
from antiphon.replication.repair import LogRepair
from antiphon.replication.replica_state import LogCondition

NOT_TOLD = -1


class FollowerSide:
    """State of following one leader in one term; thrown away with either."""

    __slots__ = (
        "_ack_due",
        "_ack_promised_ms",
        "_ack_round",
        "_leader_mark",
        "_log",
        "_promise",
        "_repair",
        "_shard",
        "_term",
        "_untold",
        "config",
        "leader",
        "live",
        "shown",
        "verified",
        "was_sent_too_little",
    )

    def __init__(
        self,
        shard: ShardId,
        term: int,
        log: LocalLog,
        config: ReplicaConfig,
        repair: LogRepair,
        promise: Promise | None = None,
    ) -> None:
        self._shard = shard
        self._term = term
        self._log = log
        self.config = config
        self._promise = promise or Promise(0)  # to its leader
        self._repair = repair  # while the log is not sound, its promise is no vote, and its leader is told so
        self.was_sent_too_little = False  # a snapshot that ends before this log begins
        self.leader: NodeId | None = None  # unknown only between a snapshot and the first Append
        self.live: tuple[NodeId, ...] = ()  # the live replica set, where commits go by it (S3.26)
        self.shown = log.terms.log_start  # up to where the leader has said that its log is like this one
        self.verified = 0 if config.unclean else max(log.settled, log.terms.log_start)
        self._leader_mark = 0  # the leader's high watermark, as far as it was heard
        self._ack_due = False
        self._ack_round = 0
        self._ack_promised_ms = 0  # since a message of that round came
        self._untold = config.ack_every  # entries taken and not acknowledged; the first in a term are at once

    def on_append(self, message: Append, out: list[Action]) -> None:
        """Carry out a leader's Append of this term (S1.7-S1.9, S1.13, S1.21)."""
        log, prev, entries = self._log, message.prev, message.entries
        held = log.terms.holds(prev)
        if not held:
            nothing_shared = self.verified < log.terms.log_start  # yet, as far as this leader has shown
            if prev.offset > self.verified or nothing_shared:
                self._reject(message, prev, out)
                return
            if prev.offset >= log.terms.log_start:
                unreachable(f"leader {self.leader} contradicts the verified prefix at {prev}")
        end = prev.offset
        if entries:
            end = entries[-1].next_offset
            self._take(prev, entries, out)
        if held and end > self.shown:
            self.shown = end
        if end > self.verified:
            self.verified = end
        self._note_round(message)
        self.live = message.live
        if message.high_watermark > self._leader_mark:
            self._leader_mark = message.high_watermark
        if self._leader_mark > log.settled:
            self._commit(min(self._leader_mark, self.verified, log.durable_end), out)
        if not entries:
            self._untold = self.config.ack_every  # whoever asks is told, and once more when the disk has it
        if end > log.durable_end and entries:
            self._ack_due = True  # persisted() answers
            self._untold += len(entries)
        else:
            self.acknowledge(out)

    def _note_round(self, message: Append) -> None:
        """What the next answer says of the rounds that came, and of what was promised to them."""
        promised_ms = 0
        if message.lease_ms and self.config.lease_ms and isinstance(message.lease_ms, int):
            promised_ms = self._promise.give(self._term, message.lease_ms)
        if message.round > self._ack_round:
            self._ack_round, self._ack_promised_ms = message.round, promised_ms
        elif message.round == self._ack_round and promised_ms > self._ack_promised_ms:
            self._ack_promised_ms = promised_ms

    def _take(self, prev: EntryId, entries: Sequence[Entry], out: list[Action]) -> None:
        self._check(prev, entries)
        log = self._log
        terms = log.terms
        if prev.offset == terms.log_end:
            out.append(log.append(entries))
            return
        known = 0
        for entry in entries:
            if not terms.holds(entry.end):
                if entry.next_offset > self.verified:
                    break
                if entry.next_offset >= terms.log_start:
                    unreachable(f"leader {self.leader} contradicts the verified prefix at {entry.end}")
            known += 1
        if known == len(entries):
            return
        first = self._unshared(entries[known])
        at = first.base_offset
        if at < terms.log_end:
            if self.config.unclean:
                log.give_up(at, out)
            log.cut(at, out)
        out.append(log.append((first, *entries[known + 1 :])))

    def _unshared(self, entry: Entry) -> Entry:
        """The part of an entry that is not here yet. Only a compacted log's filler, which stands for many, can be parted."""
        shared = self._log.terms.end_of_term(entry.term)
        is_begun = entry.base_offset < shared.offset < entry.next_offset and shared.term == entry.term
        if not is_begun or not isinstance(entry.data, bytes | bytearray | memoryview):
            return entry
        header = read_header(entry.data)
        if not is_filler(header):
            return entry
        return entry._replace(base_offset=shared.offset, data=rest_of(header, shared.offset))

    def _check(self, prev: EntryId, entries: Sequence[Entry]) -> None:
        """A leader's entries are contiguous and their terms rise, up to its own."""
        term, at = prev
        for entry in entries:
            if (
                entry.base_offset != at
                or entry.next_offset <= at
                or entry.term < term
                or entry.term > self._term
            ):
                raise ProtocolViolationError(
                    f"entries after {prev} of leader {self.leader} in term {self._term} do not follow each other: "
                    f"{entry.term} at {entry.base_offset}..{entry.next_offset}, expected at {at}"
                )
            term, at = entry.term, entry.next_offset

    def _commit(self, high_watermark: int, out: list[Action]) -> None:
        if high_watermark > self._log.settled:
            self._log.settled = high_watermark
            if high_watermark > self._log.acknowledged:
                out.append(Commit(high_watermark))

    def _reject(self, message: Append | Truncate, asked: EntryId, out: list[Action]) -> None:
        log = self._log
        round_ = message.round if isinstance(message, Append) else 0
        floor = log.terms.log_start if self.config.unclean else log.settled
        reply = Reject(self._shard, self._term, hint_for(log, asked, floor), log.terms.log_start, round_)
        if self.leader is not None:
            out.append(Send(self.leader, reply))

    def acknowledge(self, out: list[Action]) -> None:
        """Say what is verified and durable, as soon as the term's promise is durable too."""
        log = self._log
        end = min(self.verified, log.durable_end)
        if end < log.terms.log_start or not log.is_term_durable or self.leader is None:
            self._ack_due, self._untold = True, self.config.ack_every  # as soon as it may
            return
        self._ack_due = end < self.verified
        if not self._ack_due:
            self._untold = 0
        mark = log.settled if self.live else NOT_TOLD
        is_damaged = self._repair.condition is not LogCondition.SOUND
        promised_ms = self._ack_promised_ms
        ack = Ack(self._shard, self._term, log.point(end), self._ack_round, mark, is_damaged, promised_ms)
        out.append(Send(self.leader, ack))

    def persisted(self, out: list[Action]) -> None:
        """More of the log, or the term, is durable: commit and answer what waited for it."""
        if self._leader_mark > self._log.settled:
            self._commit(min(self._leader_mark, self.verified, self._log.durable_end), out)
        if self._ack_due and self._untold >= self.config.ack_every:
            self.acknowledge(out)

    def snapshot_installed(self) -> None:
        """The log was reset to a committed prefix, which is the leader's as well; the disk's report acknowledges it."""
        self.verified = self.shown = self._log.terms.log_start
        self._ack_due, self._untold = True, self.config.ack_every

    def can_truncate(self, to: EntryId) -> bool:
        """May a Truncate be obeyed?

        Only when it can do no harm even if it comes late: not below the high watermark, only to a prefix that is there,
        and not once the log has entries of this term, which the leader that asks has written itself.
        """
        terms = self._log.terms
        return to.offset >= self._log.settled and terms.holds(to) and terms.end.term < self._term

    def truncate(self, message: Truncate, out: list[Action]) -> TruncateReply:
        """Cut the log (S0.36). The reply may be sent when the cut is durable."""
        if message.to.offset < self._log.terms.log_end:
            self._log.cut(message.to.offset, out)
        self.verified = max(self.verified, message.to.offset)
        return TruncateReply(self._shard, self._term, message.to)

    def refuse_truncate(self, message: Truncate, out: list[Action]) -> None:
        """Not cut: the leader finds the common point by asking instead."""
        self._reject(message, message.to, out)


def hint_for(log: LocalLog, asked: EntryId, floor: int) -> EntryId:
    """The longest prefix of this log that the sender of `asked` may share, never below `floor`: what it must share.

    The sender's terms up to `asked` are at most `asked.term`, so whatever this log has beyond that term, or beyond that
    offset, is not the sender's. Each exchange passes over a whole term on one side (KIP-101, KIP-279).
    """
    terms = log.terms
    at = max(floor, terms.log_start)
    if asked.offset >= terms.log_start:
        at = max(at, min(terms.end_of_term(asked.term).offset, asked.offset))
    return log.point(at)
