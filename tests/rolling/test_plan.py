"""What a restart of a node means, who leads meanwhile, what a command of the operator's is made of: without any node."""

from typing import Any

import msgspec
import pytest

from antiphon.errors import InvalidRequestError, TimedOutError, UnavailableError
from antiphon.model.in_step import not_to_be_missed, out_of_step
from antiphon.model.metadata import (
    ClusterMeta,
    Kind,
    NodeMeta,
    ShardMeta,
    ShardStatus,
    Split,
    SplitPhase,
    TopicMeta,
)
from antiphon.tools.restarters import Command
from antiphon.tools.rolling import Planned, _is_behind, plan, successors

NODES = tuple(NodeMeta(n, f"host-{n}:7400", f"host-{n}:9092", http=f"[::{n}]:8080") for n in range(3))
WHOLE = ShardMeta(1, 0, (0, 1, 2), leader=0, term=3, status=ShardStatus.ONLINE, live=(0, 1, 2))


def cluster(*topics: TopicMeta, down: tuple[int, ...] = (), controller: int = 1) -> ClusterMeta:
    nodes = tuple(msgspec.structs.replace(node, alive=node.node_id not in down) for node in NODES)
    return ClusterMeta("test", 9, controller, nodes, topics)


def topic(*shards: ShardMeta, profile: str = "oxia", name: str = "t", **config: str) -> TopicMeta:
    named = {name.replace("_", "."): value for name, value in config.items()}
    return TopicMeta(name, b"t" * 16, Kind.TOPIC, 3, profile, shards, named)


def shard(**changes: Any) -> ShardMeta:
    return msgspec.structs.replace(WHOLE, **changes)


def planned(node: int, *topics: TopicMeta, **changes: Any) -> Planned:
    return next(one for one in plan(cluster(*topics, **changes), [0, 1, 2]) if one.node == node)


def test_who_is_down_comes_first_and_the_coordinator_last() -> None:
    assert [one.node for one in plan(cluster(controller=0), [2, 1, 0])] == [1, 2, 0]
    assert [one.node for one in plan(cluster(down=(2,), controller=0), [0, 1, 2])] == [2, 1, 0]
    with pytest.raises(InvalidRequestError, match="there is no node 5; there are 0, 1, 2"):
        plan(cluster(), [5])


def test_leaderships_go_to_replicas_that_keep_up_and_are_spread() -> None:
    shards = [shard(shard_id=at, index=at) for at in range(4)]
    found = successors(cluster(topic(*shards)), 0)
    assert sorted(found.values()) == [1, 1, 2, 2]
    assert set(successors(cluster(topic(*shards), down=(2,)), 0).values()) == {1}
    assert successors(cluster(topic(shard(live=(0, 2)))), 0) == {("t", 0): 2}
    assert successors(cluster(topic(WHOLE)), 1) == {}, "it leads nothing"
    assert successors(cluster(topic(WHOLE, election="manual")), 0) == {}, "an operator chooses"
    assert successors(cluster(topic(shard(ensemble=(0,), live=(0,)))), 0) == {}


@pytest.mark.parametrize(
    ("found", "stalls"),
    [
        (topic(WHOLE), 0),
        (topic(shard(ensemble=(0,), live=(0,))), 1),
        (topic(shard(ensemble=(0, 1), live=(0, 1))), 1),
        (topic(shard(ensemble=(0, 1), live=(0, 1)), commit="live"), 0),
        (topic(shard(ensemble=(0, 1), live=(0, 1)), commit="live", min_live="2"), 1),
        (topic(WHOLE, commit="at_least(3)"), 1),
        (topic(WHOLE, election="manual"), 1),
        (topic(shard(leader=1), election="manual"), 0),
        (topic(shard(ensemble=(0, 1), live=(0, 1)), writers="multi"), 0),
        (topic(shard(ensemble=(1, 2), leader=1, live=(1, 2))), 0),
    ],
)
def test_what_takes_no_writes_meanwhile(found: TopicMeta, stalls: int) -> None:
    assert planned(0, found).stalls == stalls


def test_a_node_is_in_step_when_it_takes_part_in_all_that_it_holds() -> None:
    assert out_of_step(cluster(topic(WHOLE)), 2) == []
    (lack,) = out_of_step(cluster(topic(shard(live=(0, 1)))), 2)
    assert str(lack) == "t/0: node 2 has not caught up"
    assert out_of_step(cluster(topic(shard(live=(0, 1)))), 1) == []
    assert out_of_step(cluster(topic(shard(ensemble=(0, 1), live=(0, 1), learners=(2,)))), 2) == []
    for status in (ShardStatus.ELECTION, ShardStatus.CANDIDATE_FOUND):
        for down in ((), (0,)):
            electing = cluster(topic(shard(status=status, leader=-1)), down=down)
            assert [one.why for one in out_of_step(electing, 2)] == ["no leader yet"]
    offline = topic(shard(status=ShardStatus.OFFLINE, leader=-1))
    assert [one.why for one in out_of_step(cluster(offline), 2)] == ["no leader yet"]
    assert out_of_step(cluster(offline, down=(0,)), 2) == [], "nothing that this node could do"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"live": (0, 2)}, "node 1 has not caught up"),
        ({"live": (1, 2)}, ""),  # only it itself is missing: a restart makes nothing worse
        ({"goal": (0, 1, 2)}, "its members are changing"),
        ({"learners": (0,), "ensemble": (1, 2)}, "its members are changing"),
        ({"split": Split(7, SplitPhase.COPY)}, "it is being split"),
        ({"status": ShardStatus.OFFLINE}, "it is Offline"),
        ({"ensemble": (1, 2), "live": (1,)}, ""),  # not its own
        (
            {"ensemble": (0,), "live": (), "status": ShardStatus.OFFLINE},
            "",
        ),  # nobody else could lead it anyway
    ],
)
def test_what_a_shard_cannot_spare(changes: dict[str, Any], why: str) -> None:
    assert [one.why for one in not_to_be_missed(cluster(topic(shard(**changes))), 0)] == [why] * bool(why)


@pytest.mark.parametrize(
    ("mine", "theirs", "behind"),
    [
        ((0, 5, 7), (9, 5, 7), False),  # the first number stays on its node
        ((0, 5, 6), (0, 5, 7), True),
        ((0, 5), (0, 5, 1), True),
        ((0, 5, 9), (0, 5), False),
        ((), (0, 1), True),
        ((), (), False),
    ],
)
def test_vector_clocks(mine: tuple[int, ...], theirs: tuple[int, ...], *, behind: bool) -> None:
    assert _is_behind(mine, theirs) is behind


def test_words_of_a_command() -> None:
    node = NODES[2]
    assert Command("ssh {host} systemctl restart antiphon@{node}").words(node) == [
        "ssh", "host-2", "systemctl", "restart", "antiphon@2",
    ]  # fmt: skip
    assert Command("x '{native} {kafka}' {http}").words(node) == [
        "x",
        "host-2:7400 host-2:9092",
        "[::2]:8080",
    ]
    for text, why in (
        ("restart {nodes}", r"\{nodes\}"),
        ("restart {}", r"\{\}"),
        ("restart '{node}", "No closing quotation"),
        ("  ", "is empty"),
    ):
        with pytest.raises(InvalidRequestError, match=why):
            Command(text)


@pytest.mark.parametrize("host", ["$(reboot)", "a;b", "-oProxyCommand=x", "a b", "`x`", "'", "a\nb", ""])
def test_an_address_that_would_be_more_than_a_word(host: str) -> None:
    node = msgspec.structs.replace(NODES[0], native=f"{host}:7400")
    with pytest.raises(InvalidRequestError, match="not put into a command"):
        Command("ssh {host} reboot").words(node)
    assert Command("restart {node}").words(node) == ["restart", "0"], "what is not asked for does not matter"


def test_a_command_that_fails_or_does_not_end() -> None:
    Command("true").restart(NODES[0], 10)
    with pytest.raises(UnavailableError, match="failed: exit code 3"):
        Command("sh -c 'exit 3'").restart(NODES[0], 10)
    with pytest.raises(UnavailableError, match="failed: told;"):
        Command("sh -c 'echo told >&2; exit 1'").restart(NODES[0], 10)
    with pytest.raises(UnavailableError, match="No such file"):
        Command("/no/such/program").restart(NODES[0], 10)
    with pytest.raises(TimedOutError, match="not ended within 1 s"):
        Command("sh -c 'sleep 30 & wait'").restart(NODES[0], 1)
    Command("sh -c 'sleep 2 &'").restart(NODES[0], 1)  # what it leaves running is not waited for
