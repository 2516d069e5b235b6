"""Settings of brokers as Kafka's tools see them: those of the table of nodes' settings, which can be changed while nodes
run, and a few more that tools look for.

Only a node itself knows what its own file says: of others it tells what the cluster's metadata says. An empty name is every
broker: there stands what is set for all of them, and nothing else.
"""

from collections.abc import Sequence
from typing import Final

from antiphon.coordination.topic_settings import BOOLEAN, INT, LONG, STRING, TOPIC_SETTINGS
from antiphon.errors import InvalidRequestError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.handlers.group_settings import SOURCES, GroupSettings, of_broker
from antiphon.kafka.handlers.refusals import RefusedError, config_errors
from antiphon.kafka.handlers.setting_changes import RESET, SET
from antiphon.kafka.messages import admin as m
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.topic_config import BROKER_DEFAULTS, SOURCE_BROKER, SOURCE_DEFAULT
from antiphon.model.node_settings import (
    ALL_NODES,
    BOOLEANS,
    NODE_SETTINGS,
    AlterNodeSettings,
    NodeSetting,
    NodeSettings,
    Source,
    Told,
    find_setting,
    values_of,
)

DYNAMIC: Final = (Source.NODE, Source.ALL)
_INT_MAX: Final = 2**31 - 1


class BrokerSettings:
    """See the module's text."""

    def __init__(self, gateway: Gateway, cache: MetadataCache, groups: GroupSettings) -> None:
        self._gateway = gateway
        self._cache = cache
        self._groups = groups

    def described(self, name: str, request: m.DescribeConfigsRequest) -> list[m.DescribedSetting]:
        """The settings of a broker, or those that are set for all of them. None for a broker that there is not."""
        if not name:
            return self._of_all(request)
        node = self._cache.endpoints.get(int(name)) if _is_id(name) else None
        if node is None:
            return []
        found = [
            of_broker("advertised.listeners", f"PLAINTEXT://{node.host}:{node.port}", SOURCE_BROKER),
            of_broker("node.id", str(node.node_id), SOURCE_BROKER),
            of_broker("broker.rack", node.rack or None, SOURCE_BROKER if node.rack else SOURCE_DEFAULT),
        ]
        is_own = node.node_id == self._gateway.node_id
        entries = self._gateway.settings.entries
        for setting in NODE_SETTINGS.values():
            if is_own:
                values = self._gateway.settings.values(setting.name)
            else:
                values = values_of(setting, entries, node.node_id, None)
            if is_own or values[0].source in DYNAMIC:
                found.append(_described(setting, values, request))
        if is_own:
            found += self._groups.of_nodes()
        for own_name, topic_name in BROKER_DEFAULTS.items():
            setting_of_topics = TOPIC_SETTINGS[topic_name]
            kind = setting_of_topics.kafka_type
            found.append(of_broker(own_name, setting_of_topics.default, SOURCE_DEFAULT, kind))
        return sorted(found, key=lambda one: one.name)

    def _of_all(self, request: m.DescribeConfigsRequest) -> list[m.DescribedSetting]:
        set_values = self._gateway.settings.entries.get(ALL_NODES, NodeSettings(ALL_NODES, {})).values
        found = [
            _described(NODE_SETTINGS[name], [Told(value, Source.ALL)], request)
            for name, value in set_values.items()
            if name in NODE_SETTINGS
        ]
        return sorted(found, key=lambda one: one.name)

    def set_for(self, name: str) -> list[str]:
        """Names of what is set for a broker, or for all of them, by itself."""
        node = ALL_NODES if not name else int(name) if _is_id(name) else None
        entry = None if node is None else self._gateway.settings.entries.get(node)
        return [] if entry is None else [_kafka_name(one) for one in entry.values]

    async def alter(self, name: str, changes: Sequence[m.AlterableSetting], *, validate_only: bool) -> None:
        """Change what is set for a broker, or for all of them. Raises RefusedError, and what is to be tried again."""
        node = _node_of(name)
        wanted: dict[str, str | None] = {}
        for one in changes:
            setting = _found(one.name)
            if setting.name in wanted:
                raise RefusedError(code.INVALID_REQUEST, f"{one.name} is changed twice by one request")
            wanted[setting.name] = _value_after(setting, one)
        if wanted:
            with config_errors(True):
                await self._gateway.administer(AlterNodeSettings(node, wanted, validate_only))


def _described(
    setting: NodeSetting, values: Sequence[Told], request: m.DescribeConfigsRequest
) -> m.DescribedSetting:
    name = setting.kafka_name
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            m.SettingSynonym(name=name, value=one.value, source=SOURCES[one.source]) for one in values
        ]
    return m.DescribedSetting(
        name=name,
        value=values[0].value,
        config_source=SOURCES[values[0].source],
        synonyms=synonyms,
        config_type=_kafka_type(setting),
        documentation=_documentation(setting) if request.include_documentation else None,
    )


def _kafka_type(setting: NodeSetting) -> int:
    if setting.words:
        return BOOLEAN if setting.words == BOOLEANS else STRING
    return INT if setting.most <= _INT_MAX else LONG


def _documentation(setting: NodeSetting) -> str:
    return f"{setting.name} of node.toml: {setting.range_text}. A change counts {setting.effect}."


def _value_after(setting: NodeSetting, change: m.AlterableSetting) -> str | None:
    if change.config_operation == RESET:
        return None
    if change.config_operation != SET:
        raise RefusedError(code.INVALID_CONFIG, f"{change.name} is no list: set it or reset it")
    if change.value is None:
        raise RefusedError(code.INVALID_CONFIG, f"{change.name} is set to nothing")
    value = change.value.strip()
    value = value.lower() if setting.words else value
    problem = setting.problem(value)
    if problem:
        raise RefusedError(code.INVALID_CONFIG, problem)
    return value


def _found(name: str) -> NodeSetting:
    try:
        return find_setting(name)
    except InvalidRequestError as error:
        raise RefusedError(code.INVALID_REQUEST, error.message) from error


def _kafka_name(name: str) -> str:
    return NODE_SETTINGS[name].kafka_name if name in NODE_SETTINGS else name


def _is_id(name: str) -> bool:
    return name.isascii() and name.isdigit() and int(name) <= _INT_MAX


def _node_of(name: str) -> int:
    if not name:
        return ALL_NODES
    if not _is_id(name):
        raise RefusedError(
            code.INVALID_REQUEST, f"{name[:64]!r} is no broker: name one by its id, or none for all"
        )
    return int(name)
