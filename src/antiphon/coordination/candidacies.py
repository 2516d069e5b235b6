"""Who was asked to lead: the series of candidates of each shard (S3.15), and how many answers each node owes."""

from antiphon.coordination.election import Election
from antiphon.coordination.state import ClusterState
from antiphon.replication.messages import NodeId

PROMOTE_MS = 1_500
PROMOTE_MS_MAX = 60_000


class Candidacies:
    """A series ends when a candidate leads, or when all have failed."""

    def __init__(self, model: ClusterState) -> None:
        self._model = model
        self._unanswered: dict[int, int] = {}  # by shard: promotions in a row that led to nothing
        self._failed: dict[int, frozenset[NodeId]] = {}  # by shard: who did not lead in this series
        self._open: dict[NodeId, int] = {}  # by candidate: answers that are waited for

    def began(self, candidate: NodeId) -> None:
        """The node is chosen."""
        self._open[candidate] = self._open.get(candidate, 0) + 1

    def ended(self, candidate: NodeId) -> None:
        """It leads, or the election is over without it."""
        self._open[candidate] -= 1

    def load(self, node: NodeId) -> int:
        """Shards that a node leads, or is about to: for an even spread."""
        return self._model.led_by.get(node, 0) + self._open.get(node, 0)

    def wait_ms(self, shard_id: int) -> int:
        """How long the next candidate may take to answer."""
        return min(PROMOTE_MS << min(self._unanswered.get(shard_id, 0), 10), PROMOTE_MS_MAX)

    def unanswered(self, election: Election, candidate: NodeId) -> None:
        """The candidate did not answer in time: another one is asked."""
        shard_id = election.shard_id
        self.refused(shard_id)
        self._failed[shard_id] = election.failed | {candidate}

    def refused(self, shard_id: int) -> int:
        """A candidate or leader does not want to lead; returns how many in a row have not, or did not answer."""
        count = self._unanswered[shard_id] = self._unanswered.get(shard_id, 0) + 1
        return count

    def failed(self, shard_id: int) -> frozenset[NodeId]:
        """Who was asked in vain in this series."""
        return self._failed.get(shard_id, frozenset())

    def returned(self, shard_id: int, node: NodeId) -> None:
        """The node is alive again, or has a new process: it may be asked again."""
        if node in self.failed(shard_id):
            self._failed[shard_id] -= {node}

    def exhausted(self, shard_id: int) -> None:
        """All have failed: a new series begins, no sooner than the last one would have gone on."""
        self._failed.pop(shard_id, None)

    def forget(self, shard_id: int) -> None:
        """The shard has a leader, or is about to be deleted."""
        self._unanswered.pop(shard_id, None)
        self._failed.pop(shard_id, None)
