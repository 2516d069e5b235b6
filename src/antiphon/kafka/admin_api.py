"""Topics and their settings: create, delete, grow, describe, alter. The coordinator decides; this translates."""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Final

from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    NotReadyError,
    TopicExistsError,
    UnknownShardError,
    UnknownTopicError,
)
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.cluster_view import ClusterView
from antiphon.kafka.messages import admin as m
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.kafka.topic_config import STRING, TOPIC_SETTINGS, TopicSetting, name_problem
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.requests import AlterTopic, CreateTopic

TOPIC: Final = 2
BROKER: Final = 4
SOURCE_TOPIC: Final = 1
SOURCE_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5
SET: Final = 0
RESET: Final = 1
DEFAULT: Final = -1
FAILED: Final = "failed"  # a replica's state
TIMEOUT_S_MAX: Final = 120.0
TIMEOUT_S_MIN: Final = 1.0


class _RefusedError(Exception):
    """A part of a request that is refused with a code of Kafka's."""

    def __init__(self, error_code: int, reason: str) -> None:
        super().__init__(reason)
        self.error_code = error_code
        self.reason = reason


async def _outcome(work: Awaitable[None]) -> tuple[int, str | None]:
    """Code and message of what `work` comes to."""
    try:
        await work
    except _RefusedError as refused:
        return refused.error_code, refused.reason
    except AntiphonError as error:
        return code.code_of(error), error.message
    return code.NONE, None


@contextmanager
def _config_errors(has_config: bool) -> Iterator[None]:
    """What else could be wrong was checked before: where settings came along, the coordinator refuses one of them."""
    try:
        yield
    except InvalidRequestError as error:
        raise _RefusedError(
            code.INVALID_CONFIG if has_config else code.INVALID_REQUEST, error.message
        ) from error


def _timeout_s(timeout_ms: int) -> float:
    return min(max(timeout_ms / 1000, TIMEOUT_S_MIN), TIMEOUT_S_MAX)


class AdminApi:
    """Administration by way of the gateway."""

    def __init__(
        self, gateway: Gateway, view: ClusterView, *, auto_create: bool, shards_default: int
    ) -> None:
        self._gateway = gateway
        self._view = view
        self._auto_create = auto_create
        self._shards_default = shards_default

    # -- topics ---------------------------------------------------------------------------------------------------

    async def create_topics(
        self, request: m.CreateTopicsRequest, _: RequestContext
    ) -> m.CreateTopicsResponse:
        """Create each topic; a name that comes twice is refused each time."""
        names = [topic.name for topic in request.topics]
        created = []
        for topic in request.topics:
            if names.count(topic.name) > 1:
                reason = "the request names this topic more than once"
                created.append(
                    m.CreatedTopic(name=topic.name, error_code=code.INVALID_REQUEST, error_message=reason)
                )
                continue
            created.append(await self._create(topic, _timeout_s(request.timeout_ms), request.validate_only))
        return m.CreateTopicsResponse(topics=created)

    async def _create(self, topic: m.CreatableTopic, timeout_s: float, validate_only: bool) -> m.CreatedTopic:
        made: list[TopicMeta] = []

        async def work() -> None:
            wanted = self._checked(topic)
            if validate_only:
                return
            with _config_errors(bool(wanted.config)):
                made.append(await self._gateway.create_topic(wanted, timeout_s))

        error, message = await _outcome(work())
        if not made:
            return m.CreatedTopic(name=topic.name, error_code=error, error_message=message)
        meta = made[0]
        return m.CreatedTopic(
            name=meta.name,
            topic_id=meta.topic_id,
            num_partitions=len(meta.shards),
            replication_factor=meta.replicas,
            configs=[
                m.CreatedSetting(
                    name=setting.name,
                    value=meta.config.get(setting.name, setting.default),
                    config_source=SOURCE_TOPIC if setting.name in meta.config else SOURCE_DEFAULT,
                )
                for setting in TOPIC_SETTINGS.values()
            ],
        )

    def _checked(self, topic: m.CreatableTopic) -> CreateTopic:
        problem = name_problem(topic.name)
        if problem:
            raise _RefusedError(code.INVALID_TOPIC_EXCEPTION, problem)
        if topic.assignments:
            raise _RefusedError(code.INVALID_REPLICA_ASSIGNMENT, "the cluster places replicas by itself")
        if topic.num_partitions != DEFAULT and topic.num_partitions < 1:
            raise _RefusedError(code.INVALID_PARTITIONS, f"{topic.num_partitions} partitions; 1 is the least")
        if topic.replication_factor != DEFAULT and topic.replication_factor < 1:
            raise _RefusedError(
                code.INVALID_REPLICATION_FACTOR, f"{topic.replication_factor} replicas; 1 is the least"
            )
        nodes = sum(1 for node in self._gateway.metadata.nodes if node.alive)
        if topic.replication_factor > max(nodes, 1):
            reason = f"{topic.replication_factor} replicas asked for, {nodes} nodes are alive"
            raise _RefusedError(code.INVALID_REPLICATION_FACTOR, reason)
        for setting in topic.configs:
            _check_setting(setting.name, setting.value)
        self._refuse_existing(topic.name)
        return CreateTopic(
            name=topic.name,
            shards=self._shards_default if topic.num_partitions == DEFAULT else topic.num_partitions,
            replicas=0 if topic.replication_factor == DEFAULT else topic.replication_factor,
            profile="",
            config={s.name: s.value for s in topic.configs if s.value is not None},
        )

    def _refuse_existing(self, name: str) -> None:
        try:
            self._gateway.topic(name)
        except UnknownTopicError:
            return
        raise TopicExistsError(f"topic {name!r} exists")

    async def delete_topics(
        self, request: m.DeleteTopicsRequest, _: RequestContext
    ) -> m.DeleteTopicsResponse:
        """Delete topics by name or id."""
        wanted = request.topics or [
            m.DeletableTopic(name=name, topic_id=ZERO_UUID) for name in request.topic_names
        ]
        responses = []
        for topic in wanted:
            name = topic.name
            if name is None:
                try:
                    name = self._gateway.topic_by_id(topic.topic_id).name
                except UnknownTopicError:
                    responses.append(
                        m.DeletedTopic(name=None, topic_id=topic.topic_id, error_code=code.UNKNOWN_TOPIC_ID)
                    )
                    continue
            error, message = await _outcome(self._delete(name, _timeout_s(request.timeout_ms)))
            responses.append(
                m.DeletedTopic(name=name, topic_id=topic.topic_id, error_code=error, error_message=message)
            )
        return m.DeleteTopicsResponse(responses=responses)

    async def _delete(self, name: str, timeout_s: float) -> None:
        _refuse_internal(self._gateway.topic(name))
        await self._gateway.delete_topic(name, timeout_s)

    async def delete_records(
        self, request: m.DeleteRecordsRequest, _: RequestContext
    ) -> m.DeleteRecordsResponse:
        """Let partitions that this node leads begin later: at the batch that holds the offset, as no batch is cut."""
        deadline_s = asyncio.get_running_loop().time() + _timeout_s(request.timeout_ms)
        topics = []
        for topic in request.topics:
            found = [await self._delete_before(topic.name, part, deadline_s) for part in topic.partitions]
            topics.append(m.DeletedRecordsTopic(name=topic.name, partitions=found))
        return m.DeleteRecordsResponse(topics=topics)

    async def _delete_before(
        self, name: str, wanted: m.DeleteRecordsPartition, deadline_s: float
    ) -> m.DeletedRecords:
        index = wanted.partition_index
        begins: list[int] = []

        async def work() -> None:
            topic = self._gateway.topic(name)
            shard = self._view.shard_at(topic, index)
            if shard is None:
                raise UnknownTopicError(f"topic {name!r} has no partition {index}", name=name)
            _refuse_internal(topic)
            if topic.kind is Kind.TABLE:
                raise _RefusedError(code.POLICY_VIOLATION, f"{name!r} is not a topic of plain records")
            if wanted.offset < DEFAULT:
                raise _RefusedError(code.OFFSET_OUT_OF_RANGE, f"{wanted.offset} is no offset")
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
            begins.append(await self._gateway.trim(shard.shard_id, wanted.offset, left_s))

        error, _ = await _outcome(work())
        return m.DeletedRecords(
            partition_index=index, low_watermark=begins[0] if begins else -1, error_code=error
        )

    async def create_partitions(
        self, request: m.CreatePartitionsRequest, _: RequestContext
    ) -> m.CreatePartitionsResponse:
        """Let topics grow to a number of partitions."""
        results = []
        for topic in request.topics:
            work = self._grow(topic, _timeout_s(request.timeout_ms), request.validate_only)
            error, message = await _outcome(work)
            results.append(m.GrownTopic(name=topic.name, error_code=error, error_message=message))
        return m.CreatePartitionsResponse(results=results)

    async def _grow(self, topic: m.GrowingTopic, timeout_s: float, validate_only: bool) -> None:
        found = self._gateway.topic(topic.name)
        _refuse_internal(found)
        has = len(found.shards)
        if topic.assignments is not None:
            raise _RefusedError(code.INVALID_REPLICA_ASSIGNMENT, "the cluster places replicas by itself")
        if topic.count <= has:
            reason = f"{topic.name!r} has {has} partitions, {topic.count} are not more"
            raise _RefusedError(code.INVALID_PARTITIONS, reason)
        if not validate_only:
            await self._gateway.alter_topic(AlterTopic(name=topic.name, shards=topic.count), timeout_s)

    async def describe_log_dirs(
        self, request: m.DescribeLogDirsRequest, _: RequestContext
    ) -> m.DescribeLogDirsResponse:
        """What replicas take on this node's disk. A replica that has failed is left out, as on a failed disk of Kafka's."""
        log_dir = m.LogDir(log_dir=f"node-{self._gateway.node_id}", topics=[])
        wanted = None
        if request.topics is not None:
            wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
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

    # -- settings -------------------------------------------------------------------------------------------------

    async def describe_configs(
        self, request: m.DescribeConfigsRequest, _: RequestContext
    ) -> m.DescribeConfigsResponse:
        """Settings of topics, and of nodes those that tools look for; the others are in the node's file."""
        return m.DescribeConfigsResponse(
            results=[self._describe(resource, request) for resource in request.resources]
        )

    def _describe(
        self, wanted: m.DescribeConfigsResource, request: m.DescribeConfigsRequest
    ) -> m.DescribedResource:
        described = m.DescribedResource(
            resource_type=wanted.resource_type, resource_name=wanted.resource_name
        )
        if wanted.resource_type == BROKER:
            described.configs = [
                m.DescribedSetting(
                    name=name, value=value, read_only=True, config_source=SOURCE_BROKER, config_type=STRING
                )
                for name, value in self._broker_settings(wanted.resource_name).items()
                if wanted.configuration_keys is None or name in wanted.configuration_keys
            ]
            return described
        if wanted.resource_type != TOPIC:
            described.error_code = code.INVALID_REQUEST
            described.error_message = f"resources of type {wanted.resource_type} have no settings here"
            return described
        try:
            topic = self._gateway.topic(wanted.resource_name)
        except UnknownTopicError as error:
            described.error_code, described.error_message = code.code_of(error), error.message
            return described
        described.configs = [
            _described_setting(setting, topic, request)
            for setting in TOPIC_SETTINGS.values()
            if wanted.configuration_keys is None or setting.name in wanted.configuration_keys
        ]
        return described

    def _broker_settings(self, name: str) -> dict[str, str]:
        node = self._view.endpoints.get(int(name)) if name.isascii() and name.isdigit() else None
        if node is None:
            return {}
        return {
            "advertised.listeners": f"PLAINTEXT://{node.host}:{node.port}",
            "auto.create.topics.enable": str(self._auto_create).lower(),
            "node.id": str(node.node_id),
            "num.partitions": str(self._shards_default),
        }

    async def alter_configs(
        self, request: m.IncrementalAlterConfigsRequest, _: RequestContext
    ) -> m.IncrementalAlterConfigsResponse:
        """Change topics' settings."""
        responses = []
        for resource in request.resources:
            error, message = await _outcome(self._alter(resource, request.validate_only))
            responses.append(
                m.AlteredResource(
                    error_code=error,
                    error_message=message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return m.IncrementalAlterConfigsResponse(responses=responses)

    async def _alter(self, resource: m.AlterableResource, validate_only: bool) -> None:
        if resource.resource_type != TOPIC:
            raise InvalidRequestError(
                "only topics have settings that can be altered here; a node's are in its file"
            )
        _refuse_internal(self._gateway.topic(resource.resource_name))
        changes: dict[str, str | None] = {}
        for setting in resource.configs:
            if setting.config_operation not in {SET, RESET}:
                raise _RefusedError(code.INVALID_CONFIG, f"{setting.name} is not a list: set it or reset it")
            value = setting.value if setting.config_operation == SET else None
            if setting.config_operation == SET and value is None:
                raise _RefusedError(code.INVALID_CONFIG, f"{setting.name} is set to nothing")
            _check_setting(setting.name, value)
            changes[setting.name] = value
        if changes and not validate_only:
            with _config_errors(True):
                await self._gateway.alter_topic(AlterTopic(name=resource.resource_name, config=changes))


def _refuse_internal(topic: TopicMeta) -> None:
    if is_internal(topic):
        raise _RefusedError(code.INVALID_TOPIC_EXCEPTION, f"{topic.name!r} belongs to the cluster")


def _check_setting(name: str, value: str | None) -> None:
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise _RefusedError(code.INVALID_CONFIG, f"{name!r} is not a setting of topics")
    problem = None if value is None else setting.problem(value)
    if problem:
        raise _RefusedError(code.INVALID_CONFIG, problem)


def _described_setting(
    setting: TopicSetting, topic: TopicMeta, request: m.DescribeConfigsRequest
) -> m.DescribedSetting:
    own = topic.config.get(setting.name)
    synonyms = []
    if request.include_synonyms:
        if own is not None:
            synonyms.append(m.SettingSynonym(name=setting.name, value=own, source=SOURCE_TOPIC))
        synonyms.append(m.SettingSynonym(name=setting.name, value=setting.default, source=SOURCE_DEFAULT))
    return m.DescribedSetting(
        name=setting.name,
        value=setting.default if own is None else own,
        config_source=SOURCE_DEFAULT if own is None else SOURCE_TOPIC,
        synonyms=synonyms,
        config_type=setting.kafka_type,
        documentation=setting.documentation if request.include_documentation else None,
    )
