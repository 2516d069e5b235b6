"""What a node's metrics show of its listener for Kafka's clients."""

from typing import TYPE_CHECKING

from antiphon.server.archive_gauges import add_archive_gauges
from antiphon.server.pushed_metrics import add_pushed_metrics
from antiphon.server.share_gauges import add_share_gauges

if TYPE_CHECKING:
    from antiphon.kafka.listener import KafkaListener
    from antiphon.node.metrics import NodeMetrics


def add_kafka_gauges(metrics: "NodeMetrics", kafka: "KafkaListener") -> None:
    """Add it all to what the node counts."""
    add_share_gauges(metrics, kafka.hosted)
    add_pushed_metrics(metrics, kafka.clients)
    add_archive_gauges(metrics, kafka.archive)
    expiry = kafka.expiry
    metrics.gauges["antiphon_group_offsets_expired_total"] = (
        "Committed offsets of groups that this node removed because they had expired",
        lambda: expiry.expired,
    )
