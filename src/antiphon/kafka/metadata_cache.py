"""The cluster's metadata as Kafka's clients are told it: nodes with a Kafka address, partitions with a leader.

What is derived from one version of the metadata is kept until the next version arrives.
"""

from typing import NamedTuple

from antiphon.errors import UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka.produce_codec import NodeEndpoint
from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta

UNKNOWN_LEADER = -1


class _Derived(NamedTuple):
    meta: ClusterMeta
    endpoints: dict[int, NodeEndpoint]
    alive: frozenset[int]


class MetadataCache:
    """Look-ups over the gateway's metadata."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._derived = _derive(gateway.metadata)

    def _current(self) -> _Derived:
        meta = self._gateway.metadata
        if self._derived.meta is not meta:
            self._derived = _derive(meta)
        return self._derived

    @property
    def endpoints(self) -> dict[int, NodeEndpoint]:
        """Nodes that have a Kafka listener, by id; also those that are down.

        librdkafka takes a second to ask again for a leader whose broker has gone from the list, and none for one that is
        on the list without leading anything.
        """
        return self._current().endpoints

    @property
    def reachable(self) -> frozenset[int]:
        """Nodes with a Kafka listener that are up."""
        return self._current().alive

    def in_rack(self, rack: str) -> frozenset[int]:
        """Nodes there with a Kafka listener that are up."""
        current = self._current()
        return frozenset(node for node in current.alive if current.endpoints[node].rack == rack)

    @property
    def controller(self) -> int:
        """The coordinator's node where clients can reach it, else this node: every node takes every request."""
        controller = self._gateway.metadata.controller
        return controller if controller in self.reachable else self._gateway.node_id

    def leader_of(self, shard: ShardMeta) -> int:
        """The shard's leader where clients can reach it, else UNKNOWN_LEADER."""
        return shard.leader if shard.leader in self.reachable else UNKNOWN_LEADER

    def may_change(self, shard: ShardMeta) -> bool:
        """Is a new leader of the shard likely in a moment: it has none, or this node has just lost touch with it?"""
        return shard.leader not in self.reachable or shard.leader in self._gateway.lost_peers()

    def shard_at(self, topic: TopicMeta, index: int) -> ShardMeta | None:
        """A topic's partition, or None where there is no such partition."""
        shards = topic.shards
        if 0 <= index < len(shards) and shards[index].index == index:
            return shards[index]
        return next((shard for shard in shards if shard.index == index), None)

    def hint(self, topic_name: str, index: int) -> tuple[int, int] | None:
        """(leader, leader epoch) of a partition as far as this node knows, for an error that asks for the leader."""
        try:
            shard = self.shard_at(self._gateway.topic(topic_name), index)
        except UnknownTopicError:
            return None
        if shard is None or shard.leader == self._gateway.node_id or shard.leader not in self.reachable:
            return None
        return shard.leader, shard.term

    def endpoints_of(self, hints: list[tuple[int, int]]) -> list[NodeEndpoint]:
        """Addresses of the nodes that hints name, in the order of their ids."""
        endpoints = self.endpoints
        return [endpoints[node] for node in sorted({leader for leader, _ in hints}) if node in endpoints]


def _derive(meta: ClusterMeta) -> _Derived:
    endpoints = {}
    for node in sorted(meta.nodes, key=lambda node: node.node_id):
        host, _, port = node.kafka.rpartition(":")
        if host and port.isdigit():
            endpoints[node.node_id] = NodeEndpoint(
                node.node_id, host.removeprefix("[").removesuffix("]"), int(port), node.rack
            )
    alive = frozenset(node.node_id for node in meta.nodes if node.alive and node.node_id in endpoints)
    return _Derived(meta, endpoints, alive)
