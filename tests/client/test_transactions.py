"""Transactions of the clients, and their repeats."""

import asyncio

import pytest

from antiphon.client.aio import AsyncClient
from antiphon.client.handover import Handover
from antiphon.client.pipeline import Item, Request
from antiphon.errors import InvalidRequestError, NotReadyError, VersionMismatchError
from antiphon.model.requests import TableWrite
from antiphon.records.changes import decode_changes
from antiphon.table.evaluator import ABSENT
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, FailingNodes, Fault
from tests.coroutines import on_a_loop


@pytest.mark.parametrize("faults", [[DROP_BEFORE], [DROP_AFTER], [NotReadyError("soon"), DROP_AFTER]])
@in_a_cluster
async def test_a_transaction_that_is_sent_again_is_carried_out_once(
    cluster: FailingNodes, db: AsyncClient, faults: list[Fault]
) -> None:
    table = await db.create_table("t", shards=1)
    await table.put("a", "0")
    cluster.fail(TableWrite, *faults)
    async with table.transaction() as t:
        t.put("a", "1", expected_version=0)
        t.put("b", "1")
        t.delete("a", expected_version=1)
    assert [version and version.id for version in t.versions] == [1, 2, None]
    changes = list(decode_changes(cluster.batches("t")))
    assert [(c.key, c.value) for c in changes] == [(b"a", b"0"), (b"a", b"1"), (b"b", b"1"), (b"a", None)]


@in_a_cluster
async def test_a_refused_transaction_says_which_operation_and_leaves_others_alone(
    cluster: FailingNodes, db: AsyncClient
) -> None:
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


@in_a_cluster
async def test_a_transaction_goes_by_keys_that_it_does_not_change(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table("t", shards=1)
    lock = await table.put("lock", "mine")
    async with table.transaction() as t:
        t.check("lock", lock.id)
        t.check("frozen", ABSENT)
        t.put("a", "1")
    assert [version and version.id for version in t.versions] == [None, None, 1]
    await table.put("lock", "another's")
    t = table.transaction()
    t.put("a", "2")
    t.check("lock", lock.id)
    with pytest.raises(VersionMismatchError, match="lock") as refused:
        await t.commit()
    assert refused.value.details == {"expected": lock.id, "actual": 2, "operation": 1}
    assert (await table.get("a")).value == b"1"


@in_a_cluster
async def test_keys_of_several_shards_are_refused_before_anything_is_sent(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table("t", shards=3)
    t = table.transaction()
    for number in range(20):
        t.put(f"k{number}", "v")
    with pytest.raises(InvalidRequestError, match="these belong to 3"):
        await t.commit()
    assert not cluster.count(TableWrite)


def an_item(name: str, time_s: float = 60.0) -> Item:
    loop = asyncio.get_running_loop()
    return Item(name, 1, loop.time() + time_s, loop.create_future())


@on_a_loop
async def test_a_handover_delivers_in_the_order_in_which_callers_made_them() -> None:
    delivered: list[str] = []
    items = [an_item(name) for name in ("of the second", "of the third", "queued", "later")]
    first, second, third = (Request([], n, 1) for n in range(3))
    handover = Handover(lambda one: delivered.append(one.what))
    handover.extend([7], [first, second, third], [items[2]])
    assert handover.holds_back(7)
    assert not handover.holds_back(6)
    handover.add(items[3])
    handover.settled(first)  # carried out
    handover.add(items[1])
    handover.settled(third)
    assert delivered == []
    handover.add(items[0])  # its outcome was unknown until now
    handover.settled(second)
    assert delivered == ["of the second", "of the third", "queued", "later"]
    assert handover.done
    assert not handover.holds_back(7)


@on_a_loop
async def test_another_split_extends_a_handover() -> None:
    delivered: list[str] = []
    first, second = Request([], 0, 1), Request([], 0, 1)
    handover = Handover(lambda one: delivered.append(one.what))
    handover.extend([7], [first], [an_item("w")])
    handover.extend([8], [second], [])
    handover.settled(first)
    assert handover.holds_back(8)
    assert delivered == []
    handover.settled(second)
    assert delivered == ["w"]


@on_a_loop
async def test_who_waits_for_a_handover_has_time_of_its_own() -> None:
    moved, later = an_item("m", 0.01), an_item("l", 0.02)
    handover = Handover(lambda _: None)
    handover.extend([7], [Request([], 0, 1)], [moved])
    handover.add(later)
    outcomes = await asyncio.gather(moved.future, later.future, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == [
        "the write could not be sent in time; it was not carried out"
    ] * 2


@on_a_loop
async def test_a_handover_that_is_closed_fails_what_waits() -> None:
    waiting = an_item("w")
    handover = Handover(lambda _: None)
    handover.extend([7], [Request([], 0, 1)], [waiting])
    handover.fail(InvalidRequestError("closed"))
    with pytest.raises(InvalidRequestError, match="closed"):
        await waiting.future
