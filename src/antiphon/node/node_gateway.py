"""The node as its listeners see it: `gateway.interface.Gateway`, on top of the shard hosts and the cluster agent."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from antiphon.coordination.access import changes
from antiphon.coordination.rehearsal import rehearse
from antiphon.coordination.topic_rules import REPLICAS_DEFAULT
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    TimedOutError,
    UnknownTopicError,
)
from antiphon.gateway.answers import Admit, AnsweredWithBulk, Done, awaited
from antiphon.gateway.backups import ShardBackups
from antiphon.gateway.interface import (
    NodeQuestions,
    NodeValues,
    Rehearse,
    RehearseAccess,
    ShardRequest,
    TableRead,
)
from antiphon.gateway.transactions import ShardTransactions
from antiphon.model.access import AccessBook
from antiphon.model.attributes import IndexFind, IndexScan
from antiphon.model.internal import CLUSTER_LOG, write_problem
from antiphon.model.key_order import OrderedFind, OrderedScan
from antiphon.model.loads import Load
from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.requests import (
    AdminRequest,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ElectLeader,
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
from antiphon.node.bulk_gate import BulkGate
from antiphon.node.config import NodeConfig
from antiphon.node.coordinator_config import coordinator_config
from antiphon.node.disk_care import DiskCare
from antiphon.node.forwarding import Forwarder
from antiphon.node.local_replicas import LocalReplicas
from antiphon.node.local_view import LocalView
from antiphon.node.peers import PeerLink
from antiphon.node.questions import Questions
from antiphon.node.record_intake import RecordIntake
from antiphon.node.trimming import Trimming, trim_replica
from antiphon.records.batch import Buffer

if TYPE_CHECKING:
    from antiphon.model.client_metrics import Subscription
    from antiphon.model.events import Event

POSITIONS_A_TURN: Final = 256  # at which is begun to wait


class ClusterCalls(Protocol):
    """The coordinator, as this node reaches it, and the metadata as it is kept here."""

    view: LocalView

    async def wait_version(self, known_version: int, timeout_s: float) -> None:
        """Return when the metadata is newer than that, or on time-out."""

    def check_request(self, partitions: int) -> None:
        """See Gateway."""

    async def command(self, request: AdminRequest, timeout_s: float) -> None:
        """Have the coordinator carry out a request."""

    async def new_producer_id(self) -> int:
        """See Gateway."""


class OwnNode(Protocol):
    """This node.

    Attributes:
        care: of its disk.
    """

    care: DiskCare

    @property
    def backups(self) -> ShardBackups:
        """See Gateway."""

    @property
    def settings(self) -> NodeValues:
        """See Gateway."""

    def link(self, node_id: int) -> PeerLink:
        """The connection to a node; UnavailableError for one that is not known."""

    def lost_peers(self) -> Sequence[int]:
        """See Gateway."""

    def status(self, shards: Collection[int] | None = None) -> StatusReply:
        """See Gateway."""


class NodeGateway:
    """Implements `Gateway`.

    Attributes:
        node_id, cluster_id: of this node.
        asked: another node asks.
        cluster: the coordinator and the metadata.
        replicas: the replicas of this node.
        start_scrub, note_audit, transactions, rack, followers_with: see Gateway.
    """

    def __init__(
        self,
        config: NodeConfig,
        cluster: ClusterCalls,
        replicas: LocalReplicas,
        *,
        trimming: Trimming,
        bulk: BulkGate,
        forwarder: Forwarder,
        transactions: ShardTransactions,
        own: OwnNode,
    ) -> None:
        self.node_id = config.node_id
        self.cluster_id = config.cluster_id
        self.rack = config.rack
        self.followers_with: Callable[[int, int], list[int]] = replicas.followers_with
        # See Gateway
        self.list_sessions: Callable[[ListSessions], SessionsReply] = partial(_sessions, replicas)
        self.count_replicas: Callable[[], int] = replicas.hosts.__len__  # see Gateway
        self.cluster = cluster
        self.replicas = replicas
        self._config = config
        self._trimming = trimming
        self._bulk = bulk
        self._forwarder = forwarder
        self.transactions = transactions
        self._own = own
        self.backups: ShardBackups = own.backups  # see Gateway
        made = Questions(config.node_id, own.link)
        self.questions: NodeQuestions = made  # see Gateway
        self.asked = made.asked
        self.events: Sequence[Event] = cluster.view.events.kept  # see Gateway
        self.subscriptions: Mapping[str, Subscription] = cluster.view.subscriptions  # see Gateway
        self.start_scrub: Callable[[int], None] = own.care.scrub.ask
        self.note_audit: Callable[..., Coroutine[Any, Any, None]] = own.care.audit.take
        self.check_request: Callable[[int], None] = cluster.check_request  # see Gateway
        self.rehearse: Rehearse = lambda meta, request: rehearse(coordinator_config(config), meta, request)
        self.settings: NodeValues = own.settings  # see Gateway
        self.rehearse_access: RehearseAccess = lambda request: changes(self.access, request)  # see Gateway
        self.submit_append = RecordIntake(replicas).append  # see Gateway
        self._follow_keys = count(1)

    # -- metadata -----------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> ClusterMeta:
        """See Gateway."""
        return self.cluster.view.cluster()

    @property
    def access(self) -> AccessBook:
        """See Gateway."""
        return self.cluster.view.access

    @property
    def metadata_version(self) -> int:
        """See Gateway."""
        return self.cluster.view.version

    def topic(self, name: str) -> TopicMeta:
        """See Gateway."""
        found = self.cluster.view.topics.get(name)
        if found is None:
            raise _unknown(self.cluster.view, f"there is no topic or table {name!r}", name=name)
        return found

    def topic_by_id(self, topic_id: bytes) -> TopicMeta:
        """See Gateway."""
        found = self.cluster.view.topic_by_id(topic_id)
        if found is None:
            raise _unknown(
                self.cluster.view,
                f"there is no topic or table with id {topic_id.hex()}",
                topic_id=topic_id.hex(),
            )
        return found

    def shard(self, shard_id: int) -> tuple[TopicMeta, ShardMeta]:
        """See Gateway."""
        return self.replicas.shard(shard_id)

    def knows_producer(self, shard_id: int, producer_id: int) -> bool:
        """See `Gateway`."""
        host = self.replicas.hosts.get(shard_id)
        return host is None or host.log.producers.knows(producer_id)

    def term_led(self, shard_id: int) -> int | None:
        """See Gateway."""
        host = self.replicas.hosts.get(shard_id)
        return host.state.term if host is not None and host.state.is_serving else None

    def lost_peers(self) -> Sequence[int]:
        """See Gateway."""
        return self._own.lost_peers()

    async def wait_metadata(self, known_version: int, timeout_s: float) -> ClusterMeta:
        """See Gateway."""
        await self.cluster.wait_version(known_version, timeout_s)
        return self.metadata

    async def create_topic(self, request: CreateTopic, timeout_s: float = 30.0) -> TopicMeta:
        """See Gateway."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        if not request.profile:
            request = msgspec.structs.replace(request, profile=self._config.profile)
        if "conflict" in request.config:
            from antiphon.table.merge import rule_named

            rule_named(request.config["conflict"])  # the coordinator cannot know what is installed here
        await self.cluster.command(request, timeout_s)
        if request.validate_only:
            return self._planned(request)
        # Where a try whose answer got lost had made it already, this node may not have heard of it yet.
        while request.name not in self.cluster.view.topics:
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise TimedOutError(
                    f"{request.name!r} was created, but node {self.node_id} does not know it yet"
                )
            await self.cluster.wait_version(self.cluster.view.version, left_s)
        return self.topic(request.name)

    def _planned(self, request: CreateTopic) -> TopicMeta:
        """What a request that only asks whether it could be done would make."""
        nodes = sum(1 for node in self.metadata.nodes if not node.draining)
        replicas = request.replicas or min(REPLICAS_DEFAULT, nodes)
        shards = tuple(ShardMeta(shard_id=-1, index=index, ensemble=()) for index in range(request.shards))
        return TopicMeta(
            request.name,
            bytes(16),
            request.kind,
            replicas,
            request.profile,
            shards,
            request.config,
            request.internal,
        )

    async def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        """See Gateway."""
        if name == CLUSTER_LOG:  # never a topic; a try whose answer was lost would count as its removal
            raise _unknown(self.cluster.view, f"{name} is the log of the cluster, and no topic", name=name)
        await self.cluster.command(DeleteTopic(name), timeout_s)

    async def alter_topic(self, request: AlterTopic, timeout_s: float = 30.0) -> TopicMeta:
        """See Gateway."""
        await self.cluster.command(request, timeout_s)
        return self.topic(request.name)

    async def elect_leader(self, shard_id: int, node: int = -1, timeout_s: float = 30.0) -> None:
        """See Gateway."""
        await self.cluster.command(ElectLeader(shard_id, node), timeout_s)

    async def administer(self, request: AdminRequest, timeout_s: float = 30.0) -> None:
        """See Gateway."""
        await self.cluster.command(request, timeout_s)

    async def new_producer_id(self) -> int:
        """See Gateway."""
        return await self.cluster.new_producer_id()

    # -- logs ---------------------------------------------------------------------------------------------------

    async def append(
        self,
        shard_id: int,
        batch: Buffer,
        *,
        expected_offset: int | None = None,
        timeout_s: float = 30.0,
        transaction_number: int | None = None,
    ) -> AppendResult:
        """See Gateway."""
        future, done = awaited()
        self.submit_append(shard_id, batch, expected_offset, timeout_s, done, transaction_number)
        result: AppendResult = await future
        return result

    def check_may_write(self, shard_id: int, *, internal: bool) -> None:
        """See Gateway."""
        host = self.replicas.hosts.get(shard_id) or self.replicas.host(shard_id)
        settings = host.state.settings
        if settings is not None and settings.internal:
            problem = write_problem(settings.internal, internal=internal)
            if problem is not None:
                raise InvalidRequestError(problem)

    async def fetch(
        self,
        shard_id: int,
        offset: int,
        max_bytes: int,
        isolation: str = "committed",
        *,
        at_least_one: bool = True,
    ) -> FetchResult:
        """See Gateway."""
        reads = self.replicas.host(shard_id).reads
        if reads.is_cold(offset, isolation):
            return await reads.fetch_cold(offset, max_bytes, isolation, at_least_one=at_least_one)
        return reads.fetch(offset, max_bytes, isolation, at_least_one=at_least_one)

    def is_cold(self, shard_id: int, offset: int, isolation: str) -> bool:
        """See Gateway."""
        return self.replicas.host(shard_id).reads.is_cold(offset, isolation)

    def fetch_now(self, shard_id: int, offset: int, max_bytes: int, isolation: str) -> FetchResult:
        """See Gateway."""
        reads = self.replicas.host(shard_id).reads
        return reads.fetch(offset, max_bytes, isolation, at_least_one=True)

    async def wait_for_data(
        self, positions: Sequence[tuple[int, int]], isolation: str, timeout_s: float
    ) -> None:
        """See Gateway."""
        if timeout_s <= 0 or not positions:
            return
        arrived = asyncio.Event()
        waiting: list[tuple[int, int]] = []
        try:
            for place, (shard_id, offset) in enumerate(positions, 1):
                if not place % POSITIONS_A_TURN:
                    await asyncio.sleep(0)  # others first
                key = self.next_follow_key()
                host = self.replicas.hosts.get(shard_id)
                if host is None or not host.readers.follow(key, offset, isolation, arrived.set):
                    return
                waiting.append((shard_id, key))
            await asyncio.wait_for(arrived.wait(), timeout_s)
        except TimeoutError:
            return
        finally:
            for shard_id, key in waiting:
                self.unfollow(shard_id, key)

    def next_follow_key(self) -> int:
        """See Gateway."""
        return next(self._follow_keys)

    def follow(
        self, key: int, shard_id: int, offset: int, isolation: str, arrived: Callable[[], None]
    ) -> bool:
        """See Gateway."""
        return self.replicas.host(shard_id).readers.follow(key, offset, isolation, arrived)

    def unfollow(self, shard_id: int, key: int) -> None:
        """See Gateway."""
        host = self.replicas.hosts.get(shard_id)
        if host is not None:
            host.readers.unfollow(key)

    def list_offset(
        self, shard_id: int, timestamp_ms: int, isolation: str = "read_uncommitted"
    ) -> OffsetResult:
        """See Gateway."""
        return self.replicas.host(shard_id).reads.list_offset(timestamp_ms, isolation)

    async def trim(self, shard_id: int, before: int, timeout_s: float = 30.0) -> int:
        """See Gateway."""
        return await self._trimming.everywhere(shard_id, before, timeout_s)

    async def trim_replica(self, shard_id: int, before: int) -> int:
        """See Gateway."""
        kept_from = await trim_replica(self.replicas, shard_id, before)
        return max(kept_from, self.replicas.host(shard_id).state.log_start)

    def end_of_term(self, shard_id: int, term: int) -> tuple[int, int]:
        """See Gateway."""
        host = self.replicas.host(shard_id)
        host.state.check_serving()
        found = host.log.terms.end_of_term(term)
        return found.term, found.offset

    # -- tables -------------------------------------------------------------------------------------------------

    async def table_write(self, request: TableWrite) -> TableWritten:
        """See Gateway."""
        future, done = awaited()
        self.submit_table_write(request, done)
        written: TableWritten = await future
        return written

    async def table_get(self, request: TableGet) -> TableRows:
        """See Gateway."""
        future, done = awaited()
        self.submit_table_read(request, done)
        rows: TableRows = await future
        return rows

    async def table_scan(self, request: TableScan) -> TableRows:
        """See Gateway."""
        future, done = awaited()
        self.submit_table_read(request, done)
        rows: TableRows = await future
        return rows

    def submit_table_write(
        self, request: TableWrite | Load, done: Done, sender: Sender | None = None
    ) -> None:
        """See Gateway."""
        host = self.replicas.hosts.get(request.shard_id) or self.replicas.host(request.shard_id)
        if request.bulk:
            host.state.check_writable()
            self._bulk.take(request, done)
        elif isinstance(request, Load):
            host.table_loads.load(request, done)
        else:
            host.table_writes.write(request, done, sender)

    def submit_table_read(self, request: TableRead, done: Done, admit: Admit | None = None) -> None:
        """See Gateway."""
        reads = self.replicas.host(request.shard_id).table_reads
        if isinstance(request, TableGet):
            reads.get(request, done, admit)
        elif isinstance(request, IndexFind | IndexScan):
            reads.by_index(request, done, admit)
        elif isinstance(request, OrderedFind | OrderedScan):
            reads.ordered(request, done, admit)
        else:
            reads.scan(request, done, admit)

    def submit_session(self, request: SessionRequest, done: Done) -> None:
        """See Gateway."""
        self.replicas.host(request.shard_id).sessions.carry_out(request, done)

    # -- the node -----------------------------------------------------------------------------------------------

    def forward(
        self, body: ShardRequest, payload: memoryview, error: NotLeaderError, answered: AnsweredWithBulk
    ) -> bool:
        """See Gateway."""
        return self._forwarder.forward(body, payload, error, answered)

    def replica_statuses(self) -> tuple[ReplicaStatus, ...]:
        """See Gateway."""
        return self.replicas.statuses()

    def status(self, shards: Collection[int] | None = None) -> StatusReply:
        """See Gateway."""
        return msgspec.structs.replace(self._own.status(shards), metadata_version=self.metadata_version)


def _sessions(replicas: LocalReplicas, request: ListSessions) -> SessionsReply:
    """See Gateway."""
    return replicas.host(request.shard_id).sessions.open_sessions(request)


def _unknown(view: LocalView, text: str, **details: Any) -> AntiphonError:
    """What a node says of a topic that it does not know: it may be that it knows none yet."""
    if view.version < 0:
        return NotReadyError("this node was just started and knows no metadata yet")
    return UnknownTopicError(text, **details)
