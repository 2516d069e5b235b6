"""docs/limits.md says what the code does."""

import re
from pathlib import Path

import msgspec

from antiphon.archive import files as archive_files
from antiphon.coordination.capacity import Capacity
from antiphon.coordination.client_metrics import NAME_BYTES_MAX, TEXT_CHARACTERS_MAX, VALUE_BYTES_MAX
from antiphon.coordination.patterns import PROGRAM_MAX, REGEX_BYTES_MAX
from antiphon.coordination.transactions import Bounds
from antiphon.gateway.budget import FLOOR_BYTES, PATIENCE_S, SLOWEST_BYTES_S
from antiphon.gateway.turns import OPERATIONS, READ_BYTES, WORK_MAX
from antiphon.kafka import fetch_sessions
from antiphon.kafka.archived.reader import CLIENT_LOOKING_MAX, LOOKING_MAX
from antiphon.kafka.client_metrics import clients, otlp
from antiphon.kafka.client_metrics.clients import (
    CLIENT_BYTES_MAX,
    CLIENT_POINTS_MAX,
    CLIENTS_MAX,
    POINTS_MAX,
)
from antiphon.kafka.groups.classic_groups import GROUPS_MAX
from antiphon.kafka.groups.classic_rows import ROW_BYTES_MAX
from antiphon.kafka.groups.consumer_groups import WAITING_MAX
from antiphon.kafka.groups.group_memory import KEPT_BYTES_MAX
from antiphon.kafka.groups.types import MEMBER_BYTES, GroupConfig
from antiphon.kafka.handlers import fetch, produce
from antiphon.kafka.handlers.consumer_groups import ID_BYTES_MAX
from antiphon.kafka.handlers.groups import CLIENT_ID_MAX
from antiphon.kafka.handlers.markers import PARTS_MAX
from antiphon.kafka.handlers.metadata import CREATING_MAX, LARGE
from antiphon.kafka.handlers.telemetry import PUSH_BYTES_MAX, UNPACKED_BYTES_MAX
from antiphon.kafka.listener import INLINE_ELEMENTS
from antiphon.kafka.listener_config import KafkaListenerConfig
from antiphon.kafka.matching import PIECE_STEPS, STEPS_MAX
from antiphon.kafka.pacing import PIECE
from antiphon.kafka.primitives import ELEMENTS_MAX
from antiphon.kafka.topic_config import TOPICS_ON_DEMAND
from antiphon.log.producer_state import JOBS_MAX, PRODUCERS_MAX, SHARE
from antiphon.model.backup import LEASE_MS_MAX
from antiphon.model.client_metrics import SUBSCRIPTIONS_MAX
from antiphon.model.cluster import MetadataView
from antiphon.model.metadata import SHARDS_MAX
from antiphon.model.placement import NODES_MAX
from antiphon.model.requests import FIND_KEYS_MAX, GET_KEYS_MAX, OPS_MAX
from antiphon.native import exchange
from antiphon.native.cluster_requests import NEWS_MAX, REPLICA_BYTES
from antiphon.native.exchange import NativeLimits
from antiphon.native.request_turns import BUSY_SHARE, REQUEST_WORK
from antiphon.native.session import STRANGER_BYTES
from antiphon.native.table_requests import KEY_BYTES
from antiphon.node.config import Limits
from antiphon.node.local_backups import COPIES_MAX
from antiphon.node.metrics import NodeMetrics
from antiphon.oxia.allowance import FIELDS_MAX
from antiphon.oxia.connection import AT_ONCE
from antiphon.oxia.http2 import HEADER_BLOCK_BYTES
from antiphon.oxia.read_room import WAKE_WORK
from antiphon.server.client_memory import add_capacity_gauges, add_memory_gauges, memory_for_clients
from antiphon.table.found_rows import GET_BYTES_MAX
from antiphon.table.range_removals import RANGE_KEYS_MAX
from antiphon.table.state import SCAN_BYTES_MAX
from antiphon.transactions.coordinator import IDS_MAX, PARTICIPANTS_MAX
from antiphon.transactions.endings import MARKERS_AT_ONCE, WORKERS
from antiphon.transactions.pending_offsets import PENDING_BYTES_MAX, PENDING_MAX
from antiphon.wire.frames import HEADER_BYTES_MAX

PAGE = " ".join((Path(__file__).parent.parent / "docs" / "limits.md").read_text().split())


def test_the_figures_are_those_in_the_code() -> None:
    limits = Limits()
    assert f"| `memory` | {limits.memory >> 20} MiB |" in PAGE
    parts = ", ".join(
        str(getattr(limits, f"{name}_memory") >> 20) for name in ("kafka", "native", "http", "oxia")
    )
    assert f"| {parts} MiB |" in PAGE
    assert f"| `connection_memory` | {limits.connection_memory >> 20} MiB |" in PAGE
    assert f"hold {FLOOR_BYTES >> 10} KiB in any case" in PAGE
    assert f"more than {GET_BYTES_MAX >> 20} MiB together" in PAGE
    assert f"while it is read | {LEASE_MS_MAX:,}; {COPIES_MAX} |" in PAGE
    assert (exchange.GET_BYTES, exchange.SCAN_BYTES) == (GET_BYTES_MAX, SCAN_BYTES_MAX)
    assert (
        f"a fetch with {exchange.FORWARDED_BYTES >> 20} MiB ({exchange.WAITING_BYTES >> 10} KiB where it waits for data), "
        f"a get with {exchange.ROW_BYTES >> 20} MiB for each key up to {GET_BYTES_MAX >> 20} MiB, "
        f"a scan with {SCAN_BYTES_MAX >> 20} MiB"
    ) in PAGE
    assert f"waited for {PATIENCE_S:.0f} s. Each {SLOWEST_BYTES_S >> 10} KiB" in PAGE
    assert f"of a Kafka request | {ELEMENTS_MAX:,} |" in PAGE
    assert f"and to the login | {STRANGER_BYTES >> 10} KiB |" in PAGE
    assert f"offsets in transactions | {HEADER_BYTES_MAX >> 20} MiB |" in PAGE
    assert f"newer metadata | {NEWS_MAX} |" in PAGE
    assert f"Answers of less than {FLOOR_BYTES >> 10} KiB need no room" in PAGE
    assert f"jobs of Spark, others | {JOBS_MAX:,}, {PRODUCERS_MAX:,} |" in PAGE
    assert f"under `[limits]`) | {limits.producers:,} | a new one, at a shard with {SHARE:,} and" in PAGE
    assert f"places by hand | {NODES_MAX}, {SHARDS_MAX:,} |" in PAGE
    assert f"| {CREATING_MAX}; {TOPICS_ON_DEMAND:,} |" in PAGE
    assert Limits().topics_on_demand == KafkaListenerConfig().topics_on_demand == TOPICS_ON_DEMAND
    assert f"| `topics` | {limits.topics:,} |" in PAGE
    assert f"| `partitions` | {limits.partitions:,} |" in PAGE
    assert f"| `node_replicas` | {limits.node_replicas:,} |" in PAGE
    assert f"| `request_partitions` | {limits.request_partitions:,} |" in PAGE
    assert f"One topic has {SHARDS_MAX:,} partitions at most" in PAGE
    assert limits.capacity == Capacity()
    assert f"decoded at once up to {INLINE_ELEMENTS} elements" in PAGE
    assert (
        f"{produce.PIECE} batches, or {produce.PIECE_BYTES >> 20} MiB of them, or reads {fetch.PIECE} part"
        in PAGE
    )
    assert f" {produce.OPEN_MAX} batches at most that wait for their commit" in PAGE
    assert f"operations of one table write | {GET_KEYS_MAX:,}; {FIND_KEYS_MAX:,}; {OPS_MAX:,} |" in PAGE
    assert f"reads {READ_BYTES >> 20} MiB for answers to native clients" in PAGE
    assert f"a status is taken to have {REPLICA_BYTES} bytes for each replica" in PAGE
    assert f"looks for {READ_BYTES // KEY_BYTES:,} keys" in PAGE
    assert f"to a table of more than {OPERATIONS:,} operations" in PAGE
    assert f"one write hold at most {RANGE_KEYS_MAX:,} keys together" in PAGE
    groups = GroupConfig()
    assert f"of a consumer group | {groups.metadata_bytes_max >> 10} KiB |" in PAGE
    assert f"hands in | {groups.assignment_bytes_max >> 20} MiB |" in PAGE
    assert f"{groups.metadata_bytes_max >> 10} KiB; {REGEX_BYTES_MAX:,} bytes; {ID_BYTES_MAX} bytes |" in PAGE
    assert f"wait in one group | {KEPT_BYTES_MAX >> 20} MiB; {WAITING_MAX:,} |" in PAGE
    assert f"forgotten after {groups.abandoned_ms // 1000} s" in PAGE
    assert limits.archive_memory == KafkaListenerConfig().archive_bytes
    assert (
        f"looked for at a time, for one client | {limits.archive_memory >> 20} MiB, and one more while it is read, "
        f"as much as is left for others; {LOOKING_MAX:,}, {CLIENT_LOOKING_MAX} |" in PAGE
    )
    sessions, each = fetch_sessions.SESSIONS_MAX, fetch_sessions.OF_CONNECTION_MAX
    assert f"{sessions:,}, {each}; {fetch_sessions.PARTITION_COSTS_BYTES >> 10} KiB" in PAGE
    assert f"{GROUPS_MAX:,}, {groups.members_max:,}" in PAGE
    assert f"with its members and what they have | {ROW_BYTES_MAX >> 10} KiB |" in PAGE
    assert f"event loop | {PROGRAM_MAX:,}; {STEPS_MAX:,}, {PIECE_STEPS:,} | INVALID_REGULAR" in PAGE
    assert f"{MEMBER_BYTES} bytes for each | {groups.kept_bytes_max >> 20} MiB |" in PAGE
    groups_of_files = f"{archive_files.GROUP_BYTES_MAX >> 20} MiB, {archive_files.GROUP_ROWS_MAX:,}"
    assert f"an archived file | {groups_of_files} |" in PAGE
    assert f"that its groups keep | {CLIENT_ID_MAX} |" in PAGE
    assert f"{IDS_MAX:,}, {PARTICIPANTS_MAX:,} partitions and groups" in PAGE
    assert f"| partitions in one WriteTxnMarkers | {PARTS_MAX:,} |" in PAGE
    assert f"fields of them | {HEADER_BLOCK_BYTES >> 10} KiB; {FIELDS_MAX} |" in PAGE
    assert f"of their fields 1 | {WORK_MAX}, of one connection" in PAGE
    assert f"A turn of the loop has {WORK_MAX} units" in PAGE
    at_once = WORK_MAX // REQUEST_WORK
    assert f"has had its work | {at_once}; {at_once // BUSY_SHARE} |" in PAGE
    assert f"in one turn of the event loop | {PIECE} | the rest has" in PAGE
    assert f"of more than {LARGE:,} topics and partitions is encoded" in PAGE
    assert f"hangs up its calls end {AT_ONCE} in a turn" in PAGE
    assert f"follow a shard {WORK_MAX // WAKE_WORK} go on" in PAGE
    assert f"one transaction | {Bounds().participants_max:,} |" in PAGE
    assert f"{PENDING_MAX:,}, {PENDING_BYTES_MAX // 1024} KiB" in PAGE
    assert f"{MARKERS_AT_ONCE}, {WORKERS} | they wait" in PAGE
    assert f"{KafkaListenerConfig().first_request_s:.0f} s; {NativeLimits(1, 1, 1).hello_s:.0f} s" in PAGE


def test_bounds_of_clients_metrics() -> None:
    sizes = f"{NAME_BYTES_MAX}, {VALUE_BYTES_MAX:,}, {REGEX_BYTES_MAX:,}"
    assert f"| {SUBSCRIPTIONS_MAX}; {sizes}; {TEXT_CHARACTERS_MAX:,} |" in PAGE
    pushed = f"{PUSH_BYTES_MAX >> 20} MiB, {UNPACKED_BYTES_MAX >> 20} MiB; {otlp.FIELDS_MAX:,} | TELEMETRY_TOO_LARGE"
    assert pushed in PAGE
    figures = (
        f"| {CLIENTS_MAX:,}; {CLIENT_POINTS_MAX:,}, {POINTS_MAX:,}; {CLIENT_BYTES_MAX >> 20} MiB, "
        f"{clients.KEPT_BYTES_MAX >> 20} MiB; {otlp.LABELS_MAX} and the client's two; "
    )
    assert f"{figures}{otlp.NAME_CHARACTERS_MAX} |" in PAGE
    assert otlp.NAME_CHARACTERS_MAX == otlp.LABEL_CHARACTERS_MAX


def test_the_metrics_are_there() -> None:
    metrics = NodeMetrics()
    add_memory_gauges(metrics.gauges, memory_for_clients(Limits()))
    add_capacity_gauges(metrics.gauges, Limits(), MetadataView("c"))
    shown = metrics.render().decode()
    named = re.findall(r"`(antiphon_\w*(?:memory|topics|partitions|limit|refusals)\w*)`", PAGE)
    assert len(named) >= 11
    for name in named:
        assert f"\n{name} " in shown


def test_settings_that_are_named_are_settings() -> None:
    fields = {field.name for field in msgspec.structs.fields(Limits)}
    assert {"memory", "kafka_memory", "native_memory", "http_memory", "connection_memory"} <= fields
