"""How a replica that votes, and whose log is not whole, comes to a term that proves it whole again (see `repair`).

Decisions
---------
* **A damaged replica asks for a new term** (`AskTerm`), since only an entry committed in a term begun since proves that its
  log is whole. A leader that could be elected without it obeys, by standing for the next term.
* **A replica that forgot its promises too** (its disk came back empty) may have been part of any term so far. Before it
  obeys or acknowledges anything it asks the others which terms they promised, and takes the highest for its own. As many
  must answer as make a majority, itself not counted: those share a replica with every majority that it may have been part
  of, so that no term beyond theirs had begun by then. Until then it is silent towards leaders and candidates. Where members
  change, those that it knows of may be former ones; so the first leader that it meets counts as one of then, too.
* **A replica that joins** a shard with a history does not vote before it has, durably, an entry that was committed in the
  term that it is in. An empty log would vote for anybody, also for a candidate of long ago that counts this node from a time
  when it was a member before, and that has not heard since that others decide now. No earlier point will do: the log that it
  is sent begins with that time. So nobody is made a voter before it is past that point. It asks for no term.
"""

from antiphon.replication.actions import Action, Send
from antiphon.replication.config import ElectionConfig
from antiphon.replication.members import MembersIndex
from antiphon.replication.messages import AskTerm, NodeId, TermReply
from antiphon.replication.quorum import majority
from antiphon.replication.replica_state import LeaderPhase, LogCondition, Role
from antiphon.replication.term_state import TermState
from antiphon.replication.voting import VoteElection


class TermInquiry:
    """Asks the others for their terms, and answers those that ask."""

    def __init__(
        self, state: TermState, election: VoteElection, index: MembersIndex | None, config: ElectionConfig
    ) -> None:
        self._state = state
        self._election = election
        self._index = index
        self._ticks_between = config.election_ticks_min - config.heartbeat_ticks
        self._ticks = 0
        self._answered: set[NodeId] = set()  # while the promises are forgotten
        self._met_leader = not (state.repair.is_forgotten and index is not None)

    def tick(self, out: list[Action]) -> None:
        """Ask now and then, until the log is whole; not in step with the leader's checks, which start its counts anew."""
        if self._state.repair.condition in {LogCondition.SOUND, LogCondition.JOINING}:
            return
        if self._ticks % self._ticks_between == 0:
            request = self._request()
            out.extend(Send(peer, request) for peer in self._election.peers())
        self._ticks += 1

    def _request(self) -> AskTerm:
        state = self._state
        return AskTerm(state.shard, state.term, -1 if state.repair.is_forgotten else state.repair.floor)

    def on_ask_term(self, sender: NodeId, message: AskTerm, out: list[Action]) -> None:
        """Say what is promised here; a leader who can be elected without the damaged replica begins a new term."""
        state = self._state
        is_member = sender in state.members.everybody
        if state.repair.is_forgotten or state.role is Role.NOT_MEMBER or sender == state.node_id:
            return
        if not is_member and self._index is None:
            return
        state.send_when_durable(sender, TermReply(state.shard, state.term), out)
        leading = state.leading
        progress = None if leading is None else leading.replicator.progress.get(sender)
        if leading is None or progress is None or not is_member or message.floor < state.term:
            return
        if not progress.wants_term:
            progress.wants_term = True  # who else is there may not be known yet; it asks again
        elif leading.phase is not LeaderPhase.STARTING and leading.reads.hears_quorum_without(sender):
            self._election.campaign(out)

    def on_term_reply(self, sender: NodeId, message: TermReply, out: list[Action]) -> None:
        """Another replica's promise."""
        state = self._state
        state.learn_term(message.term, out)
        if state.repair.is_forgotten and sender in self._election.peers():
            answered = self._answered
            answered.add(sender)
            if all(len(answered.intersection(one)) >= majority(len(one)) for one in state.members.sets):
                state.repair.terms_known(state.term)

    def leader_met(self, sender: NodeId, term: int, *, is_new: bool, out: list[Action]) -> None:
        """This replica follows `sender` in `term`; `is_new`: it knew no leader of that term before.

        The request goes out before anything is acknowledged: no vote of this replica must be needed.
        """
        repair = self._state.repair
        if not self._met_leader:
            self._met_leader = True
            repair.floor = max(repair.floor, term)
        if is_new and not repair.is_sound and repair.floor >= term:
            out.append(Send(sender, self._request()))
