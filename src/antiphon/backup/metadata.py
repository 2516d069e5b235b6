"""The cluster's metadata as of an offset of `__cluster`, folded from the bytes of that log as every voter does."""

from collections.abc import Iterable

from antiphon.coordination.state import ClusterState
from antiphon.model.metadata import ShardMeta, TopicMeta
from antiphon.node.metadata_fold import MetadataFold
from antiphon.node.metrics import NodeMetrics
from antiphon.records.batch import Buffer


class Metadata:
    """A fold that grows, of a log that begins at `begins`. `offset` is where the next batch of `__cluster` begins."""

    def __init__(self, begins: int = 0) -> None:
        self._fold = MetadataFold(begins, NodeMetrics())

    @property
    def offset(self) -> int:
        """Up to where `__cluster` is folded."""
        return self._fold.offset

    @property
    def is_whole(self) -> bool:
        """Is `state` all that there is up to `offset`? Where the log begins above 0 it is from a checkpoint on."""
        return self._fold.is_whole

    def starts_at(self, log_start: int) -> None:
        """The log begins there now: if something between that and what is folded is gone, begin anew."""
        self._fold.starts_at(log_start)

    @property
    def state(self) -> ClusterState:
        """The metadata."""
        return self._fold.state

    def fold(self, chunks: Iterable[Buffer]) -> None:
        """Take whole committed batches that begin at `offset`. Raises CorruptBatchError, NewerFormatError."""
        self._fold.fold(chunks)


def topics_of(state: ClusterState) -> list[TopicMeta]:
    """All topics and tables, each with its shards, by name."""
    return [state.topic_with_shards(name) for name in sorted(state.topics)]


def being_split(state: ClusterState) -> list[ShardMeta]:
    """Shards that are being split off others."""
    return [record.meta for record in state.shards.values() if record.meta.split is not None]
