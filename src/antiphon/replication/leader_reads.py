"""Confirming that nobody else leads, for linearizable reads and for the leader itself (Raft thesis 6.4 and 6.2)."""

from antiphon.replication.actions import Action, ReadReady
from antiphon.replication.leadership import Leadership
from antiphon.replication.lease import LeaderLease
from antiphon.replication.messages import NodeId
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker
from antiphon.replication.read_index import NO_ROUND, ReadIndex
from antiphon.replication.replicator import Replicator


class LeaderReads:
    """The reads of one leadership, and who of the followers answers.

    Attributes:
        waiting: the reads that wait; its `round` is 0 where none is underway.
    """

    def __init__(
        self,
        leadership: Leadership,
        tracker: QuorumAckTracker,
        replicator: Replicator,
        lease: LeaderLease,
        waiting_max: int,
    ) -> None:
        self._log = leadership.log
        self._tracker = tracker
        self._replicator = replicator
        self._lease = lease
        self.waiting = ReadIndex(waiting_max)

    def set_waiting_max(self, waiting_max: int) -> None:
        """So many reads may wait from now on."""
        self.waiting.waiting_max = waiting_max

    def request(self, token: int, now_us: int | None, out: list[Action]) -> None:
        """Serve a read once it is confirmed, now or after now, that this replica leads."""
        if self._confirms_alone():
            out.append(ReadReady(token, self._log.commit_mark))
            return
        until_us = 0 if now_us is None else self._lease.until_us()
        if now_us is not None and now_us < until_us:
            out.append(ReadReady(token, self._log.commit_mark, leased=True))
            if self._lease.is_to_renew(now_us, until_us):
                self._ask(out)
        elif self.waiting.add(token, self._log.commit_mark):
            self._start(out)

    def _confirms_alone(self) -> bool:
        values = [0] * len(self._tracker.acks)
        values[self._tracker.own_slot] = 1
        return self._tracker.confirmed(values) == 1

    def _start(self, out: list[Action]) -> None:
        replicator = self._replicator
        replicator.round += 1
        self.waiting.start(replicator.round)
        self._ask(out)

    def _ask(self, out: list[Action]) -> None:
        replicator, counted = self._replicator, self._tracker.counted
        for progress in replicator.progress.values():
            if progress.connected and progress.slot in counted:
                replicator.send_heartbeat(progress, out)

    def confirm(self, out: list[Action]) -> None:
        """Somebody has answered, or others count: are enough answers there?"""
        if self.waiting.round == NO_ROUND:
            return
        replicator = self._replicator
        echoes = [0] * len(self._tracker.acks)
        for progress in replicator.progress.values():
            echoes[progress.slot] = progress.round_echoed
        echoes[self._tracker.own_slot] = replicator.round
        if self.waiting.confirm(self._tracker.confirmed(echoes), out):
            self._start(out)

    def fail(self, out: list[Action]) -> None:
        """Leadership ends."""
        self.waiting.fail(out)

    # -- is anybody there --------------------------------------------------------------------------------------------

    def heard_from_quorum(self) -> bool:
        """Did enough answer, the leader included, since this was last asked, to say that nobody else leads?"""
        heard = self._hears(without=None)
        for progress in self._replicator.progress.values():
            progress.active = False
        return heard

    def hears_quorum_without(self, node: NodeId) -> bool:
        """Would enough be there without `node`, going by who answered since `heard_from_quorum` was last asked?"""
        return self._hears(without=node)

    def _hears(self, without: NodeId | None) -> bool:
        values = [0] * len(self._tracker.acks)
        values[self._tracker.own_slot] = 1
        for progress in self._replicator.progress.values():
            values[progress.slot] = progress.active and progress.node != without
        return self._tracker.confirmed(values) == 1
