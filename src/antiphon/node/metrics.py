"""What a node counts, for Prometheus. Per node, kind of request and reason, never per shard or client: the number of series
does not grow with use. What Kafka's clients push about themselves stands behind it (`more`), with a bound of its own.

Hot paths add to plain integers; they are turned into Prometheus samples when somebody asks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon import system
from antiphon.gateway.request_times import Histogram, Listeners
from antiphon.model.counters import Counters


class Labelled(NamedTuple):
    """A figure with one label, whose values are few: nodes of the cluster, reasons, or at most a hundred groups.

    Attributes:
        text: what it is.
        label: the label's name.
        read: the figure by the label's value.
        counts: does it only ever rise?
    """

    text: str
    label: str
    read: Callable[[], Mapping[str, float]]
    counts: bool = False


def _counted(text: str) -> int:
    """A counter, and what Prometheus says that it counts."""
    counter: int = field(default=0, metadata={"text": text})
    return counter


@dataclass(eq=False)
class Counted:
    """What is counted for Prometheus, each as `antiphon_` and its name."""

    appends: int = _counted("Batches that clients appended")
    append_bytes: int = _counted("Bytes of batches that clients appended")
    append_records: int = _counted("Records that clients appended")
    refusals: int = _counted("Appends that were refused")
    limit_refusals: int = _counted(
        "Requests for more topics, partitions or replicas than there may be, refused here"
    )
    connections_refused: int = _counted("Native connections that were refused, for there were too many")
    denied: int = _counted("Requests that no access control list allows")
    logins_failed: int = _counted("Logins with a wrong name, password or token")
    nodes_refused: int = _counted("Connections of those who said that they are nodes, and did not prove it")
    tls_handshakes: int = _counted("Connections that were made with TLS")
    tls_handshakes_failed: int = _counted("TLS handshakes that failed")
    duplicates: int = _counted("Appends that an earlier try had made already")
    expired_appends: int = _counted(
        "Batches of clients whose records were all older than their topic's retention.ms"
    )
    fetches: int = _counted("Fetches by clients")
    fetch_bytes: int = _counted("Bytes that clients fetched")
    table_ops: int = _counted("Operations on tables")
    table_reads: int = _counted("Gets and scans of tables")
    leased_reads: int = _counted(
        "Linearizable answers of tables that no follower was asked for, under a lease"
    )
    elections: int = _counted("Times that a replica of this node began to lead")
    shard_failures: int = _counted("Replicas that stopped because of a failure")
    metadata_unreadable: int = _counted(
        "Entries of the cluster's own log that nobody can read and that were passed over"
    )
    lost_tail_records: int = _counted(
        "Offsets that were acknowledged here as leader and are cut, as the topic's commit rule allows"
    )
    unclean_elections: int = _counted("Elections, decided here, of replicas that may lack committed records")
    shards_recovered: int = _counted(
        "Recoveries, decided here, of shards from a replica that may lack committed records"
    )
    commit_markers: int = _counted("Records of commits that leaders here wrote into their logs")
    forwarded: int = _counted("Requests that were passed on to the leader of their shard")
    relayed: int = _counted("Batches of other writers taken into multi-writer shards")
    relay_duplicates: int = _counted("Batches of other writers that came again by another path")
    split_brains: int = _counted(
        "Times that another replica was found to have other entries under the same identity"
    )
    sessions_expired: int = _counted(
        "Sessions in tables that ended because their clients were silent for too long"
    )
    scrub_bytes: int = _counted("Bytes of logs and stores that the scrub has read")
    scrub_errors: int = _counted(
        "Times that the scrub found something that was not as written, or could not be read"
    )
    compactions: int = _counted("Passes of compaction over a log")
    compaction_read_bytes: int = _counted("Bytes of the segments that compaction wrote anew")
    compaction_written_bytes: int = _counted("Bytes of the segments that compaction put in their place")
    compaction_errors: int = _counted("Passes of compaction that an error of the disk ended")
    messages_in: int = _counted("Replica messages received")
    messages_out: int = _counted("Replica messages sent")


class NodeMetrics(Counted):
    """Counters and histograms of one node. Counters only ever rise."""

    def __init__(self) -> None:
        super().__init__()
        self.commit_latency = Histogram()  # from a client's append to its commit
        self.disk_latency = Histogram()  # from handing a write to the WAL thread until it is durable
        self.apply_latency = Histogram()  # of what is committed at once, into a table's store
        self.request_times = Listeners()
        # Counters, where a name ends in `_total`
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self.labelled: dict[str, Labelled] = {}
        self.more: list[Callable[[], bytes]] = []  # lines in the same format, made already
        self.histograms: dict[str, tuple[str, Callable[[], tuple[list[tuple[str, float]], float]]]] = {
            "antiphon_commit_seconds": ("From a client's append to its commit", self.commit_latency.buckets),
            "antiphon_disk_seconds": (
                "From handing a write to the disk's thread until it is durable",
                self.disk_latency.buckets,
            ),
            "antiphon_apply_seconds": (
                "Applying what was committed at once to the store of a table",
                self.apply_latency.buckets,
            ),
        }

    def counters(self) -> Counters:
        """What other nodes and dashboards are told."""
        return Counters(
            self.appends,
            self.append_records,
            self.append_bytes,
            self.fetches,
            self.fetch_bytes,
            self.table_ops,
            self.table_reads,
            self.elections,
            self.commit_latency.counts,
            self.disk_latency.counts,
            int(system.cpu_s() * 1000),
            system.open_files(),
        )

    def render(self) -> bytes:
        """The metrics in Prometheus's text format."""
        registry = CollectorRegistry()
        registry.register(_Samples(self))
        return b"".join((generate_latest(registry), *(lines() for lines in self.more)))


class _Samples(Collector):
    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        for one in fields(Counted):
            value = getattr(self._metrics, one.name)
            yield CounterMetricFamily(f"antiphon_{one.name}", one.metadata["text"], value=value)
        for name, (text, read) in self._metrics.gauges.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(name, text, value=read())
        for name, figure in self._metrics.labelled.items():
            yield _with_label(name, figure)
        for name, (text, buckets) in self._metrics.histograms.items():
            found, total = buckets()
            yield HistogramMetricFamily(name, text, buckets=found, sum_value=total)
        requests = HistogramMetricFamily(
            "antiphon_request_seconds",
            "From reading a request until it is answered, waiting for data or members included",
            labels=("listener", "request"),
        )
        for listener, request, times in self._metrics.request_times:
            found, total = times.buckets()
            requests.add_metric((listener, request), buckets=found, sum_value=total)
        yield requests


def _with_label(name: str, figure: Labelled) -> Metric:
    kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
    family = kind(name, figure.text, labels=(figure.label,))
    for value, amount in sorted(figure.read().items()):
        family.add_metric((value,), amount)
    return family
