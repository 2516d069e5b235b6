"""What a node measures when somebody asks for its metrics: replicas, backlogs, memory."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from antiphon import system
from antiphon.log.producer_state import JOBS_MAX
from antiphon.model.findings import KINDS
from antiphon.node.metrics import Labelled

if TYPE_CHECKING:
    from antiphon.coordination.coordinator import Coordinator
    from antiphon.log.wal import Wal
    from antiphon.node.compaction import LogCleaner
    from antiphon.node.coordinator_shell import CoordinatorShell
    from antiphon.node.findings import Findings
    from antiphon.node.metrics import NodeMetrics
    from antiphon.node.scrub import Scrub
    from antiphon.partition.partition import Partition


def add_gauges(
    metrics: "NodeMetrics", hosts: "Mapping[int, Partition]", wal: "Wal", in_flight_bytes: Callable[[], int]
) -> None:
    """Add them to what the node counts. `in_flight_bytes`: appended by clients, and not committed."""

    def live_sets() -> list[tuple[int, ...]]:
        return [host.mode.live for host in hosts.values()]

    def jobs() -> list[int]:
        return [host.state.log.producers.jobs_known for host in hosts.values()]

    gauges = metrics.gauges
    gauges["antiphon_replicas"] = ("Replicas on this node", lambda: len(hosts))
    gauges["antiphon_leaders"] = (
        "Shards that this node leads",
        lambda: sum(host.state.is_serving for host in hosts.values()),
    )
    gauges["antiphon_sessions"] = (
        "Sessions that are open in shards of tables that this node leads",
        lambda: sum(host.sessions.count for host in hosts.values()),
    )
    gauges["antiphon_live_shards"] = (
        "Shards led here whose commits go by the live replica set",
        lambda: sum(bool(live) for live in live_sets()),
    )
    gauges["antiphon_live_replicas"] = (
        "Replicas in the live replica sets of those shards",
        lambda: sum(len(live) for live in live_sets()),
    )
    gauges["antiphon_wal_backlog_bytes"] = (
        "Bytes that wait for the disk",
        lambda: wal.backlog_bytes,
    )
    gauges["antiphon_in_flight_bytes"] = ("Appended and not committed", in_flight_bytes)
    gauges["antiphon_producers"] = ("Producers that replicas here remember", lambda: producers_known(hosts))
    gauges["antiphon_producer_jobs"] = (
        "Of those, Spark's jobs, which are never forgotten",
        lambda: sum(jobs()),
    )
    gauges["antiphon_producer_jobs_max"] = (
        "Spark's jobs that the replica here remembers which remembers most of them",
        lambda: max(jobs(), default=0),
    )
    gauges["antiphon_producer_jobs_limit"] = (
        "Above so many in one shard, its leader takes no new job",
        lambda: JOBS_MAX,
    )
    gauges["antiphon_disk_full"] = ("1 while the disk has no room", lambda: float(wal.refuses_clients))
    gauges["antiphon_resident_bytes"] = ("Resident memory", system.resident_bytes)
    gauges["antiphon_cpu_seconds_total"] = ("Time of processors that all threads had", system.cpu_s)
    gauges["antiphon_open_files"] = ("Descriptors that are open; 0: not known", system.open_files)


def producers_known(hosts: "Mapping[int, Partition]") -> int:
    """Producers that replicas of this node remember."""
    return sum(len(host.state.log.producers) for host in hosts.values())


def add_lag(metrics: "NodeMetrics", hosts: "Mapping[int, Partition]") -> None:
    """How far other nodes are behind the shards that are led here."""

    def behind() -> dict[str, float]:
        worst: dict[str, float] = {}
        for host in hosts.values():
            if not host.state.is_serving:
                continue
            status = host.status()
            for node, end in status.followers:
                lag = float(max(0, status.log_end - end))
                worst[str(node)] = max(worst.get(str(node), 0.0), lag)
        return worst

    metrics.labelled["antiphon_follower_lag_entries"] = Labelled(
        "Offsets that a node is behind the leader, in the shard led here where it is furthest behind",
        "node",
        behind,
    )


def add_election_counts(metrics: "NodeMetrics", coordinator: "Callable[[], Coordinator | None]") -> None:
    """Why elections began, as long as this node coordinates."""

    def begun() -> dict[str, float]:
        found = coordinator()
        return (
            {} if found is None else {reason: float(count) for reason, count in found.elections.begun.items()}
        )

    metrics.labelled["antiphon_elections_begun"] = Labelled(
        "Elections that this node began as coordinator, by reason", "reason", begun, counts=True
    )


def add_metadata_gauges(metrics: "NodeMetrics", shell: "Callable[[], CoordinatorShell | None]") -> None:
    """How long the log of the cluster's metadata is, and how old its newest checkpoint; 0 where it is not held."""

    def of_shell(what: "Callable[[CoordinatorShell], float]") -> Callable[[], float]:
        def value() -> float:
            found = shell()
            return 0.0 if found is None else what(found)

        return value

    gauges = metrics.gauges
    gauges["antiphon_metadata_log_entries"] = (
        "Offsets of the cluster's own log, `__cluster`, that this voter keeps",
        of_shell(lambda one: one.log.log_end - one.log.log_start),
    )
    gauges["antiphon_metadata_log_bytes"] = (
        "Bytes of the cluster's own log, `__cluster`, on this voter; they go by whole segments",
        of_shell(lambda one: one.log.size_bytes),
    )
    gauges["antiphon_metadata_objects"] = (
        "Objects of the cluster's metadata, as this voter knows them: nodes, topics, shards, users ...",
        of_shell(lambda one: one.state.object_count),
    )
    gauges["antiphon_metadata_checkpoint_timestamp_seconds"] = (
        "When the newest checkpoint of the metadata was closed that this voter has met, in seconds since 1970; 0: none",
        of_shell(lambda one: one.metadata.checkpoint_ms / 1000),
    )


def add_scrub_gauges(metrics: "NodeMetrics", findings: "Findings", scrub: "Scrub") -> None:
    """What is wrong, and how old what is known of the disk is."""

    def counts() -> dict[str, float]:
        found = dict.fromkeys(KINDS, 0.0)
        for one in findings.now:
            found[one.kind] = found.get(one.kind, 0.0) + 1
        return found

    def oldest() -> dict[str, float]:
        found = dict.fromkeys(KINDS, 0.0)
        for one in reversed(findings.now):  # the oldest comes first there
            found[one.kind] = one.since_ms / 1000
        return found

    metrics.labelled["antiphon_findings"] = Labelled(
        "What is wrong on this node; /healthz and `antiphon status` say where", "kind", counts
    )
    metrics.labelled["antiphon_findings_oldest_timestamp_seconds"] = Labelled(
        "Since when the oldest of these is known, in seconds since 1970; 0 where there is none",
        "kind",
        oldest,
    )
    metrics.gauges["antiphon_scrub_completed_timestamp_seconds"] = (
        "Since when everything on this node has been read by the scrub, in seconds since 1970; 0: not yet",
        lambda: scrub.completed_ms / 1000,
    )


def add_compaction_gauges(metrics: "NodeMetrics", cleaner: "LogCleaner") -> None:
    """How much could be compacted, and how long ago it was."""
    gauges = metrics.gauges
    gauges["antiphon_compaction_max_dirty_ratio"] = (
        "Part of the log that is not clean, of the compacted log with the largest",
        lambda: cleaner.dirty_ratio,
    )
    gauges["antiphon_compaction_oldest_pass_timestamp_seconds"] = (
        "When the compacted log whose last pass is the longest ago had it, in seconds since 1970; 0: never, or none is here",
        lambda: cleaner.oldest_pass_s,
    )
