"""The topics that groups may read, as the groups' state machines know them (`Catalog`)."""

from collections.abc import Mapping

from antiphon.coordination.consumer_terms import Catalog, TopicFacts
from antiphon.gateway.interface import Gateway
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind, TopicMeta


class Catalogs:
    """Made anew for each version of the metadata."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._catalog = Catalog(-2, {})

    def now(self) -> Catalog:
        """Topics as of the metadata of now: no tables, nothing of the cluster's own."""
        meta = self._gateway.metadata
        if self._catalog.version != meta.version:
            racks = {node.node_id: node.rack for node in meta.nodes if node.rack}
            self._catalog = Catalog(
                meta.version,
                {
                    topic.name: TopicFacts(
                        topic.topic_id, len(topic.shards), _racks_of(topic, racks) if racks else ()
                    )
                    for topic in meta.topics
                    if topic.kind is Kind.TOPIC and not is_internal(topic)
                },
            )
        return self._catalog


def _racks_of(topic: TopicMeta, racks: Mapping[int, str]) -> tuple[frozenset[str], ...]:
    """Where replicas of each partition stand, as far as nodes say so."""
    return tuple(frozenset(racks[node] for node in shard.ensemble if node in racks) for shard in topic.shards)
