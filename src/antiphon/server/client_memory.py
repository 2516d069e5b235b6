"""A node's memory for clients as its configuration divides it among the listeners, and as its metrics show it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from antiphon.gateway.budget import Budget, Pool
from antiphon.gateway.quotas import REFUSALS, Quotas, Use
from antiphon.gateway.turns import Turns
from antiphon.model.cluster import MetadataView
from antiphon.model.metadata import ShardStatus
from antiphon.node.config import Limits

if TYPE_CHECKING:
    from antiphon.transactions.coordinator import TransactionCoordinator


def memory_for_clients(limits: Limits, turns: Turns | None = None) -> Budget:
    """The budget with a pool for each listener: `kafka`, `native`, `http`, `oxia`. `turns`: of the node."""
    budget = Budget(limits.memory, turns)
    budget.pool("kafka", limits.kafka_memory, limits.connection_memory)
    budget.pool("native", limits.native_memory, limits.connection_memory)
    budget.pool("http", limits.http_memory, limits.http_memory)
    budget.pool("oxia", limits.oxia_memory, limits.connection_memory)
    return budget


def add_quota_gauges(gauges: dict[str, tuple[str, Callable[[], float]]], quotas: Quotas) -> None:
    """Show who had to wait because of quotas, how often and for how long, since the start."""
    gauges["antiphon_quota_muted"] = (
        "Connections that are not read because of their client's quotas",
        lambda: quotas.muted,
    )
    gauges["antiphon_quota_tracked"] = ("Limits whose use is kept track of", lambda: quotas.tracked)
    for use in Use:
        what = "Connections refused" if use in REFUSALS else "Requests that made their client wait"
        gauges[f"antiphon_quota_{use}_throttled_total"] = (
            f"{what} because of quotas of kind {use}, since the start",
            lambda use=use: quotas.waits[use],  # type: ignore[misc]
        )
        if use not in REFUSALS:
            gauges[f"antiphon_quota_{use}_throttled_seconds_total"] = (
                f"How long clients were made to wait because of quotas of kind {use}, since the start",
                lambda use=use: quotas.waited_s[use],  # type: ignore[misc]
            )


def add_capacity_gauges(
    gauges: dict[str, tuple[str, Callable[[], float]]], limits: Limits, view: MetadataView
) -> None:
    """Show how many topics, partitions and replicas there are of how many."""
    gauges["antiphon_topics"] = ("Topics and tables of the cluster", lambda: len(view.topics))
    gauges["antiphon_topics_limit"] = ("Above so many, no more are made", lambda: limits.topics)
    gauges["antiphon_partitions"] = (
        "Shards of all topics and tables of the cluster",
        lambda: sum(len(topic.shards) for topic in view.topics.values()),
    )
    gauges["antiphon_partitions_without_leader"] = (
        "Of those, without a leader, as far as this node knows",
        lambda: sum(
            shard.status is not ShardStatus.ONLINE for topic in view.topics.values() for shard in topic.shards
        ),
    )
    gauges["antiphon_nodes_alive"] = (
        "Nodes of the cluster that are alive, as far as this node knows",
        lambda: sum(node.alive for node in view.nodes.values()),
    )
    gauges["antiphon_nodes"] = ("Nodes of the cluster", lambda: len(view.nodes))
    gauges["antiphon_partitions_limit"] = ("Above so many, no more are made", lambda: limits.partitions)
    gauges["antiphon_node_replicas_limit"] = (
        "Above so many replicas on a node, no more are placed on it",
        lambda: limits.node_replicas,
    )


def add_transaction_gauges(
    gauges: dict[str, tuple[str, Callable[[], float]]], coordinator: "TransactionCoordinator"
) -> None:
    """Show how many transactions this node coordinates."""
    gauges["antiphon_transactional_ids"] = (
        "Transactional ids that this node coordinates",
        lambda: coordinator.ids,
    )
    gauges["antiphon_transactions_open"] = (
        "Transactions under way, or decided and not told to all that take part, that this node coordinates",
        lambda: coordinator.open_transactions,
    )
    gauges["antiphon_transactions_oldest_seconds"] = (
        "How long the oldest transaction that this node coordinates has been under way; 0: there is none",
        lambda: coordinator.oldest_s,
    )
    gauges["antiphon_transaction_markers_total"] = (
        "Ends of transactions that partitions and groups were told by this node since its start",
        lambda: coordinator.endings.told,
    )


def add_memory_gauges(gauges: dict[str, tuple[str, Callable[[], float]]], budget: Budget) -> None:
    """Show what is held, its limits, and who has to wait."""
    gauges["antiphon_client_memory_bytes"] = (
        "Memory that clients hold: requests that arrive or are under work, answers that are not read",
        lambda: budget.held_bytes,
    )
    gauges["antiphon_client_memory_limit_bytes"] = ("Its limit", lambda: budget.limit_bytes)
    gauges["antiphon_client_memory_waiting"] = (
        "Connections that are not read because there is no memory for them",
        lambda: budget.waiting,
    )
    gauges["antiphon_client_memory_waits_total"] = (
        "Times that a connection had to wait for memory, since the start",
        lambda: budget.waits,
    )
    gauges["antiphon_client_turns_waiting"] = (
        "Connections whose work waits for its turn among all clients'",
        lambda: budget.turns.waiting,
    )
    gauges["antiphon_client_turns_total"] = (
        "Pieces of clients' work that had their turn, since the start",
        lambda: budget.turns.begun,
    )
    for name, pool in budget.pools.items():
        _add_pool(gauges, name, pool)
    oxia = budget.pools["oxia"]
    gauges["antiphon_oxia_closed_floods_total"] = (
        "Connections of oxia clients that were closed because they broke HTTP/2 or a bound of it, since the start",
        lambda: oxia.closed_floods,
    )


def add_connection_gauges(
    gauges: dict[str, tuple[str, Callable[[], float]]],
    name: str,
    count: Callable[[], int],
    limit: Callable[[], int],
) -> None:
    """Show how many connections a listener has of how many."""
    gauges[f"antiphon_{name}_connections"] = (f"Connections of {name} clients", count)
    gauges[f"antiphon_{name}_connections_limit"] = ("Above so many, they are turned away", limit)


def _add_pool(gauges: dict[str, tuple[str, Callable[[], float]]], name: str, pool: Pool) -> None:
    gauges[f"antiphon_{name}_memory_bytes"] = (f"Of that, by {name} clients", lambda: pool.held_bytes)
    gauges[f"antiphon_{name}_memory_limit_bytes"] = ("Its limit", lambda: pool.limit_bytes)
    gauges[f"antiphon_{name}_connection_memory_bytes"] = (
        f"What the {name} client's connection holds that holds most",
        lambda: pool.highest_bytes,
    )
    gauges[f"antiphon_{name}_connection_memory_limit_bytes"] = ("Its limit", lambda: pool.connection_bytes)
    gauges[f"antiphon_{name}_closed_slow_total"] = (
        f"Connections of {name} clients that were closed because they did not send or read on, since the start",
        lambda: pool.closed_slow,
    )
