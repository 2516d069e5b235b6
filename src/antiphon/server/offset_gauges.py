"""What a node's metrics show of committed offsets that expired."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.kafka.groups.offset_expiry import OffsetExpiry
    from antiphon.node.metrics import NodeMetrics


def add_offset_gauges(metrics: "NodeMetrics", expiry: "OffsetExpiry") -> None:
    """Add it to what the node counts."""
    metrics.gauges["antiphon_group_offsets_expired_total"] = (
        "Committed offsets of groups that this node removed because they had expired",
        lambda: expiry.expired,
    )
