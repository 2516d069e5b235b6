"""What a node's metrics show of its listener for Kafka's clients: what they push, and what they read of the archive."""

from typing import TYPE_CHECKING

from antiphon import system

if TYPE_CHECKING:
    from antiphon.kafka.archived.reader import ArchiveReader
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


def add_archive_metrics(metrics: "NodeMetrics", archive: "ArchiveReader") -> None:
    """Add to what the node counts what Kafka's clients read of the archive."""
    gauges = metrics.gauges
    gauges["antiphon_kafka_archive_memory_bytes"] = (
        "Archived records in memory for Kafka clients",
        lambda: archive.held_bytes,
    )
    gauges["antiphon_kafka_archive_memory_limit_bytes"] = ("Its limit", lambda: archive.limit_bytes)
    gauges["antiphon_kafka_archive_fetched_bytes_total"] = (
        "Bytes of batches that Kafka clients got from the archive",
        lambda: archive.fetched_bytes,
    )
    gauges["antiphon_kafka_archive_failures_total"] = (
        "Times that archived records could not be read for Kafka clients",
        lambda: archive.failures,
    )
