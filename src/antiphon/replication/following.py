"""What a replica makes of a leader's messages and snapshots, whichever way the leader was elected."""

from antiphon.invariants import unreachable
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action, Repaired, RoleChanged
from antiphon.replication.follower import FollowerSide
from antiphon.replication.messages import Append, NodeId, SnapshotOffer
from antiphon.replication.replica_state import Event, LogCondition, next_role
from antiphon.replication.term_state import TermState


class Following:
    """Follows the leader of the term. The half for one term, `FollowerSide`, is in the `TermState`."""

    def __init__(self, state: TermState) -> None:
        self._state = state

    def on_append(self, sender: NodeId, message: Append, out: list[Action]) -> None:
        """A leader's Append."""
        if self._state.follow(sender, message.term, Event.REPLICATE, out):
            self.take(message, out)

    def on_snapshot_offer(self, sender: NodeId, message: SnapshotOffer, out: list[Action]) -> None:
        """A leader's word that a snapshot follows."""
        self._state.follow(sender, message.term, Event.SNAPSHOT, out)

    def take(self, message: Append, out: list[Action]) -> None:
        """Take an Append of the leader that is followed."""
        state = self._state
        following, repair = state.following, state.repair
        if following is None:
            unreachable("a follower follows")
        if repair.has_bad_tail:
            repair.has_bad_tail = False
            state.log.cut(state.log.terms.log_end, out)
        following.on_append(message, out)
        if repair.condition is not LogCondition.SOUND:
            self._check_repair(out)

    def persisted(self, out: list[Action]) -> None:
        """More of the log, or the term, is durable."""
        state = self._state
        if state.following is not None:
            state.following.persisted(out)
            if state.repair.condition is not LogCondition.SOUND:
                self._check_repair(out)

    def _check_repair(self, out: list[Action]) -> None:
        state = self._state
        if state.repair.repaired(state.term, state.log):
            out.append(Repaired())
            if state.following is not None:
                # Who waits for this replica to be whole hears it where nobody writes, too.
                state.following.acknowledge(out)

    @property
    def leader_shows_less(self) -> bool:
        """Has the leader not (yet) shown to have all that is settled here?

        For a moment that is so whenever a term begins. Where it lasts, others have lost entries that were acknowledged.
        """
        state = self._state
        shown = None if state.following is None else state.following.shown
        return shown is not None and shown < state.log.settled and not state.config.unclean

    # -- snapshots -------------------------------------------------------------------------------------------------

    def snapshot_installed(self, at: EntryId, out: list[Action]) -> None:
        """A snapshot of committed state up to `at` arrived here, whole. It is taken over if a `ResetLog` follows."""
        state = self._state
        role, log = next_role(state.role, Event.SNAPSHOT), state.log
        if state.failed or role is None or log.terms.holds(at):
            return
        following = state.following or state.new_follower()
        if at.offset <= log.settled:
            joined = log.terms.end.term == state.term or following.verified > at.offset
            if joined or not state.config.unclean or not self._contradicts(at, following):
                return
            # The leader's log cannot be joined: after an unclean election it need not have what is settled here.
            log.give_up(at.offset, out)
        if state.following is None:
            state.following = following
            state.role = role
            out.append(RoleChanged(role, state.term, None))
        log.lose_tail(max(log.settled, min(following.verified, log.acknowledged)), out)
        out.append(log.reset(at))
        state.repair.has_bad_tail = False
        following.snapshot_installed()

    def _contradicts(self, at: EntryId, following: FollowerSide) -> bool:
        """Can the leader's log not have what is settled here? One that is merely told of less may have it all the same.

        Of what lies before the log's start only the last term is known: terms rise, so a later one cannot come before it.
        Otherwise the first such snapshot is refused; the leader then asks where this log is, and sends another one only
        if its own log does not have that.
        """
        terms = self._state.log.terms
        if at.offset >= terms.log_start or at.term > terms.start.term or following.was_sent_too_little:
            return True
        following.was_sent_too_little = True
        return False
