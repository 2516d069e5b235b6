"""`antiphon node restart` on real nodes: nobody who tries again sees a failed write; what does not come back ends it."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.tools import supervisor
from antiphon.tools.cluster_files import running_pid
from antiphon.tools.local_cluster import LocalCluster
from tests.cli.shell import antiphon as command
from tests.rolling.steady_load import SteadyLoad

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(3) as started:
        yield started


def restart(cluster: LocalCluster, *words: str, code: int = 0) -> tuple[dict[str, Any], str]:
    """Run the command; returns what it says as JSON, and its progress."""
    done = command("node", "restart", *words, "--dir", str(cluster.dir), "--json", timeout_s=150)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout), done.stderr


def pids(cluster: LocalCluster) -> dict[int, int | None]:
    return {node.id: running_pid(node.dir) for node in cluster.nodes.values()}


@pytest.mark.timeout(300)
def test_all_nodes_are_restarted_under_load(cluster: LocalCluster) -> None:
    before = pids(cluster)
    with antiphon.connect(cluster.native) as db:
        db.create_topic("voted", shards=2, replicas=3, profile="raft")
        db.create_topic("lived", shards=2, replicas=3, profile="fluvio")
        coordinates = db.metadata().controller
    with SteadyLoad(cluster.native, cluster.kafka) as load:
        load.until_written(20)
        said, progress = restart(cluster, "--all")
        load.until_written(20)
    print("\n".join(load.figures))
    load.check()
    order = [one["node"] for one in said["restarted"]]
    assert sorted(order) == [0, 1, 2]
    assert order[-1] == coordinates, "the coordinator's node is the last one"
    assert (said["failed"], said["left"]) == (None, [])
    assert sum(one["handed_over"] for one in said["restarted"]) >= 10
    assert "leaderships handed over" in progress
    after = pids(cluster)
    assert all(after[node] not in (None, before[node]) for node in after), "each has a new process"
    with antiphon.connect(cluster.native) as db:
        shards = [shard for topic in db.metadata().topics for shard in topic.shards]
        leads = [sum(shard.leader == node for shard in shards) for node in range(3)]
    assert min(leads) * 2 >= max(leads), f"leaderships are spread at the end, not {leads}"
    slowest = max(max(writer.latencies_s) for writer in load.writers)
    assert slowest < 10, f"a write took {slowest:.1f} s"


def test_nothing_is_restarted_while_a_shard_cannot_spare_the_node(cluster: LocalCluster) -> None:
    supervisor.stop_nodes([cluster.nodes[2].dir])
    before = pids(cluster)
    said, _ = restart(cluster, "0", "--timeout", "3", code=1)
    assert (said["restarted"], said["left"]) == ([], [0])
    assert "cannot spare it" in said["failed"]["why"]
    assert pids(cluster) == before
    # The one that is down may be started, and then the other one.
    said, _ = restart(cluster, "0", "2")
    assert [one["node"] for one in said["restarted"]] == [2, 0], "who is down comes first"


def test_the_plan_changes_nothing(cluster: LocalCluster) -> None:
    with antiphon.connect(cluster.native) as db:
        db.create_topic("alone", shards=1, replicas=1)
        holder = db.metadata().topics
    node = next(topic.shards[0].leader for topic in holder if topic.name == "alone")
    before = pids(cluster)
    said, _ = restart(cluster, "--all", "--dry-run")
    stalls = {one["node"]: one["stalls"] for one in said["plan"]}
    assert stalls == {one: int(one == node) for one in range(3)}
    done = command("node", "restart", "--all", "--dry-run", "--dir", str(cluster.dir))
    assert "HANDS OVER" in done.stdout
    assert "takes no writes while its node is away" in done.stderr
    assert pids(cluster) == before
    assert command("node", "restart", "--dir", str(cluster.dir)).returncode == 2
    assert "there is no node 7" in command("node", "restart", "7", "--dir", str(cluster.dir)).stderr


def test_a_command_restarts_nodes_that_run_elsewhere(cluster: LocalCluster, tmp_path: Path) -> None:
    script = tmp_path / "restart one.py"
    script.write_text(
        "import subprocess, sys, pathlib\n"
        "from antiphon.tools import supervisor\n"
        "node, host, folder = sys.argv[1:]\n"
        "assert host == '127.0.0.1', host\n"
        "place = pathlib.Path(folder) / f'node-{node}'\n"
        "supervisor.stop_nodes([place])\n"
        "sys.exit(subprocess.run([sys.executable, '-m', 'antiphon.cli.main', 'node', 'start', '--dir', place]).returncode)\n"
    )
    hook = shlex.join([sys.executable, str(script), "{node}", "{host}", str(cluster.dir)])
    before = pids(cluster)
    words = ("node", "restart", "1", "--command", hook, "--servers", cluster.native, "--json")
    done = command(*words, timeout_s=100)
    assert done.returncode == 0, done.stderr
    assert [one["node"] for one in json.loads(done.stdout)["restarted"]] == [1]
    after = pids(cluster)
    assert after[1] not in (None, before[1])
    assert (after[0], after[2]) == (before[0], before[2])
    failing = ("node", "restart", "1", "--command", "false", "--servers", cluster.native)
    done = command(*failing, timeout_s=100)
    assert done.returncode == 1
    assert "`false` failed: exit code 1" in done.stderr


def test_by_hand_it_is_said_when_to_go_on(cluster: LocalCluster, tmp_path: Path) -> None:
    words = ("node", "restart", "0", "--timeout", "4", "--servers", cluster.native, "--dir", str(tmp_path))
    done = command(*words, timeout_s=60)
    assert done.returncode == 1
    assert "restart it now" in done.stderr
    assert "node 0 is not back" in done.stderr
    handed = command("node", "hand-over", "1", "--json", environment=_servers(cluster))
    said = json.loads(handed.stdout)
    assert said["handed_over"] > 0
    assert said["still_leads"] == 0
    again = command("node", "hand-over", "1", "--json", environment=_servers(cluster))
    assert json.loads(again.stdout)["handed_over"] == 0
    assert "in step" in command("node", "await", "1", environment=_servers(cluster)).stdout
    supervisor.stop_nodes([cluster.nodes[1].dir])
    late = command("node", "await", "1", "--timeout", "3", environment=_servers(cluster))
    assert late.returncode == 1
    assert "node 1" in late.stderr
    cluster.start_node(1)


def test_a_node_that_does_not_come_back_ends_it() -> None:
    with LocalCluster.start(3) as cluster:
        _one_does_not_come_back(cluster)


def _one_does_not_come_back(cluster: LocalCluster) -> None:
    for node in cluster.nodes.values():
        (node.dir / "identity.json").write_text("{}")
        (node.dir / "identity.copy").unlink(missing_ok=True)
    said, progress = restart(cluster, "--all", "--timeout", "20", code=1)
    assert said["restarted"] == []
    first = said["plan"][0]["node"]
    assert said["failed"]["node"] == first
    assert "did not start" in said["failed"]["why"]
    assert len(said["left"]) == 3
    assert f"antiphon node restart {first}" in progress
    assert sum(pid is not None for pid in pids(cluster).values()) == 2, "the others were left alone"


def _servers(cluster: LocalCluster) -> dict[str, str]:
    return {**os.environ, "ANTIPHON_SERVERS": cluster.native}
