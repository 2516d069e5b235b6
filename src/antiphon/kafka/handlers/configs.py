"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from antiphon.coordination.share_settings import SETTINGS
from antiphon.coordination.topic_settings import LIST, TOPIC_SETTINGS
from antiphon.errors import InvalidRequestError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.handlers.broker_loggers import BrokerLoggers
from antiphon.kafka.handlers.broker_settings import BrokerSettings
from antiphon.kafka.handlers.group_settings import GroupSettings
from antiphon.kafka.handlers.refusals import (
    RefusedError,
    check_setting,
    config_errors,
    coordinator_errors,
    refuse_internal,
    telling,
    told,
)
from antiphon.kafka.handlers.rights import check, check_topic
from antiphon.kafka.handlers.setting_changes import RESET, SET, SUBTRACT, value_after
from antiphon.kafka.handlers.subscriptions import SubscriptionSettings
from antiphon.kafka.handlers.topic_values import described_setting
from antiphon.kafka.messages import admin as m
from antiphon.kafka.messages import described as d
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.model.access import Operation, Resource
from antiphon.model.metadata import TopicMeta
from antiphon.model.requests import AlterTopic
from antiphon.security.authorizer import Rights

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
NOT_DESCRIBED: Final = "its settings may not be described"
NOT_ALTERED: Final = "its settings may not be altered"
LISTED: Final = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
FIXED: Final = frozenset({"election", "writers", "conflict", "key.sorting"})  # when a topic is made
THROTTLES: Final = frozenset(
    {
        "follower.replication.throttled.rate",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.rate",
        "leader.replication.throttled.replicas",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Nothing of the kind is ever set here, and tools that moved partitions take it away again."""


class ConfigHandler:
    """Settings of topics, of groups, and of nodes."""

    def __init__(self, gateway: Gateway, cache: MetadataCache, groups: GroupSettings) -> None:
        self._gateway = gateway
        self._cache = cache
        self._groups = groups
        self._brokers = BrokerSettings(gateway, cache, groups)
        self._loggers = BrokerLoggers(gateway)
        self._subscriptions = SubscriptionSettings(gateway)

    async def describe(
        self, request: m.DescribeConfigsRequest, context: RequestContext
    ) -> m.DescribeConfigsResponse:
        """Settings of topics, groups and nodes."""
        results = []
        wanted = {
            (resource.resource_type, resource.resource_name): resource for resource in request.resources
        }
        for resource in wanted.values():
            results.append(await self._describe(resource, request, context.rights))
            await asyncio.sleep(0)  # others first
        return m.DescribeConfigsResponse(results=results)

    async def _describe(
        self, wanted: m.DescribeConfigsResource, request: m.DescribeConfigsRequest, rights: Rights
    ) -> m.DescribedResource:
        described = m.DescribedResource(
            resource_type=wanted.resource_type, resource_name=wanted.resource_name
        )
        keys = wanted.configuration_keys
        with telling(described):
            found = await self._found(wanted, request, rights)
            described.configs = [one for one in found if keys is None or one.name in keys]
        return described

    async def _found(
        self, wanted: m.DescribeConfigsResource, request: m.DescribeConfigsRequest, rights: Rights
    ) -> list[m.DescribedSetting]:
        """All settings of a resource. Raises RefusedError."""
        kind, name = wanted.resource_type, wanted.resource_name
        if kind == TOPIC:
            check_topic(self._gateway, rights, Operation.DESCRIBE_CONFIGS, name)
            node = self._gateway.settings
            try:
                topic = self._gateway.topic(name)
            except UnknownTopicError as error:
                raise RefusedError(code.code_of(error), error.message) from error
            return [described_setting(each, topic, request, node) for each in TOPIC_SETTINGS.values()]
        if kind == GROUP:
            check(rights, Operation.DESCRIBE_CONFIGS, Resource.GROUP, name, NOT_DESCRIBED)
            with coordinator_errors():
                return await self._groups.of_group(name)
        if kind not in LISTED:
            raise RefusedError(code.INVALID_REQUEST, f"resources of type {kind} have no settings here")
        check(rights, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, reason=NOT_DESCRIBED)
        if kind == BROKER_LOGGER:
            return self._loggers.described(name)
        if kind == CLIENT_METRICS:
            return self._subscriptions.described(name, request)
        return self._brokers.described(name, request)

    async def alter(
        self, request: m.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> m.IncrementalAlterConfigsResponse:
        """Change some settings."""
        responses = [
            await _outcome(one, self._alter(one, request.validate_only, context.rights))
            async for one in context.turn_budget.each(request.resources)
        ]
        return m.IncrementalAlterConfigsResponse(responses=responses)

    async def replace(
        self, request: m.AlterConfigsRequest, context: RequestContext
    ) -> m.AlterConfigsResponse:
        """The same by AlterConfigs: what is not named goes back to its default."""
        responses = [
            await _outcome(one, self._replace(one, request.validate_only, context.rights))
            async for one in context.turn_budget.each(request.resources)
        ]
        return m.AlterConfigsResponse(responses=responses)

    async def _replace(self, wanted: m.ReplacedResource, validate_only: bool, rights: Rights) -> None:
        if wanted.resource_type == BROKER_LOGGER:
            reason = "AlterConfigs is not for loggers, as in Kafka: use IncrementalAlterConfigs"
            raise RefusedError(code.INVALID_REQUEST, reason)
        changes = [(one.name, one.value) for one in wanted.configs]
        named = {name for name, _ in changes}
        changes += [(name, None) for name in await self._own_settings(wanted) if name not in named]
        resource = m.AlterableResource(
            resource_type=wanted.resource_type,
            resource_name=wanted.resource_name,
            configs=[
                m.AlterableSetting(name=name, config_operation=RESET if value is None else SET, value=value)
                for name, value in changes
            ],
        )
        await self._alter(resource, validate_only, rights)

    async def _own_settings(self, resource: m.ReplacedResource) -> list[str]:
        """Settings that a topic, group or broker has of its own; those that are fixed when a topic is made stay."""
        if resource.resource_type == GROUP:
            return sorted(SETTINGS)
        if resource.resource_type == BROKER:
            return self._brokers.set_for(resource.resource_name)
        if resource.resource_type == CLIENT_METRICS:
            return self._subscriptions.set_for(resource.resource_name)
        if resource.resource_type != TOPIC:
            return []
        try:
            return [name for name in self._gateway.topic(resource.resource_name).config if name not in FIXED]
        except UnknownTopicError:
            return []

    async def list_resources(
        self, request: d.ListConfigResourcesRequest, context: RequestContext
    ) -> d.ListConfigResourcesResponse:
        """Topics, brokers, their loggers, groups with settings of their own, and subscriptions to clients' metrics.

        Version 0 asks for the last ones only.
        """
        check(context.rights, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)
        wanted = set(request.resource_types) or set(LISTED)
        if context.version == 0:
            wanted = {CLIENT_METRICS}
        if not wanted <= set(LISTED):
            raise RefusedError(code.UNSUPPORTED_VERSION)
        names: list[tuple[int, str]] = []
        if TOPIC in wanted:
            names += [(TOPIC, topic.name) for topic in self._gateway.metadata.topics]
        nodes = [str(node) for node in self._cache.endpoints]
        names += [(kind, node) for kind in (BROKER, BROKER_LOGGER) if kind in wanted for node in nodes]
        if CLIENT_METRICS in wanted:
            names += [(CLIENT_METRICS, name) for name in self._subscriptions.names()]
        if GROUP in wanted:
            names += [(GROUP, group) for group in await self._groups.with_settings()]
        return d.ListConfigResourcesResponse(
            config_resources=[
                d.ListedResource(resource_type=kind, resource_name=name) for kind, name in names
            ]
        )

    async def _alter(self, resource: m.AlterableResource, validate_only: bool, rights: Rights) -> None:
        configs = [one for one in resource.configs if not _is_no_throttle(one)]
        kind, name = resource.resource_type, resource.resource_name
        of_cluster: dict[int, BrokerSettings | BrokerLoggers | SubscriptionSettings] = {
            BROKER: self._brokers,
            BROKER_LOGGER: self._loggers,
            CLIENT_METRICS: self._subscriptions,
        }
        if kind in of_cluster:
            check(rights, Operation.ALTER_CONFIGS, Resource.CLUSTER, reason=NOT_ALTERED)
            await of_cluster[kind].alter(name, configs, validate_only=validate_only)
        elif kind == GROUP:
            check(rights, Operation.ALTER_CONFIGS, Resource.GROUP, name, NOT_ALTERED)
            await self._groups.alter(name, configs, validate_only=validate_only)
        elif kind == TOPIC:
            check_topic(self._gateway, rights, Operation.ALTER_CONFIGS, name, NOT_ALTERED)
            await self._alter_topic(name, configs, validate_only)
        else:
            raise InvalidRequestError(
                "only topics, groups, brokers and client metrics have settings that can be altered here"
            )

    async def _alter_topic(self, name: str, configs: list[m.AlterableSetting], validate_only: bool) -> None:
        topic = self._gateway.topic(name)
        refuse_internal(topic)
        changes: dict[str, str | None] = {}
        for setting in configs:
            if setting.name in changes:
                raise RefusedError(code.INVALID_REQUEST, f"{setting.name} is changed twice by one request")
            value = _altered(topic, setting)
            check_setting(setting.name, value)
            changes[setting.name] = value
        if changes:
            with config_errors(True):
                await self._gateway.alter_topic(AlterTopic(name, changes, validate_only=validate_only))


async def _outcome(
    resource: m.AlterableResource | m.ReplacedResource, work: Awaitable[None]
) -> m.AlteredResource:
    answer = m.AlteredResource(resource_type=resource.resource_type, resource_name=resource.resource_name)
    return await told(answer, work)


def _is_no_throttle(change: m.AlterableSetting) -> bool:
    return change.config_operation == RESET and change.name in THROTTLES


def _altered(topic: TopicMeta, change: m.AlterableSetting) -> str | None:
    """A setting's value after a change; None: back to the default. Raises RefusedError for what has no value then."""
    known = TOPIC_SETTINGS.get(change.name)
    before = "" if known is None else topic.config.get(change.name, known.default)
    value = value_after(change, before, is_list=None if known is None else known.kafka_type == LIST)
    if known is not None and value == "" and change.config_operation == SUBTRACT:
        raise RefusedError(code.INVALID_CONFIG, f"nothing would be left of {change.name}")
    return value
