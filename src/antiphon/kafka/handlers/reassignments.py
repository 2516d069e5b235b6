"""AlterPartitionReassignments and ListPartitionReassignments, over the cluster's own moves (docs/membership.md).

A move is one goal of a shard: its wanted nodes, of which the first is to lead. Taking one back is another goal, the nodes
from which it began.
"""

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from antiphon.errors import InvalidRequestError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.handlers.refusals import RefusedError, timeout_s, told
from antiphon.kafka.handlers.rights import check
from antiphon.kafka.messages import reassignments as m
from antiphon.kafka.messages.shared import PartitionOutcome
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.model.access import Operation, Resource
from antiphon.model.metadata import ShardMeta
from antiphon.model.placement import PlaceReplicas

if TYPE_CHECKING:
    from collections.abc import Iterator

TOGETHER: Final = 64  # partitions of one request whose moves are decided at the same time


class ReassignmentHandler:
    """Moves by way of the coordinator."""

    def __init__(self, gateway: Gateway, cache: MetadataCache) -> None:
        self._gateway = gateway
        self._cache = cache

    async def alter(
        self, request: m.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> m.AlterPartitionReassignmentsResponse:
        """Decide on each partition's move; answered when all are decided, before anything is moved."""
        check(context.rights, Operation.ALTER, Resource.CLUSTER)
        deadline_s = asyncio.get_running_loop().time() + timeout_s(request.timeout_ms)
        may_change = request.allow_replication_factor_change
        answer = m.AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_change)
        answer.responses = [
            m.ReassignedTopicOutcome(
                name=topic.name,
                partitions=[PartitionOutcome(partition_index=p.partition_index) for p in topic.partitions],
            )
            for topic in request.topics
        ]
        work: Iterator[tuple[PartitionOutcome, str, m.ReassignedPartition]] = (
            (done, topic.name, wanted)
            for topic, answered in zip(request.topics, answer.responses, strict=True)
            for wanted, done in zip(topic.partitions, answered.partitions, strict=True)
        )
        while some := list(islice(work, TOGETHER)):
            await asyncio.gather(*(self._move(*one, may_change, deadline_s) for one in some))
        return answer

    async def _move(
        self,
        done: PartitionOutcome,
        name: str,
        wanted: m.ReassignedPartition,
        may_change: bool,
        deadline_s: float,
    ) -> None:
        async def work() -> None:
            shard = self._cache.shard_at(self._gateway.topic(name), wanted.partition_index)
            if shard is None:
                raise UnknownTopicError(
                    f"topic {name!r} has no partition {wanted.partition_index}", name=name
                )
            before = shard.outgoing or shard.ensemble
            if wanted.replicas is None and not (shard.goal or shard.outgoing or shard.learners):
                raise RefusedError(code.NO_REASSIGNMENT_IN_PROGRESS, "no move is under way")
            if wanted.replicas is not None and not wanted.replicas:
                raise RefusedError(code.INVALID_REPLICA_ASSIGNMENT, "a partition needs one replica at least")
            if wanted.replicas is not None and not may_change and len(wanted.replicas) != len(before):
                reason = f"it has {len(before)} replicas, {len(wanted.replicas)} are another number"
                raise RefusedError(code.INVALID_REPLICATION_FACTOR, reason)
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
            placed = PlaceReplicas(shard.shard_id, tuple(wanted.replicas or ()))
            try:
                await self._gateway.administer(placed, left_s)
            except InvalidRequestError as error:
                raise RefusedError(code.INVALID_REPLICA_ASSIGNMENT, error.message) from error

        await told(done, work())

    async def list_moves(
        self, request: m.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> m.ListPartitionReassignmentsResponse:
        """The partitions to or from which nodes are being moved, as far as this node has heard."""
        check(context.rights, Operation.DESCRIBE, Resource.CLUSTER)
        wanted = None
        if request.topics is not None:
            wanted = {(topic.name, index) for topic in request.topics for index in topic.partitions}
        topics = []
        for count, topic in enumerate(self._gateway.metadata.topics, 1):
            if not count % TOGETHER:
                await asyncio.sleep(0)  # others first
            partitions = [
                _ongoing(shard)
                for shard in topic.shards
                if _is_moving(shard) and (wanted is None or (topic.name, shard.index) in wanted)
            ]
            if partitions:
                topics.append(m.OngoingTopic(name=topic.name, partitions=partitions))
        return m.ListPartitionReassignmentsResponse(topics=topics)


def _is_moving(shard: ShardMeta) -> bool:
    """Does a node come or go? A goal that only moves leadership is no reassignment."""
    return bool(shard.goal or shard.outgoing or shard.learners) and set(shard.aim) != set(
        shard.outgoing or shard.ensemble
    )


def _ongoing(shard: ShardMeta) -> m.OngoingReassignment:
    before = shard.outgoing or shard.ensemble
    return m.OngoingReassignment(
        partition_index=shard.index,
        replicas=list(dict.fromkeys((*shard.aim, *shard.everybody))),
        adding_replicas=[node for node in shard.aim if node not in before],
        removing_replicas=[node for node in before if node not in shard.aim],
    )
