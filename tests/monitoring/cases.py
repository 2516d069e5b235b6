"""For each alert rule: what nodes tell when it has to fire, when exactly, whom it names, and what is like it and harmless.

Series are in promtool's notation, with a value a minute: `0+5x20` grows by 5 for 20 minutes, `0x5 1x9` changes after five.
"""

from typing import Final, NamedTuple

Series = dict[str, str]
NODE: Final = 'instance="n1",job="antiphon"'
OTHER: Final = 'instance="n2",job="antiphon"'
ON_NODE: Final = {"instance": "n1", "job": "antiphon"}


class Case(NamedTuple):
    """One rule.

    Attributes:
        fires: series under which it fires, by the name with labels.
        at: minutes after which it fires.
        not_at: minutes after which it does not fire yet.
        labels: of the alert, beside its name and severity.
        value: as its text has it.
        harmless: series under which it does not fire at `at`.
    """

    alert: str
    fires: Series
    at: int
    not_at: int
    labels: dict[str, str]
    harmless: Series
    value: str = ""


def counter(alert: str, name: str) -> Case:
    """A rule that fires when a counter has grown."""
    return Case(
        alert, {f"{name}{{{NODE}}}": "7x5 8x15"}, 8, 5, ON_NODE, {f"{name}{{{NODE}}}": "7x20"}
    )  # fmt: skip


def buckets(name: str, labels: str, bound: str, next_bound: str) -> Series:
    """A histogram whose values are all between two bounds."""
    every_minute = {bound: "0x40", next_bound: "0+60x40", "+Inf": "0+60x40"}
    return {f'{name}_bucket{{{labels},le="{le}"}}': text for le, text in every_minute.items()}


CASES: Final = (
    Case("AntiphonNodeDown", {f"up{{{NODE}}}": "1x3 0x9", f"up{{{OTHER}}}": "1x12"}, 5, 4, ON_NODE,
         {f"up{{{NODE}}}": "1x3 0 1x9", 'up{instance="x",job="another"}': "0x12"}),
    Case("AntiphonPartitionsWithoutLeader",
         {f"antiphon_partitions_without_leader{{{NODE}}}": "0x3 2x9",
          f"antiphon_partitions_without_leader{{{OTHER}}}": "0x3 3x9"}, 5, 4, {"job": "antiphon"},
         {f"antiphon_partitions_without_leader{{{NODE}}}": "2 0x9"}, "3"),
    counter("AntiphonUncleanElection", "antiphon_unclean_elections_total"),
    counter("AntiphonAcknowledgedRecordsCut", "antiphon_lost_tail_records_total"),
    counter("AntiphonSplitBrain", "antiphon_split_brains_total"),
    counter("AntiphonReplicaFailed", "antiphon_shard_failures_total"),
    Case("AntiphonDiskFull", {f"antiphon_disk_full{{{NODE}}}": "0x3 1x9"}, 5, 4, ON_NODE,
         {f"antiphon_disk_full{{{NODE}}}": "0x12"}),
    Case("AntiphonSomethingDamaged", {f'antiphon_findings{{kind="cut_log",{NODE}}}': "0x3 2x20"}, 14, 12,
         {**ON_NODE, "kind": "cut_log"}, {f'antiphon_findings{{kind="cut_log",{NODE}}}': "0x3 2x5 0x20"}, "2"),
    counter("AntiphonScrubFindsErrors", "antiphon_scrub_errors_total"),
    counter("AntiphonMetadataUnreadable", "antiphon_metadata_unreadable_total"),
    Case("AntiphonFollowerBehind", {f'antiphon_follower_lag_entries{{node="2",{NODE}}}': "20000+100x40"}, 15, 9,
         {**ON_NODE, "node": "2"}, {f'antiphon_follower_lag_entries{{node="2",{NODE}}}': "40000-100x40"}, "21500"),
    Case("AntiphonElectionsFail", {f'antiphon_elections_begun_total{{reason="refused",{NODE}}}': "0x3 0+5x20"}, 12, 5,
         {"job": "antiphon"},
         {f'antiphon_elections_begun_total{{reason="created",{NODE}}}': "0+50x20",
          f'antiphon_elections_begun_total{{reason="refused",{OTHER}}}': "0+1x20"}),
    Case("AntiphonLeadersLost",
         {f'antiphon_elections_begun_total{{reason="member_lost",{NODE}}}': "0x3 9x20",
          f"antiphon_nodes_alive{{{NODE}}}": "3x24", f"antiphon_nodes{{{NODE}}}": "3x24"}, 10, 7, {"job": "antiphon"},
         {f'antiphon_elections_begun_total{{reason="member_lost",{NODE}}}': "0x3 9x20",
          f"antiphon_nodes_alive{{{NODE}}}": "2x24", f"antiphon_nodes{{{NODE}}}": "3x24"}),
    Case("AntiphonSlowDisk", buckets("antiphon_disk_seconds", NODE, "0.25", "0.5"), 14, 8, {"instance": "n1"},
         buckets("antiphon_disk_seconds", NODE, "0.05", "0.1"), "0.4975"),
    Case("AntiphonSlowCommits", buckets("antiphon_commit_seconds", NODE, "1", "2"), 14, 8, {"instance": "n1"},
         buckets("antiphon_commit_seconds", NODE, "0.5", "1"), "1.99"),
    Case("AntiphonSlowRequests", buckets("antiphon_request_seconds", f'request="Produce",{NODE}', "1", "2"), 14, 8,
         {"instance": "n1", "request": "Produce"},
         buckets("antiphon_request_seconds", f'request="Fetch",{NODE}', "1", "2"), "1.99"),
    Case("AntiphonClientMemoryFull",
         {f"antiphon_client_memory_bytes{{{NODE}}}": "95x20", f"antiphon_client_memory_limit_bytes{{{NODE}}}": "100x20"},
         6, 4, ON_NODE,
         {f"antiphon_client_memory_bytes{{{NODE}}}": "85x20", f"antiphon_client_memory_limit_bytes{{{NODE}}}": "100x20"}),
    Case("AntiphonMemoryLow", {f"antiphon_client_memory_waiting{{{NODE}}}": "4x20"}, 11, 9, ON_NODE,
         {f"antiphon_client_memory_waiting{{{NODE}}}": "0x20"}, "4"),
    Case("AntiphonPartitionsNearLimit",
         {f"antiphon_partitions{{{NODE}}}": "95x20", f"antiphon_partitions_limit{{{NODE}}}": "100x20"}, 11, 9,
         {"job": "antiphon"},
         {f"antiphon_partitions{{{NODE}}}": "85x20", f"antiphon_partitions_limit{{{NODE}}}": "100x20"}),
    Case("AntiphonSparkJobsNearLimit",
         {f"antiphon_producer_jobs_max{{{NODE}}}": "81x20", f"antiphon_producer_jobs_limit{{{NODE}}}": "100x20"}, 11, 9,
         ON_NODE,
         {f"antiphon_producer_jobs_max{{{NODE}}}": "79x20", f"antiphon_producer_jobs_limit{{{NODE}}}": "100x20"}),
    Case("AntiphonTransactionHangs", {f"antiphon_transactions_oldest_seconds{{{NODE}}}": "0+60x30"}, 18, 16, ON_NODE,
         {f"antiphon_transactions_oldest_seconds{{{NODE}}}": "800x30"}, "1080"),
    counter("AntiphonStrangersAtNodePort", "antiphon_nodes_refused_total"),
    Case("AntiphonLoginsFail", {f"antiphon_logins_failed_total{{{NODE}}}": "0+120x30"}, 10, 3, ON_NODE,
         {f"antiphon_logins_failed_total{{{NODE}}}": "0+30x30"}, "2"),
    Case("AntiphonCertificatesRefused", {f"antiphon_tls_handshakes_failed_total{{{NODE}}}": "0+120x30"}, 10, 3, ON_NODE,
         {f"antiphon_tls_handshakes_failed_total{{{NODE}}}": "0+30x30"}, "2"),
    Case("AntiphonSparkQueryEnded", {'antiphon_spark_query_failure{error="TimeoutError",query="daily"}': "1x9"}, 2, 0,
         {"error": "TimeoutError", "query": "daily"},
         {'antiphon_spark_query_active{query="daily"}': "1x9"}),
    Case("AntiphonSparkQueryBehind",
         {'antiphon_spark_lag_seconds{query="daily",shard="0",topic="orders"}': "10x20",
          'antiphon_spark_lag_seconds{query="daily",shard="1",topic="orders"}': "400x20"}, 11, 9,
         {"query": "daily", "topic": "orders"},
         {'antiphon_spark_lag_seconds{query="daily",shard="0",topic="orders"}': "200x20"}, "400"),
)  # fmt: skip
