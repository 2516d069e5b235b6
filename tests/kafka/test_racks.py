"""Consumers that say in which rack they stand read from a replica there (KIP-392), or else from the leader."""

import asyncio
from pathlib import Path
from typing import Any

from antiphon.kafka import error_codes as code
from antiphon.kafka.api import FETCH
from antiphon.kafka.apis import APIS
from antiphon.kafka.messages import cluster as cm
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.schema import decode, encode
from antiphon.model.cluster import EndTransaction
from antiphon.records.batch import TRANSACTIONAL_BIT
from antiphon.records.builder import seal
from antiphon.simulation.cluster import kafka_messages as m
from tests.kafka.kafka_nodes import KafkaNodes, create, listener_of
from tests.kafka.raw import RawClient, batch, listening
from tests.node import real_nodes
from tests.node.in_process import eventually, in_virtual_time

RACKS = ("a", "b", "b")
NO_SESSION, NEW_SESSION = (0, -1), (0, 0)


async def fetch(
    client: RawClient,
    offset: int,
    rack: str,
    version: int = 12,
    session: tuple[int, int] = NO_SESSION,
    **fields: Any,
) -> m.FetchResponse:
    part = m.FetchPartition(index=0, offset=offset, max_bytes=1 << 20)
    request = m.FetchRequest(
        **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields},
        session_id=session[0],
        session_epoch=session[1],
        topics=[m.FetchTopic(name="t", partitions=[part])],
        rack=rack,
    )
    flexible = APIS[FETCH].is_flexible(version)
    body = await client.receive(client.send(FETCH, version, encode(request, version, flexible=flexible)))
    return decode(m.FetchResponse, memoryview(body)[int(flexible) :], version, flexible=flexible)


def only(answer: m.FetchResponse) -> m.FetchedPartition:
    return answer.topics[0].partitions[0]


def cache_of(served: KafkaNodes, node_id: int) -> MetadataCache:
    return listener_of(served.nodes.servers[node_id])._handlers.fetch.cache


async def led_in_rack_a(served: KafkaNodes) -> None:
    """The topic `t` with two records; node 0 leads it, and the others know that they are committed."""
    await served.create("t", replicas=3)
    await served.lead("t", 0)
    await served.append("t", batch(b"x"))
    await served.append("t", batch(b"y"))
    await everywhere(served, 2)


async def everywhere(served: KafkaNodes, end: int) -> None:
    shard_id = served.host("t").shard_id
    nodes = served.nodes.nodes.values()
    await eventually(lambda: all(node.hosts[shard_id].state.high_watermark == end for node in nodes))


@in_virtual_time
async def test_a_leader_names_the_replica_in_the_rack_of_the_client_which_serves_it() -> None:
    async with listening(3, racks=RACKS) as (served, connect):
        await led_in_rack_a(served)
        leader = await connect(0)
        for version in (11, 12):
            began_s = asyncio.get_running_loop().time()
            told = only(await fetch(leader, 0, "b", version, max_wait_ms=20_000))
            assert asyncio.get_running_loop().time() - began_s < 1.0, "nothing is waited for"
            assert (told.error_code, told.high_watermark, told.records) == (0, 2, b"")
            assert told.preferred_read_replica in {1, 2}
        follower = await connect(told.preferred_read_replica)
        found = only(await fetch(follower, 1, "b"))
        assert (found.error_code, found.high_watermark, found.preferred_read_replica) == (0, 2, -1)
        assert found.records == served.batches("t")[1]


@in_virtual_time
async def test_who_stands_elsewhere_or_says_nothing_reads_from_the_leader() -> None:
    async with listening(3, racks=RACKS) as (served, connect):
        await led_in_rack_a(served)
        leader, follower = await connect(0), await connect(1)
        for rack in ("", "a", "c"):
            found = only(await fetch(leader, 0, rack))
            assert (found.preferred_read_replica, found.records) == (-1, b"".join(served.batches("t")))
        for rack in ("", "a", "c"):
            assert only(await fetch(follower, 0, rack)).error_code == code.NOT_LEADER_OR_FOLLOWER


@in_virtual_time
async def test_a_leader_names_no_replica_that_is_behind_or_down() -> None:
    async with listening(3, racks=RACKS) as (served, connect):
        await led_in_rack_a(served)
        gateway, shard_id = served.nodes.nodes[0].gateway, served.host("t").shard_id
        assert sorted(gateway.followers_with(shard_id, 2)) == [1, 2]
        assert gateway.followers_with(shard_id, 3) == []
        assert served.nodes.nodes[1].gateway.followers_with(shard_id, 0) == []
        await served.nodes.stop(2)
        await eventually(lambda: not cache_of(served, 0).in_rack("b") - {1})
        leader = await connect(0)
        assert only(await fetch(leader, 0, "b")).preferred_read_replica == 1
        await served.append("t", batch(b"z"))
        with_all = gateway.followers_with(shard_id, 3)
        assert with_all == [1], "a node that is down has not got what came since"


@in_virtual_time
async def test_who_waits_at_a_follower_is_told_of_what_is_committed() -> None:
    async with listening(3, racks=RACKS) as (served, connect):
        await led_in_rack_a(served)
        for session in (NO_SESSION, NEW_SESSION):
            end = served.end("t")
            follower = await connect(1)
            if session == NEW_SESSION:
                first = await fetch(follower, end, "b", session=session)
                session = (first.session_id, 1)
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            waiting = asyncio.ensure_future(fetch(follower, end, "b", session=session, max_wait_ms=20_000))
            await asyncio.sleep(1.0)
            assert not waiting.done()
            await served.append("t", batch(b"z"))
            assert only(await waiting).records == served.batches("t")[-1]
            assert loop.time() - began_s < 3.0


@in_virtual_time
async def test_a_session_is_told_where_to_read_once_and_for_all() -> None:
    async with listening(3, racks=RACKS) as (served, connect):
        await led_in_rack_a(served)
        leader = await connect(0)
        first = await fetch(leader, 0, "", session=NEW_SESSION)
        again = await fetch(leader, 2, "b", session=(first.session_id, 1))
        assert only(again).preferred_read_replica in {1, 2}, (
            "without waiting, and though nothing else changed"
        )


@in_virtual_time
async def test_offsets_that_a_follower_does_not_have() -> None:
    async with listening(3, racks=RACKS) as (served, connect):
        await led_in_rack_a(served)
        follower = await connect(1)
        assert only(await fetch(follower, 7, "b")).error_code == code.OFFSET_NOT_AVAILABLE
        assert only(await fetch(follower, -1, "b")).error_code == code.OFFSET_OUT_OF_RANGE
        leader = await connect(0)
        assert only(await fetch(leader, 7, "a")).error_code == code.OFFSET_NOT_AVAILABLE
        assert only(await fetch(leader, 7, "")).error_code == code.OFFSET_OUT_OF_RANGE


@in_virtual_time
async def test_a_follower_keeps_back_what_is_not_decided() -> None:
    async with listening(3, racks=RACKS) as (served, connect):
        await led_in_rack_a(served)
        gateway, shard_id = served.nodes.nodes[0].gateway, served.host("t").shard_id
        part = batch(b"part", producer_id=5000, producer_epoch=0, base_sequence=0)
        part[22] |= TRANSACTIONAL_BIT
        seal(part)
        await gateway.append(shard_id, part, transaction_number=1)
        await everywhere(served, 3)
        follower = await connect(1)
        seen = only(await fetch(follower, 2, "b", isolation=1))
        assert (seen.records, seen.last_stable_offset, seen.high_watermark) == (b"", 2, 3)
        assert only(await fetch(follower, 2, "b", isolation=0)).records == served.batches("t")[2]
        waiting = asyncio.ensure_future(fetch(follower, 2, "b", isolation=1, max_wait_ms=20_000))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        await gateway.transactions.end(EndTransaction(shard_id, 5000, 0, 1, commit=False, timeout_ms=5000))
        seen = only(await waiting)
        assert (seen.records or b"").startswith(bytes(served.batches("t")[2]))
        assert [(one.producer_id, one.first_offset) for one in seen.aborted or ()] == [(5000, 2)]


@in_virtual_time
async def test_a_follower_that_hears_nothing_of_its_leader_sends_readers_away() -> None:
    async with listening(3, racks=("a", "b", "c")) as (served, connect):
        await led_in_rack_a(served)
        follower = await connect(1)
        assert only(await fetch(follower, 0, "b")).error_code == code.NONE
        cache = cache_of(served, 1)
        shard = served.nodes.nodes[1].gateway.topic("t").shards[0]
        served.nodes.kill(0)
        await eventually(lambda: cache.may_change(shard))
        assert only(await fetch(follower, 0, "b")).error_code == code.NOT_LEADER_OR_FOLLOWER


@in_virtual_time
async def test_clients_are_told_of_racks() -> None:
    async with listening(3, racks=("a", "", "b")) as (_, connect):
        client = await connect()
        metadata = await client.ask(cm.MetadataRequest(topics=[]), 3, 9)
        assert [broker.rack for broker in metadata.brokers] == ["a", None, "b"]
        described = await client.ask(
            cm.DescribeClusterRequest(include_cluster_authorized_operations=False), 60, 0
        )
        assert [broker.rack for broker in described.brokers] == ["a", None, "b"]


def consume(servers: str, rack: str, count: int) -> list[bytes]:
    """What librdkafka's consumer reads, a second after the last record was there."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "client.rack": rack})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    try:
        for _ in range(200):
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value())
                if len(found) == count:
                    return found
    finally:
        consumer.close()
    return found


def test_librdkafka_reads_from_the_replica_in_its_rack(tmp_path: Path) -> None:
    asyncio.run(_read_from_a_follower(tmp_path))


async def _read_from_a_follower(tmp_path: Path) -> None:
    nodes = real_nodes.Nodes(tmp_path, 3, {}, kafka=True, racks=("a", "b", "c"))
    await nodes.start_all()
    try:
        first = nodes.nodes[0]
        made = await create(first, "t", replicas=3)
        shard_id = made.shards[0].shard_id
        await first.gateway.elect_leader(shard_id, 0)
        await nodes.leader(shard_id)
        values = [b"%d" % n for n in range(100)]
        for value in values:
            await nodes.append(shard_id, value)
        fetches = nodes.nodes[1].metrics.fetches
        assert await asyncio.to_thread(consume, first.meta().kafka, "b", len(values)) == values
        assert nodes.nodes[1].metrics.fetches > fetches, "the follower was asked"
    finally:
        await nodes.close()
