"""What operators can decide from the dashboard: each is an action of the API, by the name of its operation."""

from typing import Final, NamedTuple


class Action(NamedTuple):
    """An action of the dashboard.

    Attributes:
        title: with the names of fields in braces.
        to: the page that shows what came of it.
        removes: something is gone for good afterwards.
        operation: of the API, where it has another name.
        start: the page that one comes from, where it is not that of what came of it.
    """

    title: str
    to: str
    removes: bool = False
    operation: str = ""
    start: str = ""


_TOPIC: Final = "/ui/topics/{topic}"
_NODE: Final = "/ui/nodes/{node}"
_METRICS: Final = "/ui/client-metrics"
_SECURITY: Final = "/ui/security"

ACTIONS: Final = {
    "create_topic": Action("Make a topic or table", "/ui/topics/{name}", start="/ui/topics"),
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
    "put_subscription": Action("Subscribe to metrics of clients", _METRICS),
    "delete_subscription": Action("Delete subscription {subscription}", _METRICS, removes=True),
    "rebalance": Action("Spread replicas and leaderships evenly", "/"),
    "add_user": Action("Add a user", _SECURITY, operation="set_password"),
    "set_password": Action("Set the password of {user}", _SECURITY),
    "remove_user": Action("Remove user {user}", _SECURITY, removes=True),
    "add_access_entry": Action("Add an access control entry", _SECURITY, operation="alter_acls"),
    "remove_access_entry": Action(
        "Remove an access control entry", _SECURITY, removes=True, operation="alter_acls"
    ),
    "set_quota": Action("Set a quota", _SECURITY, operation="alter_quota"),
    "remove_quota": Action("Remove a quota", _SECURITY, removes=True, operation="alter_quota"),
}
"""By the name of the API's operation, or by its own where one operation does several things."""


def done_by(name: str) -> str:
    """What was carried out, in words; empty for what is no action."""
    return name.replace("_", " ").capitalize() if name in ACTIONS else ""
