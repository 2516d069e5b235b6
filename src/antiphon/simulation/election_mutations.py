"""Mistakes in choosing leaders, in mending damage and in refusing; see `mutations` for what a patch is."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.coordination import elections, fences
from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.election import Election
from antiphon.coordination.elections import Elections
from antiphon.coordination.fences import voting
from antiphon.coordination.followers import Followers
from antiphon.model.metadata import ABSENT_NODE, ShardStatus
from antiphon.records.entry_id import EntryId
from antiphon.replication import appointment
from antiphon.replication.appointment import Appointment
from antiphon.replication.local_log import LocalLog
from antiphon.replication.messages import BecomeLeader, NodeId
from antiphon.replication.repair import LogRepair
from antiphon.replication.replica_state import Event, LogCondition, next_role
from antiphon.simulation.mutant import Patch


def _one_is_enough(_: Sequence[NodeId]) -> int:
    return 1


def _one_of_many(_: int) -> int:
    return 1


MINORITY_FENCE: tuple[Patch, ...] = (
    (fences, "majority", _one_is_enough),
    (appointment, "majority", _one_of_many),
)


def _worst_head(
    election: Election, record: ShardRecord, votes: Mapping[NodeId, EntryId], led_by: Callable[[NodeId], int]
) -> NodeId:
    """Whoever leads least, whatever its log."""
    del election
    return min(votes, key=lambda node: (led_by(node), votes[node], record.meta.ensemble.index(node)))


def _lead_if_asked(self: Appointment, message: BecomeLeader) -> bool:
    """Trusts the coordinator's choice."""
    state = self._state
    return (
        message.term == state.term
        and next_role(state.role, Event.BECOME_LEADER) is not None
        and state.term != state.restored_term
        and state.log.is_term_durable
    )


ANY_HEAD: tuple[Patch, ...] = (
    (elections, "choose_leader", _worst_head),
    (Appointment, "_may_lead", _lead_if_asked),
)


def _lead_again(self: Appointment, message: BecomeLeader) -> bool:
    """Also leads a term that it may have led before it crashed."""
    state = self._state
    return (
        message.term == state.term
        and next_role(state.role, Event.BECOME_LEADER) is not None
        and state.log.is_term_durable
        and all(other <= state.log.terms.end for _, other in message.heads)
    )


def _begin_in_same_term(
    self: Elections, shard_id: int, *, wanted: Any = None, above: int = 0, **_: bool
) -> None:
    """Takes a new term only when the last one was led."""
    record = self._model.shards[shard_id]
    self.forget(shard_id)
    term = max(record.meta.term, above, 1)
    if record.meta.status == ShardStatus.ONLINE:
        term += 1
    self._open[shard_id] = Election(shard_id, term, wanted=wanted)
    self._shards.set(record, term=term, status=ShardStatus.ELECTION, leader=ABSENT_NODE)


SAME_TERM_AGAIN: tuple[Patch, ...] = (
    (Elections, "begin", _begin_in_same_term),
    (Appointment, "_may_lead", _lead_again),
)


def _count_damaged(
    self: Election, record: ShardRecord, is_alive: Callable[[NodeId], bool]
) -> dict[NodeId, EntryId]:
    return {
        node: self.replies[node].head
        for node in record.meta.ensemble
        if node in self.replies and is_alive(node)
    }


def _count_untrusted(
    self: Election, record: ShardRecord, is_alive: Callable[[NodeId], bool]
) -> dict[NodeId, EntryId]:
    """A member on a new disk votes as if it remembered."""
    return {
        node: self.replies[node].head
        for node in voting(record.meta)
        if node in self.replies and is_alive(node) and not self.replies[node].damaged
    }


UNTRUSTED_VOTES: tuple[Patch, ...] = ((Election, "votes", _count_untrusted),)
DAMAGED_VOTES: tuple[Patch, ...] = ((Election, "votes", _count_damaged),)


def _repaired_too_early(self: LogRepair, term: int, log: LocalLog) -> bool:
    """Any entry that was committed in the current term will do, though the damage may be younger than the term."""
    mark = log.settled
    if mark > log.terms.log_start and log.durable_end >= mark and log.terms.term_before(mark) == term:
        self.condition = LogCondition.SOUND
        return True
    return False


REPAIRED_TOO_EARLY: tuple[Patch, ...] = ((LogRepair, "repaired", _repaired_too_early),)


def _bring_nobody_back(
    self: Followers, shard_id: int, node: NodeId, leader: NodeId, now_ms: int, delay_ms: int = 0
) -> None:
    del self, shard_id, node, leader, now_ms, delay_ms


FORGOTTEN_MEMBER: tuple[Patch, ...] = ((Followers, "bring_back", _bring_nobody_back),)
