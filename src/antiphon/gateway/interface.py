"""The node as its listeners see it: shards to append to and read from, tables, and the cluster's metadata.

The listeners (native, Kafka, HTTP) translate their protocol to these calls and the errors of `antiphon.errors` back;
they know nothing of replication.

Many calls come in two forms that do the same. The awaitable one is for listeners that have a task per connection. The other
one starts with `submit_` and calls back. It is for the native listener: its connections have thousands of requests open,
without a task for any of them.

Shards are named by their cluster-wide id. A call for a shard that this node does not
lead raises `NotLeaderError` with the leader's node id (or None) in its details.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol

from antiphon.errors import NotLeaderError
from antiphon.gateway.answers import Admit, AnsweredWithBulk, Done
from antiphon.gateway.backups import ShardBackups
from antiphon.gateway.transactions import ShardTransactions
from antiphon.model.access import AccessBook
from antiphon.model.attributes import IndexFind, IndexScan
from antiphon.model.client_metrics import Subscription
from antiphon.model.events import Event
from antiphon.model.findings import AuditNote
from antiphon.model.key_order import OrderedFind, OrderedScan
from antiphon.model.loads import Load, LoadRows
from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.node_settings import NodeSettings, Told
from antiphon.model.plans import Plan
from antiphon.model.requests import (
    AdminRequest,
    AlterAcls,
    AlterQuota,
    AlterTopic,
    AlterUser,
    AppendBatch,
    CreateTopic,
    Fetch,
    ListOffset,
    ReplicaStatus,
    StatusReply,
    TableGet,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
)
from antiphon.model.results import AppendResult, FetchResult, OffsetResult
from antiphon.model.sender import Sender
from antiphon.model.sessions import ListSessions, SessionRequest, SessionsReply
from antiphon.model.table_transactions import CheckReads, PrepareWrite, ReadKeys
from antiphon.records.batch import Buffer

ShardRequest = (
    AppendBatch
    | Fetch
    | ListOffset
    | TableWrite
    | LoadRows
    | TableGet
    | TableScan
    | IndexFind
    | IndexScan
    | OrderedFind
    | OrderedScan
    | PrepareWrite
    | ReadKeys
    | CheckReads
)
"""Requests of the native protocol that the leader of a shard answers."""

TableRead = TableGet | TableScan | IndexFind | IndexScan | OrderedFind | OrderedScan


Rehearse = Callable[[ClusterMeta, AdminRequest], Plan]
RehearseAccess = Callable[[AlterUser | AlterAcls | AlterQuota], object]


class NodeQuestions(Protocol):
    """What nodes ask each other beside replication: bodies that no client may send (`model.cluster.NodeQuestion`)."""

    def serve(self, answer: Callable[[Any], Awaitable[Any]] | None) -> None:
        """Let `answer` answer such questions here: it returns a reply's body, or raises an AntiphonError; None: nobody."""

    async def ask(self, node_id: int, body: Any, timeout_s: float) -> Any:
        """Ask a node, this one included; raises the error that came instead, UnavailableError, or TimedOutError."""

    async def ask_bulk(self, node_id: int, body: Any, timeout_s: float) -> tuple[Any, memoryview]:
        """Ask another node what a client may ask; the reply's body and its bulk bytes. Raises as `ask` does."""


class NodeValues(Protocol):
    """The settings of this node that are changed while it runs.

    Attributes:
        entries: what the metadata says for each node, and for all (`ALL_NODES`).
    """

    entries: Mapping[int, NodeSettings]

    def values(self, name: str) -> list[Told]:
        """Every value that there is of a setting here, the one that counts first. Raises InvalidRequestError."""

    def for_topics(self, name: str, *, of_table: bool = False) -> list[Told]:
        """The same of what this node has for topics that do not set `name`. Empty: such topics have the default."""


class Gateway(Protocol):
    """The node, as its listeners see it. All methods run on the node's event loop.

    Attributes:
        events: what happened to nodes, topics and shards lately, as this node heard of it; the oldest first.
        questions: what nodes ask each other.
        subscriptions: those to clients' metrics by name, as of the newest metadata. One object, which changes.
        settings: of this node, which are changed while it runs.
        check_request: given how many partitions one request makes, raises LimitReachedError where it is refused as a whole.
        rehearse: given metadata and a request, what the coordinator would decide on it; raises what it would refuse it with.
            Takes as long as there are shards, and may be called from any thread.
        rehearse_access: given a change of users, lists or quotas, raises what the coordinator would refuse it with.
        transactions: the shards' part of them.
        backups: the same of backups.
        rack: where this node stands, as its operator says; empty: nobody said.
        list_sessions: the sessions that are open in a shard of a table. Raises NotLeaderError, NotReadyError.
        followers_with: given a shard and an offset, the nodes whose replicas have the log up to there, as the shard's
            leader here knows; the furthest first. Empty where this node does not lead the shard.
        count_replicas: how many this node has open.
        note_audit: given the shards that an audit has read, and what it has found in replicas of this node; returns when
            that is on the disk.
    """

    node_id: int
    cluster_id: str
    check_request: Callable[[int], None]
    settings: NodeValues
    rehearse: Rehearse
    rehearse_access: RehearseAccess
    transactions: ShardTransactions
    backups: ShardBackups
    questions: NodeQuestions
    events: Sequence[Event]
    subscriptions: Mapping[str, Subscription]
    rack: str
    list_sessions: Callable[[ListSessions], SessionsReply]
    followers_with: Callable[[int, int], list[int]]
    count_replicas: Callable[[], int]
    note_audit: Callable[[Sequence[int], Iterable[AuditNote]], Coroutine[Any, Any, None]]

    @property
    def metadata(self) -> ClusterMeta:
        """The newest metadata that reached this node."""

    @property
    def access(self) -> AccessBook:
        """Users, access control lists and quotas, as of that metadata. One object, which changes."""

    @property
    def metadata_version(self) -> int:
        """Version of that metadata; -1 while this node has been told nothing since its start."""

    def topic(self, name: str) -> TopicMeta:
        """Metadata of a topic or table; raises UnknownTopicError. A dictionary look-up."""

    def topic_by_id(self, topic_id: bytes) -> TopicMeta:
        """The same by topic id."""

    def shard(self, shard_id: int) -> tuple[TopicMeta, ShardMeta]:
        """Metadata of a shard; raises UnknownShardError."""

    def term_led(self, shard_id: int) -> int | None:
        """The term in which the replica here leads a shard and serves it, as the replica knows; None where it does not."""

    def knows_producer(self, shard_id: int, producer_id: int) -> bool:
        """Does this node's replica of the shard remember a batch of this producer? True where there is no replica."""

    def lost_peers(self) -> Sequence[int]:
        """Nodes that this node cannot reach right now; whether they are dead is for the coordinator to say."""

    async def wait_metadata(self, known_version: int, timeout_s: float) -> ClusterMeta:
        """Metadata newer than `known_version`, or what there is after `timeout_s`."""

    async def create_topic(self, request: CreateTopic, timeout_s: float = 30.0) -> TopicMeta:
        """Create, by way of the coordinator; returns when every shard has a leader that is ready.

        With `validate_only` it returns what would be made, with shards that are nowhere.
        """

    async def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        """Delete, by way of the coordinator."""

    async def alter_topic(self, request: AlterTopic, timeout_s: float = 30.0) -> TopicMeta:
        """Change settings or add shards, by way of the coordinator."""

    async def elect_leader(self, shard_id: int, node: int = -1, timeout_s: float = 30.0) -> None:
        """Fence the shard and elect anew, by way of the coordinator."""

    async def administer(self, request: AdminRequest, timeout_s: float = 30.0) -> None:
        """Have the coordinator carry out any administrative request."""

    async def new_producer_id(self) -> int:
        """A producer id that no other call, on any node, at any time, has returned."""

    async def append(
        self,
        shard_id: int,
        batch: Buffer,
        *,
        expected_offset: int | None = None,
        timeout_s: float = 30.0,
        transaction_number: int | None = None,
    ) -> AppendResult:
        """Append one RecordBatch v2; returns when it is committed.

        The batch is checked (length, CRC, header rules, size limit, producer sequence, expected offset) and its base offset
        and leader epoch are set in a copy that the node owns. Raises CorruptBatchError, BatchTooLargeError,
        OutOfOrderSequenceError, ProducerFencedError, OffsetMismatchError, NotLeaderError, NotReadyError, DiskFullError,
        OverloadedError, and TimedOutError when the outcome is unknown.

        A part of a transaction that is not under way here yet needs `transaction_number`, as its coordinator has just said
        it; InvalidTxnStateError where that has ended meanwhile, for any other part of a transaction that is not under way,
        and for a batch that is no part of its producer's, while one is. WrongKindError where none are taken.
        """

    def check_may_write(self, shard_id: int, *, internal: bool) -> None:
        """Raise InvalidRequestError for a write to what belongs to the cluster, unless it is `internal`.

        Raises NotLeaderError where this node has no replica of the shard.
        """

    def submit_append(
        self,
        shard_id: int,
        batch: Buffer,
        expected_offset: int | None,
        timeout_s: float,
        done: Done,
        transaction_number: int | None = None,
    ) -> None:
        """See `append`; errors that are known at once are raised."""

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

        Isolation is committed (what committed transactions wrote: to the last stable offset, with the aborted ones of that
        range), read_uncommitted (to the high watermark), uncommitted, replica, follower (the same two of what this node's
        replica knows to be committed), or empty: the topic's default.

        With `at_least_one` the first batch is returned even when it is larger than `max_bytes`. Raises
        OffsetOutOfRangeError, NotLeaderError, NotReadyError.
        """

    def is_cold(self, shard_id: int, offset: int, isolation: str) -> bool:
        """Does a fetch at this offset wait for the disk?"""

    def fetch_now(self, shard_id: int, offset: int, max_bytes: int, isolation: str) -> FetchResult:
        """See `fetch`; without waiting. On a cold offset it reads from the disk, on the event loop."""

    async def wait_for_data(
        self, positions: Sequence[tuple[int, int]], isolation: str, timeout_s: float
    ) -> None:
        """Return when any (shard id, offset) has data at or after its offset, stops being led here, or on time-out."""

    def next_follow_key(self) -> int:
        """A key for `follow` that nobody else on this node has."""

    def follow(
        self, key: int, shard_id: int, offset: int, isolation: str, arrived: Callable[[], None]
    ) -> bool:
        """Call `arrived` once, when the shard has data at `offset` or stops being led here.

        False: there is data already, or nothing to wait for; then `arrived` is not called.
        """

    def unfollow(self, shard_id: int, key: int) -> None:
        """Nobody waits for data under this key any more; harmless where nobody did."""

    def list_offset(
        self, shard_id: int, timestamp_ms: int, isolation: str = "read_uncommitted"
    ) -> OffsetResult:
        """Offset by timestamp; -1: the high watermark, -2: the log start, -3: the record with the largest timestamp.

        With isolation committed the last stable offset takes the place of the high watermark.
        """

    async def trim(self, shard_id: int, before: int, timeout_s: float = 30.0) -> int:
        """Delete the records before `before` (-1: all that are committed); returns where the shard begins now.

        Raises NotLeaderError, OffsetOutOfRangeError, InvalidRequestError, TimedOutError.
        """

    async def trim_replica(self, shard_id: int, before: int) -> int:
        """Let the log of this node's replica begin at the batch that holds `before`; returns from where on it is shown."""

    def end_of_term(self, shard_id: int, term: int) -> tuple[int, int]:
        """(largest term <= `term` in the log, its exclusive end): Kafka's OffsetForLeaderEpoch."""

    async def table_write(self, request: TableWrite) -> TableWritten:
        """Carry out the operations on the table's shard; returns when effects (or what refusals saw) are committed."""

    async def table_get(self, request: TableGet) -> TableRows:
        """Read keys."""

    async def table_scan(self, request: TableScan) -> TableRows:
        """Read a range of keys."""

    def submit_table_write(
        self, request: TableWrite | Load, done: Done, sender: Sender | None = None
    ) -> None:
        """See `table_write`; errors that are known at once are raised. Bulk writes may wait for their turn. A load is
        answered with Appended.

        What one `sender` asks of a shard is carried out in order; others may go before what it has waiting there.
        """

    def submit_table_read(self, request: TableRead, done: Done, admit: Admit | None = None) -> None:
        """See `table_get`, `table_scan`; errors that are known at once are raised. `admit` says when the rows are read."""

    def submit_session(self, request: SessionRequest, done: Done) -> None:
        """Open, keep or close a session of a table's shard; errors that are known at once are raised."""

    def forward(
        self,
        body: ShardRequest,
        payload: memoryview,
        error: NotLeaderError,
        answered: AnsweredWithBulk,
    ) -> bool:
        """Pass a request on to the shard's leader after it failed here with `error`, before it had any effect.

        False: the topic does not want that, or the leader is not in reach; then `answered` is not called.
        """

    def replica_statuses(self) -> tuple[ReplicaStatus, ...]:
        """State of every replica on this node, for status pages."""

    def status(self, shards: Collection[int] | None = None) -> StatusReply:
        """State of this node and its replicas (of those of some shards), with what is wrong."""

    def start_scrub(self, shard_id: int) -> None:
        """Read what is on the disk of this shard, or of all (-1), now. Raises UnknownShardError."""
