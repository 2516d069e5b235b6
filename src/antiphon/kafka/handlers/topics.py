"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords and DescribeLogDirs.

The coordinator decides; this translates.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from antiphon.errors import (
    LimitReachedError,
    NotReadyError,
    TopicExistsError,
    UnknownShardError,
    UnknownTopicError,
)
from antiphon.gateway.interface import Gateway
from antiphon.gateway.quotas import Quotas, Use
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.handlers.refusals import (
    RefusedError,
    check_setting,
    config_errors,
    outcome,
    placement_errors,
    refuse_internal,
    telling,
    timeout_s,
    told,
)
from antiphon.kafka.handlers.rights import check, check_topic, may, may_create, sees
from antiphon.kafka.handlers.topic_values import created_settings
from antiphon.kafka.messages import admin as m
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.topic_config import (
    TopicDefaults,
    name_problem,
)
from antiphon.model.access import Operation, Resource
from antiphon.model.metadata import SHARDS_MAX, Kind
from antiphon.model.placement import Placement
from antiphon.model.requests import AlterTopic, CreateTopic
from antiphon.security.authorizer import Rights

DEFAULT: Final = -1
FAILED: Final = "failed"  # a replica's state
# Versions from which a request over the quota is refused; those before are carried out, and the client waits (KIP-599).
STRICT_CREATE, STRICT_DELETE, STRICT_GROW = 6, 5, 3


class TopicHandler:
    """Topics and their records, by way of the gateway."""

    def __init__(
        self, gateway: Gateway, cache: MetadataCache, defaults: TopicDefaults, quotas: Quotas
    ) -> None:
        self._gateway = gateway
        self._cache = cache
        self._defaults = defaults
        self._quotas = quotas

    def _charge(self, context: RequestContext, strict_since: int, partitions: int) -> None:
        """Count partitions that are about to come or go; raises RefusedError where there were too many before."""
        strict = context.version >= strict_since
        if strict and self._quotas.refuses(Use.MUTATION, context.payer, context.charged):
            raise RefusedError(
                code.THROTTLING_QUOTA_EXCEEDED, "the quota of partitions created and deleted is used up"
            )
        self._quotas.charge(Use.MUTATION, context.payer, partitions, None if strict else context.charged)

    def _too_many(self, partitions: Iterable[int]) -> tuple[int, str] | None:
        """Code and reason where a request as a whole asks for too many partitions, as Kafka's controllers refuse it."""
        try:
            self._gateway.check_request(sum(max(0, count) for count in partitions))
        except LimitReachedError as error:
            return code.code_of(error), error.message
        return None

    async def create_topics(
        self, request: m.CreateTopicsRequest, context: RequestContext
    ) -> m.CreateTopicsResponse:
        """Create each topic; a name that comes twice is refused each time."""
        names = Counter(topic.name for topic in request.topics)
        refusal = self._too_many(self._wanted_shards(topic) for topic in request.topics)
        if refusal is not None:
            failed, reason = refusal
            answers = [m.CreatedTopic(name=name, error_code=failed, error_message=reason) for name in names]
            return m.CreateTopicsResponse(topics=answers)
        created = []
        for topic in request.topics:
            await asyncio.sleep(0)  # others first
            answer = m.CreatedTopic(name=topic.name)
            with telling(answer):
                if names[topic.name] > 1:
                    raise RefusedError(code.INVALID_REQUEST, "the request names this topic more than once")
                if not may_create(self._gateway, context.rights, topic.name):
                    raise RefusedError(code.TOPIC_AUTHORIZATION_FAILED)
                await told(answer, self._create(answer, topic, request, context))
            created.append(answer)
        return m.CreateTopicsResponse(topics=created)

    async def _create(
        self,
        answer: m.CreatedTopic,
        topic: m.CreatableTopic,
        request: m.CreateTopicsRequest,
        context: RequestContext,
    ) -> None:
        wanted = self._checked(topic, validate_only=request.validate_only)
        if not request.validate_only:
            self._charge(context, STRICT_CREATE, wanted.shards)
        # With settings, too, it is told which is wrong by the message only.
        by_hand = bool(wanted.placement) and not wanted.config
        with config_errors(bool(wanted.config)), placement_errors(by_hand):
            meta = await self._gateway.create_topic(wanted, timeout_s(request.timeout_ms))
        answer.topic_id = meta.topic_id
        answer.num_partitions, answer.replication_factor = len(meta.shards), meta.replicas
        answer.configs = created_settings(meta, self._gateway.settings)

    def _checked(self, topic: m.CreatableTopic, *, validate_only: bool) -> CreateTopic:
        problem = name_problem(topic.name)
        if problem:
            raise RefusedError(code.INVALID_TOPIC_EXCEPTION, problem)
        placement = _placement(topic)
        if topic.num_partitions != DEFAULT and topic.num_partitions < 1:
            raise RefusedError(code.INVALID_PARTITIONS, f"{topic.num_partitions} partitions; 1 is the least")
        _check_partitions(topic.num_partitions)
        if topic.replication_factor != DEFAULT and topic.replication_factor < 1:
            raise RefusedError(
                code.INVALID_REPLICATION_FACTOR, f"{topic.replication_factor} replicas; 1 is the least"
            )
        nodes = sum(1 for node in self._gateway.metadata.nodes if node.alive)
        if topic.replication_factor > max(nodes, 1):
            reason = f"{topic.replication_factor} replicas asked for, {nodes} nodes are alive"
            raise RefusedError(code.INVALID_REPLICATION_FACTOR, reason)
        for setting in topic.configs:
            check_setting(setting.name, setting.value)
        self._refuse_existing(topic.name)
        return CreateTopic(
            name=topic.name,
            shards=self._wanted_shards(topic),
            replicas=0 if topic.replication_factor == DEFAULT else topic.replication_factor,
            profile="",
            config={s.name: s.value for s in topic.configs if s.value is not None},
            validate_only=validate_only,
            placement=placement,
        )

    def _wanted_shards(self, topic: m.CreatableTopic) -> int:
        if topic.assignments:
            return len(topic.assignments)
        return self._defaults.shards if topic.num_partitions == DEFAULT else topic.num_partitions

    def _refuse_existing(self, name: str) -> None:
        try:
            self._gateway.topic(name)
        except UnknownTopicError:
            return
        raise TopicExistsError(f"topic {name!r} exists")

    async def delete_topics(
        self, request: m.DeleteTopicsRequest, context: RequestContext
    ) -> m.DeleteTopicsResponse:
        """Delete topics by name or id."""
        wanted = request.topics or [m.DeletableTopic(name=name) for name in request.topic_names]
        responses = []
        async for topic in context.turn_budget.each(wanted):
            answer = m.DeletedTopic(name=topic.name, topic_id=topic.topic_id)
            with telling(answer):
                name = self._deletable(answer, context.rights)
                await told(answer, self._delete(name, timeout_s(request.timeout_ms), context))
            responses.append(answer)
        return m.DeleteTopicsResponse(responses=responses)

    def _deletable(self, answer: m.DeletedTopic, rights: Rights) -> str:
        """The topic's name, which the answer gets. Raises RefusedError where the client may not delete it."""
        gateway, name = self._gateway, answer.name
        if name is None:
            try:
                name = gateway.topic_by_id(answer.topic_id).name
            except UnknownTopicError:
                raise RefusedError(code.UNKNOWN_TOPIC_ID) from None
        allowed = may(gateway, rights, Operation.DELETE, name)
        # Who may not even describe it is not told the name that belongs to an id.
        if not allowed and answer.name is None and not sees(gateway, rights, name):
            raise RefusedError(code.UNKNOWN_TOPIC_ID)
        answer.name = name
        if not allowed:
            raise RefusedError(code.TOPIC_AUTHORIZATION_FAILED)
        return name

    async def _delete(self, name: str, timeout_s: float, context: RequestContext) -> None:
        topic = self._gateway.topic(name)
        refuse_internal(topic)
        self._charge(context, STRICT_DELETE, len(topic.shards))
        await self._gateway.delete_topic(name, timeout_s)

    async def delete_records(
        self, request: m.DeleteRecordsRequest, context: RequestContext
    ) -> m.DeleteRecordsResponse:
        """Let partitions that this node leads begin later, at the very offset; no batch is cut."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s(request.timeout_ms)
        topics, budget = [], context.turn_budget
        async for topic in budget.each(request.topics):
            allowed = may(self._gateway, context.rights, Operation.DELETE, topic.name)
            found = [
                await self._delete_before(topic.name, part, deadline_s)
                if allowed
                else m.DeletedRecords(
                    partition_index=part.partition_index, error_code=code.TOPIC_AUTHORIZATION_FAILED
                )
                async for part in budget.each(topic.partitions)
            ]
            topics.append(m.DeletedRecordsTopic(name=topic.name, partitions=found))
        return m.DeleteRecordsResponse(topics=topics)

    async def _delete_before(
        self, name: str, wanted: m.DeleteRecordsPartition, deadline_s: float
    ) -> m.DeletedRecords:
        index = wanted.partition_index
        answer = m.DeletedRecords(partition_index=index)

        async def work() -> None:
            topic = self._gateway.topic(name)
            shard = self._cache.shard_at(topic, index)
            if shard is None:
                raise UnknownTopicError(f"topic {name!r} has no partition {index}", name=name)
            refuse_internal(topic)
            if topic.kind is Kind.TABLE:
                raise RefusedError(code.POLICY_VIOLATION, f"{name!r} is not a topic of plain records")
            if wanted.offset < DEFAULT:
                raise RefusedError(code.OFFSET_OUT_OF_RANGE, f"{wanted.offset} is no offset")
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
            answer.low_watermark = await self._gateway.trim(shard.shard_id, wanted.offset, left_s)

        answer.error_code, _ = await outcome(work())
        return answer

    async def create_partitions(
        self, request: m.CreatePartitionsRequest, context: RequestContext
    ) -> m.CreatePartitionsResponse:
        """Let topics grow to a number of partitions."""
        refusal = self._too_many(self._growth(topic.name, topic.count) for topic in request.topics)
        if refusal is not None:
            failed, reason = refusal
            names = dict.fromkeys(topic.name for topic in request.topics)
            answers = [m.GrownTopic(name=name, error_code=failed, error_message=reason) for name in names]
            return m.CreatePartitionsResponse(results=answers)
        results = []
        async for topic in context.turn_budget.each(request.topics):
            grown = m.GrownTopic(name=topic.name)
            with telling(grown):
                check_topic(self._gateway, context.rights, Operation.ALTER, topic.name)
                await told(grown, self._grow(topic, request, context))
            results.append(grown)
        return m.CreatePartitionsResponse(results=results)

    def _growth(self, name: str, count: int) -> int:
        """Partitions that a topic would get. One that is not there gets none, and refuses no other."""
        try:
            return count - len(self._gateway.topic(name).shards)
        except UnknownTopicError:
            return 0

    async def _grow(
        self, topic: m.GrowingTopic, request: m.CreatePartitionsRequest, context: RequestContext
    ) -> None:
        found = self._gateway.topic(topic.name)
        refuse_internal(found)
        has = len(found.shards)
        if topic.count <= has:
            reason = f"{topic.name!r} has {has} partitions, {topic.count} are not more"
            raise RefusedError(code.INVALID_PARTITIONS, reason)
        _check_partitions(topic.count)
        if not request.validate_only:
            self._charge(context, STRICT_GROW, topic.count - has)
        placement = tuple(tuple(one.broker_ids) for one in topic.assignments or ())
        if topic.assignments is not None and len(placement) != topic.count - has:
            reason = f"nodes of {len(placement)} partitions are named, {topic.count - has} are to be added"
            raise RefusedError(code.INVALID_REPLICA_ASSIGNMENT, reason)
        wanted = AlterTopic(
            topic.name, shards=topic.count, validate_only=request.validate_only, placement=placement
        )
        with placement_errors(bool(placement)):
            await self._gateway.alter_topic(wanted, timeout_s(request.timeout_ms))

    async def describe_log_dirs(
        self, request: m.DescribeLogDirsRequest, context: RequestContext
    ) -> m.DescribeLogDirsResponse:
        """What replicas take on this node's disk. A replica that has failed is left out, as on a failed disk of Kafka's."""
        check(context.rights, Operation.DESCRIBE, Resource.CLUSTER)
        log_dir = m.LogDir(log_dir=f"node-{self._gateway.node_id}", topics=[])
        wanted = None
        if request.topics is not None:
            wanted = {(topic.name, index) for topic in request.topics for index in topic.partitions}
        try:
            log_dir.topics = self._topics_on_disk(wanted)
        except NotReadyError as error:
            log_dir.error_code = code.code_of(error)
        return m.DescribeLogDirsResponse(error_code=log_dir.error_code, results=[log_dir])

    def _topics_on_disk(self, wanted: set[tuple[str, int]] | None) -> list[m.LogDirTopic]:
        """Replicas here, of the (topic, partition) that are wanted. Raises NotReadyError while their names are not known."""
        topics: dict[str, m.LogDirTopic] = {}
        for replica in self._gateway.replica_statuses():
            try:
                topic, shard = self._gateway.shard(replica.shard_id)
            except UnknownShardError:
                continue  # of a topic that is being deleted
            if replica.state == FAILED or (wanted is not None and (topic.name, shard.index) not in wanted):
                continue
            found = topics.setdefault(topic.name, m.LogDirTopic(name=topic.name, partitions=[]))
            found.partitions.append(
                m.LogDirPartition(
                    partition_index=shard.index,
                    partition_size=replica.size_bytes,
                    offset_lag=max(0, replica.high_watermark - replica.log_end),
                )
            )
        return list(topics.values())


def _placement(topic: m.CreatableTopic) -> Placement:
    """The nodes of each partition, where the client names them. Raises RefusedError."""
    if not topic.assignments:
        return ()
    if topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT:
        reason = "numbers of partitions and replicas (other than -1) and assignments exclude each other"
        raise RefusedError(code.INVALID_REQUEST, reason)
    by_index = {one.partition_index: tuple(one.broker_ids) for one in topic.assignments}
    if len(by_index) != len(topic.assignments) or set(by_index) != set(range(len(by_index))):
        reason = f"partitions have to be 0 to {len(topic.assignments) - 1}, each once"
        raise RefusedError(code.INVALID_REPLICA_ASSIGNMENT, reason)
    if any(len(nodes) != len(by_index[0]) or not nodes for nodes in by_index.values()):
        reason = "each partition has to have as many replicas as the others, one at least"
        raise RefusedError(code.INVALID_REPLICA_ASSIGNMENT, reason)
    return tuple(by_index[index] for index in range(len(by_index)))


def _check_partitions(count: int) -> None:
    if count > SHARDS_MAX:
        raise RefusedError(
            code.INVALID_PARTITIONS, f"{count:,} partitions; a topic has {SHARDS_MAX:,} at most"
        )
