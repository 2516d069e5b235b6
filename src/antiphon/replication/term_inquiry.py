"""How a replica that votes, and whose log is not whole, comes to a term that proves it whole again (see `repair`).

Decisions
---------
* **A damaged replica asks for a new term** (`AskTerm`), since only an entry committed in a term begun since proves that its
  log is whole. A leader that could be elected without it obeys, by standing for the next term.
* **A replica that forgot its promises too** (its disk came back empty) may have been part of any term so far. Before it
  obeys or acknowledges anything it asks the others which terms they promised, and takes the highest for its own. As many
  must answer as make a majority, itself not counted: those share a replica with every majority that it may have been part
  of, so that no term beyond theirs had begun by then. Until then it is silent towards leaders and candidates.
* **Where members change, those that it knows of may be former ones**, who have no replica any more and never answer. So each
  answer says who the members are in the log there, and where that ends. The members that must answer are those of the most
  up-to-date log among the answers and its own: a change is committed by a majority of the members before it, so one of a
  majority of those knows of it, and no log that is more up to date lacks it. It asks them too, and whoever sends to it as a
  leader. The first leader that it obeys counts as one of the term of then.
* **A replica that joins** a shard with a history does not vote before it has, durably, an entry that was committed in the
  term that it is in. An empty log would vote for anybody, also for a candidate of long ago that counts this node from a time
  when it was a member before, and that has not heard since that others decide now. No earlier point will do: the log that it
  is sent begins with that time. So nobody is made a voter before it is past that point. It asks for no term.
"""

from antiphon.replication.actions import Action, Send
from antiphon.replication.config import ElectionConfig
from antiphon.replication.members import Members, MembersIndex
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
        self._answers: dict[NodeId, TermReply] = {}  # while the promises are forgotten
        self._leaders: set[NodeId] = set()  # that were heard, and not obeyed, in that time
        self._met_leader = not (state.repair.is_forgotten and index is not None)

    def tick(self, out: list[Action]) -> None:
        """Ask now and then, until the log is whole; not in step with the leader's checks, which start its counts anew."""
        if self._state.repair.condition in {LogCondition.SOUND, LogCondition.JOINING}:
            return
        if self._ticks % self._ticks_between == 0:
            request = self._request()
            out.extend(Send(peer, request) for peer in self._asked())
        self._ticks += 1

    def _request(self) -> AskTerm:
        state = self._state
        return AskTerm(state.shard, state.term, -1 if state.repair.is_forgotten else state.repair.floor)

    def _asked(self) -> list[NodeId]:
        """Who is asked: everybody who may vote by the log here, or by the best log that is known, and leaders that call."""
        asked = [*self._election.peers(), *self._members().voting, *sorted(self._leaders)]
        return [node for node in dict.fromkeys(asked) if node != self._state.node_id]

    def _members(self) -> Members:
        """Those of the most up-to-date log among the answers and the one here."""
        end, members = self._state.log.terms.end, self._state.members
        for answer in self._answers.values():
            if answer.end is not None and answer.members is not None and answer.end > end:
                end, members = answer.end, answer.members
        return members

    def leader_heard(self, sender: NodeId) -> None:
        """A leader calls, and is not obeyed, as the promises are forgotten."""
        if self._index is not None:
            self._leaders.add(sender)

    def on_ask_term(self, sender: NodeId, message: AskTerm, out: list[Action]) -> None:
        """Say what is promised here; a leader who can be elected without the damaged replica begins a new term."""
        state = self._state
        is_member = sender in state.members.everybody
        if state.repair.is_forgotten or state.role is Role.NOT_MEMBER or sender == state.node_id:
            return
        if not is_member and self._index is None:
            return
        told = () if self._index is None else (state.log.terms.end, state.members)
        state.send_when_durable(sender, TermReply(state.shard, state.term, *told), out)
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
        if state.repair.is_forgotten and sender in self._asked():
            self._answers[sender] = message
            sets = self._members().sets
            if all(len(self._answers.keys() & set(one)) >= majority(len(one)) for one in sets):
                state.repair.terms_known(state.term)
                self._answers.clear()
                self._leaders.clear()

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
