"""DescribeQuorum, told of `__cluster`, and UpdateFeatures (`kafka.features`).

The leader of `__cluster` knows how far each voter is. Other nodes know who leads and what is committed, a voter also its own
end; the rest is -1, Kafka's value for what is not known.
"""

from typing import Final

from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.features import FEATURES
from antiphon.kafka.handlers.rights import check
from antiphon.kafka.messages import described as m
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.model.access import Operation, Resource
from antiphon.model.metadata import CLUSTER_SHARD_ID, ClusterMeta

QUORUM_TOPIC: Final = "__cluster_metadata"  # Kafka's name for it
_NOT_KNOWN: Final = -1


class QuorumHandler:
    """Answers from this node's replica of `__cluster`, if it has one, and from its metadata."""

    def __init__(self, gateway: Gateway, cache: MetadataCache) -> None:
        self._gateway = gateway
        self._cache = cache

    async def describe(
        self, request: m.DescribeQuorumRequest, context: RequestContext
    ) -> m.DescribeQuorumResponse:
        """The voters of `__cluster`, and the other nodes as observers."""
        check(context.rights, Operation.DESCRIBE, Resource.CLUSTER)
        quorum = self._quorum()
        topics = [
            m.DescribedQuorumTopic(
                topic_name=topic.topic_name,
                partitions=[
                    quorum
                    if (topic.topic_name, one.partition_index) == (QUORUM_TOPIC, 0)
                    else m.DescribedQuorumPartition(
                        partition_index=one.partition_index, error_code=code.UNKNOWN_TOPIC_OR_PARTITION
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        voters = {one.replica_id for one in quorum.current_voters}
        nodes = [
            m.QuorumNode(
                node_id=node.node_id,
                listeners=[m.QuorumListener(name="KAFKA", host=node.host, port=node.port)],
            )
            for node in self._cache.endpoints.values()
            if node.node_id in voters
        ]
        return m.DescribeQuorumResponse(topics=topics, nodes=nodes)

    def _quorum(self) -> m.DescribedQuorumPartition:
        meta, me = self._gateway.metadata, self._gateway.node_id
        voters = () if meta.voters is None else meta.voters.ensemble
        ends: dict[int, int] = {me: meta.version}
        epoch, committed = _NOT_KNOWN, meta.version
        own = next(
            (one for one in self._gateway.replica_statuses() if one.shard_id == CLUSTER_SHARD_ID), None
        )
        if own is not None:
            epoch, committed = own.term, max(committed, own.high_watermark)
            ends = {**dict(own.followers), me: own.log_end}
        others = (node.node_id for node in meta.nodes if node.node_id not in voters)
        return m.DescribedQuorumPartition(
            partition_index=0,
            leader_id=meta.controller,
            leader_epoch=epoch,
            high_watermark=committed,
            current_voters=[_replica(node, ends) for node in voters],
            observers=[_replica(node, ends) for node in others],
        )

    async def update_features(
        self, request: m.UpdateFeaturesRequest, context: RequestContext
    ) -> m.UpdateFeaturesResponse:
        """Levels come with the version of the nodes: only the level that a feature has is taken."""
        check(context.rights, Operation.ALTER, Resource.CLUSTER)
        results = [
            _feature_outcome(one, self._gateway.metadata)
            async for one in context.turn_budget.each(request.feature_updates)
        ]
        failed = next((one for one in results if one.error_code), None)
        if failed is not None and context.version > 1:
            return m.UpdateFeaturesResponse(error_code=failed.error_code, error_message=failed.error_message)
        return m.UpdateFeaturesResponse(results=results)


def _feature_outcome(wanted: m.FeatureUpdate, meta: ClusterMeta) -> m.FeatureOutcome:
    known = FEATURES.get(wanted.feature)
    if known is not None and wanted.max_version_level == known.level(meta):
        return m.FeatureOutcome(feature=wanted.feature)
    reason = f"{wanted.feature!r} is no feature here: there are {', '.join(FEATURES)}"
    if known is not None:
        reason = (
            f"{wanted.feature} has level {known.level(meta)}, and cannot get level {wanted.max_version_level}"
        )
    return m.FeatureOutcome(
        feature=wanted.feature, error_code=code.INVALID_UPDATE_VERSION, error_message=reason
    )


def _replica(node: int, ends: dict[int, int]) -> m.QuorumReplica:
    return m.QuorumReplica(replica_id=node, log_end_offset=ends.get(node, _NOT_KNOWN))
