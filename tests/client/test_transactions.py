"""Transactions of the clients, and their repeats."""

import asyncio
from collections.abc import Callable

import pytest

from antiphon.client.aio import AsyncClient
from antiphon.client.handover import Handover
from antiphon.client.pipeline import Item, Request
from antiphon.errors import InvalidRequestError, NotReadyError, VersionMismatchError
from antiphon.records.changes import decode_changes
from antiphon.wire.requests import TableWrite
from tests.client.conftest import Scenario
from tests.client.memory_cluster import DROP_AFTER, DROP_BEFORE, Fault, MemoryCluster

Play = Callable[[Scenario], None]


@pytest.mark.parametrize("faults", [[DROP_BEFORE], [DROP_AFTER], [NotReadyError("soon"), DROP_AFTER]])
def test_a_transaction_that_is_sent_again_is_carried_out_once(play: Play, faults: list[Fault]) -> None:
    async def scenario(cluster: MemoryCluster, db: AsyncClient) -> None:
        table = await db.create_table("t", shards=1)
        await table.put("a", "0")
        cluster.fail(TableWrite, *faults)
        async with table.transaction() as t:
            t.put("a", "1", expected_version=0)
            t.put("b", "1")
            t.delete("a", expected_version=1)
        assert [version and version.id for version in t.versions] == [1, 2, None]
        changes = list(decode_changes(cluster.log("t").batches))
        assert [(c.key, c.value) for c in changes] == [(b"a", b"0"), (b"a", b"1"), (b"b", b"1"), (b"a", None)]

    play(scenario)


def test_a_refused_transaction_says_which_operation_and_leaves_others_alone(play: Play) -> None:
    async def scenario(cluster: MemoryCluster, db: AsyncClient) -> None:
        table = await db.create_table("t", shards=1)
        t = table.transaction()
        t.put("a", "1")
        t.put("b", "1", expected_version=5)
        outcomes = await asyncio.gather(
            table.put("x", "1"), t.commit(), table.put("y", "1"), return_exceptions=True
        )
        assert isinstance(outcomes[1], VersionMismatchError)
        assert outcomes[1].details == {"expected": 5, "actual": -1, "operation": 1}
        assert await table.list() == [b"x", b"y"]

    play(scenario)


def test_keys_of_several_shards_are_refused_before_anything_is_sent(play: Play) -> None:
    async def scenario(cluster: MemoryCluster, db: AsyncClient) -> None:
        table = await db.create_table("t", shards=3)
        t = table.transaction()
        for number in range(20):
            t.put(f"k{number}", "v")
        with pytest.raises(InvalidRequestError, match="these belong to 3"):
            await t.commit()
        assert not [body for body in cluster.seen if isinstance(body, TableWrite)]

    play(scenario)


def test_a_handover_delivers_in_the_order_in_which_the_old_shard_got_them() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()

        def item(name: str) -> Item:
            return Item(name, 1, 0.0, loop.create_future())

        delivered: list[str] = []
        first, second, third = (Request([item(f"r{n}")], n, 1) for n in range(3))
        handover = Handover([first, second, third], lambda one: delivered.append(one.what))
        handover.add(item("later"))
        handover.settled(first)  # carried out
        handover.refused(third, [item("of the third")])
        handover.settled(third)
        assert delivered == []
        handover.refused(second, [item("of the second")])  # its outcome was unknown until now
        handover.settled(second)
        assert delivered == ["of the second", "of the third", "later"]
        assert handover.done
        handover.add(item("last"))
        handover.refused(third, [item("very last")])
        assert delivered[-2:] == ["last", "very last"]

    asyncio.run(test())


def test_a_handover_that_is_closed_fails_what_waits() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        waiting = Item("w", 1, 0.0, loop.create_future())
        open_request = Request([], 0, 1)
        handover = Handover([open_request], lambda _: None)
        handover.add(waiting)
        handover.fail(InvalidRequestError("closed"))
        with pytest.raises(InvalidRequestError, match="closed"):
            await waiting.future

    asyncio.run(test())
