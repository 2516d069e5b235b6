"""Clients that write to what belongs to the cluster alone are refused, nothing of theirs is in its logs, and it goes on.

What they send has right checksums: batches with garbage inside, records that look nearly like metadata, rows that nobody
can read. They send it to the cluster's own log and to its internal tables and topics, over both listeners, also as requests
that say they are a job's where only nodes write. Refusals are judged at the end, so that a cluster that takes such a write
may show first what it makes of it.
"""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from antiphon import system
from antiphon.client.connection import Connection, open_connection
from antiphon.errors import AntiphonError, TopicExistsError
from antiphon.kafka.api import PRODUCE
from antiphon.model.internal import CLUSTER_LOG, GROUPS_TABLE, JOBS_TABLE, KINDS, NODES_ONLY, STAGED_TOPIC
from antiphon.model.metadata import CLUSTER_SHARD_ID, Kind
from antiphon.model.requests import (
    AlterTopic,
    AppendBatch,
    CreateTopic,
    Delete,
    DeleteTopic,
    Put,
    TableWrite,
    TrimShard,
)
from antiphon.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES
from antiphon.records.builder import build_batch, seal
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.kafka_workload import client_in
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload, insist
from antiphon.simulation.cluster.world import KAFKA_PORT, NATIVE_PORT
from antiphon.simulation.runtime.process import calling_process
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

MARK: Final = b"not-for-clients"  # in all that intruders write
TIMEOUT_MS: Final = 2_000
PRODUCE_VERSION: Final = 9
SOME_GROUP: Final = "intruded"
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8


@workload("intruders", 17, Drawn(one_of(0, 0, 0, 0, 1)), logs_in=False)
class IntruderWorkload(Workload):
    """Write garbage to `__cluster` and to the internal tables and topics, through both listeners; trim, alter and delete
    them.

    Checked: all of it is refused, nothing of it is in their logs.
    """

    may_be_killed = False

    def __init__(self, cluster: "SimulatedCluster", name: str = "intruders") -> None:
        super().__init__(cluster, name)
        self.shard_ids: dict[str, list[int]] = {CLUSTER_LOG: [CLUSTER_SHARD_ID]}
        self.accepted: list[tuple[str, str]] = []  # to what, and which request
        self.outcomes = {"intrusions-refused": 0, "intrusions-unknown": 0}

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`: the internal tables and topics are there."""
        kafka = client_in(self.cluster, calling_process())
        while await kafka.coordinator(SOME_GROUP) is None:
            await kafka.back_off()
        kafka.close()
        connection = await insist(lambda: self._connect(0))
        for name in (JOBS_TABLE, STAGED_TOPIC):
            await insist(partial(self._make, connection, name))
        await connection.close()
        for topic in (await db.metadata()).topics:
            if topic.name in KINDS:
                self.shard_ids[topic.name] = [shard.shard_id for shard in topic.shards]

    @staticmethod
    async def _make(connection: Connection, name: str) -> None:
        with contextlib.suppress(TopicExistsError):
            await connection.request(CreateTopic(name, KINDS[name], shards=1, internal=True))

    async def _connect(self, node: int) -> Connection:
        return await open_connection(f"{self.cluster.machines[node].host}:{NATIVE_PORT}", "intruder", None)

    async def _work(self, process: "Process", _number: int) -> None:
        draw, kafka = process.random, client_in(self.cluster, process)
        while not self.stopped:
            name = draw.choice((CLUSTER_LOG, CLUSTER_LOG, GROUPS_TABLE, JOBS_TABLE, STAGED_TOPIC))
            try:
                if draw.random() < 0.3:
                    await self._produce(kafka, name, draw)
                else:
                    await self._everywhere(name, draw)
            except (AntiphonError, NoAnswerError):
                self.outcomes["intrusions-unknown"] += 1
            await self.think(process)
        kafka.close()

    async def _judged(self, name: str, what: str, ask: Callable[[], Awaitable[Any]]) -> None:
        """Ask, and note the outcome."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await ask()
        except TimeoutError:
            self.outcomes["intrusions-unknown"] += 1
        except AntiphonError as error:
            self.outcomes["intrusions-refused"] += 1
            self.cluster.tell("intruder", name, what, error.code)
        else:
            self.cluster.tell("intruder", name, what, "accepted")
            self.accepted.append((name, what))

    async def _everywhere(self, name: str, draw: Random) -> None:
        """The same request to every node: one of them leads."""
        body, payload = self._request(name, draw)
        nodes = len(self.cluster.machines)
        for node in draw.sample(range(nodes), nodes):
            connection = await self._connect(node)
            try:
                await self._judged(
                    name,
                    type(body).__name__,
                    lambda c=connection: c.request(body, payload),  # type: ignore[misc]
                )
            finally:
                await connection.close()

    def _request(self, name: str, draw: Random) -> tuple[Any, tuple[bytes, ...]]:
        shard_id, is_job = draw.choice(self.shard_ids[name]), name in NODES_ONLY and draw.random() < 0.5
        kind = draw.random()
        if kind < 0.1:
            return TrimShard(shard_id, draw.randrange(1_000), internal=is_job), ()
        if kind < 0.2:
            command = draw.choice((DeleteTopic(name), AlterTopic(name, config={"retention.ms": "1"})))
            return command, ()
        if KINDS.get(name) is Kind.TABLE and kind < 0.9:
            op = Put(some_key(draw), MARK) if draw.random() < 0.8 else Delete(some_key(draw))
            return TableWrite(shard_id, (op,), timeout_ms=TIMEOUT_MS, internal=is_job), ()
        return AppendBatch(shard_id, None, TIMEOUT_MS, is_job), (some_batch(draw),)

    async def _produce(self, kafka: KafkaClient, name: str, draw: Random) -> None:
        request = m.produce_one(name, some_batch(draw), timeout_ms=TIMEOUT_MS)
        for machine in self.cluster.machines:
            answer = await kafka.ask((machine.host, KAFKA_PORT), PRODUCE, PRODUCE_VERSION, request)
            error = answer.topics[0].partitions[0].error_code
            self.cluster.tell("intruder", name, "Produce", error or "accepted")
            if error:
                self.outcomes["intrusions-refused"] += 1
            else:
                self.accepted.append((name, "Produce"))

    def check(self) -> None:
        """See `Workload`."""
        require(
            not self.accepted,
            "internal-refused",
            f"these writes of clients to what belongs to the cluster were taken: {self.accepted[:5]}",
            CLUSTER_SHARD_ID,
        )
        for name, shard_ids in self.shard_ids.items():
            for shard_id in shard_ids:
                for batch in self.cluster.evidence.truth(shard_id).batches:
                    require(
                        MARK not in batch.data,
                        "internal-refused",
                        f"what a client wrote to {name!r} is at {batch.base_offset} of its log",
                        shard_id,
                    )


def some_key(draw: Random) -> bytes:
    """A key that is not quite one of the cluster's."""
    return draw.choice((b"offset/x", b"offset/listeners/stream/0", b"shard/0", b"node/one", b"\xff", MARK))


def some_batch(draw: Random) -> bytes:
    """A batch with a right checksum, and nothing inside that can be used."""
    pairs = [(some_key(draw), draw.choice((MARK, MARK + b"\xc1", None))) for _ in range(draw.randint(1, 3))]
    batch = build_batch([(key, value, [("mark", MARK)], system.wall_ms()) for key, value in pairs])
    if draw.random() < 0.5:
        garbage = MARK + draw.randbytes(draw.randrange(50))
        batch = batch[:HEADER_BYTES] + garbage
        _LENGTH.pack_into(batch, _LENGTH_AT, len(batch) - LENGTH_PREFIX_BYTES)
        seal(batch)
    return bytes(batch)
