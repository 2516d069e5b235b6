"""What shells are offered: commands, names that the cluster knows, nothing where it does not answer."""

import os
import subprocess
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from antiphon.tools.local_cluster import LocalCluster
from tests.cli.shell import antiphon


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster.start(nodes=1, directory=tmp_path_factory.mktemp("cluster")) as running:
        environment = os.environ | {"ANTIPHON_SERVERS": running.native}
        for words in (("topic", "create", "greetings"), ("table", "create", "great")):
            assert antiphon(*words, environment=environment).returncode == 0
        yield running


def offered(line: str, servers: str, shell: str = "bash") -> list[str]:
    """What a shell is told for a line that ends where the cursor is."""
    asked = {"_ANTIPHON_COMPLETE": f"complete_{shell}", "ANTIPHON_SERVERS": servers}
    if shell == "bash":
        asked |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    else:
        asked |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = antiphon(environment=os.environ | asked)
    assert done.stderr == ""
    return done.stdout.split()


def expect(line: str, servers: str, wanted: list[str]) -> None:
    """On a machine that is busy, too: a cluster that takes too long to answer is not waited for."""
    deadline = time.monotonic() + 60
    while (found := offered(line, servers)) != wanted:
        assert time.monotonic() < deadline, found


@pytest.mark.cluster
def test_names_that_the_cluster_knows(cluster: LocalCluster) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.kafka, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("greetings", 0, 0)], asynchronous=False)
    consumer.close()
    servers = cluster.native
    expect("antiphon consume gre", servers, ["great", "greetings"])
    expect("antiphon topic describe ", servers, ["greetings"])
    expect("antiphon table describe ", servers, ["default", "great"])
    expect("antiphon kv gr", servers, ["great"])
    expect("antiphon groups describe ", servers, ["readers"])
    expect("antiphon node drain ", servers, ["0"])
    expect("antiphon topic create gre", servers, [])  # a new name
    expect(f"antiphon consume --servers {servers} greet", "127.0.0.1:1", ["greetings"])


@pytest.mark.cluster
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(cluster: LocalCluster, shell: str) -> None:
    deadline = time.monotonic() + 60
    while "greetings" not in " ".join(offered("antiphon consume greet", cluster.native, shell)):
        assert time.monotonic() < deadline


def test_nothing_is_said_where_no_cluster_answers() -> None:
    began = time.monotonic()
    assert offered("antiphon consume gre", "127.0.0.1:1") == []
    assert offered("antiphon consume gre", "no address") == []
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_lines_in_either_spelling(shell: str) -> None:
    shown = [
        antiphon(environment=os.environ | {"_ANTIPHON_COMPLETE": asked})
        for asked in (f"{shell}_source", f"source_{shell}")
    ]
    assert shown[0].stdout == shown[1].stdout
    assert f"complete_{shell}" in shown[0].stdout
    assert shown[0].returncode == 0, shown[0].stderr


def test_the_lines_for_bash_are_lines_of_bash() -> None:
    lines = antiphon(environment=os.environ | {"_ANTIPHON_COMPLETE": "bash_source"}).stdout
    done = subprocess.run(
        ["bash", "-n"], input=lines, capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
