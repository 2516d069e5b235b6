"""What a node's metrics show of the metrics that Kafka's clients push: how many there are, and what clients told."""

from typing import TYPE_CHECKING

from antiphon import system

if TYPE_CHECKING:
    from antiphon.kafka.client_metrics.clients import Clients
    from antiphon.node.metrics import NodeMetrics


def add_pushed_metrics(metrics: "NodeMetrics", clients: "Clients") -> None:
    """Add them to what the node counts."""
    gauges = metrics.gauges
    gauges["antiphon_client_metrics_clients"] = (
        "Kafka clients that lately asked this node which of their metrics are wanted, or pushed some",
        lambda: len(clients),
    )
    gauges["antiphon_client_metrics_points"] = (
        "Figures of Kafka clients that this node shows",
        lambda: clients.point_count,
    )
    gauges["antiphon_client_metrics_pushes_total"] = (
        "Pushes of metrics of Kafka clients that were taken",
        lambda: clients.pushes,
    )
    gauges["antiphon_client_metrics_refused_total"] = (
        "Pushes of metrics of Kafka clients that were refused",
        lambda: clients.refusals,
    )
    gauges["antiphon_client_metrics_left_out_total"] = (
        "Figures of Kafka clients for which there was no room here",
        lambda: clients.left_out,
    )
    metrics.more.append(lambda: clients.rendered(system.monotonic_s()))
