"""The native door: clients and other nodes, on one port, in frames.

Requests of one connection are carried out as they come and answered as they are done, in any order: the request id
tells which. A connection is no longer read from while it has too many requests open, while its answers are not taken,
or while the node as a whole is over its budget; so a client that goes too fast feels it as a full socket, never as
lost requests.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import structlog

from antiphon.errors import (
    AntiphonError,
    ForeignDirectoryError,
    FrameTooLargeError,
    InternalError,
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    ProtocolViolationError,
)
from antiphon.invariants import InvariantError
from antiphon.model.cluster import (
    Command,
    Heartbeat,
    MetadataDelta,
    Register,
    ReserveProducerIds,
    SplitReport,
)
from antiphon.model.internal import NODES_ONLY, write_problem
from antiphon.model.requests import (
    PROTOCOL_VERSION,
    AdminRequest,
    AlterTopic,
    AppendBatch,
    Appended,
    CreateTopic,
    DeleteTopic,
    Done,
    DrainNode,
    ElectLeader,
    Failure,
    Fetch,
    Fetched,
    GetMetadata,
    GetStatus,
    Hello,
    HelloReply,
    ListOffset,
    MetadataReply,
    MoveReplica,
    NewProducerId,
    OffsetReply,
    ProducerId,
    Rebalance,
    RemoveNode,
    SplitShard,
    TableGet,
    TableScan,
    TableWrite,
    Trimmed,
    TrimShard,
)
from antiphon.model.results import FetchResult
from antiphon.node.doors import version
from antiphon.node.forwarding import ShardRequest
from antiphon.node.peer_wire import SnapshotRequest, decode_peer, with_payload
from antiphon.node.peers import send_on
from antiphon.node.transport import Connection, plain_details
from antiphon.node.trimming import trim_replica
from antiphon.partition.reads import PartitionReads
from antiphon.replication.messages import Message
from antiphon.wire.frames import Buffer, Frame, decode_request, encode_message, request_id_of

if TYPE_CHECKING:
    from antiphon.node.injected_faults import InjectedFaults
    from antiphon.node.node import Node
    from antiphon.partition.partition import Partition

FETCH_BYTES_MAX: Final = 16 * 1024 * 1024
WAIT_MS_MAX: Final = 60_000
TIMEOUT_MS_MAX: Final = 3_600_000
PEER_ROOM: Final = 16  # connections beyond the limit that wait to say that they are nodes
PEER_PATIENCE_S: Final = 2.0
TELL_EVERY_S: Final = 5.0
CLUSTER_REQUESTS: Final = (Register, Heartbeat, ReserveProducerIds, Command, SplitReport)


class NativeSession:
    """One connection that was accepted."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._connection: Connection | None = None
        self._decode: Callable[[Buffer], tuple[int, Any]] = decode_request
        self._open_requests = 0
        self._greeted = False
        self._trial: asyncio.TimerHandle | None = None  # over the limit, and turned away unless it is a node
        self._peer_id: int | None = None
        self._following: dict[int, int] = {}  # key of a waiting fetch -> its shard
        self._log = structlog.get_logger()
        self._handlers: dict[type, Callable[[int, Any, memoryview], None]] = {
            Hello: self._hello,
            GetMetadata: self._get_metadata,
            GetStatus: self._get_status,
            CreateTopic: self._create_topic,
            DeleteTopic: self._delete_topic,
            AlterTopic: self._alter_topic,
            ElectLeader: self._administer,
            MoveReplica: self._administer,
            DrainNode: self._administer,
            RemoveNode: self._administer,
            Rebalance: self._administer,
            SplitShard: self._administer,
            NewProducerId: self._new_producer_id,
            AppendBatch: self._append,
            Fetch: self._fetch,
            ListOffset: self._list_offset,
            TrimShard: self._trim_shard,
            TableWrite: self._table_write,
            TableGet: self._table_get,
            TableScan: self._table_scan,
        }

    # -- ConnectionOwner ----------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """See ConnectionOwner."""
        self._connection = connection
        node = self._node
        node.sessions[id(self)] = self
        beyond = len(node.sessions) - node.limits.connections
        if beyond > PEER_ROOM:
            self._turn_away()
        elif (
            beyond > 0
        ):  # only another node is let in, so that clients never shut the nodes off from each other
            self._trial = node.loop.call_later(PEER_PATIENCE_S, self._turn_away)

    def _turn_away(self) -> None:
        node = self._node
        if self._connection is None or self._peer_id is not None:
            return
        node.metrics.connections_refused += 1
        now_s = node.now_s()
        if now_s - node.metrics.refusal_told_s >= TELL_EVERY_S:
            node.metrics.refusal_told_s = now_s
            self._log.warning(
                "too_many_connections",
                peer=self._connection.peer,
                limit=node.limits.connections,
                refused=node.metrics.connections_refused,
            )
        self._connection.close()

    def received(self, _connection: Connection, frame: Frame) -> None:
        """See ConnectionOwner."""
        try:
            request_id, body = self._decode(frame.header)
        except ProtocolViolationError as error:
            if not self._greeted:
                raise
            self._fail(request_id_of(frame.header), InvalidRequestError(error.message))
            return
        if self._peer_id is not None and self._from_peer(request_id, body, frame.payload):
            return
        if not self._greeted and type(body) is not Hello:
            raise ProtocolViolationError("the first message of a connection is Hello")
        self._dispatch(request_id, body, frame.payload)

    def _dispatch(self, request_id: int, body: Any, payload: memoryview) -> None:
        try:
            self._handlers[type(body)](request_id, body, payload)
        except NotLeaderError as error:
            if not self._forward(request_id, body, payload, error):
                self._fail(request_id, error)
        except AntiphonError as error:
            self._fail(request_id, error)
        except InvariantError as error:
            self._log.error("request_failed", request=type(body).__name__, exc_info=error)
            self._fail(request_id, InternalError(f"node {self._node.node_id}: {error}"))
        except Exception as error:  # noqa: BLE001 - a bug in one request must not end the others of the connection
            self._log.error("request_failed", request=type(body).__name__, exc_info=error)
            self._fail(
                request_id, InternalError(f"node {self._node.node_id}: {type(error).__name__}: {error}")
            )

    def _forward(self, request_id: int, body: Any, payload: memoryview, error: NotLeaderError) -> bool:
        """Have the shard's leader answer a client, where the topic wants that; never for another node (C12)."""
        if self._peer_id is not None or not isinstance(body, ShardRequest):
            return False

        def answered(reply: Any, bulk: memoryview) -> None:
            self._end()
            if isinstance(reply, AntiphonError):
                self._fail(request_id, reply)
            else:
                self._reply(request_id, reply, [bulk] if bulk else None)

        self._begin(request_id)
        if self._node.forwarder.forward(body, payload, error, answered):
            return True
        self._end()
        return False

    def drained(self, connection: Connection) -> None:
        """See ConnectionOwner."""
        connection.release("answers")
        if self._peer_id is not None:
            self._node.peer_drained(self._peer_id)

    def disconnected(self, _connection: Connection, _reason: Exception | None) -> None:
        """See ConnectionOwner."""
        self._connection = None
        if self._trial is not None:
            self._trial.cancel()
        self._node.sessions.pop(id(self), None)
        if self._peer_id is not None:
            self._node.hung_up(self._peer_id, self)
        for key, shard_id in self._following.items():
            self._node.unfollow(shard_id, key)
        self._following.clear()

    @property
    def congested(self) -> bool:
        """Does more wait to be sent than is good?"""
        return self._connection is not None and self._connection.congested

    def send_replica_message(self, message: Message) -> None:
        """Send a message to the node that made this connection; lost when it is gone."""
        if self._connection is not None:
            send_on(self._connection, message, self._node.limits.connection_write)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of answers that wait to be taken."""
        return 0 if self._connection is None else self._connection.waiting_bytes

    def hold(self) -> None:
        """The node is over its budget: read no more requests of clients."""
        if self._connection is not None and self._peer_id is None:
            self._connection.hold("budget")

    def release(self) -> None:
        """The node is within its budget again."""
        if self._connection is not None:
            self._connection.release("budget")

    def hold_disk(self) -> None:
        """The disk is over its budget: read nothing that makes it write."""
        if self._connection is not None:
            self._connection.hold("disk")

    def release_disk(self) -> None:
        """The disk is within its budget again."""
        if self._connection is not None:
            self._connection.release("disk")

    def close(self) -> None:
        """Send what is ready, then hang up."""
        if self._connection is not None:
            self._connection.close()

    # -- answers ------------------------------------------------------------------------------------------------

    def _reply(self, request_id: int, body: Any, payload: list[Buffer] | None = None) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.send(encode_message(request_id, body, payload or ()))
        except FrameTooLargeError as error:
            connection.send(
                encode_message(request_id, Failure(error.code, error.message, plain_details(error)))
            )
        if connection.congested and self._peer_id is None:
            connection.hold("answers")

    def _fail(self, request_id: int, error: AntiphonError) -> None:
        self._reply(request_id, Failure(error.code, error.message, plain_details(error)))

    def _begin(self, request_id: int) -> Callable[[Any], None]:
        """Count an open request; returns what takes its result, a reply body or an error."""
        self._open_requests += 1
        if self._open_requests >= self._node.limits.requests_per_connection and self._connection is not None:
            self._connection.hold("requests")

        def done(result: Any) -> None:
            self._end()
            if isinstance(result, AntiphonError):
                self._fail(request_id, result)
            else:
                self._reply(request_id, result)

        return done

    def _end(self) -> None:
        self._open_requests -= 1
        if (
            self._open_requests == self._node.limits.requests_per_connection // 2
            and self._connection is not None
        ):
            self._connection.release("requests")

    def _later(self, request_id: int, work: Coroutine[Any, Any, Any]) -> None:
        """Carry out a rare request in a task of its own."""
        done = self._begin(request_id)

        async def run() -> None:
            try:
                done(await work)
            except AntiphonError as error:
                done(error)
            except Exception as error:  # noqa: BLE001 - answered as a bug of this node
                self._log.error("request_failed", exc_info=error)
                done(InternalError(f"node {self._node.node_id}: {type(error).__name__}: {error}"))

        self._node.spawn(run())

    # -- connection and cluster ---------------------------------------------------------------------------------

    def _hello(self, request_id: int, body: Hello, _payload: memoryview) -> None:
        node = self._node
        reply = HelloReply(PROTOCOL_VERSION, node.cluster_id, node.node_id)
        if body.version != PROTOCOL_VERSION:
            error: AntiphonError = InvalidRequestError(
                f"protocol version {body.version} is not spoken here, {PROTOCOL_VERSION} is: use matching versions"
            )
        elif body.cluster_id is not None and body.cluster_id != node.cluster_id:
            error = ForeignDirectoryError(
                f"this is node {node.node_id} of cluster {node.cluster_id}, not of {body.cluster_id}"
            )
        else:
            self._greeted = True
            self._reply(request_id, reply)
            if body.node_id is not None and body.cluster_id is not None:
                self._peer_id = body.node_id
                self._decode = decode_peer
                self.cut(node.faults)
                node.heard_of(body.node_id, self)
            elif self._trial is not None:
                self._turn_away()
            return
        self._fail(request_id, error)
        if self._connection is not None:
            self._connection.close(error)

    def cut(self, faults: "InjectedFaults | None") -> None:
        """Let nothing through from and to a node that must not be reached now."""
        if faults is not None and self._peer_id is not None and self._connection is not None:
            self._connection.cut(self._peer_id in faults.cut)

    def _get_metadata(self, request_id: int, body: GetMetadata, _payload: memoryview) -> None:
        node = self._node
        if node.view.version < 0:
            error = NotReadyError(
                f"node {node.node_id} was just started and knows no metadata yet; ask another, or again"
            )
            self._fail(request_id, error)
            return
        if body.known_version < node.view.version or body.wait_ms <= 0:
            self._reply(request_id, MetadataReply(node.metadata))
            return
        wait_s = min(body.wait_ms, WAIT_MS_MAX) / 1000

        async def wait() -> MetadataReply:
            return MetadataReply(await node.wait_metadata(body.known_version, wait_s))

        self._later(request_id, wait())

    def _get_status(self, request_id: int, _body: GetStatus, _payload: memoryview) -> None:
        self._reply(request_id, self._node.status(version()))

    def _create_topic(self, request_id: int, body: CreateTopic, _payload: memoryview) -> None:
        if body.name in NODES_ONLY:
            raise InvalidRequestError(f"{body.name!r} belongs to the cluster: only its nodes make it")

        async def run() -> Done:
            await self._node.create_topic(body)
            return Done()

        self._later(request_id, run())

    def _delete_topic(self, request_id: int, body: DeleteTopic, _payload: memoryview) -> None:
        async def run() -> Done:
            await self._node.delete_topic(body.name)
            return Done()

        self._later(request_id, run())

    def _alter_topic(self, request_id: int, body: AlterTopic, _payload: memoryview) -> None:
        async def run() -> Done:
            await self._node.alter_topic(body)
            return Done()

        self._later(request_id, run())

    def _administer(self, request_id: int, body: AdminRequest, _payload: memoryview) -> None:
        async def run() -> Done:
            await self._node.administer(body)
            return Done()

        self._later(request_id, run())

    def _new_producer_id(self, request_id: int, _body: NewProducerId, _payload: memoryview) -> None:
        async def run() -> ProducerId:
            return ProducerId(await self._node.new_producer_id())

        self._later(request_id, run())

    # -- logs ---------------------------------------------------------------------------------------------------

    def _append(self, request_id: int, body: AppendBatch, payload: memoryview) -> None:
        host = self._node.host(body.shard_id)
        _check_owner(host, body.internal)
        done = self._begin(request_id)

        def appended(result: Any) -> None:
            if isinstance(result, AntiphonError):
                done(result)
            else:
                done(Appended(result.base_offset, result.next_offset, result.term, result.duplicate))

        try:
            host.clients.append(payload, body.expected_offset, _timeout_s(body.timeout_ms), appended)
        except BaseException:
            self._end()
            raise

    def _fetch(self, request_id: int, body: Fetch, _payload: memoryview) -> None:
        reads = self._node.host(body.shard_id).reads
        if reads.is_cold(body.offset, body.isolation):
            self._begin(request_id)
            self._node.spawn(self._fetch_cold(request_id, reads, body))
        elif not self._try_fetch(request_id, body, last=body.wait_ms <= 0):
            self._follow(request_id, body)

    def _try_fetch(self, request_id: int, body: Fetch, *, last: bool) -> bool:
        """Answer a fetch if there is data, or if it is the `last` try."""
        reads = self._node.host(body.shard_id).reads
        found = reads.fetch(body.offset, _fetch_bytes(body), body.isolation, at_least_one=True)
        if not found.batches and not last:
            return False
        self._reply_fetched(request_id, found)
        return True

    def _reply_fetched(self, request_id: int, found: FetchResult) -> None:
        reply = Fetched(found.high_watermark, found.log_start, found.log_end, found.term)
        self._reply(request_id, reply, found.batches)

    async def _fetch_cold(self, request_id: int, reads: PartitionReads, body: Fetch) -> None:
        """A fetch from the disk: answered when it was read, and empty where there is nothing to be read yet."""
        try:
            found = await reads.fetch_cold(body.offset, _fetch_bytes(body), body.isolation, at_least_one=True)
            self._reply_fetched(request_id, found)
        except AntiphonError as error:
            is_passed_on = isinstance(error, NotLeaderError) and self._forward(
                request_id, body, memoryview(b""), error
            )
            if not is_passed_on:
                self._fail(request_id, error)
        finally:
            self._end()

    def _follow(self, request_id: int, body: Fetch) -> None:
        """Answer when there is data, or when the time is over."""
        node = self._node
        key = node.next_follow_key()
        self._begin(request_id)
        finished = False

        def finish() -> None:
            nonlocal finished
            if finished:
                return
            finished = True
            timer.cancel()
            self._following.pop(key, None)
            node.unfollow(body.shard_id, key)
            self._end()
            try:
                self._try_fetch(request_id, body, last=True)
            except AntiphonError as error:
                self._fail(request_id, error)

        timer = asyncio.get_running_loop().call_later(min(body.wait_ms, WAIT_MS_MAX) / 1000, finish)
        waits = node.host(body.shard_id).reads.follow(key, body.offset, body.isolation, finish)
        if waits:
            self._following[key] = body.shard_id
        else:
            finish()

    def _list_offset(self, request_id: int, body: ListOffset, _payload: memoryview) -> None:
        found = self._node.host(body.shard_id).reads.list_offset(body.timestamp_ms)
        self._reply(request_id, OffsetReply(*found))

    def _trim_shard(self, request_id: int, body: TrimShard, _payload: memoryview) -> None:
        _check_owner(self._node.host(body.shard_id), body.internal)

        async def run() -> Trimmed:
            return Trimmed(await trim_replica(self._node, body.shard_id, body.before))

        self._later(request_id, run())

    # -- tables -------------------------------------------------------------------------------------------------

    def _table_write(self, request_id: int, body: TableWrite, _payload: memoryview) -> None:
        host = self._node.host(body.shard_id)
        _check_owner(host, body.internal)
        done = self._begin(request_id)
        try:
            if body.bulk:
                host.check_writable()
                self._node.bulk.take(body, done)
            else:
                host.table_write(body, done)
        except BaseException:
            self._end()
            raise

    def _table_get(self, request_id: int, body: TableGet, _payload: memoryview) -> None:
        done = self._begin(request_id)
        try:
            self._node.host(body.shard_id).table_get(body, done)
        except BaseException:
            self._end()
            raise

    def _table_scan(self, request_id: int, body: TableScan, _payload: memoryview) -> None:
        done = self._begin(request_id)
        try:
            self._node.host(body.shard_id).table_scan(body, done)
        except BaseException:
            self._end()
            raise

    # -- other nodes --------------------------------------------------------------------------------------------

    def _from_peer(self, request_id: int, body: Any, payload: memoryview) -> bool:
        """Handle what only nodes say; False for what clients say too."""
        node, sender = self._node, self._peer_id
        if sender is None:
            return False
        if isinstance(body, Message):
            body = with_payload(body, payload)
            node.deliver(sender, body)
        elif isinstance(body, MetadataDelta):
            node.metadata_pushed(body)
        elif isinstance(body, CLUSTER_REQUESTS):
            node.coordinator_request(sender, body, self._begin(request_id))
        elif isinstance(body, SnapshotRequest):
            node.snapshots.receive(sender, body, payload, self._begin(request_id))
        else:
            return False
        return True


def _check_owner(host: "Partition", internal: bool) -> None:
    """Raise InvalidRequestError for a client's write to what belongs to the cluster."""
    settings = host.settings
    if settings is not None and settings.internal:
        problem = write_problem(settings.internal, internal=internal)
        if problem is not None:
            raise InvalidRequestError(problem)


def _fetch_bytes(body: Fetch) -> int:
    return max(1, min(body.max_bytes, FETCH_BYTES_MAX))


def _timeout_s(timeout_ms: int) -> float:
    return max(1, min(timeout_ms, TIMEOUT_MS_MAX)) / 1000
