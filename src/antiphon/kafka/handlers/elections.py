"""ElectLeaders: give partitions back to their preferred leaders, after a node came back for example.

The preferred leader is the first node of a partition's replicas, as in Kafka.
"""

import asyncio
from typing import Final

from antiphon.errors import InvalidRequestError, UnavailableError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.handlers.refusals import RefusedError, timeout_s, told
from antiphon.kafka.handlers.rights import check
from antiphon.kafka.messages import admin as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.kafka.metadata_cache import UNKNOWN_LEADER, MetadataCache
from antiphon.model.access import Operation, Resource

PREFERRED: Final = 0
UNCLEAN: Final = 1


class ElectionHandler:
    """Elections by way of the coordinator, one after the other."""

    def __init__(self, gateway: Gateway, cache: MetadataCache) -> None:
        self._gateway = gateway
        self._cache = cache

    async def elect_leaders(
        self, request: m.ElectLeadersRequest, context: RequestContext
    ) -> m.ElectLeadersResponse:
        """Elect where another one than the preferred replica leads."""
        check(context.rights, Operation.ALTER, Resource.CLUSTER)
        if request.election_type not in {PREFERRED, UNCLEAN}:
            raise RefusedError(code.INVALID_REQUEST)
        deadline_s = asyncio.get_running_loop().time() + timeout_s(request.timeout_ms)
        wanted = request.topic_partitions
        if wanted is None:
            wanted = [
                PartitionsOfTopic(name=topic.name, partitions=[shard.index for shard in topic.shards])
                for topic in self._gateway.metadata.topics
            ]
        results, budget = [], context.turn_budget
        async for topic in budget.each(wanted):
            done = [
                await self._elect(topic.name, index, request.election_type, deadline_s)
                async for index in budget.each(topic.partitions)
            ]
            if request.topic_partitions is None:
                done = [one for one in done if one.error_code != code.ELECTION_NOT_NEEDED]
            if done:
                results.append(m.ElectedTopic(name=topic.name, partition_result=done))
        return m.ElectLeadersResponse(replica_election_results=results)

    async def _elect(
        self, name: str, index: int, election_type: int, deadline_s: float
    ) -> m.ElectedPartition:
        async def work() -> None:
            shard = self._cache.shard_at(self._gateway.topic(name), index)
            if shard is None:
                raise UnknownTopicError(f"topic {name!r} has no partition {index}", name=name)
            if election_type == UNCLEAN:
                if self._cache.leader_of(shard) != UNKNOWN_LEADER:
                    raise RefusedError(code.ELECTION_NOT_NEEDED, f"node {shard.leader} leads it")
                reason = "unclean elections are a setting of the topic: unclean.leader.election.enable"
                raise RefusedError(code.ELIGIBLE_LEADERS_NOT_AVAILABLE, reason)
            preferred = shard.ensemble[0]
            if shard.leader == preferred:
                raise RefusedError(code.ELECTION_NOT_NEEDED, f"node {preferred} leads it")
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
            try:
                await self._gateway.elect_leader(shard.shard_id, preferred, left_s)
            except UnavailableError as error:
                raise RefusedError(code.PREFERRED_LEADER_NOT_AVAILABLE, error.message) from error
            except InvalidRequestError as error:  # every replica writes: none leads
                raise RefusedError(code.ELECTION_NOT_NEEDED, error.message) from error

        return await told(m.ElectedPartition(partition_id=index), work())
