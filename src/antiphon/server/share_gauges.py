"""What a node's metrics show of share groups: those that it coordinates, and the share-partitions that it holds."""

from typing import TYPE_CHECKING

from antiphon.node.metrics import Labelled

if TYPE_CHECKING:
    from antiphon.kafka.groups.hosted import HostedGroups
    from antiphon.node.metrics import NodeMetrics


def add_share_gauges(metrics: "NodeMetrics", hosted: "HostedGroups") -> None:
    """Add them to what the node counts."""
    counts, gauges = hosted.share_counts, metrics.gauges
    gauges["antiphon_share_groups"] = (
        "Share groups that this node coordinates",
        lambda: len(hosted.share_groups()),
    )
    gauges["antiphon_share_group_members"] = (
        "Members of the share groups that this node coordinates",
        lambda: sum(len(group.members) for group in hosted.share_groups().values()),
    )
    gauges["antiphon_share_partitions"] = (
        "Share-partitions that this node holds, as their partition's leader",
        lambda: hosted.share_partitions,
    )
    gauges["antiphon_share_locked_records"] = (
        "Records of share-partitions here that members work on, under a lock",
        hosted.locked,
    )
    gauges["antiphon_share_lag_records"] = (
        "Records that are not done, of the share-partition here that has most of them",
        hosted.lag_max,
    )
    gauges["antiphon_share_deliveries_total"] = (
        "Records that members of share groups were given here, each time counted",
        lambda: counts.delivered,
    )
    gauges["antiphon_share_lock_timeouts_total"] = (
        "Records whose lock ended here before a member had said anything of them",
        lambda: counts.timed_out,
    )
    gauges["antiphon_share_delivery_limit_total"] = (
        "Records that were archived here because they had been delivered as often as may be",
        lambda: counts.exhausted,
    )
    metrics.labelled["antiphon_share_acknowledgements"] = Labelled(
        "Records that members of share groups acknowledged here, by what they said of them",
        "type",
        hosted.acknowledged,
        counts=True,
    )
