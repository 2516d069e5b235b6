"""What a node's metrics show of the archived records that Kafka's clients read."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.kafka.archived.reader import ArchiveReader
    from antiphon.node.metrics import NodeMetrics


def add_archive_gauges(metrics: "NodeMetrics", archive: "ArchiveReader") -> None:
    """Add them to what the node counts."""
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
