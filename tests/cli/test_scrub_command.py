"""`antiphon scrub` as a person types it, against real processes whose files decay, RocksDB's among them."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, Put, TableScan, TableWrite
from tests.cli.shell import antiphon
from tests.node.processes import Processes, eventually

pytestmark = pytest.mark.cluster

ROWS = 200
VICTIM = 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Three nodes with a topic of several segments and a table, all of it on their disks."""
    with Processes(tmp_path_factory.mktemp("scrubbed")) as processes:
        processes.ask(0, CreateTopic("t", replicas=3, config={"segment.bytes": "20000"}))
        processes.ask(0, CreateTopic("rows", kind=Kind.TABLE, replicas=3))
        topic, table = processes.shard(0, "t").shard_id, processes.shard(0, "rows").shard_id
        draw = Random(1)
        for _ in range(12):
            processes.append(topic, draw.randbytes(5_000))
        for at in range(0, ROWS, 20):
            puts = tuple(Put(b"%03d" % number, draw.randbytes(400)) for number in range(at, at + 20))
            processes.on_leader(table, TableWrite(table, puts))
        eventually(lambda: len({processes.read(node_id, topic) for node_id in processes.ids}) == 1)
        for node_id in processes.ids:  # a stop brings the tables' stores to disk
            assert processes.stop(node_id) == 0
            processes.start(node_id)
        eventually(lambda: are_well(processes))
        yield processes


def are_well(cluster: Processes) -> bool:
    return all(
        one.state == "ok" for node_id in cluster.ids for one in cluster.statuses(node_id).values()
    ) and all(len(cluster.statuses(node_id)) > 2 for node_id in cluster.ids)


def scrub(cluster: Processes, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ANTIPHON_SERVERS": cluster.servers}
    return antiphon("scrub", *words, environment=environment, timeout_s=120)


def wrong(said: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Node and shard of what is wrong now."""
    return [
        (node["node"], one["shard_id"]) for node in said for one in node["findings"] if not one["mended_ms"]
    ]


def flip(path: Path, share: float) -> bytes:
    """Rot under the node that has the file open; returns what the file holds then."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 16
    with path.open("r+b") as file:
        file.write(data)
    return bytes(data)


def test_it_reads_everything_and_says_how_much(cluster: Processes) -> None:
    done = scrub(cluster)
    assert done.returncode == 0, (done.stdout, done.stderr)
    heading, *rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert heading[:2] == ["NODE", "READS"]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert "WRONG" not in done.stdout
    shown = scrub(cluster, "--show", "--json")
    said = json.loads(shown.stdout)
    assert [node["node"] for node in said] == [0, 1, 2]
    for node in said:
        assert node["findings"] == []
        assert node["scrub"]["read_bytes"] > 60_000
        assert node["scrub"]["completed_ms"] > 0
        assert (node["scrub"]["waiting"], node["scrub"]["errors"]) == (0, 0)


def test_one_node_is_read_when_one_is_named_and_strange_ones_are_refused(cluster: Processes) -> None:
    before = json.loads(scrub(cluster, "--show", "--json").stdout)
    said = json.loads(scrub(cluster, "--node", "2", "--json").stdout)
    assert [node["node"] for node in said] == [2]
    after = json.loads(scrub(cluster, "--show", "--json").stdout)
    read = [
        new["scrub"]["read_bytes"] - old["scrub"]["read_bytes"]
        for old, new in zip(before, after, strict=True)
    ]
    assert read[:2] == [0, 0]
    assert read[2] > 60_000
    refused = scrub(cluster, "--node", "7")
    assert refused.returncode == 2
    assert "there is no node 7; there are 0, 1, 2" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("what", ["segment", "store"])
def test_what_decays_is_told_and_fetched_again(cluster: Processes, what: str) -> None:
    """A log from the other replicas, which it waits for. A store from the replica's own log, which waits for nobody."""
    topic, table = cluster.shard(0, "t").shard_id, cluster.shard(0, "rows").shard_id
    shard_id = topic if what == "segment" else table
    folder = cluster.dir(VICTIM) / ("shards" if what == "segment" else "tables") / str(shard_id)
    pattern = "*.log" if what == "segment" else "*.sst"
    rows = cluster.on_leader(table, TableScan(table, b"", b"", 1_000))
    path = min(folder.glob(pattern))
    away = (VICTIM + 1) % 3
    assert cluster.stop(away) == 0  # two of three would not do without a damaged log
    rotten = flip(path, 0.4)
    done = scrub(cluster, "--node", str(VICTIM))
    assert f"node {VICTIM}, shard {shard_id}, since" in done.stdout, (done.stdout, done.stderr)
    if what == "segment":
        assert done.returncode == 1, (done.stdout, done.stderr)
        assert f"WRONG: node {VICTIM}, shard {shard_id}, since" in done.stdout
        assert "  do: nothing: it is fetched again" in done.stdout
        said = json.loads(scrub(cluster, "--show", "--node", str(VICTIM), "--json").stdout)
        assert wrong(said) == [(VICTIM, shard_id)]
        cluster.start(away)
    eventually(lambda: scrub(cluster, "--show", "--node", str(VICTIM)).returncode == 0, 60)
    page = scrub(cluster, "--show", "--node", str(VICTIM)).stdout
    assert f"mended: node {VICTIM}, shard {shard_id}, since" in page
    if what == "store":
        cluster.start(away)
    eventually(lambda: are_well(cluster))
    assert not path.exists() or path.read_bytes() != rotten
    eventually(lambda: len({cluster.read(node_id, topic) for node_id in cluster.ids}) == 1)
    for node_id in cluster.ids:
        here = cluster.ask(node_id, TableScan(table, b"", b"", 1_000, consistency="local"))
        assert here.rows == rows.rows
    assert scrub(cluster).returncode == 0
