"""What a node tells of its settings that can be changed while it runs."""

from antiphon.gateway.interface import Gateway
from antiphon.model.node_settings import NODE_SETTINGS, NodeSettingsReply


def settings_reply(gateway: Gateway) -> NodeSettingsReply:
    """Each setting with its values here, the one that counts first, and what is set for nodes and for all of them."""
    settings = gateway.settings
    values = {
        name: tuple((told.value, str(told.source)) for told in settings.values(name))
        for name in NODE_SETTINGS
    }
    entries = tuple(settings.entries[node] for node in sorted(settings.entries))
    return NodeSettingsReply(gateway.node_id, entries, values)
