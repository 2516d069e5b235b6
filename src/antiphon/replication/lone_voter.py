"""A replica that votes, and whose other members are lost for good: by an operator's word it goes on alone.

It writes down, in a term beyond all that can have begun (the mark), that it is the only member. Then it stands for election
as always, and wins by its own vote. What its log holds stays, committed or not: nobody can say any more which of it was.

The others may not be lost after all. Whoever has promised less than a mark, and has entries, has the old history: it takes
nothing from those beyond that mark, neither entries nor terms. So its promise stays below the mark, by which its node
recognises it, and nothing that it holds is ever counted in the new history.
"""

from typing import Final

from antiphon.replication.actions import Action, Send
from antiphon.replication.entry_factory import MakeMembers
from antiphon.replication.members import Members
from antiphon.replication.membership import Membership
from antiphon.replication.messages import AnyMessage, GoOnAlone, NodeId, StaleTerm
from antiphon.replication.replica_state import Role
from antiphon.replication.term_state import TermState
from antiphon.replication.voting import VoteElection

HISTORY_TERMS: Final = 1_000_000
"""Every multiple is a mark. No history has as many terms."""


def is_of_later_history(message: AnyMessage, term: int, log_end: int) -> bool:
    """Does this come from beyond a mark that a replica in `term` has not passed? One without entries joins any history."""
    return log_end > 0 and message.term // HISTORY_TERMS > term // HISTORY_TERMS


class LoneVoter:
    """Goes on alone; see the module's text.

    Args:
        state: the replica's term.
        election: stands for election.
        membership: the members by its log.
        make_members: makes a members entry.
    """

    def __init__(
        self, state: TermState, election: VoteElection, membership: Membership, make_members: MakeMembers
    ) -> None:
        self._state = state
        self._election = election
        self._membership = membership
        self._make = make_members

    def on_go_on_alone(self, sender: NodeId, message: GoOnAlone, out: list[Action]) -> None:
        """Be the only member from now on; a message that is repeated does no harm."""
        state, mark = self._state, message.term
        if not state.repair.is_sound or state.log.terms.end.term >= mark:
            return  # what it has cannot be told; or it was done
        if state.term > mark or (state.term == mark and state.role is not Role.FENCED):
            out.append(Send(sender, StaleTerm(state.shard, state.term)))
            return
        if state.term < mark:
            state.fence(mark, state.node_id, out)
        end = state.log.terms.log_end
        alone = Members((state.node_id,), deleted_before=min(state.members.deleted_before, end))
        out.append(state.log.append((self._make(mark, end, alone),)))
        self._membership.follow_log(out)
        self._election.campaign(out)
