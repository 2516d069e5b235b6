"""Settings of nodes that can be changed while they run: those of a node, and what is set for nodes in the cluster."""

from antiphon.http.api.answers import NodeSettingInfo, Page, SettingValue, SetValue
from antiphon.http.api.asked import Filtered, ListSettings
from antiphon.http.api.call import Call, page, told
from antiphon.http.api.cluster import known_node
from antiphon.model.access import Operation, Resource
from antiphon.model.body import reply_as
from antiphon.model.node_settings import (
    ALL_NODES,
    GetNodeSettings,
    NodeSetting,
    NodeSettingsReply,
    known_here,
)


async def list_node_settings(call: Call, asked: ListSettings) -> Page[NodeSettingInfo]:
    """Settings of a node that can be changed while it runs, as the node tells: what it goes by, and from where."""
    call.rights.require(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)
    known_node(call, asked.node)
    found = await call.asker.node(asked.node, GetNodeSettings())
    reply = reply_as(NodeSettingsReply, found, "for settings")
    return page(known_here(reply), asked, lambda one: _info(*one))


def _info(setting: NodeSetting, values: tuple[tuple[str, str], ...]) -> NodeSettingInfo:
    value, source = values[0]
    every = [SettingValue(value=each, source=place) for each, place in values]
    return told(
        NodeSettingInfo, setting, value=value, source=source, values=every, allowed=setting.range_text
    )


async def list_set_values(call: Call, asked: Filtered) -> Page[SetValue]:
    """What is set for nodes in the cluster: for all of them, and for single ones."""
    call.rights.require(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)
    wanted = asked.q.lower()
    rows = [
        (entry.node, name, value)
        for _, entry in sorted(call.gateway.settings.entries.items())
        for name, value in entry.values.items()
        if wanted in name
    ]
    return page(
        rows,
        asked,
        lambda one: SetValue(node=None if one[0] == ALL_NODES else one[0], name=one[1], value=one[2]),
    )
