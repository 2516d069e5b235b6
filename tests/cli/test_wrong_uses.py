"""What a person is told who uses a command wrongly: the next command to type, against one real cluster."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.cli import replay_commands
from antiphon.cli.main import app
from antiphon.tools.local_cluster import LocalCluster
from tests.cli.parsing import parse
from tests.cli.shell import antiphon

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster.start(directory=tmp_path_factory.mktemp("cluster")) as running:
        environment = _environment(running)
        for words in (
            ("topic", "create", "orders", "--shards", "1"),
            ("kv", "default", "put", "k", "v"),
        ):
            assert antiphon(*words, environment=environment).returncode == 0
        yield running


def _environment(cluster: LocalCluster) -> dict[str, str]:
    return os.environ | {"ANTIPHON_SERVERS": cluster.native}


def _refused(*words: str, environment: dict[str, str]) -> tuple[int, str]:
    done = antiphon(*words, environment=environment)
    assert done.returncode in {1, 2}, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("antiphon: ")
    assert done.stderr.count("\n") == 1, "one line"
    return done.returncode, done.stderr


WRONG_USES = [
    # What is not there.
    ("topic describe nothing", "topic list"),
    ("topic alter nothing --shards 2", "topic list"),
    ("table delete nothing", "table list"),
    ("consume nothing", "topic create nothing"),
    ("kv nothing get k", "table create nothing"),
    ("shard list --topic nothing", "shard list"),
    ("shard elect nothing 0", "shard list"),
    ("top --once --topic nothing", "shard list"),
    ("shard elect orders 9", "shard list --topic orders"),
    ("consume orders --shard 9", "shard list --topic orders"),
    ("shard recover orders 9", "shard list --topic orders"),
    ("shard move orders 0 --from 9 --to 1", "shard list --topic orders"),
    ("shard move orders 0 --from 0 --to 9", "node list"),
    ("shard elect orders 0 --node 9", "shard list --topic orders"),
    ("node drain 9", "node list"),
    ("node remove 9", "node list"),
    ("node restart 9", "node list"),
    ("node settings --node 9", "node list"),
    ("scrub --node 9", "node list"),
    ("node voters --remove 9", "node voters"),
    ("node voters --cancel", "node voters"),
    ("kv default get nothing", "kv default list"),
    ("kv default delete nothing", "kv default list"),
    ("kv default put k v --if-absent", "kv default get k --json"),
    ("kv default put k v --if-version 99", "kv default get k --json"),
    ("kv default put nothing v --if-version 99", "kv default list"),
    ("kv default get k --as-of 99999", "shard list --topic default"),
    ("groups describe nothing", "groups list"),
    ("transactions describe nothing", "transactions list"),
    ("user remove nobody", "user list"),
    ("acl remove --principal User:bob --name orders --operation read", "acl list"),
    ("acl apply nothing.toml", "acl list --toml > nothing.toml"),
    ("quota remove --user nobody", "quota list"),
    ("client-metrics describe nothing", "client-metrics list"),
    ("pipeline check nothing.toml", "pipeline example > nothing.toml"),
    ("backup show /nothing", "backup create /nothing"),
    ("load nothing --from /etc/hosts --format csv --key a", "table create nothing"),
    ("archive list nothing", "shard list"),
    # What is there already, or is something else.
    ("topic create orders", "topic describe orders"),
    ("topic create default", "table describe default"),
    ("topic describe default", "table describe default"),
    ("table delete orders", "topic delete orders"),
    ("kv orders get k", "consume orders"),
    ("produce default", "kv default put KEY VALUE"),
    ("audit --tables orders", "audit --topics orders"),
    ("shard split orders 0", "topic alter orders --shards NUMBER"),
    # What cannot be so here.
    ("topic create wide --replicas 9", "node add"),
    ("topic alter orders --replicas 9", "node add"),
    ("topic alter orders --config no.such=1", "topic describe orders"),
    ("node remove 0", "node voters --replace 0 NEW"),
    ("node settings --all --set ports.kafka=1", "node settings"),
    ("user add bob", "user add bob --generate"),
    # Words that do not go together.
    ("kv get k", "kv default get k"),
    ("kv default put k v --session-timeout 5", "kv default put --help"),
    ("topic alter orders", "topic alter --help"),
    ("consume orders --from 1 --since 1h", "consume --help"),
    ("produce orders --expect 3", "produce --help"),
    ("node restart", "node restart --help"),
    ("quota set --user bob", "quota set --help"),
    ("backup create", "backup --to URL"),
]


@pytest.mark.parametrize(("words", "wanted"), WRONG_USES, ids=[words for words, _ in WRONG_USES])
def test_a_wrong_use_names_the_next_command(cluster: LocalCluster, words: str, wanted: str) -> None:
    _, said = _refused(*words.split(), environment=_environment(cluster))
    assert f"`antiphon {wanted}`" in said
    parse(f"antiphon {wanted}")


def test_the_directory_that_was_given_is_in_the_next_command(cluster: LocalCluster) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ANTIPHON_SERVERS"}
    folder = str(cluster.nodes[0].dir.parent)
    for words, wanted in (
        ("topic describe nothing", f"topic list --dir {folder}"),
        ("topic create wide --replicas 9", f"node add --dir {folder}"),
        ("up --nodes 5", f"node add --dir {folder}"),
        ("up", f"down --dir {folder}"),
    ):
        assert f"`antiphon {wanted}`" in _refused(*words.split(), "--dir", folder, environment=environment)[1]
    for words, wanted in (
        ("node start", f"node list --dir {folder}"),
        ("node recover", f"down --dir {folder}"),
    ):
        said = _refused(*words.split(), "--dir", f"{folder}/node-0", environment=environment)[1]
        assert f"`antiphon {wanted}`" in said
    said = _refused("node", "start", "--dir", f"{folder}/node-9", environment=environment)[1]
    assert f"`antiphon node add --dir {folder}`" in said


def test_where_there_is_no_cluster(tmp_path: Path) -> None:
    said = _refused("status", "--dir", str(tmp_path), environment=dict(os.environ))[1]
    assert f"`antiphon up --dir {tmp_path}`" in said


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = (
            "up",
            "--dir",
            str(tmp_path / "new"),
            "--nodes",
            "1",
            "--kafka-port",
            port,
            "--native-port",
            "0",
        )
        said = _refused(*words, "--http-port", "0", "--oxia-port", "0", environment=dict(os.environ))[1]
    assert f"`antiphon up --dir {tmp_path}/new --kafka-port 0` takes free ports" in said


def test_a_cluster_that_was_stopped_is_not_waited_for(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ANTIPHON_SERVERS"}
    with LocalCluster.start(nodes=1, directory=tmp_path / "c") as cluster:
        folder = str(cluster.nodes[0].dir.parent)
        assert antiphon("down", "--dir", folder, environment=environment).returncode == 0
        done = antiphon("topic", "list", "--dir", folder, environment=environment)
        assert re.search(r"is stopped; `antiphon up --dir \S+` starts it again\n$", done.stderr)
        doctor = antiphon("doctor", "--dir", folder, environment=environment)
        assert "is not running" in doctor.stdout, "the doctor looks all the same"


@pytest.mark.slow
def test_a_secure_cluster_says_what_is_missing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    with LocalCluster.start(nodes=1, directory=tmp_path / "c", options=("--secure",)) as cluster:
        folder = str(cluster.nodes[0].dir.parent)
        (tmp_path / "password").write_text("the password of bob")
        words = ("user", "add", "bob", "--password-file", str(tmp_path / "password"), "--dir", folder)
        assert antiphon(*words, environment=environment).returncode == 0
        bob = {"ANTIPHON_USER": "bob", "ANTIPHON_PASSWORD_FILE": str(tmp_path / "password")}
        said = _refused("topic", "create", "orders", "--dir", folder, environment=environment | bob)[1]
        wanted = "acl add --principal User:bob --resource topic --name orders --operation create"
        assert f"`antiphon {wanted} --dir {folder}` of an administrator allows it" in said
        parse(f"antiphon {wanted} --dir {folder}")
        (tmp_path / "password").write_text("another one")
        said = _refused("topic", "list", "--dir", folder, environment=environment | bob)[1]
        assert f"authentication failed; `antiphon doctor --dir {folder}` looks at the login" in said


def test_a_replay_into_a_topic_is_refused_before_spark_starts(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_commands, "spark_job", None)
    words = ["replay", "default", "--to-table", "orders", "--servers", cluster.native]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert f"`antiphon table list --servers {cluster.native}`" in done.stderr


def test_a_pipeline_whose_topic_is_not_there(cluster: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'servers = "{cluster.native}"\n[[job]]\nname = "one"\n[job.source]\ntopic = "nothing"\n'
        f'[job.target]\nkind = "parquet"\npath = "{tmp_path}/lake"\n'
    )
    said = _refused("pipeline", "check", str(file), environment=dict(os.environ))[1]
    assert f"`antiphon topic create nothing --servers {cluster.native}` creates it" in said


def test_how_a_command_of_a_table_is_called_names_the_table() -> None:
    done = antiphon("kv", "prices", "put", "k", environment=dict(os.environ))
    assert done.returncode == 2
    assert "Try 'antiphon kv prices put --help' for help." in done.stderr
