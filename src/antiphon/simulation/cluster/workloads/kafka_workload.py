"""What the workloads over Kafka's protocol share: a topic, and clients for it."""

import asyncio
import contextlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from antiphon.client.aio import AsyncClient
from antiphon.errors import TopicExistsError
from antiphon.records.batch import iter_batches
from antiphon.simulation.cluster.kafka_client import Address, KafkaClient
from antiphon.simulation.cluster.workloads.workload import Workload, durable_options, insist, topic_named
from antiphon.simulation.cluster.world import KAFKA_PORT
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "stream"
PARTITIONS: Final = 2
HAS_KERNELS: Final = find_spec("numba") is not None
"""Without numba nodes look at records only where the topic's `record.validation` is `full`."""

STORED: Final = {"uncompressed": 0, "gzip": 1}


def client_in(cluster: "SimulatedCluster", process: "Process") -> KafkaClient:
    """A client that runs in `process`, and knows all nodes to begin with."""
    bootstrap = [(machine.host, KAFKA_PORT) for machine in cluster.machines]
    return KafkaClient(bootstrap, process.random, process.name)


class KafkaWorkload(Workload):
    """See the module's text. The topic loses nothing: no `commit=local`, one writer a shard."""

    topic = TOPIC
    partitions = PARTITIONS

    def __init__(self, cluster: "SimulatedCluster", name: str) -> None:
        super().__init__(cluster, name)
        self.shard_ids: dict[int, int] = {}  # by partition
        self.looks_at_records = (
            HAS_KERNELS  # do nodes look at the records of batches that are sent to the topic?
        )
        self.gives_time = False  # does the topic give records the time of their append?
        self.stored_codec: int | None = None  # that all batches have; None: what their producers chose
        self.config: dict[str, str] = {}  # of the topic, besides what all have

    async def set_up(self, db: AsyncClient) -> None:
        """See `Workload`."""
        options = durable_options(self.cluster)
        config = options["config"] | self.config
        if self.cluster.stream("validation").random() < 0.5:
            config["record.validation"] = "full"
            self.looks_at_records = True
        self.gives_time = self.cluster.stream("append time").random() < 0.3
        if self.gives_time:
            config["message.timestamp.type"] = "LogAppendTime"
        draw = self.cluster.stream("stored codec").random()
        codec = (
            "" if draw < 0.4 else "gzip" if draw < 0.7 else "uncompressed"
        )  # what there is without pyarrow
        if codec:
            config["compression.type"] = codec
            self.stored_codec = STORED[codec]
        with contextlib.suppress(TopicExistsError):  # another workload made it
            options["config"] = config
            await insist(lambda: db.create_topic(self.topic, shards=self.partitions, **options))
        found = await topic_named(db, self.topic)
        self.shard_ids = {shard.index: shard.shard_id for shard in found.shards}

    def client(self, process: "Process") -> KafkaClient:
        """A client that runs in `process`."""
        return client_in(self.cluster, process)

    async def leader_of(self, client: KafkaClient, partition: int) -> "tuple[Machine, Address]":
        """The machine of a partition's leader, and its address."""
        address, _ = await client.leader(self.topic, partition)
        return next(one for one in self.cluster.machines if one.host == address[0]), address

    def end_of(self, partition: int) -> int:
        """Up to where a partition can be consumed now."""
        return self.cluster.evidence.truth(self.shard_ids[partition]).end

    async def sleep(self, process: "Process", longest_s: float) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(process.random.uniform(0.0, longest_s))

    def judge_fetched(self, partition: int, position: int, data: bytes) -> None:
        """What a fetch at `position` gave is what is committed there, batch behind batch."""
        shard_id = self.shard_ids[partition]
        truth = self.cluster.evidence.truth(shard_id)
        for header, batch in iter_batches(data):
            known = truth.at(header.base_offset)
            require(
                header.base_offset <= position < header.next_offset
                and known is not None
                and known.data == batch,
                "fetched-is-committed",
                f"a fetch at {position} gives {header.base_offset}..{header.next_offset}; committed there is {known}",
                shard_id,
            )
            position = header.next_offset
