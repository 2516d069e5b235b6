"""When `antiphon up` ends, and what it says: with processes, as a person has them."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.tools import local_nodes
from antiphon.tools.local_cluster import COMMAND, LocalCluster
from tests.cli.shell import antiphon, run_words
from tests.forks import FORKS, become

pytestmark = pytest.mark.cluster

PORTS = ("--kafka-port=0", "--oxia-port=0", "--native-port=0", "--http-port=0")


def _ended(running: Callable[[], int | None], timeout_s: float = 30) -> int:
    deadline = time.monotonic() + timeout_s
    while (code := running()) is None:
        assert time.monotonic() < deadline, "it goes on for ever"
        time.sleep(0.05)
    return code


def test_up_ends_with_down_and_names_the_folder_of_a_node_that_was_killed(tmp_path: Path) -> None:
    directory = tmp_path / "my cluster"
    cluster = LocalCluster.start(nodes=1, directory=directory)
    try:
        up = cluster._process
        cluster.kill(0)
        assert up.stderr is not None
        said = up.stderr.readline()
        assert "node-0 (pid" in said
        assert (
            f"was killed by SIGKILL; `antiphon node start --dir '{directory}/node-0'` brings it back" in said
        )
        cluster.start_node(0)
        assert up.poll() is None, "a node that was started again is looked after"
        assert antiphon("down", "--dir", str(directory)).returncode == 0
        assert _ended(up.poll) == 0
        assert up.stderr.read() == (
            f"antiphon: `antiphon down` has stopped the nodes; the data is in {directory}\n"
        )
    finally:
        cluster.stop()


def test_a_node_in_the_foreground_ends_with_down_too(tmp_path: Path) -> None:
    directory = str(tmp_path / "c")
    assert antiphon("up", "--nodes=1", "--detach", "--dir", directory, *PORTS).returncode == 0
    assert antiphon("down", "--dir", directory).returncode == 0
    words = (*COMMAND, "node", "start", "--foreground", "--json", "--dir", f"{directory}/node-0")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            assert node.stderr is not None
            assert json.loads(node.stdout.readline())["id"] == 0
            assert antiphon("down", "--dir", directory).returncode == 0
            assert _ended(node.poll) == 0
            assert "`antiphon down` has stopped the nodes" in node.stderr.read()
        finally:
            node.kill()
            antiphon("down", "--dir", directory)


def _up(directory: str, out: str, err: str) -> None:
    local_nodes.GONE_S = 0.5
    flags = os.O_WRONLY | os.O_CREAT
    become(dict(os.environ), os.open(os.devnull, os.O_RDONLY), os.open(out, flags), os.open(err, flags))
    run_words(("up", "--nodes=1", "--json", "--dir", directory, *PORTS))


def test_up_ends_when_no_node_is_left(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    up = FORKS.Process(target=_up, args=(str(tmp_path / "c"), str(out), str(err)))
    up.start()
    try:
        deadline = time.monotonic() + 60
        while not out.exists() or not out.read_text():
            assert time.monotonic() < deadline, err.read_text()
            time.sleep(0.05)
        said = json.loads(out.read_text())
        assert said["servers"] == said["native"] == said["nodes"][0]["native"]
        os.kill(said["nodes"][0]["pid"], 9)
        assert _ended(lambda: up.exitcode) == 1
        assert f"no node of the cluster runs any more; the data is in {tmp_path}/c" in err.read_text()
    finally:
        up.kill()
        antiphon("down", "--dir", str(tmp_path / "c"))


def test_up_names_every_node_for_clients(tmp_path: Path) -> None:
    directory = str(tmp_path / "c")
    try:
        shown = antiphon("up", "--nodes=2", "--detach", "--dir", directory, *PORTS).stdout
    finally:
        antiphon("down", "--dir", directory)
    nodes = json.loads((tmp_path / "c" / "cluster.json").read_text())["nodes"]
    assert f"export ANTIPHON_SERVERS={','.join(node['native'] for node in nodes)}\n" in shown
