"""The model of what a cluster carries: what binds it, how it grows, what it refuses; and that costs can be measured."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from antiphon.cli.main import app
from antiphon.tools.capacity import measure
from antiphon.tools.capacity.costs import Costs, Cpu, PerBatch, PerRow, our_costs
from antiphon.tools.capacity.model import MIB, Cluster, Rate, capacity, idle

PER_ROW = PerRow(Cpu(100, 50), Cpu(20, 0), Cpu(80, 0), Cpu(10, 0))
COSTS = Costs(
    append=PerBatch(Cpu(200, 100), Cpu(1, 3)),
    to_follower=PerBatch(Cpu(40, 0), Cpu(0.1, 0)),
    follow=PerBatch(Cpu(160, 100), Cpu(0.5, 1)),
    fetch=PerBatch(Cpu(50, 0), Cpu(0.1, 0.1)),
    rows=PER_ROW,
    row=PER_ROW,
    node=Cpu(5_000, 5_000),
    peer=Cpu(100, 0),
    shard=Cpu(10, 0),
    node_bytes=60 * MIB,
    shard_bytes=32 * 1024,
    connection_bytes=8 * 1024,
)
ROOMY = Cluster(cores=8, disk_mib_s=1e6, network_mib_s=1e6)


def test_a_line_through_two_measurements_goes_through_both() -> None:
    line = PerBatch.through((16_000, Cpu(100, 10)), (1_000_000, Cpu(900, 40)))
    assert line.of(16_000) == pytest.approx((100, 10))
    assert line.of(1_000_000) == pytest.approx((900, 40))
    assert PerBatch(Cpu(-5, 2), Cpu()).of(1) == Cpu(0, 2), "nothing costs less than nothing"


def test_the_event_loops_bind_small_batches() -> None:
    """By hand: a node of three with 300 shards rests at 5,000 + 2 x 100 + 300 x 10 us of its loop."""
    found = capacity(ROOMY, COSTS, batch_bytes=1024, readers=1)
    assert idle(ROOMY, COSTS) == Cpu(8_200, 5_000)
    loop = (200 + 1) + 2 * (40.1 + 160.5) + 50.1
    assert found.batches.a_second == pytest.approx(3 * (600_000 - 8_200) / loop)
    assert found.batches.bound_by == "the event loops"
    assert found.mib_s == pytest.approx(found.batches.a_second / 1024)
    assert found.put.a_second == pytest.approx(3 * (600_000 - 8_200) / (100 + 2 * 100))
    assert found.get.a_second == pytest.approx(3 * (600_000 - 8_200) / 10)


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        ({"cores": 0.5}, "the cores"),
        ({"disk_mib_s": 1}, "the disks"),
        ({"network_mib_s": 1}, "the networks"),
    ],
)
def test_what_there_is_least_of_binds(change: dict[str, Any], bound: str) -> None:
    found = capacity(ROOMY._replace(**change), COSTS, batch_bytes=100_000)
    assert found.batches.bound_by == bound
    assert found.batches.a_second < capacity(ROOMY, COSTS, batch_bytes=100_000).batches.a_second


def test_bytes_to_disks_and_networks_by_hand() -> None:
    disk = capacity(ROOMY._replace(disk_mib_s=1), COSTS, batch_bytes=MIB)
    assert disk.batches.a_second == pytest.approx(3 * 0.6 / 3), "each byte goes to three disks"
    network = capacity(ROOMY._replace(network_mib_s=1), COSTS, batch_bytes=MIB, readers=5)
    assert network.batches.a_second == pytest.approx(3 * 0.6 / 7), "to two followers and five readers"


def test_it_grows_with_the_nodes_less_what_they_cost_each_other() -> None:
    three, thirty = (capacity(ROOMY._replace(nodes=count, shards=100 * count), COSTS) for count in (3, 30))
    assert 9 < thirty.batches.a_second / three.batches.a_second < 10
    assert thirty.memory_mib == pytest.approx(three.memory_mib, rel=0.1), "as many replicas on each"
    full = capacity(ROOMY._replace(shards=70_000), COSTS)
    assert full.batches == Rate(0, "the event loops"), "idle shards alone take more than there is"
    assert full.elections_s > three.elections_s


@pytest.mark.parametrize(
    "wrong",
    [{"replicas": 4}, {"replicas": 0}, {"share": 0.0}, {"share": 1.1}, {"cores": 0.0}, {"shards": -1}],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"nodes cannot hold|at least|at most"):
        capacity(ROOMY._replace(**wrong), COSTS)


def test_our_costs_are_whole_and_name_their_machine() -> None:
    costs = our_costs()
    assert costs.machine
    for line in (costs.append, costs.follow, costs.fetch):
        assert all(part > 0 for part in line.of(131_072))
    assert min(costs.node_bytes, costs.shard_bytes, costs.connection_bytes) > 0
    assert sum(costs.row.put) > sum(costs.rows.put), "alone, a row pays for its request"


def test_the_command_answers_people_and_programs(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_bytes(msgspec.json.encode(COSTS))
    runner = CliRunner()
    words = ["capacity", "--nodes", "30", "--shards", "3000", "--costs", str(file)]
    for_people = runner.invoke(app, words)
    assert for_people.exit_code == 0, for_people.output
    assert "the event loops" in for_people.output
    told = json.loads(runner.invoke(app, [*words, "--json"]).output)
    cluster = Cluster(nodes=30, shards=3000)
    assert told["capacity"]["batches"]["a_second"] == pytest.approx(capacity(cluster, COSTS).batches.a_second)
    refused = runner.invoke(app, ["capacity", "--nodes", "2"])
    assert (refused.exit_code, "cannot hold 3 replicas" in refused.output) == (2, True)
    file.write_text("{}")
    assert "--measure" in runner.invoke(app, ["capacity", "--costs", str(file)]).output


@pytest.mark.slow
def test_costs_are_measured_on_real_nodes() -> None:
    batches = measure._batches(2, 0.3)
    assert batches.size[measure.SMALL] < batches.size[measure.LARGE]
    for costs in (batches.leader, batches.follower):
        assert sum(costs[measure.LARGE]) > sum(costs[measure.SMALL]) > 0
    rows = measure._rows(2, 64, 0.5)
    assert sum(rows.leader) > 0
    assert sum(rows.follower) > 0
    assert measure._connection_bytes() < 1 << 20
