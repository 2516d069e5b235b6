"""The topics that groups of the consumer protocol may read, and those that a regular expression names.

What an expression matches (`patterns`) is looked up once for each version of the metadata.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from antiphon.coordination.consumer_terms import Catalog, TopicFacts
from antiphon.coordination.patterns import compiled
from antiphon.gateway.interface import Gateway
from antiphon.kafka.handlers.rights import sees
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.security.authorizer import Rights

KEPT_REGEXES: Final = 256


class GroupTopics:
    """See the module's text."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._catalog = Catalog(-2, {})
        self._matches: OrderedDict[str, tuple[int, tuple[str, ...]]] = (
            OrderedDict()
        )  # by expression: version, names

    def catalog(self) -> Catalog:
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

    def matching(self, regex: str, rights: Rights) -> tuple[str, ...]:
        """Names that the whole of `regex` matches, of topics that the client may know of. Raises BadRegexError."""
        catalog = self.catalog()
        version, names = self._matches.get(regex, (-2, ()))
        if version != catalog.version:
            names = self._look_up(regex, catalog)
            self._matches[regex] = catalog.version, names
            if len(self._matches) > KEPT_REGEXES:
                self._matches.popitem(last=False)
        return tuple(name for name in names if sees(self._gateway, rights, name))

    def _look_up(self, regex: str, catalog: Catalog) -> tuple[str, ...]:
        pattern = compiled(regex)
        return tuple(sorted(name for name in catalog.topics if pattern.fullmatch(name)))


def _racks_of(topic: TopicMeta, racks: Mapping[int, str]) -> tuple[frozenset[str], ...]:
    """Where replicas of each partition stand, as far as nodes say so."""
    return tuple(frozenset(racks[node] for node in shard.ensemble if node in racks) for shard in topic.shards)
