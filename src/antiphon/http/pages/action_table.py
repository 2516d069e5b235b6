"""What operators can decide from the dashboard: each is an action of the API, by the name of its operation."""

from typing import Final, NamedTuple


class Action(NamedTuple):
    """An action of the dashboard.

    Attributes:
        title: with the names of fields in braces.
        to: the page that shows what came of it.
        removes: something is gone for good afterwards.
    """

    title: str
    to: str
    removes: bool = False


_TOPIC: Final = "/ui/topics/{topic}"
_NODE: Final = "/ui/nodes/{node}"

ACTIONS: Final = {
    "create_topic": Action("Make a topic or table", "/ui/topics/{name}"),
    "alter_topic": Action("Change {topic}", _TOPIC),
    "delete_topic": Action("Delete {topic}", "/ui/topics", removes=True),
    "elect_leader": Action("Elect the leader of {topic}/{shard}", _TOPIC),
    "move_replica": Action("Move a replica of {topic}/{shard}", _TOPIC),
    "place_replicas": Action("Put {topic}/{shard} on other nodes", _TOPIC),
    "split_shard": Action("Split {topic}/{shard}", _TOPIC),
    "drain_node": Action("Drain node {node}", _NODE),
    "remove_node": Action("Forget node {node}", "/", removes=True),
    "scrub_node": Action("Have node {node} read its disk", _NODE),
    "alter_node_settings": Action("Change settings of node {node}", _NODE),
    "alter_settings": Action("Change settings of all nodes", "/"),
    "rebalance": Action("Spread replicas and leaderships evenly", "/"),
}
"""By the name of the API's operation."""


def done_by(name: str) -> str:
    """What was carried out, in words; empty for what is no action."""
    return name.replace("_", " ").capitalize() if name in ACTIONS else ""
