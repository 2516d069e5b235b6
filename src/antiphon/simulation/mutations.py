"""The mistakes themselves: what each mutant puts in the place of which function.

A patch is (module or class, attribute, replacement). The replacements are written as somebody would write them who had
not thought of the hazard, not as sabotage; where the mistake is the absence of a check, the rest of the function is the
original's.
"""

from collections.abc import Sequence
from typing import Any

from antiphon.replication import quorum, quorum_ack_tracker, voting
from antiphon.replication.actions import Action, AppendLog, Commit, LeaderReady, ReadReady, Send
from antiphon.replication.follower import FollowerSide
from antiphon.replication.leader import Leader
from antiphon.replication.leader_reads import LeaderReads
from antiphon.replication.local_log import LocalLog
from antiphon.replication.messages import Ack, Append, Entry, NodeId
from antiphon.replication.replica_state import LeaderPhase
from antiphon.simulation.mutant import Patch

_on_append = FollowerSide.on_append
_append = LocalLog.append
_start = Leader.start


# -- quorum -----------------------------------------------------------------------------------------------------------


def _wrong_median(acks: Sequence[int], k: int) -> int:
    """The seed text's index, right for odd n only."""
    del k
    return sorted(acks)[len(acks) // 2]


def _commit_any_term(acks: Sequence[int], k: int, high_watermark: int, term_start: int) -> int:
    """Without the condition that the entry is of the leader's own term."""
    del term_start
    return max(high_watermark, quorum.committed_offset(acks, k))


WRONG_MEDIAN: tuple[Patch, ...] = ((quorum, "committed_offset", _wrong_median),)
OLDER_TERM_BY_COUNTING: tuple[Patch, ...] = ((quorum_ack_tracker, "commit_point", _commit_any_term),)


# -- following --------------------------------------------------------------------------------------------------------


def _acknowledge_log_end(self: FollowerSide, out: list[Action]) -> None:
    """Sends what is durable, whether it is known to be the leader's log or not."""
    log = self._log
    end = log.durable_end
    if end < log.terms.log_start or not log.is_term_durable or self.leader is None:
        self._ack_due = True
        return
    self._ack_due = end < self.verified
    out.append(Send(self.leader, Ack(self._shard, self._term, log.point(end), self._ack_round)))


def _pretend_held(self: FollowerSide, message: Append, out: list[Action]) -> None:
    """Take an Append whose preceding entry is not in the log as if it were."""
    terms = self._log.terms
    if message.entries and message.prev.offset <= terms.log_end:
        kept = min(message.prev.offset, terms.log_end)
        if kept < terms.log_end:
            out.append(self._log.truncate(kept))
        out.append(self._log.append(message.entries))
        self.verified = max(self.verified, terms.log_end)
        self._ack_due, self._untold = True, self.config.ack_every
        self.leader = message.leader
        return
    _on_append(self, message, out)


def _no_prev_check(self: FollowerSide, message: Append, out: list[Action]) -> None:
    if self._log.terms.holds(message.prev):
        _on_append(self, message, out)
    else:
        _pretend_held(self, message, out)


def _no_check_when_empty(self: FollowerSide, message: Append, out: list[Action]) -> None:
    """An empty log is taken to agree with everything, so the first entries land at its start."""
    terms = self._log.terms
    if terms.log_end == 0 and message.prev.offset > 0 and message.entries:
        shift = message.entries[0].base_offset
        moved = tuple(
            Entry(entry.term, entry.base_offset - shift, entry.next_offset - shift, entry.data)
            for entry in message.entries
        )
        out.append(self._log.append(moved))
        self.verified = terms.log_end
        self._ack_due, self._untold = True, self.config.ack_every
        return
    _on_append(self, message, out)


def _unclipped_commit(self: FollowerSide, message: Append, out: list[Action]) -> None:
    _on_append(self, message, out)
    log = self._log
    if log.settled < message.high_watermark:
        log.settled = min(message.high_watermark, log.terms.log_end)
        out.append(Commit(log.settled))


def _cut_on_every_append(self: FollowerSide, message: Append, out: list[Action]) -> None:
    """Everything behind the preceding entry goes, also when the message is an old one."""
    log = self._log
    if message.entries and log.terms.holds(message.prev):
        at = max(message.prev.offset, log.settled)
        if at < log.terms.log_end:
            out.append(log.truncate(at))
            self.verified = min(self.verified, at)
    _on_append(self, message, out)


def _lost_watermark(self: FollowerSide, message: Append, out: list[Action]) -> None:
    """Only an Append with entries tells what is committed."""
    if not message.entries:
        message = Append(
            message.shard, message.term, message.leader, message.prev, 0, message.round, message.entries
        )
    _on_append(self, message, out)


OVER_COUNTED_ACK: tuple[Patch, ...] = ((FollowerSide, "acknowledge", _acknowledge_log_end),)
NO_PREV_CHECK: tuple[Patch, ...] = ((FollowerSide, "on_append", _no_prev_check),)
NO_CHECK_WHEN_EMPTY: tuple[Patch, ...] = ((FollowerSide, "on_append", _no_check_when_empty),)
UNCLIPPED_COMMIT: tuple[Patch, ...] = ((FollowerSide, "on_append", _unclipped_commit),)
CUT_ON_EVERY_APPEND: tuple[Patch, ...] = ((FollowerSide, "on_append", _cut_on_every_append),)
LOST_WATERMARK: tuple[Patch, ...] = ((FollowerSide, "on_append", _lost_watermark),)


# -- leading ----------------------------------------------------------------------------------------------------------


def _read_at_once(self: LeaderReads, token: int, out: list[Action]) -> None:
    out.append(ReadReady(token, self._log.settled))


def _start_ready(self: Leader, entry: Entry, heads: Sequence[tuple[NodeId, Any]], out: list[Action]) -> None:
    _start(self, entry, heads, out)
    self.phase = LeaderPhase.READY
    out.append(LeaderReady(self._leadership.term))
    self._on_ready(out)


READ_WITHOUT_CONFIRMING: tuple[Patch, ...] = ((LeaderReads, "request", _read_at_once),)
READY_AT_ONCE: tuple[Patch, ...] = ((Leader, "start", _start_ready),)


# -- disks and restarts -----------------------------------------------------------------------------------------------


def _append_as_if_durable(self: LocalLog, entries: Sequence[Entry]) -> AppendLog:
    action = _append(self, entries)
    self.durable_end = self.terms.log_end
    return action


ACK_BEFORE_SYNC: tuple[Patch, ...] = ((LocalLog, "append", _append_as_if_durable),)
VOTE_BEFORE_SYNC: tuple[Patch, ...] = ((LocalLog, "is_term_durable", property(lambda _: True)),)
VOTE_FOR_ANYONE: tuple[Patch, ...] = ((voting, "is_up_to_date", lambda *_: True),)
