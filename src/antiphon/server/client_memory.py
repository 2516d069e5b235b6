"""A node's memory for clients as its configuration divides it among the listeners, and as its metrics show it."""

from collections.abc import Callable

from antiphon.gateway.budget import Budget, Pool
from antiphon.node.config import Limits


def memory_for_clients(limits: Limits) -> Budget:
    """The budget with a pool for each listener: `kafka`, `native`, `http`."""
    budget = Budget(limits.memory)
    budget.pool("kafka", limits.kafka_memory, limits.connection_memory)
    budget.pool("native", limits.native_memory, limits.connection_memory)
    budget.pool("http", limits.http_memory, limits.http_memory)
    return budget


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
    gauges["antiphon_client_memory_waits"] = (
        "Times that a connection had to wait for memory, since the start",
        lambda: budget.waits,
    )
    for name, pool in budget.pools.items():
        _add_pool(gauges, name, pool)


def _add_pool(gauges: dict[str, tuple[str, Callable[[], float]]], name: str, pool: Pool) -> None:
    gauges[f"antiphon_{name}_memory_bytes"] = (f"Of that, by {name} clients", lambda: pool.held_bytes)
    gauges[f"antiphon_{name}_memory_limit_bytes"] = ("Its limit", lambda: pool.limit_bytes)
    gauges[f"antiphon_{name}_closed_slow"] = (
        f"Connections of {name} clients that were closed because they did not send or read on, since the start",
        lambda: pool.closed_slow,
    )
