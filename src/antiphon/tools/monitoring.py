"""The Grafana board of a cluster: `python -m antiphon.tools.monitoring monitoring/grafana.json` writes it.

A panel is a row of `PANELS`: title, unit, and its queries with their legends. `$instance` is what the viewer chose.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
HERE: Final = 'instance=~"$instance"'


class Panel(NamedTuple):
    """One plot. `queries`: expression and legend of each curve; `unit`: as Grafana names it."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


class Row(NamedTuple):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def _rate(metric: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}{{{HERE}}}[$__rate_interval]))"


def _quantile(quantile: float, metric: str, by: str = "instance") -> str:
    return f"histogram_quantile({quantile}, sum by (le, {by}) (rate({metric}_bucket{{{HERE}}}[$__rate_interval])))"


def _latency(title: str, metric: str) -> Panel:
    queries = tuple((_quantile(q, metric), f"p{q * 100:g} {{{{instance}}}}") for q in (0.5, 0.99))
    return Panel(title, "s", queries)


PANELS: Final = (
    Row(
        "Health",
        (
            Panel("Nodes alive", "short", (("min(antiphon_nodes_alive)", "alive"), ("max(antiphon_nodes)", "all"))),
            Panel(
                "Partitions without a leader", "short", (("max(antiphon_partitions_without_leader)", "partitions"),)
            ),
            Panel("What is wrong", "short", ((f"antiphon_findings{{{HERE}}} > 0", "{{instance}} {{kind}}"),)),
            Panel(
                "Elections begun, by reason",
                "short",
                ((f"sum by (reason) (increase(antiphon_elections_begun_total{{{HERE}}}[$__rate_interval]))", "{{reason}}"),),
            ),
            Panel(
                "Behind the leader",
                "short",
                ((f"max by (node) (antiphon_follower_lag_entries{{{HERE}}})", "node {{node}}"),),
            ),
            Panel(
                "Groups behind the log", "short", ((f"topk(20, antiphon_group_lag_records{{{HERE}}})", "{{group}}"),)
            ),
            Panel("Led partitions", "short", ((f"antiphon_leaders{{{HERE}}}", "{{instance}}"),)),
        ),
    ),
    Row(
        "Writes and reads",
        (
            Panel("Bytes appended", "Bps", ((_rate("antiphon_append_bytes_total"), "{{instance}}"),)),
            Panel("Records appended", "cps", ((_rate("antiphon_append_records_total"), "{{instance}}"),)),
            Panel("Bytes fetched", "Bps", ((_rate("antiphon_fetch_bytes_total"), "{{instance}}"),)),
            Panel("Operations on tables", "ops", ((_rate("antiphon_table_ops_total"), "{{instance}}"),)),
            Panel("Gets and scans", "ops", ((_rate("antiphon_table_reads_total"), "{{instance}}"),)),
            Panel("Refused appends", "ops", ((_rate("antiphon_refusals_total"), "{{instance}}"),)),
        ),
    ),
    Row(
        "Latency",
        (
            _latency("From append to commit", "antiphon_commit_seconds"),
            _latency("Until a write is durable", "antiphon_disk_seconds"),
            _latency("Applying to a table's store", "antiphon_apply_seconds"),
            Panel(
                "Requests, p99 by kind",
                "s",
                ((_quantile(0.99, "antiphon_request_seconds", "listener, request"), "{{listener}} {{request}}"),),
            ),
            Panel(
                "Requests by kind",
                "reqps",
                ((_rate("antiphon_request_seconds_count", "listener, request"), "{{listener}} {{request}}"),),
            ),
            Panel("Waits for the disk", "bytes", ((f"antiphon_wal_backlog_bytes{{{HERE}}}", "{{instance}}"),)),
        ),
    ),
    Row(
        "Resources",
        (
            Panel("Processor", "percentunit", ((_rate("antiphon_cpu_seconds_total"), "{{instance}}"),)),
            Panel("Memory", "bytes", ((f"antiphon_resident_bytes{{{HERE}}}", "{{instance}}"),)),
            Panel(
                "Memory that clients hold",
                "bytes",
                (
                    (f"antiphon_client_memory_bytes{{{HERE}}}", "{{instance}}"),
                    (f"max(antiphon_client_memory_limit_bytes{{{HERE}}})", "limit"),
                ),
            ),
            Panel("Descriptors", "short", ((f"antiphon_open_files{{{HERE}}}", "{{instance}}"),)),
            Panel("Native connections", "short", ((f"antiphon_connections{{{HERE}}}", "{{instance}}"),)),
            Panel(
                "Transactions under way",
                "short",
                (
                    (f"antiphon_transactions_open{{{HERE}}}", "{{instance}}"),
                    (f"max(antiphon_transactions_oldest_seconds{{{HERE}}})", "age of the oldest, s"),
                ),
            ),
        ),
    ),
    Row(
        "Share groups",
        (
            Panel(
                "Records that are not done",
                "short",
                (
                    (f"max(antiphon_share_lag_records{{{HERE}}})", "of the share-partition furthest behind"),
                    (f"sum(antiphon_share_locked_records{{{HERE}}})", "that members work on"),
                ),
            ),
            Panel(
                "Deliveries and acknowledgements",
                "cps",
                (
                    (f"sum({_rate('antiphon_share_deliveries_total')})", "delivered"),
                    (f"sum by (type) ({_rate('antiphon_share_acknowledgements_total', 'type')})", "{{type}}"),
                ),
            ),
            Panel(
                "Without an answer, or too often",
                "cps",
                (
                    (f"sum({_rate('antiphon_share_lock_timeouts_total')})", "locks that ended"),
                    (f"sum({_rate('antiphon_share_delivery_limit_total')})", "archived at the limit"),
                ),
            ),
        ),
    ),
    Row(
        "Spark",
        (
            Panel("Behind", "s", (("max by (query, topic) (antiphon_spark_lag_seconds)", "{{query}} {{topic}}"),)),
            Panel("Offsets to read", "short", (("sum by (query) (antiphon_spark_lag_offsets)", "{{query}}"),)),
            Panel(
                "Rows of the last micro-batch",
                "cps",
                (("antiphon_spark_processed_rows_per_second", "{{query}}"),),
            ),
        ),
    ),
)  # fmt: skip


def board() -> dict[str, Any]:
    """The board as Grafana imports it (schema 39, Grafana 10 and later)."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in PANELS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": WIDTH * COLUMNS, "h": 1},
            }
        )
        top += 1
        for at, panel in enumerate(row.panels):
            place = {
                "x": WIDTH * (at % COLUMNS),
                "y": top + HEIGHT * (at // COLUMNS),
                "w": WIDTH,
                "h": HEIGHT,
            }
            panels.append(_plot(len(panels) + 1, panel, place))
        top += HEIGHT * (1 + (len(row.panels) - 1) // COLUMNS)
    return {
        "uid": "antiphon",
        "title": "Antiphon",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "label": "Node",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": {"query": "label_values(antiphon_nodes, instance)", "refId": "nodes"},
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


def _plot(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """The board's file."""
    return json.dumps(board(), indent=1) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
