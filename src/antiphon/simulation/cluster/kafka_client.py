"""A small client of Kafka's protocol: connections, who leads a partition, who coordinates a group, one request at a time.

It speaks as the well-known clients do: many requests on one connection, answers in their order, metadata asked for anew
when an error says that it is old. A request without an answer, because the connection broke or time ran out, raises
`NoAnswerError`: whether it was carried out is not known then. What to do about that, and about Kafka's error codes, is up to
who asks.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from antiphon.errors import ProtocolViolationError
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import API_VERSIONS, FETCH, PRODUCE, SHARE_FETCH
from antiphon.kafka.apis import APIS
from antiphon.kafka.messages import admin as am
from antiphon.kafka.messages import cluster as cm
from antiphon.kafka.primitives import put_nullable_string
from antiphon.kafka.schema import Message, decode, encode
from antiphon.simulation.cluster import kafka_messages as km

REQUEST_S: Final = 3.0
BACK_OFF_S: Final = (0.02, 0.2)
METADATA_VERSIONS: Final = (7, 12)  # the oldest one with leader epochs, and one with topic ids
FIRST_TOPIC_IDS: Final = 10
METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID, INCREMENTAL_ALTER_CONFIGS = 3, 10, 22, 44
SET, RESET = 0, 1
PRODUCE_VERSION: Final = 9
_LENGTH: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhi")
Address = tuple[str, int]
_READ: Final = {PRODUCE: km.ProduceResponse, FETCH: km.FetchResponse, SHARE_FETCH: km.ShareFetchResponse}


class NoAnswerError(Exception):
    """No answer came: the request may have been carried out, or may still be."""


class Connection(asyncio.Protocol):
    """One connection. Answers come in the order of the requests."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._correlation = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = transport  # type: ignore[assignment]  # TCP gives a Transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """See asyncio."""
        self.close()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            frame = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        wanted, future = self._waiting.popleft() if self._waiting else (-1, None)
        found = _LENGTH.unpack_from(frame)[0]
        if found != wanted or future is None:
            raise ProtocolViolationError(f"an answer to request {found}, where one to {wanted} has to come")
        if not future.done():
            future.set_result(frame[_LENGTH.size :])

    def send(
        self, key: int, version: int, body: bytes | bytearray, client_id: str
    ) -> "asyncio.Future[bytes]":
        """Send a request; the answer is what follows the correlation id."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.closed or self._transport is None:
            future.set_exception(NoAnswerError("the connection is closed"))
            return future
        self._correlation += 1
        self._waiting.append((self._correlation, future))
        frame = bytearray(_HEADER.pack(key, version, self._correlation))
        put_nullable_string(frame, client_id)
        if APIS[key].is_flexible(version):
            frame.append(0)
        frame += body
        self._transport.write(_LENGTH.pack(len(frame)) + frame)
        return future

    @property
    def transport(self) -> asyncio.Transport | None:
        """What it is made of."""
        return self._transport

    def stall(self) -> None:
        """Read nothing until `go_on`."""
        if self._transport is not None:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        """Hang up; who waits gets no answer."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(NoAnswerError("the connection broke"))
                future.exception()  # it is no fault where nobody waits any more


async def connect(address: Address, timeout_s: float) -> Connection:
    """A new connection to a node; raises NoAnswerError."""
    loop = asyncio.get_running_loop()
    try:
        _, made = await asyncio.wait_for(loop.create_connection(Connection, *address), timeout_s)
    except (OSError, TimeoutError) as error:
        raise NoAnswerError(f"no connection to {address}: {error!r}") from error
    return made


class KafkaClient:
    """See the module's text. Versions are drawn once a client, as clients agree on them once."""

    def __init__(self, bootstrap: list[Address], random: Random, client_id: str) -> None:
        self.random = random
        self.client_id = client_id
        self.nodes: dict[int, Address] = {}
        self.leaders: dict[tuple[str, int], tuple[int, int]] = {}  # node, leader epoch
        self.topic_ids: dict[str, bytes] = {}
        self._bootstrap = bootstrap
        self._connections: dict[Address, Connection] = {}
        self._metadata_version = random.choice(METADATA_VERSIONS)

    @property
    def knows_topic_ids(self) -> bool:
        """Does the metadata that this client asks for have ids of topics?"""
        return self._metadata_version >= FIRST_TOPIC_IDS

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def hang_up(self, address: Address) -> None:
        """Close the connection to one node."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    # -- requests -------------------------------------------------------------------------------------------------

    async def connection(self, address: Address) -> Connection:
        """The connection to a node, made where there is none; raises NoAnswerError."""
        found = self._connections.get(address)
        if found is not None and not found.closed:
            return found
        made = await connect(address, REQUEST_S)
        other = self._connections.get(address)
        if other is not None and not other.closed:  # made meanwhile by another task
            made.close()
            return other
        self._connections[address] = made
        return made

    async def ask(
        self, address: Address, key: int, version: int, request: Message, timeout_s: float = REQUEST_S
    ) -> Any:
        """The answer to one request; raises NoAnswerError. A connection that does not answer in time may be closed."""
        return await self.send(await self.connection(address), key, version, request, timeout_s)

    def send(
        self,
        connection: Connection,
        key: int,
        version: int,
        request: Message,
        timeout_s: float = REQUEST_S,
    ) -> "asyncio.Task[Any]":
        """Send a request now; the task ends with the decoded answer, or with NoAnswerError."""
        body = encode(request, version, flexible=APIS[key].is_flexible(version))
        sent = connection.send(key, version, body, self.client_id)
        work = self._answer(connection, sent, key, version, timeout_s)
        return asyncio.get_running_loop().create_task(work)

    async def _answer(
        self, connection: Connection, sent: "asyncio.Future[bytes]", key: int, version: int, timeout_s: float
    ) -> Any:
        """The decoded answer to what was sent."""
        try:
            frame = await asyncio.wait_for(sent, timeout_s)
        except TimeoutError as error:
            if self.random.random() < 0.5:  # else the next try comes behind this one
                connection.close()
            raise NoAnswerError(f"no answer in {timeout_s} s") from error
        api = APIS[key]
        flexible = api.is_flexible(version)
        response: Any = _READ.get(key) or api.response
        if response is None:
            raise ProtocolViolationError(f"{api.name} has no answer")
        start = 1 if flexible and key != API_VERSIONS else 0  # the header's tagged fields: none are sent
        return decode(response, memoryview(frame), version, flexible=flexible, position=start)

    async def back_off(self) -> None:
        """Wait a moment before the next try."""
        await asyncio.sleep(self.random.uniform(*BACK_OFF_S))

    def any_node(self) -> Address:
        """A node to ask what any of them knows."""
        known = [self.nodes[node] for node in sorted(self.nodes)] or self._bootstrap
        return self.random.choice(known if self.random.random() < 0.8 else self._bootstrap)

    async def fetch(
        self, address: Address, topic: str, partition: int, offset: int, max_bytes: int, version: int
    ) -> km.FetchedPartition:
        """What a node answers to one fetch of one partition; raises NoAnswerError."""
        request = km.fetch_one(topic, partition, offset, max_bytes)
        answer: km.FetchResponse = await self.ask(address, FETCH, version, request)
        return answer.topics[0].partitions[0]

    async def produce(
        self, address: Address, topic: str, partition: int, batch: bytes
    ) -> km.ProducedPartition:
        """What a node answers to one batch for all replicas; raises NoAnswerError."""
        request = km.produce_one(topic, batch, partition)
        answer: km.ProduceResponse = await self.ask(address, PRODUCE, PRODUCE_VERSION, request)
        return answer.topics[0].partitions[0]

    async def alter_configs(
        self, resource_type: int, name: str, values: Mapping[str, str | None], timeout_s: float = REQUEST_S
    ) -> Any:
        """What any node answers to IncrementalAlterConfigs of one resource (None: take it back); raises NoAnswerError."""
        settings = [
            am.AlterableSetting(name=one, config_operation=RESET if value is None else SET, value=value)
            for one, value in values.items()
        ]
        resource = am.AlterableResource(resource_type=resource_type, resource_name=name, configs=settings)
        request = am.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        answer = await self.ask(self.any_node(), INCREMENTAL_ALTER_CONFIGS, 1, request, timeout_s)
        return answer.responses[0]

    # -- who does what ----------------------------------------------------------------------------------------------

    async def refresh(self, topic: str) -> None:
        """Ask one node who leads the topic's partitions; without an answer all stays as it is."""
        version = self._metadata_version
        request = cm.MetadataRequest(
            topics=[cm.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        try:
            found: cm.MetadataResponse = await self.ask(self.any_node(), METADATA, version, request)
        except NoAnswerError:
            return
        for broker in found.brokers:
            self.nodes[broker.node_id] = (broker.host, broker.port)
        for one in found.topics:
            if one.error_code or one.name is None:
                continue
            self.topic_ids[one.name] = one.topic_id
            for partition in one.partitions:
                self.told(topic, partition.partition_index, partition.leader_id, partition.leader_epoch)

    def told(self, topic: str, partition: int, leader: int, epoch: int) -> None:
        """Somebody says who leads; news of an older epoch are none."""
        known = self.leaders.get((topic, partition))
        if leader < 0:
            self.leaders.pop((topic, partition), None)
        elif known is None or epoch >= known[1] or leader not in self.nodes:
            self.leaders[topic, partition] = (leader, epoch)

    def forget(self, topic: str, partition: int) -> None:
        """What is known of the leader did not help."""
        self.leaders.pop((topic, partition), None)

    async def leader(self, topic: str, partition: int) -> tuple[Address, int]:
        """Address of a partition's leader, and its epoch, however long that takes to find out."""
        while True:
            leader, epoch = self.leaders.get((topic, partition), (-1, -1))
            address = self.nodes.get(leader)
            if address is not None:
                return address, epoch
            await self.refresh(topic)
            if self.leaders.get((topic, partition), (-1, -1))[0] not in self.nodes:
                await self.back_off()

    async def coordinator(self, group: str) -> Address | None:
        """Address of a group's coordinator; None where nobody says, now."""
        version = self.random.choice((2, 3, 4, 6))
        request = cm.FindCoordinatorRequest(key=group, coordinator_keys=[group])
        try:
            found = await self.ask(self.any_node(), FIND_COORDINATOR, version, request, 2 * REQUEST_S)
        except NoAnswerError:
            return None
        one = found.coordinators[0] if version >= 4 else found
        return None if one.error_code else (one.host, one.port)

    async def producer_id(self) -> int:
        """A producer id of epoch 0, however long that takes."""
        request = cm.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        while True:
            try:
                found = await self.ask(self.any_node(), INIT_PRODUCER_ID, 3, request, 2 * REQUEST_S)
            except NoAnswerError:
                await self.back_off()
                continue
            if not found.error_code:
                return int(found.producer_id)
            if found.error_code != code.COORDINATOR_NOT_AVAILABLE:
                raise ProtocolViolationError(f"a producer id was refused with error {found.error_code}")
            await self.back_off()
