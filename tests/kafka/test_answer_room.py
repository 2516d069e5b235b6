"""Answers to Kafka's requests other than Fetch: they are made when there is room for them."""

import asyncio

from antiphon.gateway.budget import FLOOR_BYTES, PATIENCE_S, Budget
from antiphon.kafka.answer_sizes import BODY_BYTES_MAX, KEPT_MAX, AnswerSizes
from antiphon.kafka.messages import cluster
from antiphon.kafka.schema import encode
from tests.kafka.raw import Connect, RawClient, listening
from tests.kafka.test_memory import pool_of
from tests.node.in_process import in_virtual_time

KIB = 1024
LIMIT_BYTES = 512 * KIB
ALL = encode(cluster.MetadataRequest(topics=None), 9, flexible=True)
ONE = encode(cluster.MetadataRequest(topics=[cluster.MetadataRequestTopic(name="small")]), 9, flexible=True)


async def greedy(connect: Connect) -> RawClient:
    client = await connect()
    client.reader._limit = 1000  # type: ignore[attr-defined]  # it takes no more than that
    return client


@in_virtual_time
async def test_metadata_that_nobody_reads_stays_within_the_memory_for_clients() -> None:
    async with listening() as (served, connect):
        await served.create("wide", shards=1200)
        await served.create("small")
        pool = pool_of(served)
        pool.limit_bytes = pool.budget.limit_bytes = LIMIT_BYTES
        good = await connect()
        size = len(await good.receive(good.send(3, 9, ALL)))
        assert size > FLOOR_BYTES
        await good.receive(good.send(3, 9, ONE))
        clients = [await greedy(connect) for _ in range(40)]
        for client in clients:
            for _ in range(120):
                client.send(3, 9, ALL)
        highest = 0
        for _ in range(30):
            await asyncio.sleep(0.02)
            highest = max(highest, pool.held_bytes)
        requests = 40 * 120 * (2048 + len(ALL) + 15)  # what is counted for those that were received
        assert highest < LIMIT_BYTES + min(requests, 40 * FLOOR_BYTES) + 2 * size
        async with asyncio.timeout(0.5):  # and what is small is answered meanwhile
            await good.receive(good.send(3, 9, ONE))


@in_virtual_time
async def test_small_answers_that_nobody_asked_for_before_need_no_room() -> None:
    """Their size is not known; they are made one at a time, and most are small."""
    async with listening() as (served, connect):
        await served.create("wide", shards=1200)
        await served.create("small")
        pool = pool_of(served)
        pool.limit_bytes = pool.budget.limit_bytes = LIMIT_BYTES
        full = pool.open()
        full.add(LIMIT_BYTES)
        assert full.is_large  # so nobody else may have more than there is room for
        good = await connect()
        async with asyncio.timeout(0.5):
            assert len(await good.receive(good.send(3, 9, ONE))) < KIB
        waits = [await connect() for _ in range(3)]  # what is large waits all the same
        for client in waits:
            client.send(3, 8, ALL)
        await asyncio.sleep(1)
        assert not any(client.reader._buffer for client in waits)  # type: ignore[attr-defined]
        full.close()


@in_virtual_time
async def test_all_is_answered_in_the_end_also_what_is_larger_than_the_room() -> None:
    async with listening() as (served, connect):
        await served.create("wide", shards=1200)
        pool = pool_of(served)
        pool.limit_bytes = pool.budget.limit_bytes = 40 * KIB
        clients = [await connect() for _ in range(5)]
        sent = [(client, client.send(3, 9, ALL)) for client in clients for _ in range(10)]
        async with asyncio.timeout(PATIENCE_S):
            for client, correlation in sent:
                assert len(await client.receive(correlation)) > FLOOR_BYTES
        await asyncio.sleep(1.1)
        assert pool.held_bytes == 0
        assert pool.budget.large is None


def test_a_small_answer_fits_however_full_the_node_is_and_a_large_one_by_its_share() -> None:
    budget = Budget(100 * KIB)
    pool = budget.pool("kafka", 100 * KIB, 100 * KIB)
    full, other = pool.open(), pool.open()
    assert full.fits(100 * KIB)
    assert not full.fits(101 * KIB)
    full.add(90 * KIB)
    assert other.fits(20 * KIB)
    assert not other.fits(21 * KIB)
    full.add(20 * KIB)
    assert other.fits(FLOOR_BYTES)
    assert not other.fits(FLOOR_BYTES + 1)
    assert other.fits(FLOOR_BYTES + 5, own_bytes=0) is False
    other.add(5)
    assert other.fits(FLOOR_BYTES, own_bytes=5)


def test_only_one_account_holds_more_than_there_is_room_for() -> None:
    pool = Budget(1).pool("kafka", 1, 1)
    first, second = pool.open(), pool.open()
    assert [one.is_large for one in (first, second)] == [True, False]
    first.add(FLOOR_BYTES + 1)
    first.large_no_more()
    assert [one.is_large for one in (second, first)] == [False, True]
    first.close()
    assert [one.is_large for one in (second,)] == [True]
    second.large_no_more()
    assert pool.budget.large is None


def test_sizes_are_remembered_for_short_requests_and_not_for_too_many() -> None:
    sizes = AnswerSizes()
    sizes.note((3, 9, bytes(BODY_BYTES_MAX + 1)), 7)
    for number in range(KEPT_MAX + 1):
        sizes.note((3, 9, b"%d" % number), number)
    assert sizes.of((3, 9, bytes(BODY_BYTES_MAX + 1))) is None
    assert sizes.of((3, 9, b"0")) is None
    assert sizes.of((3, 9, b"%d" % KEPT_MAX)) == KEPT_MAX
