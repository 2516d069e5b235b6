"""`/livez`: does the node's loop turn? Whether all is well is no reason to kill it. And which time is it there?

`/readyz`: does this node take part in all that it holds? Then another one may be stopped (`model.in_step`).
"""

from typing import Any, Final

from antiphon import system
from antiphon.gateway.interface import Gateway
from antiphon.model.in_step import out_of_step

SHOWN_MAX: Final = 10  # shards that are named


def liveness() -> dict[str, Any]:
    """What the page says, whatever state the node is in."""
    return {"alive": True, "clock_ms": system.wall_ms()}


def readiness(gateway: Gateway) -> dict[str, Any]:
    """What the page says; `ready` decides."""
    cluster, told = gateway.metadata, gateway.status()
    own = next((node for node in cluster.nodes if node.node_id == gateway.node_id), None)
    # What the metadata tells of an earlier process of this node is not about this one.
    joined = own is not None and own.alive and own.incarnation == told.node.incarnation
    behind = {one.shard_id for one in out_of_step(cluster, gateway.node_id)} if joined else set()
    behind |= {one.shard_id for one in told.replicas if one.state != "ok"}
    return {
        "ready": joined and not behind,
        "joined": joined,
        "behind": len(behind),
        "first_behind": sorted(behind)[:SHOWN_MAX],
    }
