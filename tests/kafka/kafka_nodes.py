"""Whole nodes with a listener for Kafka's clients, in virtual time or real, and what a test of the listener asks of them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from antiphon.kafka.groups.types import GroupConfig
from antiphon.kafka.listener import KafkaListener
from antiphon.kafka.listener_config import KafkaListenerConfig
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.requests import CreateTopic
from antiphon.node.config import Ports
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.records.batch import read_header
from antiphon.security.settings import Security
from antiphon.server.server import Server
from tests.node import real_nodes
from tests.node.in_process import KAFKA_PORT, NATIVE_PORT, Nodes, cluster_of, eventually

FAST_GROUPS = GroupConfig(initial_delay_ms=20)


@contextmanager
def configured(**config: Any) -> Iterator[None]:
    """Nodes that start meanwhile open listeners with these settings, of which an operator cannot set all."""
    made = partial(KafkaListenerConfig, **{"groups": FAST_GROUPS, **config})
    with (
        patch("antiphon.kafka.listener_config.KafkaListenerConfig", made),
        patch(
            "antiphon.transactions.group_offsets.SCAN_ROWS", 7
        ),  # small pages, so that readers must turn them
    ):
        yield


async def create(node: Node, name: str, shards: int = 1, **fields: Any) -> TopicMeta:
    """Make a topic, or a table, or what belongs to the cluster."""
    return await node.gateway.create_topic(
        CreateTopic(name, fields.pop("kind", Kind.TOPIC), shards, **fields)
    )


def listener_of(server: Server) -> KafkaListener:
    """A node's listener for Kafka's clients."""
    assert server.kafka is not None
    return server.kafka


@asynccontextmanager
async def real_node(directory: Path, **config: Any) -> AsyncIterator[Server]:
    """One node on the loop at hand, for clients that read the real clock or block."""
    nodes = real_nodes.Nodes(directory, 1, {}, kafka=True, security=config.pop("security", None))
    with configured(**config):
        await nodes.start_all()
    try:
        yield nodes.servers[0]
    finally:
        await nodes.close()


class KafkaNodes:
    """The nodes of a cluster."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    @classmethod
    @asynccontextmanager
    async def running(cls, count: int = 1, **config: Any) -> AsyncIterator["KafkaNodes"]:
        """A running cluster. `config`: of its listeners for Kafka's clients."""
        ports = config.pop("ports", Ports(NATIVE_PORT, KAFKA_PORT, -1, -1))
        auto_create = config.pop("auto_create_topics", True)
        security = config.pop("security", Security())
        limits = {
            name: config.pop(name)
            for name in (
                "limits",
                "num_partitions",
                "racks",
                "transactions",
                "consumer_groups",
                "share_groups",
                "record_validation",
                "flush",
                "flush_interval_ms",
                "table_log_bytes",
            )
            if name in config
        }
        with configured(**config):
            async with cluster_of(
                count, ports=ports, auto_create_topics=auto_create, security=security, **limits
            ) as nodes:
                yield cls(nodes)

    @property
    def first(self) -> Node:
        """Any node."""
        return next(iter(self.nodes.nodes.values()))

    @property
    def listener(self) -> KafkaListener:
        """That node's listener for Kafka's clients."""
        return listener_of(self.nodes.servers[self.first.node_id])

    async def create(self, name: str, shards: int = 1, **fields: Any) -> TopicMeta:
        """Make a topic that all nodes know of."""
        made = await create(self.first, name, shards, **fields)
        await eventually(lambda: all(_knows(node, name) for node in self.nodes.nodes.values()))
        return made

    def host(self, name: str, index: int = 0) -> Partition:
        """The replica that serves a shard."""
        shard_id = self.first.gateway.topic(name).shards[index].shard_id
        hosts = [node.hosts.get(shard_id) for node in self.nodes.nodes.values()]
        return next(host for host in hosts if host is not None and host.state.is_serving)

    def leader(self, name: str, index: int = 0) -> int:
        """The node that serves a shard."""
        return self.host(name, index).services.node_id

    def end(self, name: str) -> int:
        """Where the committed part of a topic's first shard ends."""
        return self.host(name).state.high_watermark

    def batches(self, name: str) -> list[bytes]:
        """What is committed in a topic's first shard."""
        host, found, at = self.host(name), [], 0
        while at < host.state.high_watermark:
            for batch in host.log.read(at, 1 << 20, host.state.high_watermark):
                found.append(bytes(batch))
                at = read_header(batch).next_offset
        return found

    async def append(self, name: str, batch: bytes | bytearray) -> None:
        """Append past the listener."""
        host = self.host(name)
        await self.nodes.nodes[host.services.node_id].gateway.append(host.shard_id, batch)

    async def lead(self, name: str, leader: int) -> None:
        """Another node leads all shards of a topic, in newer terms, and all nodes know."""
        node = self.nodes.nodes[leader]
        for shard in [shard for shard in self.first.gateway.topic(name).shards if shard.leader != leader]:
            await node.gateway.elect_leader(shard.shard_id, leader)
        terms = {shard.shard_id: shard.term for shard in node.gateway.topic(name).shards}

        def all_know() -> bool:
            found = [node.gateway.topic(name).shards for node in self.nodes.nodes.values()]
            return all(s.leader == leader and s.term >= terms[s.shard_id] for shards in found for s in shards)

        await eventually(all_know)


def _knows(node: Node, name: str) -> bool:
    return any(topic.name == name for topic in node.gateway.metadata.topics)
