"""What a node tells Prometheus: the figures are true, the page names all of them, alert rules and the board ask for them."""

import asyncio
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as families_of

from antiphon.cli.main import app
from antiphon.log.producer_state import JOB_ID_MIN, JOBS_MAX
from antiphon.model.metadata import Kind
from antiphon.model.requests import AppendBatch, CreateTopic, ListOffset, Put, TableWrite
from antiphon.node.config import Ports
from antiphon.records.builder import build_batch
from antiphon.server.server import Server
from antiphon.tools import monitoring
from tests.kafka.raw import RawClient
from tests.node.in_process import (
    KAFKA_PORT,
    NATIVE_PORT,
    cluster_of,
    connected,
    eventually,
    in_virtual_time,
    run,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
ALERTS = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
SPARK = (ROOT / "docs" / "spark.md").read_text()
ALL_LISTENERS = Ports(NATIVE_PORT, KAFKA_PORT, -1, 8080)


def shown(server: Server) -> dict[str, dict[tuple[str, ...], float]]:
    """By name of the sample: its value by the values of its labels, without `le`."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in families_of(server.node.metrics.render().decode()):
        for name, labels, value, *_ in family.samples:
            key = tuple(text for label, text in labels.items() if label != "le")
            found.setdefault(name, {})[key] = value
    return found


def coordinates(server: Server) -> bool:
    shell = server.node.coordinator
    return shell is not None and shell.coordinator is not None


@in_virtual_time
async def test_the_figures_are_those_of_what_happened() -> None:
    async with cluster_of(3, ports=ALL_LISTENERS) as nodes:
        gateway = nodes.nodes[0].gateway
        topic = await gateway.create_topic(CreateTopic("t"))
        table = await gateway.create_topic(CreateTopic("rows", kind=Kind.TABLE))
        shard_id, rows_id = topic.shards[0].shard_id, table.shards[0].shard_id
        leader = (await nodes.leader(shard_id)).state.services.node_id
        rows_leader = (await nodes.leader(rows_id)).state.services.node_id
        async with connected(f"node-{leader}:{NATIVE_PORT}") as client:
            for number in range(3):
                batch = build_batch([(None, b"%d" % number, [], 1)])
                await client.request(AppendBatch(shard_id), [bytes(batch)])
            await client.request(ListOffset(shard_id, -1))
        async with connected(f"node-{rows_leader}:{NATIVE_PORT}") as client:
            await client.request(TableWrite(rows_id, (Put(b"k", b"v"),)))
        raw = RawClient(*await asyncio.open_connection(f"node-{leader}", KAFKA_PORT))
        await raw.receive(raw.send(18, 0, b""))
        raw.writer.close()
        told = shown(nodes.servers[leader])
        asked = told["antiphon_request_seconds_count"]
        assert asked["native", "AppendBatch"] == 3
        assert asked["native", "ListOffset"] == 1
        assert asked["kafka", "ApiVersions"] == 1
        assert 0 < told["antiphon_request_seconds_sum"]["native", "AppendBatch"] < 3
        assert shown(nodes.servers[rows_leader])["antiphon_apply_seconds_count"][()] >= 1
        assert told["antiphon_nodes"][()] == told["antiphon_nodes_alive"][()] == 3
        assert told["antiphon_partitions_without_leader"][()] == 0
        # Every election so far was that of a new shard.
        coordinator = next(one for one in nodes.servers.values() if coordinates(one))
        begun = shown(coordinator)["antiphon_elections_begun_total"]
        assert set(begun) == {("created",)}
        # A follower that is gone falls behind by what is appended.
        away = next(node for node in nodes.nodes if node not in (leader, coordinator.node.node_id))
        before = nodes.nodes[leader].hosts[shard_id].log.log_end
        nodes.kill(away)
        for number in range(5):
            await nodes.append(shard_id, b"%d" % number)
        lag = shown(nodes.servers[leader])["antiphon_follower_lag_entries"]
        assert lag[str(away),] >= nodes.nodes[leader].hosts[shard_id].log.log_end - before >= 5
        await eventually(lambda: shown(nodes.servers[leader])["antiphon_nodes_alive"][()] == 2)
        assert shown(coordinator)["antiphon_elections_begun_total"]["member_lost",] >= 1


@in_virtual_time
async def test_the_shard_that_remembers_most_jobs_is_told_of() -> None:
    """A shard forgets none of them: somebody has to hear of it before it takes no more."""
    async with cluster_of(1) as nodes, connected(f"node-0:{NATIVE_PORT}") as client:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", shards=2, replicas=1))
        for number in range(3):
            for shard in topic.shards[: 2 if number else 1]:
                batch = build_batch(
                    [(None, b"x", [], 1)],
                    producer_id=JOB_ID_MIN + number,
                    producer_epoch=0,
                    base_sequence=0,
                )
                await client.request(AppendBatch(shard.shard_id), [bytes(batch)])
        told = shown(nodes.servers[0])
        assert told["antiphon_producer_jobs"][()] == 5
        assert told["antiphon_producer_jobs_max"][()] == 3
        assert told["antiphon_producer_jobs_limit"][()] == JOBS_MAX


@cache
def families() -> dict[str, tuple[str, str, str]]:
    """Every metric of a node by its name in queries: type, labels, text."""
    found: dict[str, tuple[str, str, str]] = {}

    async def test() -> None:
        ports = msgspec.structs.replace(ALL_LISTENERS, oxia=6648)
        secrets = {0: b"what only the nodes of this test know"}
        async with cluster_of(1, ports=ports, secrets=secrets) as nodes:
            async with connected(f"node-0:{NATIVE_PORT}") as client:
                topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", replicas=1))
                await client.request(ListOffset(topic.shards[0].shard_id, -1))
            metrics = nodes.servers[0].node.metrics
            for family in families_of(metrics.render().decode()):
                name = f"{family.name}_total" if family.type == "counter" else family.name
                labels = {label for sample in family.samples for label in sample.labels} - {"le"}
                if family.name in metrics.labelled:  # there may be nothing to tell yet
                    labels.add(metrics.labelled[family.name].label)
                found[name] = (family.type, ", ".join(sorted(labels)), family.documentation)

    run(test())
    return found


def test_the_page_lists_every_metric_as_it_is() -> None:
    rows = [
        f"| `{name}` | {kind} | {labels} | {text} |"
        for name, (kind, labels, text) in sorted(families().items())
    ]
    listed = re.findall(r"^\| `antiphon_\w+` \|.*\|$", PAGE, re.MULTILINE)
    assert listed == rows, "docs/metrics.md should have\n" + "\n".join(rows)


def metrics_in(expression: str) -> set[str | None]:
    """The metrics that a query reads; raises ValueError where it is none."""
    found: set[str | None] = set()

    def look(node: Any) -> None:
        for name in dir(node):
            if name.startswith("_"):
                continue
            part = getattr(node, name)
            if isinstance(part, promql_parser.VectorSelector):
                found.add(part.name)
            if type(part).__module__ == type(node).__module__ or isinstance(part, list):
                for one in part if isinstance(part, list) else [part]:
                    if isinstance(one, promql_parser.Expr) and one is not node:
                        look(one)

    parsed = promql_parser.parse(expression)
    if isinstance(parsed, promql_parser.VectorSelector):
        found.add(parsed.name)
    look(parsed)
    return found


def is_known(name: str | None) -> bool:
    if name is None:
        return False
    base = re.sub(r"_(bucket|count|sum)$", "", name)
    return name == "up" or name in families() or base in families() or f"`{name}`" in SPARK


def test_the_reader_of_queries_finds_what_they_read() -> None:
    assert metrics_in("max by (job) (a / b) > 0.9 and rate(c_total[5m]) > 0") == {"a", "b", "c_total"}
    assert metrics_in("histogram_quantile(0.99, sum by (le) (rate(d_bucket{x='y'}[5m])))") == {"d_bucket"}
    assert not is_known("antiphon_no_such_thing")
    with pytest.raises(ValueError, match=r"."):
        metrics_in("sum by (")


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_asks_for_what_there_is_and_says_what_to_do(rule: dict[str, Any]) -> None:
    asked = metrics_in(rule["expr"])
    assert asked
    assert [name for name in asked if not is_known(name)] == []
    assert rule["labels"]["severity"] in {"page", "ticket"}
    action = rule["annotations"]["action"]
    assert rule["annotations"]["summary"]
    for command in re.findall(r"`antiphon ([a-z -]+)`", action):
        place: Any = app_command()
        for word in command.split():
            place = place.commands[word]
    for page in re.findall(r"docs/[\w-]+\.md", action):
        assert (ROOT / page).exists()
    assert f"`{rule['alert']}`" in PAGE


def app_command() -> Any:
    import typer.main

    return typer.main.get_command(app)


def test_the_board_is_current_and_asks_for_what_there_is() -> None:
    assert (ROOT / "monitoring" / "grafana.json").read_text() == monitoring.text(), "run `make docs`"
    board = json.loads(monitoring.text())
    plots = [panel for panel in board["panels"] if panel["type"] == "timeseries"]
    assert len(plots) >= 25
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
    assert len(places) == len(board["panels"])
    for panel in plots:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            asked = metrics_in(query)
            assert asked, query
            assert [name for name in asked if not is_known(name)] == []
            used = re.findall(r"\{\{(\w+)}}", target["legendFormat"])
            assert used or target["legendFormat"]


def test_prometheus_is_told_of_the_rules() -> None:
    told = yaml.safe_load((ROOT / "monitoring" / "prometheus.yml").read_text())
    assert told["rule_files"] == ["alerts.yml"]
    assert {job["job_name"] for job in told["scrape_configs"]} >= set(re.findall(r'job="(\w+)"', str(RULES)))
