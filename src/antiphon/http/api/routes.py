"""The table of routes: the router, the OpenAPI document, the page `/api` and the table in the docs are made from it.

A handler's types say the rest: its second parameter is what path and query may say, its third the body, its result the
answer. Its docstring is the summary.
"""

import re
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final, NamedTuple, get_type_hints
from urllib.parse import unquote

from msgspec import Struct

from antiphon.http.api import (
    actions,
    cluster,
    groups,
    logs,
    people,
    settings,
    subscriptions,
    tables,
    topics,
)

PREFIX: Final = "/api/"
DOCUMENT: Final = "/api/openapi.json"
CLUSTER_DESCRIBE: Final = "DESCRIBE on the cluster"
CLUSTER_ALTER: Final = "ALTER on the cluster"
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


class Route(NamedTuple):
    """One operation. `takes`: what its caller must have the right to do."""

    method: str
    path: str
    does: Callable[..., Awaitable[Any]]
    tag: str
    takes: str

    @property
    def name(self) -> str:
        """Of the operation, in programs that are made from the document."""
        return self.does.__name__

    @property
    def summary(self) -> str:
        """One sentence."""
        return (self.does.__doc__ or "").strip()

    @property
    def hints(self) -> dict[str, Any]:
        """The handler's types."""
        return _hints(self.does)

    @property
    def asks(self) -> type[Struct]:
        """What path and query may say."""
        found: type[Struct] = next(kind for name, kind in self.hints.items() if name.lstrip("_") == "asked")
        return found

    @property
    def body(self) -> type[Struct] | None:
        """What the body may say."""
        return next((kind for name, kind in self.hints.items() if name.lstrip("_") == "body"), None)

    @property
    def answers(self) -> Any:
        """The type of the answer."""
        return self.hints["return"]

    @property
    def in_path(self) -> list[str]:
        """Names of the parameters that stand in the path."""
        return _PARAMETER.findall(self.path)


@cache
def _hints(does: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(does, include_extras=True)


_TOPIC: Final = "/api/topics/{topic}"
_SHARD: Final = _TOPIC + "/shards/{shard}"
_NODE: Final = "/api/nodes/{node}"
_SUBSCRIPTION: Final = "/api/client-metrics/{subscription}"

ROUTES: Final = (
    Route("GET", "/api/cluster", cluster.get_cluster, "cluster", CLUSTER_DESCRIBE),
    Route("GET", "/api/nodes", cluster.list_nodes, "cluster", CLUSTER_DESCRIBE),
    Route("GET", _NODE, cluster.get_node, "cluster", CLUSTER_DESCRIBE),
    Route(
        "GET", _NODE + "/settings", settings.list_node_settings, "cluster", "DESCRIBE_CONFIGS on the cluster"
    ),
    Route("GET", "/api/settings", settings.list_set_values, "cluster", "DESCRIBE_CONFIGS on the cluster"),
    Route(
        "GET",
        "/api/client-metrics",
        subscriptions.list_subscriptions,
        "cluster",
        "DESCRIBE_CONFIGS on the cluster",
    ),
    Route("GET", "/api/findings", cluster.list_findings, "cluster", CLUSTER_DESCRIBE),
    Route("GET", "/api/events", cluster.list_events, "cluster", CLUSTER_DESCRIBE),
    Route("GET", "/api/shards", topics.list_shards, "topics", "DESCRIBE on each topic that is shown"),
    Route("GET", "/api/topics", topics.list_topics, "topics", "DESCRIBE on each topic that is shown"),
    Route("GET", _TOPIC, topics.get_topic, "topics", "DESCRIBE on the topic"),
    Route("GET", _TOPIC + "/records", logs.read_log, "topics", "READ on the topic"),
    Route("GET", "/api/tables", topics.list_tables, "tables", "DESCRIBE on each table that is shown"),
    Route("GET", "/api/tables/{table}/rows", tables.read_rows, "tables", "READ on the table"),
    Route("GET", "/api/sessions", tables.list_sessions, "tables", "DESCRIBE on each table that is shown"),
    Route("GET", "/api/groups", groups.list_groups, "groups", "DESCRIBE on the cluster, or on each group"),
    Route(
        "GET", "/api/groups/{group}", groups.get_group, "groups", "DESCRIBE on the cluster, or on the group"
    ),
    Route("GET", "/api/transactions", groups.list_transactions, "groups", CLUSTER_DESCRIBE),
    Route("GET", "/api/jobs", groups.list_jobs, "spark", CLUSTER_DESCRIBE),
    Route("GET", "/api/queries", groups.list_queries, "spark", CLUSTER_DESCRIBE),
    Route("GET", "/api/users", people.list_users, "security", CLUSTER_DESCRIBE),
    Route("GET", "/api/acls", people.list_acls, "security", CLUSTER_DESCRIBE),
    Route("GET", "/api/quotas", people.list_quotas, "security", CLUSTER_DESCRIBE),
    Route("POST", "/api/topics", actions.create_topic, "actions", "CREATE on the cluster, or on the topic"),
    Route("POST", _TOPIC + "/alter", actions.alter_topic, "actions", "ALTER or ALTER_CONFIGS on the topic"),
    Route("POST", _TOPIC + "/delete", actions.delete_topic, "actions", "DELETE on the topic"),
    Route("POST", _SHARD + "/elect", actions.elect_leader, "actions", CLUSTER_ALTER),
    Route("POST", _SHARD + "/move", actions.move_replica, "actions", CLUSTER_ALTER),
    Route("POST", _SHARD + "/place", actions.place_replicas, "actions", CLUSTER_ALTER),
    Route("POST", _SHARD + "/split", actions.split_shard, "actions", CLUSTER_ALTER),
    Route("POST", _NODE + "/drain", actions.drain_node, "actions", CLUSTER_ALTER),
    Route("POST", _NODE + "/remove", actions.remove_node, "actions", CLUSTER_ALTER),
    Route("POST", _NODE + "/scrub", actions.scrub_node, "actions", CLUSTER_ALTER),
    Route(
        "POST", _NODE + "/settings", actions.alter_node_settings, "actions", "ALTER_CONFIGS on the cluster"
    ),
    Route("POST", "/api/settings", actions.alter_settings, "actions", "ALTER_CONFIGS on the cluster"),
    Route("POST", _SUBSCRIPTION, actions.put_subscription, "actions", "ALTER_CONFIGS on the cluster"),
    Route(
        "POST",
        _SUBSCRIPTION + "/delete",
        actions.delete_subscription,
        "actions",
        "ALTER_CONFIGS on the cluster",
    ),
    Route("POST", "/api/rebalance", actions.rebalance, "actions", CLUSTER_ALTER),
    Route("POST", "/api/users/{user}/password", actions.set_password, "actions", CLUSTER_ALTER),
    Route("POST", "/api/users/{user}/remove", actions.remove_user, "actions", CLUSTER_ALTER),
    Route("POST", "/api/acls", actions.alter_acls, "actions", CLUSTER_ALTER),
    Route("POST", "/api/quotas", actions.alter_quota, "actions", CLUSTER_ALTER),
)

_PARTS: Final = [(route, route.path.split("/")) for route in ROUTES]


def find(path: str) -> dict[str, tuple[Route, dict[str, str]]]:
    """The routes of a path as it was sent, by method, each with what stands in the path for its parameters."""
    parts = path.split("/")
    found: dict[str, tuple[Route, dict[str, str]]] = {}
    for route, pattern in _PARTS:
        if len(pattern) != len(parts):
            continue
        values = {}
        for wanted, part in zip(pattern, parts, strict=True):
            if wanted.startswith("{"):
                values[wanted[1:-1]] = unquote(part, errors="strict")
            elif wanted != part:
                break
        else:
            found[route.method] = route, values
    return found


def table() -> list[str]:
    """The rows of the table in the docs."""
    rows = ["| operation | takes | what it does |", "|---|---|---|"]
    rows += [f"| `{one.method} {one.path}` | {one.takes} | {one.summary} |" for one in ROUTES]
    return rows
