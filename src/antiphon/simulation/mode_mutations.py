"""Mistakes in the ways to replicate: live sets, changes of members, asynchronous commit. `mutant` says what a patch is."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon.coordination import elections, live_sets
from antiphon.coordination.elections import Elections
from antiphon.coordination.fences import Fence
from antiphon.coordination.reconfiguration import Reconfigurations
from antiphon.replication import membership, raft_members
from antiphon.replication.actions import Action, Commit
from antiphon.replication.commit_rule import QUORUM, CommitRule
from antiphon.replication.election import Campaign, is_up_to_date
from antiphon.replication.leader_commit import CommitTracker
from antiphon.replication.live_set import LiveSet, MemberProgress, Standing
from antiphon.replication.local_log import LocalLog
from antiphon.replication.members import Members
from antiphon.replication.messages import NodeId, RequestVote
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker
from antiphon.replication.raft_transfer import Transfer
from antiphon.replication.voting import VoteElection
from antiphon.simulation.mutant import Patch

if TYPE_CHECKING:
    from antiphon.coordination.cluster_records import ShardRecord
    from antiphon.model.cluster import LiveSet as Report
    from antiphon.model.metadata import ShardMeta
    from antiphon.replication.progress import Progress

_go_by_sets = QuorumAckTracker.go_by_sets
_campaign = Campaign.__init__
_next_members = raft_members.next_members
_heard = LiveSet.heard
_member_returned: Any = vars(Elections)["_member_returned"]
_put_change: Any = vars(Reconfigurations)["_put"]


# -- live replica sets ------------------------------------------------------------------------------------------------


def _count_the_wanted(self: LiveSet) -> tuple[NodeId, ...]:
    """Goes by what it has asked for, as if it were recorded."""
    return tuple(
        sorted(node for node, standing in self._standing.items() if standing is not Standing.LEAVING)
    )


def _grow_when_back(
    self: Elections, record: "ShardRecord", node: NodeId, *, restarted: bool, replaced: bool
) -> None:
    """Whoever is back is live again."""
    _member_returned(self, record, node, restarted=restarted, replaced=replaced)
    newest = self._model.shards[record.meta.shard_id]
    meta = newest.meta
    if meta.fence == Fence.LIVE and node not in meta.live and node in meta.ensemble:
        live = (*meta.live, node)
        self._shards.put(newest, msgspec.structs.replace(meta, live=live, live_version=meta.live_version + 1))


def _accept_any(
    meta: "ShardMeta", report: "Report", sender: NodeId, is_alive: Callable[[NodeId], bool]
) -> "ShardMeta":
    """Takes a proposal whatever it was made on top of."""
    del is_alive
    wanted = tuple(node for node in meta.ensemble if node == sender or node in report.live)
    if wanted == meta.live:
        return meta
    return msgspec.structs.replace(meta, live=wanted, live_version=meta.live_version + 1)


def _live_at_once(self: LiveSet, progress: MemberProgress, committed: int, log_end: int) -> bool:
    """Whoever answers is live, however far it has come."""
    del committed
    return _heard(self, progress, 0, log_end)


SHRINK_NOT_RECORDED: tuple[Patch, ...] = ((LiveSet, "counting", property(_count_the_wanted)),)
COORDINATOR_GROWS: tuple[Patch, ...] = ((Elections, "_member_returned", _grow_when_back),)
STALE_PROPOSAL: tuple[Patch, ...] = ((live_sets, "accept", _accept_any),)
UNCLEAN_ANYWAY: tuple[Patch, ...] = ((elections, "may_be_unclean", lambda *_: True),)
FEW_ARE_ENOUGH: tuple[Patch, ...] = ((LiveSet, "is_enough", property(lambda _: True)),)
LIVE_AT_ONCE: tuple[Patch, ...] = ((LiveSet, "heard", _live_at_once),)


# -- members ----------------------------------------------------------------------------------------------------------


def _count_new_only(self: QuorumAckTracker, members: Members, rule: CommitRule) -> None:
    _go_by_sets(self, Members(members.voters), rule)


def _ask_new_only(self: Campaign, term: int, members: Members, *, is_pre_vote: bool) -> None:
    _campaign(self, term, Members(members.voters), is_pre_vote=is_pre_vote)


def _one_step(
    current: Members, voters: Sequence[NodeId], learners: Sequence[NodeId], *, settled: bool
) -> Members | None:
    """The new voters at once, without a joint step."""
    found = _next_members(current, voters, learners, settled=settled)
    return None if found is None else Members(found.voters, (), found.learners)


def _two_at_once(
    current: Members, voters: Sequence[NodeId], learners: Sequence[NodeId], *, settled: bool
) -> Members | None:
    """Begins a change while another is not committed."""
    del settled
    return _next_members(Members(current.voters, (), current.learners), voters, learners, settled=True)


def _count_learners(self: QuorumAckTracker, members: Members, rule: CommitRule) -> None:
    everybody = (*members.voters, *(node for node in members.learners if node not in members.voters))
    _go_by_sets(self, Members(everybody, members.outgoing), rule)


def _due_at_once(self: Transfer, progress: "dict[NodeId, Progress]", log_end: int) -> bool:
    """Does not wait for the target to have everything."""
    del log_end
    return not self.is_target_told and self.to in progress


def _trust_the_transfer(self: VoteElection, message: RequestVote) -> bool:
    """Who was asked to take over by the leader itself needs no better log."""
    state = self._state
    is_better = is_up_to_date(message.head, state.log.terms.end)
    return state.repair.is_sound and (message.transfer or is_better)


def _settled_at_once(self: CommitTracker) -> bool:
    """Says that a change is settled as soon as it is heard of."""
    was, self.unsettled = self.unsettled, None
    return was is not None


def _without_joint_record(self: Reconfigurations, record: "ShardRecord", meta: "ShardMeta") -> Any:
    """Records the new voters as if nobody had voted before them."""
    return _put_change(self, record, msgspec.structs.replace(meta, outgoing=()))


JOINT_NEW_ONLY: tuple[Patch, ...] = (
    (QuorumAckTracker, "go_by_sets", _count_new_only),
    (Campaign, "__init__", _ask_new_only),
)
ONE_STEP: tuple[Patch, ...] = ((membership, "next_members", _one_step),)
TWO_AT_ONCE: tuple[Patch, ...] = ((membership, "next_members", _two_at_once),)
LEARNERS_COUNT: tuple[Patch, ...] = ((QuorumAckTracker, "go_by_sets", _count_learners),)
HASTY_TRANSFER: tuple[Patch, ...] = (
    (Transfer, "is_due", _due_at_once),
    (VoteElection, "_would_vote_for", _trust_the_transfer),
)
SETTLED_AT_ONCE: tuple[Patch, ...] = ((CommitTracker, "newly_settled", _settled_at_once),)
NO_JOINT_RECORD: tuple[Patch, ...] = ((Reconfigurations, "_put", _without_joint_record),)


# -- commit rules -----------------------------------------------------------------------------------------------------


def _settle_what_is_acknowledged(self: CommitTracker, out: list[Action]) -> bool:
    """One mark for both: what the leader alone has goes to the followers as settled."""
    log = self._log
    mark = self._tracker.commit_offset(log.settled)
    if mark == log.settled:
        return False
    log.settled = mark
    out.append(Commit(mark))
    return True


def _lose_in_silence(self: LocalLog, from_offset: int, out: list[Action]) -> None:
    del out
    self.acknowledged = min(self.acknowledged, from_offset)


def _majority_will_do(self: QuorumAckTracker, members: Members, rule: CommitRule) -> None:
    _go_by_sets(self, members, rule if rule.is_local else QUORUM)


ACKNOWLEDGED_IS_SETTLED: tuple[Patch, ...] = (
    (CommitTracker, "_advance_apart", _settle_what_is_acknowledged),
)
SILENT_LOSS: tuple[Patch, ...] = ((LocalLog, "lose_tail", _lose_in_silence),)
MAJORITY_WILL_DO: tuple[Patch, ...] = ((QuorumAckTracker, "go_by_sets", _majority_will_do),)
