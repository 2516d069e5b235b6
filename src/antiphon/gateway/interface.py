"""The node as its listeners see it: shards to append to and read from, tables, and the cluster's metadata.

The listeners (native, Kafka, HTTP) translate their protocol to these calls and the errors of `antiphon.errors` back;
they know nothing of replication. Shards are named by their cluster-wide id. A call for a shard that this node does not
lead raises `NotLeaderError` with the leader's node id (or None) in its details.
"""

from collections.abc import Sequence
from typing import Protocol

from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.requests import (
    AdminRequest,
    AlterTopic,
    CreateTopic,
    ReplicaStatus,
    TableGet,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
)
from antiphon.model.results import AppendResult, FetchResult, OffsetResult
from antiphon.records.batch import Buffer


class Gateway(Protocol):
    """The node, as its listeners see it. All methods run on the node's event loop."""

    node_id: int
    cluster_id: str

    @property
    def metadata(self) -> ClusterMeta:
        """The newest metadata that reached this node."""
        ...

    def topic(self, name: str) -> TopicMeta:
        """Metadata of a topic or table; raises UnknownTopicError. A dictionary look-up."""
        ...

    def topic_by_id(self, topic_id: bytes) -> TopicMeta:
        """The same by topic id."""
        ...

    def shard(self, shard_id: int) -> tuple[TopicMeta, ShardMeta]:
        """Metadata of a shard; raises UnknownShardError."""
        ...

    def term_led(self, shard_id: int) -> int | None:
        """The term in which the replica here leads a shard and serves it, as the replica knows; None where it does not."""
        ...

    def knows_producer(self, shard_id: int, producer_id: int) -> bool:
        """Does this node's replica of the shard remember a batch of this producer? True where there is no replica."""
        ...

    def lost_peers(self) -> Sequence[int]:
        """Nodes that this node cannot reach right now; whether they are dead is for the coordinator to say."""
        ...

    async def wait_metadata(self, known_version: int, timeout_s: float) -> ClusterMeta:
        """Metadata newer than `known_version`, or what there is after `timeout_s`."""
        ...

    async def create_topic(self, request: CreateTopic, timeout_s: float = 30.0) -> TopicMeta:
        """Create, by way of the coordinator; returns when every shard has a leader that is ready."""
        ...

    async def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        """Delete, by way of the coordinator."""
        ...

    async def alter_topic(self, request: AlterTopic, timeout_s: float = 30.0) -> TopicMeta:
        """Change settings or add shards, by way of the coordinator."""
        ...

    async def elect_leader(self, shard_id: int, node: int = -1, timeout_s: float = 30.0) -> None:
        """Fence the shard and elect anew, by way of the coordinator."""
        ...

    async def administer(self, request: AdminRequest, timeout_s: float = 30.0) -> None:
        """Have the coordinator carry out any administrative request."""
        ...

    async def new_producer_id(self) -> int:
        """A producer id that no other call, on any node, at any time, has returned."""
        ...

    async def append(
        self, shard_id: int, batch: Buffer, *, expected_offset: int | None = None, timeout_s: float = 30.0
    ) -> AppendResult:
        """Append one RecordBatch v2; returns when it is committed.

        The batch is checked (length, CRC, header rules, size limit, producer sequence, expected offset) and its base offset
        and leader epoch are set in a copy that the node owns. Raises CorruptBatchError, BatchTooLargeError,
        OutOfOrderSequenceError, ProducerFencedError, OffsetMismatchError, NotLeaderError, NotReadyError, DiskFullError,
        OverloadedError, and TimedOutError when the outcome is unknown.
        """
        ...

    async def fetch(
        self,
        shard_id: int,
        offset: int,
        max_bytes: int,
        isolation: str = "committed",
        *,
        at_least_one: bool = True,
    ) -> FetchResult:
        """Read whole batches from the one that holds `offset`, up to the isolation's end; does not wait for new ones.

        Isolation is committed, uncommitted, replica, or empty: the topic's default.

        With `at_least_one` the first batch is returned even when it is larger than `max_bytes`. Raises
        OffsetOutOfRangeError, NotLeaderError, NotReadyError.
        """
        ...

    async def wait_for_data(
        self, positions: Sequence[tuple[int, int]], isolation: str, timeout_s: float, min_bytes: int = 1
    ) -> None:
        """Return when any (shard id, offset) has data at or after its offset, stops being led here, or on time-out."""
        ...

    async def list_offset(self, shard_id: int, timestamp_ms: int) -> OffsetResult:
        """Offset by timestamp; -1: the high watermark, -2: the log start, -3: the record with the largest timestamp."""
        ...

    async def trim(self, shard_id: int, before: int, timeout_s: float = 30.0) -> int:
        """Let the shard's log begin at the batch that holds `before` (-1: all that is committed goes), on every replica that
        answers in time; returns where it begins now. Raises NotLeaderError, OffsetOutOfRangeError, InvalidRequestError.
        """
        ...

    def end_of_term(self, shard_id: int, term: int) -> tuple[int, int]:
        """(largest term <= `term` in the log, its exclusive end): Kafka's OffsetForLeaderEpoch."""
        ...

    async def table_write(self, request: TableWrite) -> TableWritten:
        """Carry out the operations on the table's shard; returns when effects (or what refusals saw) are committed."""
        ...

    async def table_get(self, request: TableGet) -> TableRows:
        """Read keys."""
        ...

    async def table_scan(self, request: TableScan) -> TableRows:
        """Read a range of keys."""
        ...

    def replica_statuses(self) -> tuple[ReplicaStatus, ...]:
        """State of every replica on this node, for status pages."""
        ...
