"""Fetch sessions (KIP-227): what changed is told, and nothing else; who holds how many; what ends one."""

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.kafka import error_codes as code
from antiphon.kafka import fetch_sessions
from antiphon.kafka.api import FETCH
from antiphon.kafka.apis import APIS
from antiphon.kafka.fetch_codec import PartitionFetched, PartitionWanted, TopicWanted
from antiphon.kafka.schema import decode, encode
from antiphon.simulation.cluster import kafka_messages as m
from tests.kafka.kafka_nodes import KafkaNodes, listener_of
from tests.kafka.raw import RawClient, batch, listening, produce
from tests.node.in_process import in_virtual_time


def partition(index: int, offset: int = 0, **fields: Any) -> m.FetchPartition:
    return m.FetchPartition(index=index, offset=offset, max_bytes=1 << 20, **fields)


def request(
    session: tuple[int, int], *partitions: m.FetchPartition, forget: tuple[int, ...] = (), **fields: Any
) -> m.FetchRequest:
    """A request about the topic `t`."""
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    return m.FetchRequest(
        session_id=session[0],
        session_epoch=session[1],
        topics=[m.FetchTopic(name="t", partitions=list(partitions))] if partitions else [],
        forgotten=[m.ForgottenTopic(name="t", partitions=list(forget))] if forget else [],
        **fields,
    )


def send(client: RawClient, asked: m.FetchRequest, version: int = 12) -> int:
    return client.send(FETCH, version, encode(asked, version, flexible=APIS[FETCH].is_flexible(version)))


async def answer(client: RawClient, sent: int, version: int = 12) -> m.FetchResponse:
    body = await client.receive(sent)
    flexible = APIS[FETCH].is_flexible(version)
    return decode(m.FetchResponse, memoryview(body)[int(flexible) :], version, flexible=flexible)


async def ask(client: RawClient, asked: m.FetchRequest, version: int = 12) -> m.FetchResponse:
    return await answer(client, send(client, asked, version), version)


def told(response: m.FetchResponse) -> dict[int, tuple[int, int, int]]:
    """Partition -> error, high watermark, bytes."""
    return {
        p.index: (p.error_code, p.high_watermark, len(p.records or b""))
        for topic in response.topics
        for p in topic.partitions
    }


def sessions_of(served: KafkaNodes) -> fetch_sessions.FetchSessions:
    return listener_of(served.nodes.servers[0])._handlers.fetch.sessions


@pytest.mark.parametrize("version", [7, 11, 12])
@in_virtual_time
async def test_only_what_changed_is_told(version: int) -> None:
    async with listening() as (served, connect):
        await served.create("t", 3)
        client = await connect()
        full = await ask(client, request((0, 0), *map(partition, range(3))), version)
        assert full.session_id > 0
        assert told(full) == dict.fromkeys(range(3), (0, 0, 0))
        number = full.session_id
        nothing = await ask(client, request((number, 1)), version)
        assert (nothing.error_code, nothing.session_id, nothing.topics) == (0, number, [])
        await produce(client, "t", batch(b"x"), partition=1)
        some = await ask(client, request((number, 2)), version)
        assert [(index, end) for index, (_, end, size) in told(some).items() if size] == [(1, 1)]
        again = await ask(client, request((number, 3)), version)
        assert told(again) == told(some)  # who does not move on gets the same again
        moved = await ask(client, request((number, 4), partition(1, 1)), version)
        assert moved.topics == []
        forgot = await ask(client, request((number, 5), forget=(1,)), version)
        assert forgot.topics == []
        await produce(client, "t", batch(b"y"), partition=1)
        assert (await ask(client, request((number, 6)), version)).topics == []
        back = await ask(client, request((number, 7), partition(1, 1)), version)
        assert told(back)[1][:2] == (0, 2)


@in_virtual_time
async def test_a_session_by_ids_takes_no_names() -> None:
    async with listening() as (served, connect):
        topic = await served.create("t")
        client = await connect()
        by_id = m.FetchTopic(topic_id=topic.topic_id, partitions=[partition(0)])
        full = await ask(
            client,
            m.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1000, session_epoch=0, topics=[by_id]),
            16,
        )
        number = full.session_id
        assert number
        await produce(client, "t", batch(b"x"))
        news = await ask(client, request((number, 1)), 16)
        assert news.topics[0].topic_id == topic.topic_id
        mixed = await ask(client, request((number, 2)), 12)
        assert mixed.error_code == code.FETCH_SESSION_TOPIC_ID_ERROR


@in_virtual_time
async def test_a_waiting_fetch_is_woken_by_what_it_follows_since_earlier_fetches() -> None:
    async with listening() as (served, connect):
        await served.create("t", 2)
        client, writer = await connect(), await connect()
        number = (await ask(client, request((0, 0), partition(0), partition(1)))).session_id
        await ask(client, request((number, 1)))
        sent = send(client, request((number, 2), max_wait_ms=100_000))
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        await produce(writer, "t", batch(b"x"), partition=1)
        news = await answer(client, sent)
        assert list(told(news)) == [1]
        assert asyncio.get_running_loop().time() - began_s < 2
        idle = await ask(client, request((number, 3), partition(1, 1), max_wait_ms=500))
        assert idle.topics == []


@in_virtual_time
async def test_a_waiting_fetch_gathers_as_many_bytes_as_it_wants() -> None:
    async with listening() as (served, connect):
        await served.create("t", 2)
        client, writer = await connect(), await connect()
        number = (await ask(client, request((0, 0), partition(0), partition(1)))).session_id
        size = len(batch(b"x"))
        sent = send(client, request((number, 1), max_wait_ms=100_000, min_bytes=2 * size))
        for index in range(2):
            await asyncio.sleep(1)
            await produce(writer, "t", batch(b"x"), partition=index)
        assert told(await answer(client, sent)) == {0: (0, 1, size), 1: (0, 1, size)}


@in_virtual_time
async def test_who_got_records_is_served_last_the_next_time() -> None:
    async with listening() as (served, connect):
        await served.create("t", 3)
        client = await connect()
        number = (await ask(client, request((0, 0), *map(partition, range(3))))).session_id
        for index in range(3):
            await produce(client, "t", batch(b"x" * 100), partition=index)
        order = []
        for epoch in range(1, 7):  # each answer has room for one batch
            news = await ask(client, request((number, epoch), max_bytes=1))
            order += [index for index, (_, _, size) in told(news).items() if size]
        assert order == [0, 1, 2, 0, 1, 2]


@in_virtual_time
async def test_an_error_is_told_each_time_and_its_end_is_news() -> None:
    async with listening(auto_create_topics=False) as (served, connect):
        client = await connect()
        full = await ask(client, request((0, 0), partition(0)))
        missing = (code.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)
        assert told(full) == {0: missing}
        for epoch in (1, 2):
            assert told(await ask(client, request((full.session_id, epoch), max_wait_ms=9_000))) == {
                0: missing
            }
        await served.create("t")
        assert told(await ask(client, request((full.session_id, 3)))) == {0: (0, 0, 0)}
        assert (await ask(client, request((full.session_id, 4)))).topics == []


@in_virtual_time
async def test_a_deleted_topic_is_told_at_once() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        number = (await ask(client, request((0, 0), partition(0)))).session_id
        sent = send(client, request((number, 1), max_wait_ms=100_000))
        await asyncio.sleep(0.1)
        await served.nodes.servers[0].node.gateway.delete_topic("t")
        assert told(await answer(client, sent))[0][0] != 0


@in_virtual_time
async def test_a_trimmed_log_is_told_in_a_while() -> None:
    async with listening() as (served, connect):
        topic = await served.create("t")
        client = await connect()
        await produce(client, "t", batch(b"x"))
        number = (await ask(client, request((0, 0), partition(0, 1)))).session_id
        assert (await ask(client, request((number, 1)))).topics == []
        await served.nodes.servers[0].node.gateway.trim(topic.shards[0].shard_id, -1)
        await asyncio.sleep(fetch_sessions.LOOK_S)
        news = await ask(client, request((number, 2)))
        assert [p.log_start_offset for p in news.topics[0].partitions] == [1]


@in_virtual_time
async def test_wrong_ids_and_epochs_are_refused() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client, other = await connect(), await connect()
        number = (await ask(client, request((0, 0), partition(0)))).session_id
        unknown = await ask(client, request((number + 1, 1)))
        assert (unknown.error_code, unknown.session_id) == (code.FETCH_SESSION_ID_NOT_FOUND, 0)
        stranger = await ask(other, request((number, 1)))
        assert stranger.error_code == code.FETCH_SESSION_ID_NOT_FOUND
        early = await ask(client, request((number, 2)))
        assert early.error_code == code.INVALID_FETCH_SESSION_EPOCH
        waiting = send(client, request((number, 1), max_wait_ms=1000))
        meanwhile = send(client, request((number, 2)))
        assert (await answer(client, waiting)).error_code == 0
        assert (await answer(client, meanwhile)).error_code == code.INVALID_FETCH_SESSION_EPOCH


@in_virtual_time
async def test_a_session_ends_as_its_client_wants() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        sessions = sessions_of(served)
        client = await connect()
        number = (await ask(client, request((0, 0), partition(0)))).session_id
        last = await ask(client, request((number, -1), partition(0)))
        assert (last.session_id, list(told(last)), len(sessions)) == (0, [0], 0)
        number = (await ask(client, request((0, 0), partition(0)))).session_id
        anew = await ask(client, request((number, 0), partition(0)))
        assert anew.session_id not in {0, number}
        assert len(sessions) == 1
        emptied = await ask(client, request((anew.session_id, 1), forget=(0,), max_wait_ms=60_000))
        assert (emptied.session_id, emptied.topics, len(sessions)) == (0, [], 0)
        await ask(client, request((0, 0), partition(0)))
        client.writer.close()
        await asyncio.sleep(0.1)
        assert len(sessions) == 0
        assert listener_of(served.nodes.servers[0])._pool.held_bytes == 0


@in_virtual_time
async def test_who_wants_no_session_gets_none() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        for version, session in ((12, (0, -1)), (16, (0, -1)), (4, (0, 0)), (6, (0, 0))):
            by_name = version < 13
            asked = request(session, partition(0)) if by_name else request(session)
            got = await ask(client, asked, version)
            assert (got.error_code, got.session_id) == (0, 0)
        assert len(sessions_of(served)) == 0


@in_virtual_time
async def test_places_are_bounded_and_unused_ones_are_given_away() -> None:
    evict_s = 10.0
    with patch.object(fetch_sessions, "EVICT_S", evict_s):
        await _places_are_bounded(evict_s)


async def _places_are_bounded(evict_s: float) -> None:
    async with listening(fetch_sessions_max=3) as (served, connect):
        await served.create("t")
        sessions = sessions_of(served)
        first, second, third = [await connect() for _ in range(3)]
        numbers = [
            (await ask(client, request((0, 0), partition(0)))).session_id for client in (first, second)
        ]
        assert all(numbers)
        without = await ask(third, request((0, 0), partition(0)))
        assert (without.session_id, list(told(without))) == (0, [0])
        await asyncio.sleep(evict_s - 1)
        await ask(first, request((numbers[0], 1)))
        await asyncio.sleep(2)
        assert (await ask(third, request((0, 0), partition(0)))).session_id
        assert (await ask(first, request((numbers[0], 2)))).error_code == 0
        evicted = await ask(second, request((numbers[1], 1)))
        assert evicted.error_code == code.FETCH_SESSION_ID_NOT_FOUND
        assert len(sessions) == 2


@in_virtual_time
async def test_one_connection_holds_few_sessions() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        numbers = [(await ask(client, request((0, 0), partition(0)))).session_id for _ in range(6)]
        assert len(sessions_of(served)) == fetch_sessions.OF_CONNECTION_MAX
        assert (await ask(client, request((numbers[0], 1)))).error_code == code.FETCH_SESSION_ID_NOT_FOUND
        assert (await ask(client, request((numbers[-1], 1)))).error_code == 0


@in_virtual_time
async def test_the_memory_of_a_session_is_counted_and_bounded() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        pool = listener_of(served.nodes.servers[0])._pool
        client = await connect()
        full = await ask(client, request((0, 0), *map(partition, range(2000)), max_bytes=1000))
        assert full.session_id
        assert pool.held_bytes >= 2000 * fetch_sessions.PARTITION_COSTS_BYTES
        pool.connection_bytes = 2500 * fetch_sessions.PARTITION_COSTS_BYTES
        more = await ask(client, request((full.session_id, 1), *map(partition, range(2000, 3000))))
        assert (more.error_code, more.session_id) == (code.FETCH_SESSION_ID_NOT_FOUND, 0)
        assert pool.held_bytes < 10_000
        whole = await ask(client, request((0, 0), *map(partition, range(3000)), max_bytes=1000))
        assert (whole.session_id, len(told(whole))) == (0, 3000)


class Following:
    """Of a gateway what a session uses: who follows which shard, from where, in which isolation."""

    def __init__(self) -> None:
        self.now: dict[int, tuple[int, int, str]] = {}
        self._keys = count(1)

    def next_follow_key(self) -> int:
        return next(self._keys)

    def follow(self, key: int, shard_id: int, offset: int, isolation: str, _: Any) -> bool:
        self.now[key] = (shard_id, offset, isolation)
        return True

    def unfollow(self, _: int, key: int) -> None:
        del self.now[key]


@in_virtual_time
async def test_who_reads_to_another_end_is_told_of_all_anew() -> None:
    following: Any = Following()
    connection: Any = SimpleNamespace(account=SimpleNamespace(add=lambda _: None), client="c")
    session = fetch_sessions.FetchSession(following, 1, connection, by_id=False)
    topic = TopicWanted("t", None, [])
    session.want(topic, PartitionWanted(0, -1, 5, 100))
    for isolation, end in (("committed", 5), ("high_watermark", 9)):
        assert [one.name for one in session.due(isolation)] == ["t"]
        session.read(topic, PartitionFetched(0, 0, 9, 0, stable_end=5), 7, isolation)
        assert list(following.now.values()) == [(7, end, isolation)]
        session.news()
    session.want(topic, PartitionWanted(0, -1, 9, 100))
    assert session.due("high_watermark")
    session.read(topic, PartitionFetched(0, 0, 9, 0, stable_end=5), 7, "high_watermark")
    assert session.due("high_watermark") == []
    session.close()
    assert following.now == {}
