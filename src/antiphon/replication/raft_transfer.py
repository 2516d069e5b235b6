"""Handing leadership over to a chosen follower, without waiting for anybody's patience to end (Raft thesis 3.10).

The leader takes no more proposals, brings the target up to its own end, and tells it to stand for election at once
(`TimeoutNow`). The target skips the pre-vote, whose question is whether the leader is still there. The others vote as
always: what makes an election safe does not depend on why it was begun. When nothing has come of it after an election
time-out, the leader goes on as before.
"""

from collections.abc import Mapping

from antiphon.replication.actions import Action, Send
from antiphon.replication.config import ElectionConfig
from antiphon.replication.messages import NodeId, TimeoutNow, TransferLeadership
from antiphon.replication.progress import Progress
from antiphon.replication.replica_state import LEADER_PHASES, LeaderEvent, LeaderPhase, next_state
from antiphon.replication.term_state import TermObserver, TermState


class Transfer:
    """One attempt. It is given up after `ticks_left`. `is_target_told`: `TimeoutNow` was sent since the last heartbeat."""

    __slots__ = ("is_target_told", "ticks_left", "to")

    def __init__(self, to: NodeId, ticks: int) -> None:
        self.to = to
        self.ticks_left = ticks
        self.is_target_told = False

    def is_due(self, progress: Mapping[NodeId, Progress], log_end: int) -> bool:
        """Has the target the whole log, durably, and was it not is_target_told yet?"""
        target = progress.get(self.to)
        return not self.is_target_told and target is not None and target.ack_offset >= log_end


class LeadershipTransfer(TermObserver):
    """The transfer that a leader has under way, if any. While there is one, the leader is TRANSFERRING."""

    def __init__(self, state: TermState, config: ElectionConfig) -> None:
        self._state = state
        self._config = config
        self._transfer: Transfer | None = None

    @property
    def target(self) -> NodeId | None:
        """Who is to lead; None where no transfer is under way."""
        return None if self._transfer is None else self._transfer.to

    def stepped_down(self, *, was_leader: bool) -> None:
        """A transfer ends with the leadership."""
        del was_leader
        self._transfer = None

    @property
    def successor(self) -> NodeId | None:
        """The voter that a leader could hand over to with the least delay; None where none is connected."""
        state = self._state
        if state.leading is None:
            return None
        others = tuple(node for node in state.members.voters if node != state.node_id)
        return best_successor(state.leading.replicator.progress, others)

    def begin(self, to: NodeId) -> None:
        """Take no more proposals; `go_on` tells the target."""
        leading = self._state.leading
        if leading is not None:
            leading.phase = next_state(LEADER_PHASES, leading.phase, LeaderEvent.TRANSFER)
            leading.lease.end()  # for this term: the word to the target may arrive late
            self._transfer = Transfer(to, self._config.election_ticks_min)

    def on_transfer_leadership(self, _sender: NodeId, message: TransferLeadership, out: list[Action]) -> None:
        """A coordinator, or an operator, wants somebody else to lead."""
        state = self._state
        leading, to = state.leading, message.to
        if leading is None or leading.phase is not LeaderPhase.READY or message.term != state.term:
            return
        if to in state.members.voting and to != state.node_id:
            self.begin(to)
            self.go_on(out)

    def _give_up(self) -> None:
        leading = self._state.leading
        if leading is not None and leading.phase is LeaderPhase.TRANSFERRING:
            leading.phase = next_state(LEADER_PHASES, leading.phase, LeaderEvent.GIVE_UP)
        self._transfer = None

    def go_on(self, out: list[Action]) -> None:
        """Something has happened: tell the target when it has everything; give up when it is no voter any more."""
        state, transfer = self._state, self._transfer
        if transfer is None:
            return
        if transfer.to not in state.members.voting:
            self._give_up()
        elif state.leading is not None and transfer.is_due(
            state.leading.replicator.progress, state.log.terms.log_end
        ):
            transfer.is_target_told = True
            out.append(Send(transfer.to, TimeoutNow(state.shard, state.term, state.node_id)))

    def tick(self, out: list[Action]) -> bool:
        """One tick of it: tell the target again, or give up. False when this replica leads no longer."""
        state, transfer = self._state, self._transfer
        if transfer is None:
            return True
        transfer.ticks_left -= 1
        if transfer.ticks_left % self._config.heartbeat_ticks == 0:
            transfer.is_target_told = False
        if transfer.ticks_left > 0:
            self.go_on(out)
            return True
        self._give_up()
        if state.node_id in state.members.voting:
            return True
        state.fence(state.term + 1, None, out)
        return False


def best_successor(progress: Mapping[NodeId, Progress], among: tuple[NodeId, ...]) -> NodeId | None:
    """Of `among`, the connected follower that has most of the log; the first of them that are equal. None: nobody."""
    best: Progress | None = None
    for node in among:
        one = progress.get(node)
        if one is not None and one.connected and (best is None or one.ack_offset > best.ack_offset):
            best = one
    return None if best is None else best.node
