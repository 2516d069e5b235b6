"""What `antiphon node voters` and `antiphon node recover` say."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from antiphon.cli.main import app
from antiphon.cli.voters_command import _role, _show, _waits_for
from antiphon.model.metadata import CLUSTER_SHARD_ID, ClusterMeta, NodeMeta, ShardMeta

VOTERS = ShardMeta(CLUSTER_SHARD_ID, 0, (0, 1, 2))
NODES = tuple(NodeMeta(one, f"127.0.0.1:{7400 + one}") for one in range(4))
CLUSTER = ClusterMeta("c", 7, 1, NODES, ())


def changing(**how: tuple[int, ...]) -> ShardMeta:
    return msgspec.structs.replace(VOTERS, goal=(0, 2, 3), **how)


@pytest.mark.parametrize(
    ("voters", "words"),
    [
        (changing(), "voters 0,1,2 become 0,2,3: node 3 is catching up"),
        (changing(outgoing=(0, 1, 2)), "voters 0,1,2 become 0,2,3: a majority of both is brought up to date"),
        (
            msgspec.structs.replace(VOTERS, goal=(0, 2)),
            "voters 0,1,2 become 0,2: the leader has to confirm it",
        ),
    ],
)
def test_what_a_change_waits_for_is_told(voters: ShardMeta, words: str) -> None:
    assert _waits_for(CLUSTER, voters) == words


def test_a_new_voter_that_is_down_is_named() -> None:
    down = msgspec.structs.replace(NODES[3], alive=False)
    cluster = msgspec.structs.replace(CLUSTER, nodes=(*NODES[:3], down))
    assert _waits_for(cluster, changing()).endswith("waits for node 3, which is down")


def test_each_node_has_its_part_in_a_change() -> None:
    voters = changing(learners=(3,))
    assert [_role(node, voters, 2) for node in range(4)] == ["votes", "leaves", "leads", "catches up"]


@pytest.mark.parametrize(
    ("ensemble", "words"),
    [
        ((0,), "1 voter can lose none"),
        ((0, 1), "2 voters can lose 0; 3 could lose 1"),
        ((0, 1, 2), "3 voters can lose 1"),
        ((0, 1, 2, 3), "4 voters can lose 1; 5 could lose 2"),
    ],
)
def test_it_is_said_how_many_may_be_lost(
    ensemble: tuple[int, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _show(msgspec.structs.replace(VOTERS, ensemble=ensemble), [], as_json=False)
    assert capsys.readouterr().out.splitlines()[-1] == words


def test_one_change_is_asked_for_at_a_time() -> None:
    found = CliRunner().invoke(app, ["node", "voters", "--add", "1", "--remove", "2"])
    assert found.exit_code == 2
    found = CliRunner().invoke(app, ["node", "recover", "--dir", "x", "--join", "--other", "y"])
    assert found.exit_code == 2


def test_a_directory_that_is_no_nodes_is_named(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["node", "recover", "--dir", str(tmp_path)])
    assert found.exit_code == 1
    assert "is no node's directory" in found.output
    assert not list(tmp_path.iterdir()), "a look leaves nothing behind"
