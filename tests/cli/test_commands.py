"""The commands as a person types them, against one real cluster."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from antiphon.cli.main import app
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.model.requests import AppendBatch
from antiphon.node.config import split_address
from antiphon.tools.local_cluster import LocalCluster
from tests.cli.shell import Terminal, antiphon
from tests.records.test_intake import INSIDE

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster.start(directory=tmp_path_factory.mktemp("cluster")) as running:
        yield running


class Shell:
    """Runs `antiphon ...` with the cluster as its default address."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.environment = os.environ | {"ANTIPHON_SERVERS": cluster.native}

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return antiphon(*words, environment=self.environment, stdin=stdin)

    def ok(self, *words: str, stdin: str = "") -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: str, code: int = 1, stdin: str = "") -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr


@pytest.fixture
def shell(cluster: LocalCluster) -> Shell:
    return Shell(cluster)


def test_lists_from_a_file(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "acls.toml"
    entry = '[[acl]]\nprincipal = "User:alice"\nname = "{}"\noperation = {}\n'
    file.write_text(entry.format("orders", '["read", "write"]'))
    plan = shell.ok("acl", "apply", str(file), "--dry-run")
    assert "+ allow User:alice to read topic orders from *" in plan
    assert "2 would be added, 0 would be removed, 0 stay" in plan
    assert shell.ok("acl", "list") == "", "a dry run changes nothing"
    assert "2 added, 0 removed, 0 stay" in shell.ok("acl", "apply", str(file))
    assert "0 added, 0 removed, 2 stay" in shell.ok("acl", "apply", str(file))
    file.write_text(entry.format("orders", '"read"') + entry.format("bills", '"read"'))
    assert "1 added, 0 removed, 2 stay" in shell.ok("acl", "apply", str(file))
    pruned = shell.ok("acl", "apply", str(file), "--prune")
    assert "- allow User:alice to write topic orders from *" in pruned
    assert "0 added, 1 removed, 2 stay" in pruned
    assert len(shell.ok("acl", "list").splitlines()) == 2
    file.write_text(entry.format("orders", '"cluster_action"'))
    assert "cluster_action is nothing that is done with a topic" in shell.refused(
        "acl", "apply", str(file), "--prune"
    )
    assert len(shell.ok("acl", "list").splitlines()) == 2, "nothing is half done"
    file.write_text("")
    assert "0 added, 2 removed, 0 stay" in shell.ok("acl", "apply", str(file), "--prune")


def test_topics_from_creation_to_deletion(shell: Shell) -> None:
    made = json.loads(
        shell.ok("topic", "create", "t-life", "--shards", "2", "--config", "retention.ms=60000", "--json")
    )
    assert (made["shards"], made["config"]) == (2, {"retention.ms": "60000"})
    assert "there already" in shell.refused("topic", "create", "t-life")
    shell.ok("topic", "alter", "t-life", "--shards", "3", "--config", "retention.ms=70000")
    described = json.loads(shell.ok("topic", "describe", "t-life", "--json"))
    assert described["config"] == {"retention.ms": "70000"}
    assert described["settings"]["retention.ms"] == {"value": "70000", "source": "set"}
    assert described["settings"]["retention.bytes"] == {"value": "-1", "source": "default"}
    assert [shard["shard"] for shard in described["shards"]] == [0, 1, 2]
    assert "t-life" in shell.ok("topic", "list")
    assert "t-life" not in shell.ok("table", "list")
    assert "antiphon topic" in shell.refused("table", "delete", "t-life")
    shell.ok("topic", "delete", "t-life")
    assert "no topic t-life" in shell.refused("topic", "describe", "t-life")


def test_records_with_keys_headers_and_conditions(shell: Shell) -> None:
    shell.ok("produce", "p", "--key-separator", ":", "-H", "from=test", stdin="a:1\nb:2\n")
    rows = [json.loads(line) for line in shell.ok("consume", "p", "--json").splitlines()]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [(0, "a", "1"), (1, "b", "2")]
    assert rows[0]["headers"] == {"from": "test"}
    shell.ok("produce", "p", "--shard", "0", "--expect", "2", stdin="3\n")
    said = shell.refused("produce", "p", "--shard", "0", "--expect", "2", stdin="4\n")
    assert "2" in said
    assert "3" in said
    assert shell.ok("consume", "p", "--from", "1", "--to", "3", "--keys") == "b\t2\n\t3\n"
    assert shell.ok("consume", "p", "--count", "1") == "1\n"
    positions = [
        json.loads(line)
        for line in shell.ok("produce", "p", "--json", stdin='{"key": "k", "value": "v"}\n').splitlines()
    ]
    assert positions[0]["offset"] == 3


def test_consume_goes_past_what_it_cannot_read(shell: Shell, cluster: LocalCluster) -> None:
    shell.ok("topic", "create", "broken", "--config", "record.validation=shallow")
    shell.ok("topic", "create", "letters")
    shell.ok("produce", "broken", stdin="a\n")
    with Cluster([split_address(cluster.native.split(",")[0])], 20_000) as db:
        shard_id = db.topic("broken", table=False).shards[0].shard_id
        db.call(ShardCall(shard_id, AppendBatch(shard_id), [bytes(INSIDE[0][1])]))
    shell.ok("produce", "broken", stdin="b\n")
    failed = shell.run("consume", "broken")
    assert (failed.stdout, failed.returncode) == ("a\n", 1)
    assert "broken shard 0, the batch at offset 1" in failed.stderr
    done = shell.run("consume", "broken", "--on-corrupt", "skip")
    assert (done.stdout, done.returncode) == ("a\nb\n", 0)
    assert "offsets 1 to 4" in done.stderr
    words = ("consume", "broken", "--on-corrupt", "deadletter", "--dead-letters", "letters")
    assert shell.ok(*words) == "a\nb\n"
    letter = json.loads(shell.ok("consume", "letters", "--json"))
    assert letter["headers"]["antiphon.offset"] == "1"
    for command in (("consume",), ("archive", "--to", "/nowhere"), ("replay", "--to-table", "x")):
        for wrong in (("deadletter",), ("ignore",), ("deadletter", "--dead-letters", "broken")):
            said = shell.refused(command[0], "broken", *command[1:], "--on-corrupt", *wrong, code=2)
            assert "--on-corrupt" in said or "cannot go to broken itself" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ephemeral_row_is_there_until_the_command_is_ended(shell: Shell, number: signal.Signals) -> None:
    words = ("kv", "default", "put", "held", "me", "--ephemeral", "--session-timeout", "60")
    with Terminal(*words, environment=shell.environment) as terminal:
        deadline_s = time.monotonic() + 30
        while shell.run("kv", "default", "get", "held").returncode:
            assert time.monotonic() < deadline_s
        assert json.loads(shell.ok("kv", "default", "get", "held", "--json"))["session_id"] > 0
        os.kill(terminal.process.pid or 0, number)
        assert terminal.ended(20) == 0
    shell.refused("kv", "default", "get", "held")
    shell.refused("kv", "default", "put", "held", "me", "--session-timeout", "5", code=2)
    refusal = shell.refused("kv", "default", "put", "held", "me", "--ephemeral", "--session-timeout", "0.01")
    assert "from 1000 to 300000 ms" in refusal


def test_keys_and_versions(shell: Shell) -> None:
    assert shell.ok("kv", "default", "put", "k1", "one", "--if-absent").startswith("version ")
    shown = json.loads(shell.ok("kv", "default", "get", "k1", "--json"))
    assert shown["value"] == "one"
    version = str(shown["version"])
    shell.refused("kv", "default", "put", "k1", "other", "--if-absent")
    shell.ok("kv", "default", "put", "k1", "two", "--if-version", version)
    shell.refused("kv", "default", "put", "k1", "three", "--if-version", version)
    nothing = '{"0": 0, "1": 0, "2": 0, "3": 0}'
    assert shell.ok("kv", "default", "scan", "--as-of", nothing, "--json") == ""
    assert "as of offset 0" in shell.refused("kv", "default", "get", "k1", "--as-of", "0")
    assert "is beyond" in shell.refused("kv", "default", "get", "k1", "--as-of", "99999")
    assert "offset for each" in shell.refused("kv", "default", "scan", "--as-of", "0")
    shell.refused("kv", "default", "get", "k1", "--as-of", "yesterday", code=2)
    offset = next(
        n for n in range(1, 99) if shell.run("kv", "default", "get", "k1", "--as-of", str(n)).returncode == 0
    )
    assert shell.ok("kv", "default", "get", "k1", "--as-of", str(offset)).strip() == "one"
    shell.refused("kv", "default", "delete", "k1", "--if-version", version)
    shell.ok("kv", "default", "put", "k2", "-", stdin="from stdin")
    assert shell.ok("kv", "default", "list", "--from", "k", "--to", "l").split() == ["k1", "k2"]
    scanned = [
        json.loads(line)
        for line in shell.ok("kv", "default", "scan", "--from", "k", "--to", "l", "--json").splitlines()
    ]
    assert [(row["key"], row["value"]) for row in scanned] == [("k1", "two"), ("k2", "from stdin")]
    assert shell.ok("kv", "default", "sequence", "numbers", "-n", "2").split() == ["1", "2"]
    assert json.loads(shell.ok("kv", "default", "sequence", "numbers", "--json"))["numbers"] == [3]
    shell.refused("kv", "default", "put", "k1", "three", "--ephemeral", "--if-version", version)
    shell.ok("kv", "default", "delete", "k1")
    assert "k1" in shell.refused("kv", "default", "get", "k1")
    shell.ok("kv", "default", "delete-range", "k", "l")
    assert shell.ok("kv", "default", "list", "--from", "k", "--to", "l") == ""


def test_what_changes_something_says_so_in_json(shell: Shell, tmp_path: Path) -> None:
    def said(*words: str) -> Any:
        return json.loads(shell.ok(*words, "--json"))

    shell.ok("table", "create", "t-json", "--replicas", "3")
    assert said("table", "alter", "t-json", "--config", "on.not.leader=forward")["config"] == {
        "on.not.leader": "forward"
    }
    elected = said("shard", "elect", "t-json", "0")
    assert (elected["topic"], elected["shard"], elected["term"] > 1) == ("t-json", 0, True)
    shell.ok("kv", "t-json", "put", "k", "v")
    assert said("kv", "t-json", "delete", "k") == {"key": "k", "deleted": True}
    assert said("kv", "t-json", "delete-range", "a", "b") == {"from": "a", "to": "b", "deleted": True}
    parts = said("shard", "split", "t-json", "0")
    assert [part["shard"] for part in parts] == [0, 1]
    assert parts[0]["hashes"][1] + 1 == parts[1]["hashes"][0]
    assert said("table", "delete", "t-json") == {"name": "t-json", "kind": "table", "deleted": True}
    made = said("user", "add", "jason", "--generate")
    assert made["user"] == "jason"
    assert len(made["password"]) > 10
    assert "jason" in [one["user"] for one in said("user", "list")]
    assert said("user", "remove", "jason") == {"user": "jason", "removed": True}
    entry = ("--principal", "User:jason", "--name", "orders", "--operation", "read")
    acl = said("acl", "add", *entry)
    assert acl == {
        "permission": "allow", "principal": "User:jason", "operation": "read", "resource": "topic",
        "name": "orders", "pattern": "literal", "host": "*",
    }  # fmt: skip
    assert said("acl", "list") == [acl]
    (tmp_path / "acls.toml").write_text("")
    plan = said("acl", "apply", str(tmp_path / "acls.toml"), "--prune", "--dry-run")
    assert plan == {"added": [], "removed": [acl], "kept": 0, "applied": False}
    assert said("acl", "remove", *entry) == {**acl, "removed": True}
    quota = said("quota", "set", "--user", "*", "--producer-byte-rate", "1000")
    assert quota == {"user": "*", "client_id": None, "ip": None, "limits": {"producer_byte_rate": 1000.0}}
    assert said("quota", "list") == [quota]
    assert said("quota", "remove", "--user", "*")["removed"] == ["producer_byte_rate"]


def test_every_command_can_say_json() -> None:
    """All but the one that prints an example of a file."""
    lacking = []

    def walk(command: Any, *words: str) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, *words, name)
        if not hasattr(command, "commands") and not any("--json" in one.opts for one in command.params):
            lacking.append(" ".join(words))

    walk(typer.main.get_command(app))
    assert lacking == ["pipeline example"]


def test_a_shell_completes_commands(shell: Shell) -> None:
    asked = {"_ANTIPHON_COMPLETE": "complete_bash", "COMP_WORDS": "antiphon to", "COMP_CWORD": "1"}
    done = subprocess.run(
        [Path(sys.executable).parent / "antiphon"],  # the variable goes by the script's name
        capture_output=True,
        text=True,
        env=shell.environment | asked,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["top", "topic"], done.stderr


def test_settings_of_nodes(shell: Shell) -> None:
    def rows(*words: str) -> dict[str, Any]:
        found = json.loads(shell.ok("node", "settings", *words, "--json"))
        return {one["setting"]: (one["value"], one["from"], one["nodes"]) for one in found}

    nodes = [one["node"] for one in json.loads(shell.ok("node", "list", "--json"))]
    first = nodes[0]
    assert rows()["num_partitions"] == (1, "default", nodes)
    said = shell.ok(
        "node", "settings", "--all", "--set", "num_partitions=5", "--set", "cleaner.backoff_ms=7000"
    )
    assert said == "num_partitions is 5 for all nodes\ncleaner.backoff_ms is 7000 for all nodes\n"
    assert rows()["num_partitions"] == (5, "all", nodes)
    assert shell.ok("node", "settings", "--node", str(first), "--set", "num.partitions=6").startswith(
        "num_partitions is 6"
    )
    assert rows("--node", str(first))["num_partitions"] == (6, "node", [first])
    own = shell.run("node", "settings", "--all", "--set", "num_partitions=4")
    assert f"`antiphon node settings --node {first} --reset num_partitions` takes it away" in own.stderr
    assert json.loads(shell.ok("node", "settings", "--all", "--json")) == {
        "cleaner.backoff_ms": 7000,
        "num_partitions": 4,
    }
    assert "set for all nodes" in shell.ok("node", "settings")
    shell.ok("node", "settings", "--node", str(first), "--reset", "num_partitions")
    said = json.loads(
        shell.ok(
            "node",
            "settings",
            "--all",
            "--reset",
            "num_partitions",
            "--reset",
            "cleaner.backoff_ms",
            "--json",
        )
    )
    reset = ["num_partitions", "cleaner.backoff_ms"]
    assert said == {"node": None, "set": {}, "reset": reset, "nodes_with_own": []}
    assert json.loads(shell.ok("node", "settings", "--all", "--json")) == {}


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("--set", "num_partitions=5"), 2, "say whose settings these are: --node NODE, or --all"),
        (("--all", "--node", "1"), 2, "give one of --node and --all"),
        (("--all", "--set", "num_partitions"), 2, "--set takes NAME=VALUE"),
        (
            ("--all", "--set", "num_partitions=1", "--reset", "num.partitions"),
            2,
            "num_partitions is named twice",
        ),
        (("--all", "--set", "ports.kafka=1"), 1, "'ports.kafka' cannot be changed while a node runs"),
        (("--all", "--set", "num_partitions=0"), 1, "num_partitions is a whole number from 1 to"),
        (("--node", "77", "--set", "num_partitions=2"), 1, "there is no node 77; there are"),
        (("--node", "77"), 1, "there is no node 77; there are"),
    ],
)
def test_settings_that_cannot_be(shell: Shell, words: tuple[str, ...], exit_code: int, said: str) -> None:
    assert said in shell.refused("node", "settings", *words, code=exit_code)


def test_quotas(shell: Shell) -> None:
    entity = ("--user", "*", "--client-id", "reports")
    said = shell.ok("quota", "set", *entity, "--consumer-byte-rate", "500000", "--request-percentage", "12.5")
    assert said == "user * client-id reports: consumer_byte_rate 500000, request_percentage 12.5\n"
    shell.ok("quota", "set", *entity, "--consumer-byte-rate", "600000")
    assert "consumer_byte_rate 600000, request_percentage 12.5" in shell.ok("quota", "list")
    assert "is no limit of such an entity" in shell.refused(
        "quota", "set", *entity, "--connection-creation-rate", "1"
    )
    assert "there is no quota of user bob" in shell.refused("quota", "remove", "--user", "bob")
    assert "there is no quota producer_byte_rate of user" in shell.refused(
        "quota", "remove", *entity, "--limit", "producer_byte_rate"
    )
    shell.ok("quota", "remove", *entity, "--limit", "consumer_byte_rate")
    assert shell.ok("quota", "list") == "user * client-id reports: request_percentage 12.5\n"
    shell.ok("quota", "remove", *entity)
    listed = shell.run("quota", "list")
    assert (listed.returncode, listed.stdout, "antiphon quota set" in listed.stderr) == (0, "", True)
    assert shell.ok("quota", "set", "--user", "bob", "--connections", "50") == "user bob: connections 50\n"
    shell.ok("quota", "remove", "--user", "bob", "--limit", "connections")
    assert shell.ok("quota", "list") == ""


def test_a_shard_is_split(shell: Shell) -> None:
    shell.ok("table", "create", "parted", "--shards", "1")
    for key in ("a", "b", "c", "d"):
        shell.ok("kv", "parted", "put", key, key)
    assert shell.ok("shard", "split", "parted", "0").splitlines() == [
        "parted/0 holds key hashes 0 to 2147483647",
        "parted/1 holds key hashes 2147483648 to 4294967295",
    ]
    assert shell.ok("kv", "parted", "list").split() == ["a", "b", "c", "d"]
    assert "can be split from" in shell.refused("shard", "split", "parted", "1", "--at", "1")


def test_status_and_shards_as_json(shell: Shell, cluster: LocalCluster) -> None:
    status = json.loads(shell.ok("status", "--json"))
    assert status["healthy"]
    assert [node["id"] for node in status["nodes"]] == [0, 1, 2]
    shards = json.loads(shell.ok("shard", "list", "--topic", "default", "--json"))
    assert len(shards) == 4
    for shard in shards:
        assert shard["status"] == "Online"
        assert sorted(shard["ensemble"]) == [0, 1, 2]
        assert len(shard["followers"]) == 2
    assert any(
        finding["level"] == "ok" and "healthy" in finding["what"]
        for finding in json.loads(shell.ok("doctor", "--json"))
    )


def test_top_as_lines_and_as_json(shell: Shell) -> None:
    shell.ok("produce", "watched", stdin="one\ntwo\n")
    lines = shell.ok("top", "--once", "--topic", "watched").splitlines()
    assert "\x1b" not in "".join(lines)
    assert "3 of 3 nodes up" in lines[0]
    row = next(line for line in lines if line.startswith("watched/0"))
    assert row.split()[-1] == "ok"
    found = json.loads(shell.ok("top", "--once", "--json"))
    assert [node["state"] for node in found["nodes"]] == ["up"] * 3
    assert found["nodes"][0]["rates"]["cpu"] >= 0
    assert found["nodes"][0]["descriptors"] > 10
    assert found["without_leader"] == 0
    assert ("watched", 2) in {(shard["topic"], shard["log_end"]) for shard in found["busiest"]}
    assert ("created", "watched") in {(event["kind"], event["subject"]) for event in found["events"]}
    assert "no topic or table 'nothing'" in shell.refused("top", "--once", "--topic", "nothing")
    assert "rate, lag, size, name, leader" in shell.refused("top", "--sort", "colour", code=2)


def test_top_in_a_terminal_while_a_node_dies_and_comes_back(shell: Shell, cluster: LocalCluster) -> None:
    lines = 100  # events get a share of them: each shard that node 2 has led brings two, newer than the one of node 2
    with Terminal("top", "--every", "0.2", environment=shell.environment, lines=lines) as terminal:
        shown = terminal.until("3 of 3 nodes up")
        assert len(shown.splitlines()) <= lines
        assert max(map(len, shown.splitlines())) <= 80
        terminal.type("s")
        terminal.until("by lag")
        cluster.kill(2)
        try:
            assert re.search(r"^ +2\*?  (DOWN|no answer) ", terminal.until("2 of 3 nodes up"), re.MULTILINE)
            terminal.until("node 2 is not heard of")
        finally:
            cluster.start_node(2)
        terminal.until("3 of 3 nodes up")
        terminal.type("q")
        assert terminal.ended() == 0
        assert terminal.written.endswith("\x1b[?25h\x1b[?1049l"), "the screen and the cursor are as they were"
        assert terminal.settings_now() == terminal.settings
    with Terminal("top", environment=shell.environment) as terminal:
        terminal.until("3 of 3 nodes up")
        terminal.type("\x03")
        assert terminal.ended() == 130
        assert terminal.written.endswith("\x1b[?1049l"), "and nothing after it"
        assert terminal.settings_now() == terminal.settings


def test_how_a_topic_is_replicated_is_chosen_shown_changed_and_warned_of(shell: Shell) -> None:
    made = shell.run("topic", "create", "modes", "--profile", "fluvio", "--config", "min.live=2")
    assert made.returncode == 0, made.stderr
    assert made.stderr.count("\n") == 1, "S3.32: the caveat, in one line"
    assert "may vanish when the leader fails" in made.stderr
    shown = shell.ok("topic", "describe", "modes")
    assert "commit = live  (profile fluvio)" in shown
    assert "min.live = 2  (set)" in shown
    assert "election = coordinator  (default)" in shown
    shell.ok("node", "settings", "--all", "--set", "flush_interval_ms=90")
    assert re.search(
        r"flush\.ms = 90  \(node \d: set for all nodes\)", shell.ok("topic", "describe", "modes")
    )
    shell.ok("node", "settings", "--all", "--reset", "flush_interval_ms")
    assert shell.run("topic", "alter", "modes", "--commit", "quorum").returncode == 0
    described = json.loads(shell.ok("topic", "describe", "modes", "--json"))
    assert described["options"]["commit"] == "quorum"
    shell.ok("produce", "modes", stdin="one\ntwo\n")
    altered = shell.run("topic", "alter", "modes", "--commit", "local")
    assert "acknowledged writes can be lost" in altered.stderr
    assert shell.ok("consume", "modes").split() == ["one", "two"]
    assert "split.brain" in shell.refused("topic", "alter", "modes", "--commit", "at_least(1)")
    shell.ok("topic", "alter", "modes", "--commit", "at_least(1)", "--i-accept-split-brain")
    assert "cannot" in shell.refused("topic", "alter", "modes", "--config", "election=raft")
    shell.ok("table", "create", "votes", "--election", "raft")
    shell.ok("kv", "votes", "put", "k", "v")
    assert "unsafe" in shell.refused("table", "create", "no", "--election", "raft", "--commit", "live")


def test_http_listener(cluster: LocalCluster) -> None:
    address = cluster.nodes[0].http
    with urllib.request.urlopen(f"http://{address}/healthz", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert b"# HELP" in answer.read()
    with urllib.request.urlopen(f"http://{address}/status", timeout=10) as answer:
        assert json.load(answer)["node"]["node_id"] == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("consume", "no-such-topic"), 1, "no-such-topic"),
        (("kv", "no-such-table", "get", "k"), 1, "no-such-table"),
        (("kv", "get", "k"), 2, "antiphon kv default get k"),
        (("topic", "create", "bad name!"), 1, "bad name!"),
        (("topic", "create", "t-many", "--replicas", "9"), 1, "9"),
        (("topic", "create", "t-typo", "--config", "retention.mss=1"), 1, "retention.ms"),
        (("topic", "create", "t-pair", "--config", "retention"), 2, "NAME=VALUE"),
        (("topic", "create", "t-profile", "--profile", "nonsense"), 1, "nonsense"),
        (("produce", "p", "--expect", "1"), 2, "--shard"),
        (("consume", "p", "--from", "1", "--since", "10m"), 2, "not both"),
        (("consume", "p", "--since", "a while"), 2, "10m"),
        (("kv", "default", "watch", "--from", "now"), 2, "JSON"),
        (("consume", "p", "--isolation", "dirty"), 2, "uncommitted"),
        (("node", "start"), 2, "--dir"),
        (("status", "--servers", "127.0.0.1:1"), 1, "127.0.0.1:1"),
        (("simulate", "--mutant", "no-such-bug"), 2, "no-such-bug"),
        (("bench", "nothing"), 2, "nothing"),
        (("frobnicate",), 2, "frobnicate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_words_get_one_clear_line(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    assert said in shell.refused(*words, code=code)


def test_every_command_has_help_with_an_example(shell: Shell) -> None:
    from typer.main import get_command

    from antiphon.cli.main import app

    def leaves(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
        inner = getattr(command, "commands", None)
        if inner:
            for name, child in inner.items():
                yield from leaves(child, (*path, name))
        else:
            yield " ".join(path), command

    found = dict(leaves(get_command(app), ()))
    assert len(found) > 25
    for name, command in found.items():
        assert getattr(command, "help", None), f"{name} has no help"
        assert "antiphon" in (getattr(command, "epilog", None) or ""), f"{name} shows no example"
    assert "antiphon up" in shell.ok("up", "--help")


def test_a_killed_node_comes_back_and_a_second_start_is_refused(shell: Shell, cluster: LocalCluster) -> None:
    cluster.kill(1)
    shell.ok("produce", "while-down", stdin="kept\n")
    cluster.start_node(1)
    assert shell.ok("consume", "while-down") == "kept\n"
    node_dir = str(cluster.nodes[1].dir)
    assert "running already" in shell.refused("node", "start", "--dir", node_dir)
    assert "running already" in shell.refused("up", "--dir", str(cluster.dir))
    assert "not a node" in shell.refused("node", "start", "--dir", str(cluster.dir / "node-9"))


def test_the_same_directory_is_the_same_cluster(tmp_path: Path) -> None:
    with LocalCluster.start(nodes=1, directory=tmp_path / "c") as first:
        Shell(first).ok("kv", "default", "put", "k", "v")
        identity = first.cluster_id
    with LocalCluster.start(directory=tmp_path / "c") as second:
        assert second.cluster_id == identity
        assert Shell(second).ok("kv", "default", "get", "k") == "v\n"
    shell = Shell(second)
    assert "1 nodes" in shell.refused("up", "--dir", str(tmp_path / "c"), "--nodes", "5")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    assert "holds other things" in shell.refused("up", "--dir", str(tmp_path / "other"))
    assert "no cluster in" in shell.refused("down", "--dir", str(tmp_path / "nowhere"))


def test_a_node_that_starts_alone_says_that_it_reaches_nobody(tmp_path: Path) -> None:
    with LocalCluster.start(nodes=3, directory=tmp_path / "c") as cluster:
        pass
    config = tmp_path / "c" / "node-0" / "node.toml"
    text = config.read_text()
    assert "# ready_wait = 15000" in text, "a default is a remark"
    config.write_text(text + "[timings]\nready_wait = 300\n")
    shell = Shell(cluster)
    try:
        done = shell.run("node", "start", "--dir", str(config.parent))
        assert done.returncode == 0, done.stderr
        assert "reaches no coordinator" in done.stderr
    finally:
        shell.ok("down", "--dir", str(tmp_path / "c"))


def test_a_cluster_goes_on_without_a_node_whose_folder_cannot_be_written(tmp_path: Path) -> None:
    directory = str(tmp_path / "c")
    ports = ("--kafka-port", "0", "--oxia-port", "0", "--native-port", "0", "--http-port", "0")
    assert antiphon("up", "--detach", "--dir", directory, *ports).returncode == 0
    try:
        assert antiphon("down", "--dir", directory).returncode == 0
        broken = tmp_path / "c" / "node-2"
        (broken / "node.toml").unlink()
        (broken / "node.toml.new").mkdir()  # stands for a disk that takes nothing
        up = antiphon("up", "--detach", "--dir", directory)
        assert up.returncode == 0, up.stderr
        assert "node 2 did not start: cannot write" in up.stderr
        assert "Traceback" not in up.stderr
        status = json.loads(antiphon("status", "--dir", directory, "--json").stdout)
        assert status
        alone = antiphon("node", "start", "--dir", str(broken))
        assert alone.returncode == 1
        (broken / "node.toml.new").rmdir()
        assert antiphon("node", "start", "--dir", str(broken)).returncode == 0
    finally:
        antiphon("down", "--dir", directory)
