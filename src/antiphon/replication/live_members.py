"""What a leader does for its live set: watch who keeps up, ask who may come back, propose changes (S3.28, S3.29)."""

from antiphon.replication.actions import Action
from antiphon.replication.leader_commit import CommitTracker
from antiphon.replication.live_set import LiveSet, MemberProgress, Standing
from antiphon.replication.messages import NodeId
from antiphon.replication.progress import Progress
from antiphon.replication.replicator import Replicator


class LiveMembers:
    """The members of one leadership that goes by a live set."""

    def __init__(self, live: LiveSet, own: NodeId, replicator: Replicator, commits: CommitTracker) -> None:
        self._live = live
        self._own = own
        self._replicator = replicator
        self._commits = commits

    def ask_voters(self, out: list[Action]) -> None:
        """Ask voters that are connected and not live yet where they are; the answer may make them so."""
        counting, voters = self._live.counting, self._commits.members.voters
        for node, progress in list(self._replicator.progress.items()):
            if progress.connected and node in voters and node not in counting:
                self._replicator.send_heartbeat(progress, out)

    def tick(self, log_end: int, awaited_round: int) -> bool:
        """One tick passed: who lags? True when fewer count."""
        counting = [self._progress(node) for node in self._live.counting if node != self._own]
        return self._live.tick(counting, log_end, awaited_round)

    def ask_again(self, out: list[Action]) -> None:
        """Ask who may come back, now and then."""
        if self._live.is_to_ask():
            self.ask_voters(out)

    def heard(self, progress: Progress, log_end: int, out: list[Action]) -> None:
        """A follower has answered: it may be about to be live again."""
        if self._live.standing(progress.node) is Standing.LIVE:
            return
        if progress.connected and progress.node in self._commits.members.voters:
            if self._live.heard(progress.as_member(), self._commits.ever_committed, log_end):
                self._commits.count()
            self.propose(out)

    def propose(self, out: list[Action]) -> None:
        """Ask the coordinator for another live set, if there is need."""
        proposal = self._live.proposal(self._commits.members.voters)
        if proposal is not None:
            out.append(proposal)

    def needs_tick(self, log_end: int) -> bool:
        """Can only time mend something?"""
        live = self._live
        concerned = {*self._commits.members.voters, *live.counting}  # a learner is not to become live
        return live.needs_tick(
            [
                node
                for node, progress in self._replicator.progress.items()
                if node in concerned and progress.connected and progress.ack_offset >= log_end
            ]
        )

    def _progress(self, node: NodeId) -> MemberProgress:
        progress = self._replicator.progress.get(node)
        return MemberProgress(node, 0, connected=False) if progress is None else progress.as_member()
