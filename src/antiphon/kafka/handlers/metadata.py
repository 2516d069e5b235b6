"""ApiVersions, Metadata and DescribeCluster.

Metadata is what every client asks for often, for every topic at once after each change of a leader. Its encoded bodies
are kept by (version of the API, topics asked for) until the cluster's metadata changes.
"""

import asyncio
import re
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from antiphon.errors import AntiphonError, TopicExistsError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.gateway.quotas import Quotas, Use
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import (
    API_VERSIONS,
    GET_TELEMETRY_SUBSCRIPTIONS,
    PUSH_TELEMETRY,
    Api,
    RequestContext,
)
from antiphon.kafka.features import finalized, supported
from antiphon.kafka.handlers.operations import with_cluster, with_topic
from antiphon.kafka.handlers.rights import may, may_create, sees
from antiphon.kafka.messages import cluster as m
from antiphon.kafka.metadata_cache import UNKNOWN_LEADER, MetadataCache
from antiphon.kafka.one_thread import OneThread
from antiphon.kafka.pacing import TurnBudget, at_once
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.kafka.schema import encode
from antiphon.kafka.topic_config import TopicDefaults, is_name, name_problem
from antiphon.model.access import Operation
from antiphon.model.metadata import ABSENT_NODE, ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.requests import CreateTopic
from antiphon.security.authorizer import Rights

if TYPE_CHECKING:
    from antiphon.security.principal import Principal

CACHED_MAX: Final = 256
CACHED_BYTES_MAX: Final = 64 * 1024  # of one answer that is kept
LARGE: Final = (
    1_500  # topics and partitions of an answer; more are made in several turns, and encoded in a thread
)
CREATING_MAX: Final = 50  # topics that are made at the same time because somebody asked for them
TELL_EVERY_S: Final = 5.0  # of topics that are not created
AUTO_CREATE_WAIT_S: Final = 3.0
TOLD_WAIT_S: Final = 3.0  # how long a node that was just started waits for its first metadata
AUTO_CREATE_TIMEOUT_S: Final = 30.0
# How long an answer waits for leaders that are being elected. A client that is told of the old leader, or of none, asks
# again only after its own back-off, which is longer (librdkafka: a second) than an election.
ELECTION_WAIT_S: Final = 1.5
LOOK_S: Final = 0.1  # where replicas vote, a leader may be found without news from the coordinator
SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,253}[a-zA-Z0-9])?")  # a client's name or version
BROKERS: Final = 1  # endpoint type of DescribeCluster
# Told of while somebody wants clients' metrics.
OF_METRICS: Final = {GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY}

_NOTHING_KNOWN: Final = ClusterMeta("", -1, ABSENT_NODE, (), ())
_Wanted = tuple[tuple[str | None, bytes], ...] | None
_Key = tuple[int, _Wanted, bool, bool, "Principal | None", str]


def served_versions(
    apis: Collection[Api], version: int, error_code: int = 0, meta: ClusterMeta = _NOTHING_KNOWN
) -> m.ApiVersionsResponse:
    """The ranges that are served, and features, for an ApiVersions of this version.

    With an error, which is about the version of ApiVersions itself, that API alone. Clients keep what they heard with the
    highest epoch: it grows when a level is there that was not.
    """
    levels = finalized(meta)
    ranges = [
        m.ApiVersionRange(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
        for api in apis
        if error_code == 0 or api.key == API_VERSIONS
    ]
    return m.ApiVersionsResponse(
        error_code=error_code,
        api_keys=ranges,
        supported_features=supported(version),
        finalized_features_epoch=len(levels),
        finalized_features=levels,
    )


class MetadataHandler:
    """Answers from the gateway's metadata. `apis` are those that ApiVersions tells of."""

    def __init__(
        self,
        gateway: Gateway,
        cache: MetadataCache,
        apis: Collection[Api],
        defaults: TopicDefaults,
        quotas: Quotas,
        aside: OneThread,
    ) -> None:
        self._quotas = quotas
        self._aside = aside
        self._large = asyncio.Lock()
        self._apis = apis
        self._gateway = gateway
        self._cache = cache
        self._defaults = defaults
        self._cached_for: ClusterMeta | None = None
        self._cached: dict[_Key, bytes] = {}
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._refused = 0  # topics that were not created, as there are too many
        self._tell_s = 0.0

    # -- Metadata -------------------------------------------------------------------------------------------------

    async def metadata(self, request: m.MetadataRequest, context: RequestContext) -> bytes:
        """The encoded body of a Metadata response. Creates topics that are missing where both sides want that."""
        version = context.version
        wanted = self._wanted(request, version)
        if self._gateway.metadata.version < 0:
            # Just started: a client that hears that its topics do not exist would give them up.
            await self._gateway.wait_metadata(-1, TOLD_WAIT_S)
        if wanted is not None and self._defaults.auto_create and request.allow_auto_topic_creation:
            asked = [
                name
                async for name, _ in context.turn_budget.each(wanted)
                if name is not None and self._may_be_created(context.rights, name)
            ]
            await self._create_missing(asked, context)
        await self._elections_over(wanted)
        meta = self._gateway.metadata
        if self._cached_for is not meta or len(self._cached) >= CACHED_MAX:
            self._cached_for = meta
            self._cached = {}
        rights = context.rights
        of_cluster = request.include_cluster_authorized_operations
        of_topics = request.include_topic_authorized_operations
        who = rights.principal if rights.limited else None
        key = (version, wanted, of_cluster, of_topics, who, rights.host)
        body = self._cached.get(key)
        if body is None:
            if self._elements(meta, wanted) <= LARGE:
                body = await self._made(meta, key, context, TurnBudget(at_once))
            else:
                async with self._large:  # one at a time
                    body = await self._made(meta, key, context, context.turn_budget)
        return body

    def _elements(self, meta: ClusterMeta, wanted: _Wanted) -> int:
        """Topics and partitions of an answer, at most."""
        if wanted is None or len(wanted) > len(meta.topics):
            return sum(1 + len(topic.shards) for topic in meta.topics) + len(wanted or ())
        names = {name for name, _ in wanted}
        return len(wanted) + sum(
            len(topic.shards) for topic in meta.topics if topic.name in names or None in names
        )

    async def _made(self, meta: ClusterMeta, key: _Key, context: RequestContext, budget: TurnBudget) -> bytes:
        """An answer's body; kept for who asks for the same while the metadata is the same."""
        version, wanted, of_cluster, of_topics, *_ = key
        answer = await self._response(meta, wanted, context.rights, budget)
        if of_cluster:
            answer.cluster_authorized_operations = with_cluster(context.rights)
        if of_topics:
            self._add_operations(answer, context.rights)
        encoded = partial(encode, answer, version, flexible=context.flexible)
        large = sum(1 + len(topic.partitions) for topic in answer.topics) > LARGE
        body = bytes(await self._aside.run(encoded, client=context.client) if large else encoded())
        if len(body) <= CACHED_BYTES_MAX and self._cached_for is meta:
            self._cached[key] = body
        return body

    def _add_operations(self, answer: m.MetadataResponse, rights: Rights) -> None:
        for topic in answer.topics:
            if topic.name is not None and topic.error_code != code.TOPIC_AUTHORIZATION_FAILED:
                topic.topic_authorized_operations = with_topic(self._gateway, rights, topic.name)

    async def _elections_over(self, wanted: _Wanted) -> None:
        """Wait, for a moment, until the topics' shards have leaders that this node can reach."""
        gateway, loop = self._gateway, asyncio.get_running_loop()
        names = None if wanted is None else {name for name, _ in wanted}
        deadline = loop.time() + ELECTION_WAIT_S
        while (left_s := deadline - loop.time()) > 0:
            meta = gateway.metadata
            topics = (topic for topic in meta.topics if names is None or topic.name in names)
            if not any(self._cache.may_change(shard) for topic in topics for shard in topic.shards):
                return
            await gateway.wait_metadata(meta.version, min(left_s, LOOK_S))

    def _wanted(self, request: m.MetadataRequest, version: int) -> _Wanted:
        if request.topics is None or (version == 0 and not request.topics):
            return None
        return tuple(dict.fromkeys((topic.name, topic.topic_id) for topic in request.topics))

    def _may_be_created(self, rights: Rights, name: str) -> bool:
        """Only who could describe it and is allowed to make it makes a topic by asking for it."""
        if not rights.limited:
            return True
        try:
            self._gateway.topic(name)
        except UnknownTopicError:
            gateway = self._gateway
            return may(gateway, rights, Operation.DESCRIBE, name) and may_create(gateway, rights, name)
        return False

    async def _response(
        self, meta: ClusterMeta, wanted: _Wanted, rights: Rights, budget: TurnBudget
    ) -> m.MetadataResponse:
        if wanted is None:
            topics = []
            async for topic in budget.each(meta.topics):
                if sees(self._gateway, rights, topic.name):
                    topics.append(self._topic(topic))
                    budget.costs(len(topic.shards))
        else:
            topics = []
            async for name, topic_id in budget.each(wanted):
                topics.append(self._wanted_topic(name, topic_id, rights))
                budget.costs(len(topics[-1].partitions))
        return m.MetadataResponse(
            brokers=[
                m.MetadataBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack or None)
                for node in self._cache.endpoints.values()
            ],
            cluster_id=meta.cluster_id,
            controller_id=self._cache.controller,
            topics=topics,
        )

    def _wanted_topic(self, name: str | None, topic_id: bytes, rights: Rights) -> m.MetadataTopic:
        denied = code.TOPIC_AUTHORIZATION_FAILED
        if name is not None and not may(self._gateway, rights, Operation.DESCRIBE, name):
            return m.MetadataTopic(error_code=denied, name=name, topic_id=ZERO_UUID)
        try:
            found = self._gateway.topic(name) if name is not None else self._gateway.topic_by_id(topic_id)
        except UnknownTopicError:
            if name is None:
                return m.MetadataTopic(error_code=code.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
            if self._defaults.auto_create and not may_create(self._gateway, rights, name):
                return m.MetadataTopic(error_code=denied, name=name, topic_id=ZERO_UUID)
            error = code.UNKNOWN_TOPIC_OR_PARTITION if is_name(name) else code.INVALID_TOPIC_EXCEPTION
            if name in self._creating or self._gateway.metadata.version < 0:
                error = code.LEADER_NOT_AVAILABLE
            return m.MetadataTopic(error_code=error, name=name, topic_id=ZERO_UUID)
        if name is None and not may(self._gateway, rights, Operation.DESCRIBE, found.name):
            return m.MetadataTopic(error_code=code.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        return self._topic(found)

    def _topic(self, topic: TopicMeta) -> m.MetadataTopic:
        return m.MetadataTopic(
            error_code=code.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.internal,
            partitions=[self._partition(shard) for shard in topic.shards],
        )

    def _partition(self, shard: ShardMeta) -> m.MetadataPartition:
        leader = self._cache.leader_of(shard)
        reachable = self._cache.reachable
        live = shard.live or shard.ensemble
        return m.MetadataPartition(
            error_code=code.LEADER_NOT_AVAILABLE if leader == UNKNOWN_LEADER else code.NONE,
            partition_index=shard.index,
            leader_id=leader,
            leader_epoch=shard.term,
            replica_nodes=list(shard.ensemble),
            isr_nodes=[node for node in live if node in reachable],
            offline_replicas=[node for node in shard.ensemble if node not in reachable],
        )

    # -- topics that come into being when they are asked for --------------------------------------------------------

    async def _create_missing(self, names: list[str], context: RequestContext) -> None:
        """Start creating what is missing and wait a little; a client that asks too early is told to ask again."""
        tasks = []
        async for name in context.turn_budget.each(names):
            try:
                self._gateway.topic(name)
            except UnknownTopicError:
                if name_problem(name) is None and self._gateway.metadata.version >= 0:
                    task = self._creating.get(name) or self._start_creating(name, context)
                    if task is not None:
                        tasks.append(task)
        if tasks:
            await asyncio.wait(tasks, timeout=AUTO_CREATE_WAIT_S)

    def _start_creating(self, name: str, context: RequestContext) -> asyncio.Task[None] | None:
        """None where too many are made already: the client is told that there is no such topic, and asks again."""
        if len(self._creating) >= CREATING_MAX:
            return None
        if len(self._gateway.metadata.topics) + len(self._creating) >= self._defaults.topics_max:
            self._log_refusal(name)
            return None
        if self._quotas.refuses(Use.MUTATION, context.payer, context.charged):
            return None
        self._quotas.charge(Use.MUTATION, context.payer, self._defaults.shards, None)
        task = asyncio.get_running_loop().create_task(self._create(name), name=f"create topic {name}")
        self._creating[name] = task
        task.add_done_callback(lambda _: self._creating.pop(name, None))
        return task

    def _log_refusal(self, name: str) -> None:
        """A request may name thousands of them: one line in a while, with how many there were."""
        self._refused += 1
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._tell_s:
            self._tell_s = now_s + TELL_EVERY_S
            structlog.get_logger().warning(
                "topic not created on demand",
                topic=name,
                topics_max=self._defaults.topics_max,
                refused=self._refused,
            )

    async def _create(self, name: str) -> None:
        try:
            request = CreateTopic(name=name, shards=self._defaults.shards, profile="")
            await self._gateway.create_topic(request, AUTO_CREATE_TIMEOUT_S)
        except TopicExistsError:
            return
        except AntiphonError as error:
            structlog.get_logger().warning("topic not created on demand", topic=name, reason=error.message)

    async def stop(self) -> None:
        """Give up what is being created."""
        tasks = list(self._creating.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the others -----------------------------------------------------------------------------------------------

    def set_apis(self, apis: Collection[Api]) -> None:
        """Let ApiVersions tell of these from now on."""
        self._apis = apis

    async def api_versions(
        self, request: m.ApiVersionsRequest, context: RequestContext
    ) -> m.ApiVersionsResponse:
        """ApiVersions."""
        software, told = context.software, (request.client_software_name, request.client_software_version)
        if software is not None and all(SOFTWARE.fullmatch(text) for text in told):
            software.name, software.version = told
        return served_versions(self._advertised(), context.version, meta=self._gateway.metadata)

    def _advertised(self) -> Collection[Api]:
        """As Kafka does without a receiver, it tells of metrics only where a subscription wants some: librdkafka has a line
        in its log for each client that it takes through them.

        A node that was just started cannot say that there is none. Its clients connect at once, and stay.
        """
        if self._gateway.subscriptions or self._gateway.metadata_version < 0:
            return self._apis
        return [api for api in self._apis if api.key not in OF_METRICS]

    async def describe_cluster(
        self, request: m.DescribeClusterRequest, context: RequestContext
    ) -> m.DescribeClusterResponse:
        """Nodes and controller."""
        if request.endpoint_type != BROKERS:
            return m.DescribeClusterResponse(
                error_code=code.UNSUPPORTED_VERSION,
                error_message="only brokers can be described: every node is one",
                endpoint_type=request.endpoint_type,
            )
        asked = request.include_cluster_authorized_operations
        return m.DescribeClusterResponse(
            cluster_authorized_operations=with_cluster(context.rights) if asked else m.OPERATIONS_NOT_ASKED,
            cluster_id=self._gateway.cluster_id,
            controller_id=self._cache.controller,
            brokers=[
                m.DescribeClusterBroker(
                    broker_id=node.node_id,
                    host=node.host,
                    port=node.port,
                    rack=node.rack or None,
                    is_fenced=node.node_id not in self._cache.reachable,
                )
                for node in self._cache.endpoints.values()
                if node.node_id in self._cache.reachable or request.include_fenced_brokers
            ],
        )
