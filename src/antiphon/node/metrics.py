"""What a node counts, for Prometheus. Per node, kind of request and reason, never per shard or client: the number of series
does not grow with use. What Kafka's clients push about themselves stands behind it (`more`), with a bound of its own.

Hot paths add to plain integers; they are turned into Prometheus samples when somebody asks.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

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


class NodeMetrics:
    """Counters and histograms of one node. Counters only ever rise."""

    def __init__(self) -> None:
        self.appends = 0  # batches taken from clients
        self.append_bytes = 0
        self.append_records = 0
        self.refusals = 0
        self.limit_refusals = 0
        self.connections_refused = 0
        self.nodes_refused = 0
        self.tls_handshakes = 0
        self.tls_handshakes_failed = 0
        self.denied = 0
        self.logins_failed = 0
        self.duplicates = 0
        self.expired_appends = 0
        self.fetches = 0
        self.fetch_bytes = 0
        self.table_ops = 0
        self.table_reads = 0
        self.leased_reads = 0
        self.elections = 0  # terms in which a replica of this node began to lead
        self.shard_failures = 0
        self.metadata_unreadable = 0
        self.forwarded = 0
        self.lost_tail_records = 0
        self.unclean_elections = 0
        self.shards_recovered = 0
        self.commit_markers = 0
        self.relayed = 0
        self.relay_duplicates = 0
        self.split_brains = 0
        self.sessions_expired = 0
        self.scrub_bytes = 0
        self.scrub_errors = 0
        self.compactions = 0
        self.compaction_read_bytes = 0
        self.compaction_written_bytes = 0
        self.compaction_errors = 0
        self.messages_in = 0
        self.messages_out = 0
        self.commit_latency = Histogram()  # from a client's append to its commit
        self.disk_latency = Histogram()  # from handing a write to the WAL thread until it is durable
        self.apply_latency = Histogram()  # of what is committed at once, into a table's store
        self.request_times = Listeners()
        self.gauges: dict[
            str, tuple[str, Callable[[], float]]
        ] = {}  # counters, where a name ends in `_total`
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


_COUNTERS: Final = {
    "appends": "Batches that clients appended",
    "append_bytes": "Bytes of batches that clients appended",
    "append_records": "Records that clients appended",
    "refusals": "Appends that were refused",
    "limit_refusals": "Requests for more topics, partitions or replicas than there may be, refused here",
    "connections_refused": "Native connections that were refused, for there were too many",
    "denied": "Requests that no access control list allows",
    "logins_failed": "Logins with a wrong name, password or token",
    "nodes_refused": "Connections of those who said that they are nodes, and did not prove it",
    "tls_handshakes": "Connections that were made with TLS",
    "tls_handshakes_failed": "TLS handshakes that failed",
    "duplicates": "Appends that an earlier try had made already",
    "expired_appends": "Batches of clients whose records were all older than their topic's retention.ms",
    "fetches": "Fetches by clients",
    "fetch_bytes": "Bytes that clients fetched",
    "table_ops": "Operations on tables",
    "table_reads": "Gets and scans of tables",
    "leased_reads": "Linearizable answers of tables that no follower was asked for, under a lease",
    "elections": "Times that a replica of this node began to lead",
    "shard_failures": "Replicas that stopped because of a failure",
    "metadata_unreadable": "Entries of the cluster's own log that nobody can read and that were passed over",
    "lost_tail_records": "Offsets that were acknowledged here as leader and are cut, as the topic's commit rule allows",
    "unclean_elections": "Elections, decided here, of replicas that may lack committed records",
    "shards_recovered": "Recoveries, decided here, of shards from a replica that may lack committed records",
    "commit_markers": "Records of commits that leaders here wrote into their logs",
    "forwarded": "Requests that were passed on to the leader of their shard",
    "relayed": "Batches of other writers taken into multi-writer shards",
    "relay_duplicates": "Batches of other writers that came again by another path",
    "split_brains": "Times that another replica was found to have other entries under the same identity",
    "sessions_expired": "Sessions in tables that ended because their clients were silent for too long",
    "scrub_bytes": "Bytes of logs and stores that the scrub has read",
    "scrub_errors": "Times that the scrub found something that was not as written, or could not be read",
    "compactions": "Passes of compaction over a log",
    "compaction_read_bytes": "Bytes of the segments that compaction wrote anew",
    "compaction_written_bytes": "Bytes of the segments that compaction put in their place",
    "compaction_errors": "Passes of compaction that an error of the disk ended",
    "messages_in": "Replica messages received",
    "messages_out": "Replica messages sent",
}


class _Samples(Collector):
    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"antiphon_{name}", text, value=getattr(self._metrics, name))
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
