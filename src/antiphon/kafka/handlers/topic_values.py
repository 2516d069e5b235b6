"""What a topic's settings are, and where each value stands: with the topic, with nodes, or nowhere but in the defaults.

A node tells of its own node.toml only, as a broker does: another may have another value for a topic that sets none.
"""

from collections.abc import Iterator

from antiphon.coordination.topic_settings import TOPIC_SETTINGS, TopicSetting
from antiphon.gateway.interface import NodeValues
from antiphon.kafka.handlers.group_settings import SOURCES
from antiphon.kafka.messages import admin as m
from antiphon.kafka.topic_config import SOURCE_DEFAULT, SOURCE_TOPIC
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.node_settings import NODE_SETTINGS, own_name


def described_setting(
    setting: TopicSetting, topic: TopicMeta, request: m.DescribeConfigsRequest, node: NodeValues
) -> m.DescribedSetting:
    """A setting of a topic, as DescribeConfigs tells it."""
    values = list(_values(setting, topic, node))
    synonyms = values if request.include_synonyms else []
    return m.DescribedSetting(
        name=setting.name,
        value=values[0].value,
        config_source=values[0].source,
        synonyms=synonyms,
        config_type=setting.kafka_type,
        documentation=setting.documentation if request.include_documentation else None,
    )


def created_settings(topic: TopicMeta, node: NodeValues) -> list[m.CreatedSetting]:
    """All settings of a new topic, as CreateTopics tells them."""
    found = []
    for setting in TOPIC_SETTINGS.values():
        first = next(_values(setting, topic, node))
        found.append(m.CreatedSetting(name=setting.name, value=first.value, config_source=first.source))
    return found


def _values(setting: TopicSetting, topic: TopicMeta, node: NodeValues) -> Iterator[m.SettingSynonym]:
    """Every value that there is, the one that counts first; each under the name that it has where it stands."""
    own = topic.config.get(setting.name)
    if own is not None:
        yield m.SettingSynonym(name=setting.name, value=own, source=SOURCE_TOPIC)
    is_table = topic.kind is Kind.TABLE and not is_internal(topic)
    of_node = node.for_topics(setting.name, of_table=is_table)
    if not of_node:
        yield m.SettingSynonym(name=setting.name, value=setting.default, source=SOURCE_DEFAULT)
        return
    name = own_name(setting.name, of_table=is_table) or setting.name
    kafka_name = NODE_SETTINGS[name].kafka_name if name in NODE_SETTINGS else name
    for told in of_node:
        yield m.SettingSynonym(name=kafka_name, value=told.value, source=SOURCES[told.source])
