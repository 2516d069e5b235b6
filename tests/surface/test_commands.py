"""The commands, row by row: words, columns, keys of JSON, exit codes."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from antiphon.cli.main import app
from tests.cli.shell import antiphon
from tests.surface.conftest import Up

pytestmark = pytest.mark.cluster

COMMANDS = (
    "up", "down", "status", "topic create", "topic list", "topic describe", "topic alter", "topic delete",
    "table create", "table list", "table describe", "table alter", "table delete", "node start", "node list",
    "node drain", "node add", "node remove", "node restart", "shard list", "shard elect", "shard move", "rebalance",
    "produce", "consume", "kv put", "kv get", "kv delete", "kv delete-range", "kv list", "kv scan", "kv watch",
    "kv sequence", "audit", "archive run", "replay", "pipeline run", "simulate", "judge history", "judge quorum",
    "judge script", "verify", "bench", "doctor", "user add", "user list", "user remove", "acl add", "acl list",
    "acl remove", "top", "backup create", "restore", "upgrade", "scrub", "demo",
)  # fmt: skip
OPTIONS = {
    "up": "--nodes --dir --profile --kafka-port --oxia-port --native-port --http-port --detach --json --secure --insecure",
    "topic create": "--shards --replicas --profile --commit --election --writers --config --json",
    "topic alter": "--replicas --config --shards",
    "produce": "--key --header --expect --json",
    "consume": "--from --to --since --key --key-prefix --follow --timeout --isolation --keys --json",
    "kv put": "--if-version --if-absent --ephemeral",
    "kv delete": "--if-version",
    "kv watch": "--count --prefix --from --since",
    "simulate": "--seeds --seed --profile --plant --plants --script --step",
    "verify": "--seconds --faults",
    "demo": "--quick --keep",
    "backup create": "--to",
    "restore": "--from",
    "upgrade": "--check --json",
    "node start": "--dir --config",
}
PRINTS_NO_TABLE = {"pipeline example"}


def walk(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, sub in getattr(command, "commands", {}).items():
        yield from walk(sub, f"{name} {word}".strip())


def test_every_command_is_there_with_an_example_and_json() -> None:
    found = dict(walk(typer.main.get_command(app)))
    assert {*COMMANDS} <= found.keys()
    for name, command in found.items():
        text = f"{command.help or ''} {command.epilog or ''}"
        assert "Example" in text or "Start with" in text, f"`antiphon {name} --help` has no example"
        options = {option for parameter in command.params for option in parameter.opts}
        if not hasattr(command, "commands") and name not in PRINTS_NO_TABLE:
            assert "--json" in options, name
        assert {*OPTIONS.get(name, "").split()} <= options, name
        if "--servers" in options:
            servers = next(parameter for parameter in command.params if "--servers" in parameter.opts)
            assert servers.envvar == "ANTIPHON_SERVERS", name


def test_what_up_says(up: Up) -> None:
    assert list(up.said) == ["cluster_id", "dir", "kafka", "oxia", "native", "http", "nodes", "servers"]
    assert up.said["dir"] == str(up.directory)
    assert up.said["servers"] == ",".join(node["native"] for node in up.said["nodes"])
    for number, node in enumerate(up.said["nodes"]):
        assert list(node) == ["id", "pid", "dir", "kafka", "oxia", "native", "http"]
        assert node["id"] == number
        assert node["dir"] == f"{up.directory}/node-{number}"
        os.kill(node["pid"], 0)
        for listener in ("kafka", "native", "http"):
            host, _, port = node[listener].rpartition(":")
            assert (host, port.isdecimal()) == ("127.0.0.1", True)
    assert {name: up.said[name] for name in ("kafka", "native", "http")} == {
        name: up.said["nodes"][0][name] for name in ("kafka", "native", "http")
    }


def test_health_and_findings(up: Up) -> None:
    found = up.json("status")
    assert (found["healthy"], found["findings"], found["tables"]) == (True, [], 1)
    assert "is healthy" in up.ok("status")
    assert [node["node"] for node in up.json("node", "list")] == [0, 1, 2]
    for path in ("healthz", "metrics", "status", "topics"):
        with urllib.request.urlopen(f"http://{up.said['http']}/{path}", timeout=10) as answer:
            assert answer.status == 200


def test_topics_and_shards(up: Up) -> None:
    words = "--shards 2 --replicas 3 --profile oxia --commit quorum --election coordinator --writers single"
    made = up.json("topic", "create", "flights", *words.split(), "--config", "retention.ms=100000")
    assert (made["name"], made["shards"], made["replicas"], made["profile"]) == ("flights", 2, 3, "oxia")
    assert "there already" in up.refused("topic", "create", "flights")
    up.ok("topic", "alter", "flights", "--shards", "3", "--config", "retention.ms=200000")
    up.ok("topic", "alter", "flights", "--replicas", "2")
    described = up.json("topic", "describe", "flights")
    assert (len(described["shards"]), described["replicas"]) == (3, 2)
    assert described["config"]["retention.ms"] == "200000"
    assert [one["name"] for one in up.json("topic", "list")] == ["flights"]
    listed = up.ok("shard", "list").splitlines()
    wanted = "TOPIC SHARD STATUS LEADER TERM ENSEMBLE LIVE HW LEO FOLLOWERS SIZE"
    assert listed[0].split() == wanted.split()
    row = next(one for one in up.json("shard", "list") if (one["topic"], one["shard"]) == ("flights", 0))
    assert list(row)[:11] == [word.lower() for word in wanted.split()]
    assert row["status"] == "Online"
    assert set(row["followers"][0]) == {"node", "leo", "lag"}
    up.ok("shard", "elect", "flights", "0")
    other = next(node for node in range(3) if node not in row["ensemble"])
    up.ok("shard", "move", "flights", "0", "--from", str(row["ensemble"][1]), "--to", str(other))
    assert up.json("rebalance")["nodes"]
    up.ok("topic", "delete", "flights")
    assert "antiphon topic list" in up.refused("topic", "delete", "flights")
    up.ok("table", "create", "planes", "--shards", "2")
    up.ok("table", "alter", "planes", "--config", "max.message.bytes=100000")
    assert [one["name"] for one in up.json("table", "list")] == ["default", "planes"]
    assert up.json("table", "describe", "planes")["kind"] == "table"
    up.ok("table", "delete", "planes")


def test_records(up: Up) -> None:
    up.ok("produce", "greetings", "--key-separator", ":", stdin="k:a\nk:b\n")
    positions = up.ok(
        "produce", "greetings", "--json", stdin='{"key": "k", "value": "c", "headers": {"h": "v"}}\n'
    )
    assert json.loads(positions)["offset"] == 2
    up.ok("produce", "greetings", "--shard", "0", "--expect", "3", "-H", "h=v", stdin="d\n")
    assert "nothing was appended" in up.refused(
        "produce", "greetings", "--shard", "0", "--expect", "3", stdin="e\n"
    )
    lines = up.ok("consume", "greetings", "--from", "1", "--to", "3", "--isolation", "committed", "--json")
    records = [json.loads(line) for line in lines.splitlines()]
    assert [(one["offset"], one["key"], one["value"]) for one in records] == [(1, "k", "b"), (2, "k", "c")]
    assert up.ok("consume", "greetings", "--isolation", "uncommitted", "-k").splitlines()[0] == "k\ta"


def test_keys_and_values(up: Up) -> None:
    assert up.ok("kv", "default", "put", "a", "1", "--if-absent") == "version 0\n"
    assert "expected to be absent" in up.refused("kv", "default", "put", "a", "1", "--if-absent")
    up.ok("kv", "default", "put", "a", "2", "--if-version", "0")
    up.refused("kv", "default", "delete", "a", "--if-version", "0")
    assert up.ok("kv", "default", "get", "a") == "2\n"
    assert up.json("kv", "default", "get", "a")["version"] > 0
    assert "not in table" in up.refused("kv", "default", "get", "nobody")
    assert up.ok("kv", "default", "list") == "a\n"
    assert up.json("kv", "default", "list") == ["a"]
    assert up.ok("kv", "default", "scan").splitlines()[0].split()[0] == "KEY"
    assert up.ok("kv", "default", "sequence", "s", "--count", "2") == "1\n2\n"
    assert up.ok("kv", "default", "sequence", "s") == "3\n"
    up.ok("kv", "default", "delete", "a")
    up.ok("kv", "default", "delete-range", "a", "z")
    assert up.json("kv", "default", "list") == []


def test_wrong_usage_is_2(up: Up) -> None:
    assert "No such command" in up.refused("nonsense", code=2)
    assert "Missing argument" in up.refused("topic", "create", code=2)
    assert "--check" in up.refused("upgrade", code=2)
    assert "antiphon backup --to URL" in up.refused("backup", "create", code=2)


def test_backup_and_restore(up: Up, tmp_path: Path) -> None:
    place, target = tmp_path / "backups", tmp_path / "restored"
    up.ok("kv", "default", "put", "kept", "1")
    made = up.json("backup", f"--to={place}")
    assert up.json("backup", "list", str(place))[0]["name"] == made["name"]
    assert up.json("backup", "create", str(place))["base"] == made["name"]
    done = up.json(
        "restore", "--from", str(place), "--dir", str(target), "--nodes", "1", "--name", made["name"]
    )
    assert (done["dir"], done["nodes"], done["name"]) == (str(target), 1, made["name"])
    assert "is not empty" in up.refused("restore", "--from", str(place), "--dir", str(target))
    up.refused("restore", "--from", str(tmp_path / "nothing"), "--dir", str(tmp_path / "other"))


def test_upgrade_check_and_scrub(up: Up) -> None:
    found = up.json("upgrade", "--check")
    assert (found["can"], found["reasons"], len(found["nodes"])) == (True, [], 3)
    assert all(node["formats"] == found["formats"] for node in found["nodes"])
    assert {"writes", "reads"} == set(found["formats"]["metadata"])
    assert up.json("scrub", "--node", "0", "--no-wait")[0]["findings"] == []


def test_a_node_that_is_killed_comes_back(up: Up) -> None:
    victim = next(node for node in up.json("node", "list") if node["node"] == 2)
    pid = int((up.directory / "node-2" / "node.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    done = antiphon("upgrade", "--check", "--dir", str(up.directory), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["can"]) == (1, False)
    assert "node 2 is down" in found["reasons"][0]
    assert found["next"] == f"antiphon node start --dir {up.directory}/node-2"
    started = up.json("node", "start", "--dir", str(up.directory / "node-2"))
    assert (started["id"], started["native"]) == (2, victim["native"])
    up.ok("node", "await", "2")
    assert up.json("upgrade", "--check")["can"]


def test_the_simulator_and_its_mutants(up: Up) -> None:
    mutants = up.ok("simulate", "--plants").split("\n")
    assert len([line for line in mutants if line and " " not in line]) == len(
        [line for line in mutants if line]
    )
    assert "--plants lists those that there are" in up.refused("simulate", "--plant", "nothing", code=2)
    assert up.json("simulate", "--seed", "3", "--profile", "oxia", "--seconds", "0.2")["seeds"]
