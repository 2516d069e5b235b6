"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs."""

import asyncio
from typing import Final

from antiphon.coordination.share_settings import SETTINGS
from antiphon.coordination.topic_settings import LIST, TOPIC_SETTINGS
from antiphon.errors import AntiphonError, InvalidRequestError, UnknownTopicError
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
    outcome,
    refuse_internal,
)
from antiphon.kafka.handlers.rights import may
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
        if wanted.resource_type in {BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}:
            found: list[m.DescribedSetting] = []
            try:
                found = await self._of_nodes(wanted, request, rights)
            except RefusedError as error:
                described.error_code, described.error_message = error.error_code, error.reason
            keys = wanted.configuration_keys
            described.configs = [one for one in found if keys is None or one.name in keys]
            return described
        if wanted.resource_type != TOPIC:
            described.error_code = code.INVALID_REQUEST
            described.error_message = f"resources of type {wanted.resource_type} have no settings here"
            return described
        if not may(self._gateway, rights, Operation.DESCRIBE_CONFIGS, wanted.resource_name):
            described.error_code = code.TOPIC_AUTHORIZATION_FAILED
            return described
        try:
            topic = self._gateway.topic(wanted.resource_name)
        except UnknownTopicError as error:
            described.error_code, described.error_message = code.code_of(error), error.message
            return described
        described.configs = [
            described_setting(setting, topic, request, self._gateway.settings)
            for setting in TOPIC_SETTINGS.values()
            if wanted.configuration_keys is None or setting.name in wanted.configuration_keys
        ]
        return described

    async def _of_nodes(
        self, wanted: m.DescribeConfigsResource, request: m.DescribeConfigsRequest, rights: Rights
    ) -> list[m.DescribedSetting]:
        """What nodes decide for themselves, and what holds for a group. Raises RefusedError."""
        name = wanted.resource_name
        if wanted.resource_type == GROUP:
            if not rights.may(Operation.DESCRIBE_CONFIGS, Resource.GROUP, name):
                raise RefusedError(code.GROUP_AUTHORIZATION_FAILED, "its settings may not be described")
            try:
                return await self._groups.of_group(name)
            except AntiphonError as error:
                raise RefusedError(code.coordinator_code_of(error), error.message) from error
        if not rights.may(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
            raise RefusedError(code.CLUSTER_AUTHORIZATION_FAILED, "its settings may not be described")
        if wanted.resource_type == BROKER_LOGGER:
            return self._loggers.described(name)
        if wanted.resource_type == CLIENT_METRICS:
            return self._subscriptions.described(name, request)
        return self._brokers.described(name, request)

    async def alter(
        self, request: m.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> m.IncrementalAlterConfigsResponse:
        """Change some settings."""
        responses = [
            await self._altered(resource, request.validate_only, context.rights)
            async for resource in context.turn_budget.each(request.resources)
        ]
        return m.IncrementalAlterConfigsResponse(responses=responses)

    async def replace(
        self, request: m.AlterConfigsRequest, context: RequestContext
    ) -> m.AlterConfigsResponse:
        """The same by AlterConfigs: what is not named goes back to its default."""
        responses = []
        async for wanted in context.turn_budget.each(request.resources):
            if wanted.resource_type == BROKER_LOGGER:
                responses.append(_replaces_no_logger(wanted))
                continue
            changes = [
                m.AlterableSetting(
                    name=one.name, config_operation=RESET if one.value is None else SET, value=one.value
                )
                for one in wanted.configs
            ]
            named = {one.name for one in wanted.configs}
            changes += [
                m.AlterableSetting(name=name, config_operation=RESET, value=None)
                for name in await self._own_settings(wanted)
                if name not in named
            ]
            resource = m.AlterableResource(
                resource_type=wanted.resource_type, resource_name=wanted.resource_name, configs=changes
            )
            responses.append(await self._altered(resource, request.validate_only, context.rights))
        return m.AlterConfigsResponse(responses=responses)

    async def _altered(
        self, resource: m.AlterableResource, validate_only: bool, rights: Rights
    ) -> m.AlteredResource:
        error, message = await outcome(self._alter(resource, validate_only, rights))
        return m.AlteredResource(
            error_code=error,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

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
        if not context.rights.may(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER):
            return d.ListConfigResourcesResponse(error_code=code.CLUSTER_AUTHORIZATION_FAILED)
        wanted = set(request.resource_types) or set(LISTED)
        if context.version == 0:
            wanted = {CLIENT_METRICS}
        if not wanted <= set(LISTED):
            return d.ListConfigResourcesResponse(error_code=code.UNSUPPORTED_VERSION)
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
        if resource.resource_type in {BROKER, BROKER_LOGGER, CLIENT_METRICS}:
            if not rights.may(Operation.ALTER_CONFIGS, Resource.CLUSTER):
                raise RefusedError(code.CLUSTER_AUTHORIZATION_FAILED, "its settings may not be altered")
            of_cluster: dict[int, BrokerSettings | BrokerLoggers | SubscriptionSettings] = {
                BROKER: self._brokers,
                BROKER_LOGGER: self._loggers,
                CLIENT_METRICS: self._subscriptions,
            }
            await of_cluster[resource.resource_type].alter(
                resource.resource_name, configs, validate_only=validate_only
            )
            return
        if resource.resource_type == GROUP:
            if not rights.may(Operation.ALTER_CONFIGS, Resource.GROUP, resource.resource_name):
                raise RefusedError(code.GROUP_AUTHORIZATION_FAILED, "its settings may not be altered")
            await self._groups.alter(resource.resource_name, configs, validate_only=validate_only)
            return
        if resource.resource_type != TOPIC:
            raise InvalidRequestError(
                "only topics, groups, brokers and client metrics have settings that can be altered here"
            )
        if not may(self._gateway, rights, Operation.ALTER_CONFIGS, resource.resource_name):
            raise RefusedError(code.TOPIC_AUTHORIZATION_FAILED, "its settings may not be altered")
        topic = self._gateway.topic(resource.resource_name)
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
                request = AlterTopic(resource.resource_name, changes, validate_only=validate_only)
                await self._gateway.alter_topic(request)


def _replaces_no_logger(wanted: m.ReplacedResource) -> m.AlteredResource:
    return m.AlteredResource(
        error_code=code.INVALID_REQUEST,
        error_message="AlterConfigs is not for loggers, as in Kafka: use IncrementalAlterConfigs",
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
    )


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
