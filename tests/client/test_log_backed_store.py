"""S2, the store that KIP-27 builds on conditional appends: what each claim comes to, on whole nodes in virtual time."""

import asyncio
from typing import Any

import pytest

from antiphon.client.aio import AsyncClient, connect
from antiphon.client.connection_errors import ClientClosedError
from antiphon.client.log_backed_store import AsyncLogBackedStore
from antiphon.client.topic_writer import Position
from antiphon.errors import (
    BatchTooLargeError,
    InvalidRequestError,
    OffsetMismatchError,
    TimedOutError,
    UnknownShardError,
    UnknownTopicError,
)
from antiphon.model.requests import AppendBatch
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, SILENT, FailingNodes
from tests.client.ledger import Ledger, OverdrawnError, apply, move, name_of, replay, validate

Store = AsyncLogBackedStore[Ledger]


def ledger(db: AsyncClient, **options: Any) -> Store:
    return AsyncLogBackedStore(db, "t", initial=Ledger(), apply=apply, validate=validate, **options)


async def log_of(db: AsyncClient) -> list[str]:
    return [name_of(record.value) async for record in db.topic("t").read()]


async def check(db: AsyncClient, *stores: Store) -> None:
    """The log is a legal serial history, and every store's state is its fold (S2.16)."""
    expected = replay([record.value async for record in db.topic("t").read()])
    for store in stores:
        assert await store.catch_up() == store.state == expected


@in_a_cluster
async def test_s2_03_s2_06_s2_07_a_store_starts_with_the_log_that_is_there(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    """S2.3, S2.6, S2.7: recovery and following are the same: read, apply, know the upcoming offset."""
    await db.create_topic("t")
    async with ledger(db) as store:
        assert (store.state, store.upcoming_offset) == (Ledger(), 0)
        for number in range(5):
            applied = await store.submit(move(f"a{number}", 10))
            assert applied == (number, store.state)
        kept, at = store.state, store.upcoming_offset
        await store.submit(move("a5", -60 + 10))
    async with ledger(db) as again, ledger(db, start_offset=0) as follower:
        assert again.state == follower.state == Ledger(0, 6, store.state.digest)
        assert again.upcoming_offset == 6
    async with AsyncLogBackedStore(db, "t", initial=kept, apply=apply, start_offset=at) as from_kept:
        assert from_kept.state == store.state


@in_a_cluster
async def test_s2_04_s2_10_each_operation_is_judged_on_those_before_it(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    """S2.4, S2.9, S2.10: also on those that travel with it."""
    await db.create_topic("t")
    async with ledger(db) as store:
        amounts = (10, -7, -7, -3, -1)
        found = await asyncio.gather(
            *(store.submit(move(f"a{n}", amount)) for n, amount in enumerate(amounts)),
            return_exceptions=True,
        )
        assert [getattr(one, "offset", None) for one in found] == [0, 1, None, 2, None]
        assert [str(one) for one in found if isinstance(one, OverdrawnError)] == ["3", "0"]
        assert found[1].state.balance == 3  # type: ignore[union-attr]
        assert len(cluster.batches("t")) == 1
        with pytest.raises(OverdrawnError):
            await store.submit_many([move("b0", 1), move("b1", -2), move("b2", 1)])
        assert await log_of(db) == ["a0", "a1", "a3", "b0", "b2"]
        await check(db, store)


@in_a_cluster
async def test_s2_08_at_most_one_append_is_in_flight_and_the_rest_gathers(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    topic = await db.create_topic("t")
    append_batch, in_flight, most = topic.append_batch, 0, 0

    async def counted(*arguments: Any, **options: Any) -> list[Position]:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        try:
            return await append_batch(*arguments, **options)
        finally:
            in_flight -= 1

    topic.append_batch = counted  # type: ignore[method-assign]
    async with ledger(db) as store:

        async def submit(who: int) -> None:
            for number in range(10):
                await store.submit(move(f"{who}-{number}", 1))

        await asyncio.gather(*(submit(who) for who in range(200)))
        assert most == 1
        assert store.upcoming_offset == store.state.moves == 2000
        assert len(cluster.batches("t")) < 100
        await check(db, store)


@in_a_cluster
async def test_s2_11_who_was_late_fails_and_reads_on(cluster: FailingNodes, db: AsyncClient) -> None:
    """S2.2, S2.5, S2.11, S2.15: nothing that was judged on a stale state is in the log."""
    await db.create_topic("t")
    async with ledger(db) as one, ledger(db) as two:
        await one.submit(move("one", 10))
        with pytest.raises(OffsetMismatchError) as caught:
            await two.submit(move("two", 5))
        assert (caught.value.expected, caught.value.actual) == (0, 1)
        assert two.state == one.state
        await two.submit_many([move("two again", -5), move("and", -5)])
        again = await asyncio.gather(
            one.submit(move("one again", 1)),
            one.submit(move("persistent", 2), reevaluate=True),
            one.submit(move("too much", -4), reevaluate=True),
            return_exceptions=True,
        )
        assert isinstance(again[0], OffsetMismatchError)
        assert isinstance(again[2], OverdrawnError), "it was permitted in the state that had passed"
        assert again[1].offset == 3  # type: ignore[union-attr]
        assert await log_of(db) == ["one", "two again", "and", "persistent"]
        await check(db, one, two)


@in_a_cluster
async def test_a_refusal_is_that_of_the_end_of_the_log(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("t")
    async with ledger(db) as one, ledger(db) as two:
        await one.submit(move("one", 10))
        assert two.state.balance == 0
        applied = await two.submit(move("two", -10))
        assert applied.offset == 1, "refused on the old state, which is not the log's end: judged again"
        with pytest.raises(OverdrawnError):
            await one.submit(move("three", -1), reevaluate=True)
        await check(db, one, two)


@pytest.mark.parametrize("fault", [DROP_AFTER, DROP_BEFORE])
@in_a_cluster
async def test_s2_14_a_lost_connection_duplicates_nothing(
    cluster: FailingNodes, db: AsyncClient, fault: str
) -> None:
    await db.create_topic("t")
    async with ledger(db) as store:
        for number in range(5):
            cluster.fail(AppendBatch, fault)
            assert (await store.submit(move(f"a{number}", 1))).offset == number
        await check(db, store)


@pytest.mark.parametrize("carried_out", [True, False])
@in_a_cluster
async def test_an_unknown_outcome_is_settled_by_the_log(
    cluster: FailingNodes, db: AsyncClient, carried_out: bool
) -> None:
    """S2.14, S2.17: found by its mark where it expected to be, or sent again; and lost when somebody else is there."""
    topic = await db.create_topic("t")
    append_batch, rival = topic.append_batch, False

    async def silent(messages: Any, **options: Any) -> list[Position]:
        if options["expected_offset"] < 100 and not rival:
            topic.append_batch = append_batch  # type: ignore[method-assign]
            if carried_out:
                await append_batch(messages, **options)
            raise TimedOutError("as if the answer had been lost", sent=True)
        return await append_batch(messages, **options)

    async with ledger(db) as store, ledger(db) as other:
        topic.append_batch = silent  # type: ignore[method-assign]
        both = await store.submit_many([move("a", 10), move("b", -1)])
        assert [one.offset for one in both] == [0, 1]
        assert await log_of(db) == ["a", "b"]

        async def overtaken(messages: Any, **options: Any) -> list[Position]:
            topic.append_batch = append_batch  # type: ignore[method-assign]
            await other.submit(move("other", 1))
            raise TimedOutError("as if it had never arrived", sent=True)

        await other.catch_up()
        topic.append_batch = overtaken  # type: ignore[method-assign]
        with pytest.raises(OffsetMismatchError):
            await store.submit(move("c", -9))
        assert await log_of(db) == ["a", "b", "other"]
        await check(db, store, other)


@in_a_cluster
async def test_what_fails_afterwards_is_not_told_of_an_operation_that_may_be_there(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    topic = await db.create_topic("t")
    append_batch = topic.append_batch

    async def silent(messages: Any, **options: Any) -> list[Position]:
        if options["expected_offset"] >= 100:
            raise TimedOutError("who asks where the log ends is told that nothing was sent", sent=False)
        await append_batch(messages, **options)
        raise TimedOutError("as if the answer had been lost", sent=True)

    async with ledger(db) as store:
        await store.catch_up()
        topic.append_batch = silent  # type: ignore[method-assign]
        found = await asyncio.gather(
            store.submit(move("a", 1)), store.submit(move("b", -9)), return_exceptions=True
        )
        assert [getattr(one, "details", None) for one in found] == [{"sent": True}, {"sent": False}]
        topic.append_batch = append_batch  # type: ignore[method-assign]
        assert await log_of(db) == ["a"]
        await check(db, store)


@in_a_cluster
async def test_after_a_time_out_the_caller_knows_whether_it_was_sent(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_topic("t")
    async with ledger(db) as store:
        cluster.fail(AppendBatch, SILENT)
        first = asyncio.create_task(store.submit(move("a", 1), timeout_s=0.3))
        await cluster.until_seen(AppendBatch, 2)  # the first one found out where the log ends
        with pytest.raises(TimedOutError) as caught:
            await store.submit(move("b", 1), timeout_s=0.05)
        assert caught.value.details == {"sent": False}
        with pytest.raises(TimedOutError) as caught:
            await first
        assert caught.value.details == {"sent": True}
        cluster.drop_clients(cluster.leader("t"))
        assert (await store.submit(move("c", 1))).offset == 0
        await check(db, store)


@in_a_cluster
async def test_a_new_leaders_term_start_is_no_reason_to_fail(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("t")
    async with ledger(db) as store, ledger(db) as idle:
        await store.submit(move("a", 1))
        await cluster.move_leader("t", 0, (cluster.leader("t") + 1) % 3)
        assert (await store.submit(move("b", 1))).offset == 2
        await check(db, store, idle)


@in_a_cluster
async def test_batches_that_are_too_large_become_smaller(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    append_batch = topic.append_batch

    async def limited(messages: Any, **options: Any) -> list[Position]:
        if sum(len(one[1] if isinstance(one, tuple) else one) for one in messages) > 300:
            raise BatchTooLargeError("at most 300 bytes")
        return await append_batch(messages, **options)

    topic.append_batch = limited  # type: ignore[method-assign]
    async with ledger(db) as store:
        found = await asyncio.gather(
            *(store.submit(move(f"{n}" * (400 if n == 7 else 1), 1)) for n in range(60)),
            return_exceptions=True,
        )
        assert [n for n, one in enumerate(found) if isinstance(one, BatchTooLargeError)] == [7]
        assert store.state.moves == 59
        assert await log_of(db) == [f"{n}" for n in range(60) if n != 7]


@in_a_cluster
async def test_a_log_that_cannot_be_applied_ends_the_store(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    async with ledger(db) as store:
        await topic.append(b"not an operation")
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="offset 0 cannot be applied"):
                await store.catch_up()
            with pytest.raises(InvalidRequestError, match="offset 0 cannot be applied"):
                await store.submit(move("a", 1))
    async with AsyncLogBackedStore(db, "t", initial=0, apply=lambda n, _: n + 1, start_offset=1) as ahead:
        await db.delete_topic("t")
        await db.create_topic("t")
        with pytest.raises(InvalidRequestError, match="another topic of the same name"):
            await ahead.submit(b"")


@in_a_cluster
async def test_what_is_not_there_is_said_at_the_start(cluster: FailingNodes, db: AsyncClient) -> None:
    with pytest.raises(UnknownTopicError):
        await ledger(db).start()
    await db.create_topic("t")
    with pytest.raises(UnknownShardError):
        await ledger(db, shard=1).start()
    with pytest.raises(InvalidRequestError, match="start the store"):
        await ledger(db).submit(move("a", 1))
    with pytest.raises(InvalidRequestError, match="start_offset"):
        ledger(db, start_offset=-1)
    with pytest.raises(InvalidRequestError, match="is it another topic"):
        await ledger(db, start_offset=3).start()


@in_a_cluster
async def test_closing_answers_everybody(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("t")
    store = ledger(db)
    await store.start()
    cluster.fail(AppendBatch, SILENT)
    sent = asyncio.create_task(store.submit(move("a", 1)))
    await cluster.until_seen(AppendBatch, 2)
    waits = asyncio.create_task(store.submit(move("b", 1)))
    await asyncio.sleep(0)
    await store.close()
    for task in (sent, waits):
        with pytest.raises(ClientClosedError):
            await task
    with pytest.raises(ClientClosedError):
        await store.submit(move("c", 1))
    await store.close()


@in_a_cluster
async def test_s2_05_s2_16_many_stores_at_once_leave_one_history(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    """S2.2, S2.5, S2.16, S2.17: whatever is acknowledged is there once, whatever failed is not."""
    await db.create_topic("t")
    acknowledged: dict[str, int] = {}
    failed: set[str] = set()

    async def work(who: int, store: Store) -> None:
        for number in range(30):
            if number % 7 == who:
                cluster.fail(AppendBatch, DROP_AFTER, DROP_BEFORE)
            name = f"{who}-{number}"
            try:
                amount = 7 if number % 3 == 0 else -3
                applied = await store.submit(move(name, amount), reevaluate=number % 2 == 0)
                acknowledged[name] = applied.offset
            except (OffsetMismatchError, OverdrawnError):
                failed.add(name)

    async with connect(cluster.servers, timeout_s=10) as second:
        stores = [ledger(db), ledger(second), ledger(db)]
        for store in stores:
            await store.start()
        await asyncio.gather(*(work(who, store) for who, store in enumerate(stores)))
        found = {name: offset for offset, name in enumerate(await log_of(db))}
        assert found == acknowledged
        assert not failed & found.keys()
        assert len(found) + len(failed) == 90
        await check(db, *stores)
        for store in stores:
            await store.close()
