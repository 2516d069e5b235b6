"""The metadata that is committed, version by version, for judges of what nodes may have known."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from antiphon.coordination.state import ClusterState
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.records.batch import read_header
from antiphon.records.decode import decode_records

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster


class ClusterLog:
    """`state` is what the cluster's own log has come to, as far as it was followed."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self.state = ClusterState()
        self._cluster = cluster
        self._taken = 0

    def news(self) -> Iterator[int]:
        """Follow what is committed by now; each version that it comes to on the way."""
        batches = self._cluster.evidence.truth(CLUSTER_SHARD_ID).batches
        while self._taken < len(batches):
            batch = batches[self._taken]
            self._taken += 1
            header = read_header(batch.data)
            if header.is_control or header.codec:
                continue
            pairs = [(record.key or b"", record.value) for record in decode_records(batch.data)]
            self.state.apply_readable(pairs, batch.next_offset)
            yield batch.next_offset


class TopicHistory:
    """How many topics there were, and since when each has been there."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self._log = ClusterLog(cluster)
        self._versions = [-1]  # where their number changed, and to what
        self._counts = [0]
        self.made: dict[str, int] = {}  # the first version with it

    def follow(self) -> None:
        """Take in what is committed by now."""
        for version in self._log.news():
            topics = self._log.state.topics
            if len(topics) != self._counts[-1]:
                self._versions.append(version)
                self._counts.append(len(topics))
            for name in topics.keys() - self.made.keys():
                self.made[name] = version

    @property
    def count(self) -> int:
        """Topics that there are by now."""
        self.follow()
        return self._counts[-1]

    @property
    def names(self) -> list[str]:
        """What they are called."""
        self.follow()
        return sorted(self._log.state.topics)

    def least(self, since: int, until: int) -> int:
        """The smallest number of topics in the versions from `since` to the one before `until`."""
        self.follow()
        first = bisect_right(self._versions, since) - 1
        return min(
            count
            for version, count in zip(self._versions[first:], self._counts[first:], strict=True)
            if version < until or version <= since
        )
