"""Clients that ask for much, and do not read it: what a node holds for them is bounded, and what they read at last is right.

Each asks a node many times on one connection, of Kafka's protocol or HTTP, without reading, stands there for a while, and
then reads all of it. Others ask for one large answer on each of many connections, also of the native protocol. Nodes have
little memory for clients in these worlds.

- `memory-bound`: what waits at a node to be sent to the clients of a listener is never more than the listener's part, what
  any connection may hold in any case, and one answer beyond that.
- `slow-closed`: who reads nothing for longer than a node waits is hung up on.
- `fetched-is-committed`, `offsets-follow`: as for other consumers. `page`: each page is whole, in the order of the requests.
"""

import asyncio
import contextlib
import itertools
import struct
from typing import TYPE_CHECKING, Any, Final

from antiphon import system
from antiphon.gateway.budget import FLOOR_BYTES, PATIENCE_S
from antiphon.kafka.api import FETCH
from antiphon.kafka.messages import cluster as cm
from antiphon.kafka.schema import encode
from antiphon.model.requests import PROTOCOL_VERSION, Fetch, Hello
from antiphon.records.batch import iter_batches
from antiphon.records.builder import build_batch
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.kafka_client import METADATA, KafkaClient, NoAnswerError, connect
from antiphon.simulation.cluster.workloads.kafka_consume import FETCHED_AGAIN
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.world import HTTP_PORT, KAFKA_PORT, NATIVE_PORT
from antiphon.simulation.runtime.process import calling_process
from antiphon.simulation.violation import require
from antiphon.wire.frames import encode_message

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.gateway.budget import Pool
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "heap"
VALUE_BYTES: Final = (2_000, 8_000)
LARGE_BYTES: Final = 200_000  # of the first value: more than a connection may hold, and than the kernel takes
CROWD: Final = 12  # connections, each with one request
FIRST_BATCHES: Final = 60
BATCHES_MAX: Final = 150
FETCHES: Final = 40
FETCH_BYTES: Final = 1 << 18
PAGES: Final = 30
PAGE: Final = b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"
LOOK_S: Final = 0.05
STALL_S: Final = (0.1, 1.0, 4.0)
SMALL_S: Final = 3.0  # that others wait for a small answer at most
ANSWER_S: Final = 5.0  # after it reads again
ANSWER_BYTES: Final = {
    "kafka": 256 * 1024,
    "native": 256 * 1024,
    "http": 256 * 1024,
}  # over what there is room for, one of the node
PORTS: Final = {"kafka": KAFKA_PORT, "native": NATIVE_PORT, "http": HTTP_PORT}
LONG: Final = 0.3  # of the clients that stop last: they wait until they are hung up on
LONGEST_S: Final = PATIENCE_S * 1.2 + 2.0  # a node's clock may be slow


class _Pages(asyncio.Protocol):
    """One connection of HTTP."""

    def __init__(self) -> None:
        self.received = b""
        self.closed = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        self.closed = True


@workload("stalled_readers", 13, Drawn(seldom(0.1, 2), "seldom", 5), logs_in=False)
class StalledReaders(KafkaWorkload):
    """Ask one node for 40 fetches, or 30 pages, on one connection, or for a batch of 200 KB or a page on each of 12, do not
    read for up to 4 s, and then read all; some at the end do not read until they are hung up on. Nodes have 256 KiB each for
    Kafka's and native clients and 64 KiB for HTTP then.

    Checked: what waits at a node to be sent is bounded ([limits.md](limits.md)); who reads nothing for longer than a node
    waits is hung up on; others' small questions are answered meanwhile; late answers are whole, in order, and as committed.
    """

    topic = TOPIC
    partitions = 1

    def __init__(self, cluster: "SimulatedCluster", name: str = "stalled") -> None:
        super().__init__(cluster, name)
        self.outcomes = {
            "heaped": 0, "late-fetches": 0, "late-pages": 0, "late-lost": 0, "hung-up-on": 0, "crowds": 0,
            "small-asked": 0,
        }  # fmt: skip

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        await super().set_up(db)
        client = self.client(calling_process())
        while self.outcomes["heaped"] < FIRST_BATCHES:
            try:
                await self._heap(client)
            except NoAnswerError:
                await client.back_off()
        client.close()

    async def _work(self, process: "Process", _number: int) -> None:
        client, draw = self.client(process), process.random
        while not self.stopped:
            kind, stall_s = draw.random(), draw.choice(STALL_S)
            try:
                if kind < 0.3 and self.outcomes["heaped"] < BATCHES_MAX:
                    await self._heap(client)
                elif kind < 0.6:
                    await self._fetch(client, stall_s)
                elif kind < 0.75:
                    await self._crowd(client, draw.choice(sorted(PORTS)), stall_s)
                else:
                    await self._look_at_pages(draw.choice(self.cluster.machines), stall_s)
            except NoAnswerError:
                client.forget(TOPIC, 0)
            except OSError:
                await client.back_off()
            await self.think(process)
        if draw.random() < LONG and self.end_of(0):
            await self._wait_to_be_hung_up_on(client, process)
        client.close()

    # -- what it asks for -----------------------------------------------------------------------------------------

    async def _heap(self, client: KafkaClient) -> None:
        address, _ = await client.leader(TOPIC, 0)
        size_bytes = client.random.randint(*VALUE_BYTES) if self.outcomes["heaped"] else LARGE_BYTES
        value = client.random.randbytes(size_bytes)
        data = bytes(build_batch([(None, value, (), system.wall_ms())]))
        if (await client.produce(address, TOPIC, 0, data)).error_code:
            client.forget(TOPIC, 0)
        else:
            self.outcomes["heaped"] += 1

    async def _fetch(self, client: KafkaClient, stall_s: float) -> None:
        """Fetch many times and read late."""
        machine, address = await self.leader_of(client, 0)
        connection = await connect(address, ANSWER_S)
        connection.stall()
        offsets = [client.random.randint(0, self.end_of(0)) if at else 0 for at in range(FETCHES)]
        sent = [
            client.send(connection, FETCH, 11, _request(offset), stall_s + ANSWER_S) for offset in offsets
        ]
        await self._stand(machine, "kafka", stall_s, connection.transport)
        connection.go_on()
        lost = 0
        for offset, answer in zip(offsets, await asyncio.gather(*sent, return_exceptions=True), strict=True):
            if isinstance(answer, NoAnswerError):
                lost += 1
                client.forget(TOPIC, 0)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._judge(offset, answer.topics[0].partitions[0])
        self.outcomes["late-lost"] += lost
        connection.close()

    async def _crowd(self, client: KafkaClient, listener: str, stall_s: float) -> None:
        """Ask for one large answer on each of many connections, and read none of them for a while."""
        machine, _ = await self.leader_of(client, 0)
        loop, transports = asyncio.get_running_loop(), []
        try:
            for _ in range(CROWD):
                made = loop.create_connection(asyncio.Protocol, machine.host, PORTS[listener])
                transport, _ = await asyncio.wait_for(made, ANSWER_S)
                transport.pause_reading()
                transport.write(_asked(listener, self.shard_ids[0]))
                transports.append(transport)
            await self._stand(machine, listener, stall_s, transports[0])
            self.outcomes["crowds"] += 1
            for transport in transports:
                transport.resume_reading()
            await asyncio.sleep(LOOK_S)
        finally:
            for transport in transports:
                transport.abort()

    async def _look_at_pages(self, machine: "Machine", stall_s: float) -> None:
        loop = asyncio.get_running_loop()
        made = loop.create_connection(_Pages, machine.host, HTTP_PORT)
        transport, pages = await asyncio.wait_for(made, ANSWER_S)
        transport.pause_reading()
        transport.write(PAGE * PAGES)
        await self._stand(machine, "http", stall_s, transport)
        transport.resume_reading()
        until_s, found = self.now + ANSWER_S, 0
        while found < PAGES and not pages.closed and self.now < until_s:
            await asyncio.sleep(LOOK_S)
            found = _whole_pages(machine.host, pages)
        self.outcomes["late-pages"] += found
        transport.abort()

    async def _stand(self, machine: "Machine", listener: str, stall_s: float, mine: Any) -> None:
        """Read nothing on a connection for a while. What the node holds meanwhile is bounded, and so is its patience."""
        until_s, waiting_since_s = self.now + stall_s, self.now
        while self.now < until_s and (not self.stopped or stall_s > max(STALL_S)):
            await asyncio.sleep(LOOK_S)
            if machine.server is not None:
                self._judge_memory(machine, machine.server.memory.pools[listener])
            if not mine.other.is_closing() and not mine.other.get_write_buffer_size():
                waiting_since_s = self.now
        if self.now - waiting_since_s > PATIENCE_S * 1.2:
            self.outcomes["hung-up-on"] += 1
            require(
                mine.other.is_closing(),
                "slow-closed",
                f"node {machine.node_id} has waited since {waiting_since_s:.3f} s for a client that does not read",
            )

    async def _wait_to_be_hung_up_on(self, client: KafkaClient, process: "Process") -> None:
        """All is well with the cluster, so all that is in the way of the answers is this client."""
        asking = asyncio.get_running_loop().create_task(self._ask_meanwhile(process))
        try:
            await self._hold_answers(client)
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking

    async def _ask_meanwhile(self, process: "Process") -> None:
        """Another client asks each node what nobody has asked for yet: for a topic that is not there."""
        client = self.client(process)
        for number in itertools.count():
            await asyncio.sleep(1.0)
            for machine in self.cluster.machines:
                topics = [cm.MetadataRequestTopic(name=f"{process.name}-{number}")]
                request = cm.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
                try:
                    await client.ask((machine.host, KAFKA_PORT), METADATA, 9, request, SMALL_S)
                except NoAnswerError as error:
                    require(
                        "no answer" not in error.args[0],
                        "small-answered",
                        f"node {machine.node_id} has not told a client in {SMALL_S} s that a topic is not there, while "
                        "others do not read",
                    )
                else:
                    self.outcomes["small-asked"] += 1

    async def _hold_answers(self, client: KafkaClient) -> None:
        while True:
            try:
                await self._fetch(client, LONGEST_S)
            except NoAnswerError:
                client.forget(TOPIC, 0)
                await client.back_off()
            else:
                return

    # -- the judge ------------------------------------------------------------------------------------------------

    def _judge_memory(self, machine: "Machine", pool: "Pool") -> None:
        remote = machine.host, PORTS[pool.name]
        ends = [end.other for end in self.cluster.network.transports() if end.remote == remote]
        held = sum(end.get_write_buffer_size() for end in ends)
        bound = pool.limit_bytes + len(ends) * FLOOR_BYTES + ANSWER_BYTES[pool.name]
        require(
            held <= bound,
            "memory-bound",
            f"node {machine.node_id} holds {held} bytes for {len(ends)} {pool.name} clients, of which one does not read; "
            f"{bound} are allowed",
        )

    def _judge(self, offset: int, fetched: m.FetchedPartition) -> None:
        shard_id = self.shard_ids[0]
        truth = self.cluster.evidence.truth(shard_id)
        if fetched.error_code:
            require(
                fetched.error_code in FETCHED_AGAIN, "fetch-refused", f"error {fetched.error_code}", shard_id
            )
            return
        self.outcomes["late-fetches"] += 1
        for header, data in iter_batches(fetched.records or b""):
            known = truth.at(header.base_offset)
            require(
                known is not None and known.data == data,
                "fetched-is-committed",
                f"a late reader gets another batch at {header.base_offset} than was committed there",
                shard_id,
            )
            require(
                header.base_offset <= offset < header.next_offset <= fetched.high_watermark,
                "offsets-follow",
                f"a late reader at {offset} gets {header.base_offset}..{header.next_offset}, told of a high watermark of "
                f"{fetched.high_watermark}",
                shard_id,
            )
            offset = header.next_offset

    def check(self) -> None:
        """See `Workload`: all was judged when it came."""


def _request(offset: int) -> m.FetchRequest:
    return m.fetch_one(TOPIC, 0, offset, FETCH_BYTES, total_bytes=FETCH_BYTES, wait_ms=100, min_bytes=0)


def _asked(listener: str, shard_id: int) -> bytes:
    """One request, as it is on the wire, that has a large answer."""
    if listener == "http":
        return PAGE
    if listener == "native":
        greeting = encode_message(0, Hello(PROTOCOL_VERSION, "crowd"))
        return b"".join([*greeting, *encode_message(1, Fetch(shard_id, 0, FETCH_BYTES))])
    body = encode(_request(0), 11, flexible=False)
    header = struct.pack(">hhih", FETCH, 11, 1, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


def _whole_pages(host: str, pages: _Pages) -> int:
    """How many answers have come; each is a page, whole, with nothing between it and the next."""
    found, at = 0, 0
    while (end := pages.received.find(b"\r\n\r\n", at)) >= 0:
        head = pages.received[at:end].lower()
        require(head.startswith(b"http/1.1 200"), "page", f"{host} answers {head[:200]!r}")
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        at = end + 4 + int(length.split(b":")[1])
        if at > len(pages.received):
            break
        found += 1
    return found
