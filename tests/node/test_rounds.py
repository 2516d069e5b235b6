"""Upkeep of many replicas goes on in pieces: the node's event loop is never theirs for long, and none is left out."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.gateway.turns import Turns
from antiphon.node.rounds import AT_ONCE, Round
from tests.coroutines import on_a_loop

COUNT = 3 * AT_ONCE + 5


class Node:
    """As much of a node as a round needs."""

    def __init__(self, count: int = COUNT) -> None:
        self.turn = SimpleNamespace(pieces=Turns())
        self.stopping = False
        self.hosts = {number: host(number) for number in range(count)}


def host(number: int, **state: Any) -> Any:
    return SimpleNamespace(
        shard_id=number, state=SimpleNamespace(**{"failed": None, "closed": False, **state})
    )


class Looks:
    def __init__(self, node: Node) -> None:
        self.seen: list[int] = []
        self.done = 0
        self.bad: set[int] = set()
        self.round = Round(node, self.look, self.ended)  # type: ignore[arg-type]

    def look(self, one: Any) -> None:
        self.seen.append(one.shard_id)
        if one.shard_id in self.bad:
            raise ValueError("a mistake")

    def ended(self) -> None:
        self.done += 1


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@on_a_loop
async def test_every_replica_is_looked_at_once_in_a_round_a_few_in_each_turn() -> None:
    looks = Looks(Node())
    looks.round.begin()
    sizes = [len(looks.seen)]
    while not looks.done:
        looks.round.begin()  # one is under way
        await turns(1)
        sizes.append(len(looks.seen))
    assert looks.seen == list(range(COUNT))
    assert max(after - before for before, after in zip([0, *sizes], sizes, strict=False)) == AT_ONCE
    looks.round.begin()
    await turns(10)
    assert (len(looks.seen), looks.done) == (2 * COUNT, 2)


@on_a_loop
async def test_replicas_that_go_come_or_fail_meanwhile() -> None:
    node = Node()
    looks = Looks(node)
    looks.round.begin()
    del node.hosts[COUNT - 1]
    node.hosts[COUNT - 2] = host(COUNT - 2, closed=True)
    node.hosts[COUNT - 3] = host(COUNT - 3, failed=OSError())
    node.hosts[COUNT] = host(COUNT)
    await turns(10)
    assert looks.seen == list(range(COUNT - 3)), "the new one is for the next round"
    assert looks.done == 1


@on_a_loop
async def test_a_mistake_with_one_replica_is_told_and_leaves_out_no_other() -> None:
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["exception"]))
    looks = Looks(Node())
    looks.bad = {3, AT_ONCE + 5}
    with pytest.raises(ValueError, match="a mistake"):
        looks.round.begin()
    await turns(10)
    assert looks.seen == list(range(COUNT))
    assert looks.done == 1
    assert [str(error) for error in told] == ["a mistake"]


@on_a_loop
async def test_a_node_that_stops_ends_its_rounds() -> None:
    node = Node()
    looks = Looks(node)
    looks.round.begin()
    node.stopping = True
    await turns(10)
    assert (len(looks.seen), looks.done) == (AT_ONCE, 0)
