"""DescribeTopicPartitions: the partitions of topics, a page at a time."""

import asyncio
from bisect import bisect_left
from typing import Final

from antiphon.errors import UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.handlers.operations import with_topic
from antiphon.kafka.handlers.rights import may, sees
from antiphon.kafka.messages import described as m
from antiphon.kafka.metadata_cache import UNKNOWN_LEADER, MetadataCache
from antiphon.model.access import Operation
from antiphon.model.metadata import ShardMeta

PAGE_MAX: Final = 2_000  # partitions of one answer
PIECE: Final = 256  # topics that are looked at in one turn of the event loop


class TopicPartitionsHandler:
    """Answers from the gateway's metadata."""

    def __init__(self, gateway: Gateway, cache: MetadataCache) -> None:
        self._gateway = gateway
        self._cache = cache

    async def describe(
        self, request: m.DescribeTopicPartitionsRequest, context: RequestContext
    ) -> m.DescribeTopicPartitionsResponse:
        """The topics in the order of their names, from the cursor on, until the page is full."""
        rights, all_topics = context.rights, not request.topics
        names = sorted(
            {topic.name for topic in (self._gateway.metadata.topics if all_topics else request.topics)}
        )
        first, cursor = 0, request.cursor
        if cursor is not None:
            if cursor.partition_index < 0:
                refused = [m.DescribedTopic(name=name, error_code=code.INVALID_REQUEST) for name in names]
                return m.DescribeTopicPartitionsResponse(topics=refused)
            names = names[bisect_left(names, cursor.topic_name) :]
            first = cursor.partition_index if names and names[0] == cursor.topic_name else 0
        left = min(max(1, request.response_partition_limit), PAGE_MAX)
        answer = m.DescribeTopicPartitionsResponse(topics=[])
        for count, name in enumerate(names, 1):
            if not count % PIECE:
                await asyncio.sleep(0)  # others first
            if left <= 0:
                answer.next_cursor = m.PartitionCursor(topic_name=name, partition_index=0)
                break
            if all_topics and not sees(self._gateway, rights, name):
                continue
            described = self._topic(name, first, left)
            if not may(self._gateway, rights, Operation.DESCRIBE, name):
                described = m.DescribedTopic(name=name, error_code=code.TOPIC_AUTHORIZATION_FAILED)
            elif not described.error_code:
                described.topic_authorized_operations = with_topic(self._gateway, rights, name)
            answer.topics.append(described)
            left -= max(1, len(described.partitions))
            end = first + len(described.partitions)
            if not described.error_code and end < len(self._gateway.topic(name).shards):
                answer.next_cursor = m.PartitionCursor(topic_name=name, partition_index=end)
                break
            first = 0
        return answer

    def _topic(self, name: str, first: int, count: int) -> m.DescribedTopic:
        try:
            topic = self._gateway.topic(name)
        except UnknownTopicError:
            return m.DescribedTopic(name=name, error_code=code.UNKNOWN_TOPIC_OR_PARTITION)
        return m.DescribedTopic(
            name=name,
            topic_id=topic.topic_id,
            is_internal=topic.internal,
            partitions=[self._partition(shard) for shard in topic.shards[first : first + count]],
        )

    def _partition(self, shard: ShardMeta) -> m.DescribedPartition:
        leader, reachable = self._cache.leader_of(shard), self._cache.reachable
        return m.DescribedPartition(
            error_code=code.LEADER_NOT_AVAILABLE if leader == UNKNOWN_LEADER else code.NONE,
            partition_index=shard.index,
            leader_id=leader,
            leader_epoch=shard.term,
            replica_nodes=list(shard.ensemble),
            isr_nodes=[node for node in shard.live or shard.ensemble if node in reachable],
            offline_replicas=[node for node in shard.ensemble if node not in reachable],
        )
