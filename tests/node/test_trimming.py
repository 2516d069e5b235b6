"""TrimShard: one replica begins later, by the rules of retention, and what matters outlives what went."""

import asyncio
import os

import pytest

from antiphon.errors import AntiphonError, InvalidRequestError, OffsetOutOfRangeError
from antiphon.log.snapshot import START_NAME, decode_start
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, Put, TableGet, TableWrite, Trimmed, TrimShard
from antiphon.node.node import Node
from antiphon.node.trimming import trim_replica
from antiphon.records.batch import read_header
from antiphon.records.builder import RecordInput, build_batch
from tests.node.in_process import Nodes, cluster_of, connected, eventually, in_virtual_time

THREE = 3  # records per batch in these tests


async def new_shard(
    nodes: Nodes, kind: Kind = Kind.TOPIC, profile: str = "oxia", replicas: int = 3, **config: str
) -> int:
    request = CreateTopic("t", kind=kind, profile=profile, replicas=replicas, config=config)
    topic = await nodes.nodes[0].gateway.create_topic(request)
    return topic.shards[0].shard_id


async def append(nodes: Nodes, shard_id: int, number: int) -> int:
    """A batch of three records of a producer; returns its first offset."""
    records: list[RecordInput] = [(None, b"%d.%d" % (number, place), [], 1) for place in range(THREE)]
    batch = build_batch(records, producer_id=9, producer_epoch=0, base_sequence=THREE * number)
    node_id = (await nodes.leader(shard_id)).services.node_id
    return (await nodes.nodes[node_id].gateway.append(shard_id, batch)).base_offset


async def settled(nodes: Nodes, shard_id: int) -> int:
    """Wait until everybody knows that all is committed; returns the end."""
    end = (await nodes.leader(shard_id)).log.log_end
    await eventually(lambda: all(node.hosts[shard_id].mode.settled == end for node in nodes.nodes.values()))
    return end


def first_batch(node: Node, shard_id: int) -> int:
    log = node.hosts[shard_id].log
    return read_header(log.read(log.log_start, 1, log.log_end)[0]).base_offset


@pytest.mark.parametrize("profile", ["oxia", "raft"])
@in_virtual_time
async def test_each_replica_begins_at_the_batch_that_holds_the_offset(profile: str) -> None:
    """Replicas that are told who leads, and those that vote; in memory, on disk, and after a restart."""
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, profile=profile)
        begins = [await append(nodes, shard_id, number) for number in range(20)]
        end = await settled(nodes, shard_id)
        for node_id, node in nodes.nodes.items():
            if node_id == 2:
                node.hosts[shard_id].log.release_memory()
            for before in (begins[7] + 1, begins[5]):  # inside of a batch; and never back
                assert await trim_replica(node.replicas, shard_id, before) == begins[7]
            assert first_batch(node, shard_id) == begins[7]
            with pytest.raises(OffsetOutOfRangeError):
                node.hosts[shard_id].log.read(begins[6], 1, end)
        await nodes.stop(1)
        node = await nodes.start(1)
        await eventually(lambda: shard_id in node.hosts)
        log = node.hosts[shard_id].log
        assert (log.log_start, log.damaged) == (begins[7], None)
        assert log.terms.term_before(end) >= log.terms.start.term > 0
        await append(nodes, shard_id, 20)
        await settled(nodes, shard_id)


@in_virtual_time
async def test_where_a_log_begins_is_on_the_disk_when_it_is_answered() -> None:
    """Also for the second who asks for the same: what went must not come back with a power failure."""
    async with cluster_of(1) as nodes:
        shard_id = await new_shard(nodes, replicas=1)
        begins = [await append(nodes, shard_id, number) for number in range(4)]
        await settled(nodes, shard_id)
        node, path = nodes.nodes[0], os.path.join(nodes.nodes[0].hosts[shard_id].log.path, START_NAME)
        nodes.slow_s[0] = 0.5
        asked = [asyncio.create_task(trim_replica(node.replicas, shard_id, begins[2])) for _ in range(2)]
        for answered in asyncio.as_completed(asked):
            assert await answered == begins[2]
            start = decode_start(bytes(nodes.disks[0].durable(path) or b""), path)
            assert (start and start.log_start) == begins[2]


@in_virtual_time
async def test_nothing_goes_that_is_not_settled_and_producers_outlive_it_all() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes)
        begins = [await append(nodes, shard_id, number) for number in range(4)]
        end = await settled(nodes, shard_id)
        for node in nodes.nodes.values():
            assert await trim_replica(node.replicas, shard_id, 1 << 40) == end
            assert node.hosts[shard_id].log.size_bytes == 0
        for node_id in range(3):
            await nodes.stop(node_id)
        for node_id in range(3):
            await nodes.start(node_id)
        assert await append(nodes, shard_id, 3) == begins[3]  # a repeat, known from before
        assert (await nodes.leader(shard_id)).log.log_start == end
        await append(nodes, shard_id, 4)
        await settled(nodes, shard_id)


@in_virtual_time
async def test_of_a_table_nothing_goes_that_its_store_does_not_hold_on_disk() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await new_shard(nodes, Kind.TABLE, replicas=1)
        node = nodes.nodes[0]
        for number in range(10):
            await node.gateway.table_write(TableWrite(shard_id, (Put(b"k%d" % number, b"v"),)))
        end = await settled(nodes, shard_id)
        state = (await nodes.leader(shard_id)).state.require_table().state
        assert state.durable_offset < end
        assert await trim_replica(node.replicas, shard_id, end) == end
        assert state.durable_offset == end
        await nodes.stop(0)
        node = await nodes.start(0)
        await nodes.leader(shard_id)
        rows = await node.gateway.table_get(TableGet(shard_id, (b"k0", b"k9"), include_value=True))
        assert [row.value for row in rows.rows if row is not None] == [b"v", b"v"]


@in_virtual_time
async def test_retention_of_a_table_goes_on_while_the_node_runs() -> None:
    """It did nothing until the next start: only then was the store known to hold on disk what would go."""
    async with cluster_of(1) as nodes:
        limits = {"segment.bytes": "4096", "retention.bytes": "8192"}
        shard_id = await new_shard(nodes, Kind.TABLE, replicas=1, **limits)
        node = nodes.nodes[0]
        for number in range(60):
            put = Put(b"k%d" % (number % 7), bytes(900))
            await node.gateway.table_write(TableWrite(shard_id, (put,)))
        await settled(nodes, shard_id)
        log = (await nodes.leader(shard_id)).log
        assert log.size_bytes > 50_000
        node.shards.apply_retention()
        await eventually(lambda: log.size_bytes < 17_000)
        nodes.kill(0)
        node = await nodes.start(0)
        await nodes.leader(shard_id)
        rows = await node.gateway.table_get(TableGet(shard_id, (b"k0", b"k6"), include_value=True))
        assert [row.value for row in rows.rows if row is not None] == [bytes(900)] * 2


@in_virtual_time
async def test_a_follower_that_was_away_is_fed_from_a_start_that_is_no_segment_s() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes)
        victim = ((await nodes.leader(shard_id)).services.node_id + 1) % 3
        await append(nodes, shard_id, 0)
        await settled(nodes, shard_id)
        await nodes.stop(victim)
        begins = [await append(nodes, shard_id, number) for number in range(1, 10)]
        await settled(nodes, shard_id)
        for node in nodes.nodes.values():
            await trim_replica(node.replicas, shard_id, begins[5])
        node = await nodes.start(victim)
        await eventually(lambda: shard_id in node.hosts)
        await eventually(lambda: node.hosts[shard_id].log.log_start == begins[5])
        await append(nodes, shard_id, 10)
        await settled(nodes, shard_id)
        assert first_batch(node, shard_id) == begins[5]


@in_virtual_time
async def test_a_leader_keeps_what_a_connected_follower_is_still_to_be_fed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would need a snapshot otherwise; one that is away holds nothing up."""
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes)
        begins = [await append(nodes, shard_id, number) for number in range(6)]
        end = await settled(nodes, shard_id)
        leader = await nodes.leader(shard_id)
        node = nodes.nodes[leader.services.node_id]
        real = leader.replica.followers()
        slow = [one._replace(ack_offset=begins[2], connected=True) for one in real[:1]]
        with monkeypatch.context() as patch:
            patch.setattr("antiphon.node.trimming.FOLLOWERS_WAIT_S", 0.05)
            patch.setattr(type(leader.replica), "followers", lambda _: (*slow, *real[1:]))
            assert await trim_replica(node.replicas, shard_id, end) == begins[2]
            slow[0] = slow[0]._replace(connected=False)
            assert await trim_replica(node.replicas, shard_id, begins[4]) == begins[4]
        assert await trim_replica(node.replicas, shard_id, end) == end


@in_virtual_time
async def test_over_the_wire_and_from_the_leader_to_all() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes)
        begins = [await append(nodes, shard_id, number) for number in range(6)]
        await settled(nodes, shard_id)
        for member in nodes.members:
            async with connected(member.native) as client:
                assert (await client.request(TrimShard(shard_id, begins[2])))[0] == Trimmed(begins[2])
        leader = await nodes.leader(shard_id)
        node = nodes.nodes[leader.services.node_id]
        assert await node.gateway.trim(shard_id, begins[4] + 2, 10.0) == begins[4] + 2
        for other in nodes.nodes.values():
            host = other.hosts[shard_id]
            assert (host.log.log_start, host.state.log_start) == (begins[4], begins[4] + 2)
        with pytest.raises(OffsetOutOfRangeError):
            await node.gateway.trim(shard_id, leader.state.high_watermark + 1, 10.0)
        await nodes.stop((node.node_id + 1) % 3)  # who is away does not keep the others from it
        assert await node.gateway.trim(shard_id, -1, 10.0) == leader.state.high_watermark


@in_virtual_time
async def test_what_is_refused() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, writers="multi")
        node = nodes.nodes[0]
        await eventually(lambda: shard_id in node.hosts)
        for asked, before in ((shard_id, 1), (0, 1)):
            with pytest.raises(InvalidRequestError):
                await trim_replica(node.replicas, asked, before)
        with pytest.raises(AntiphonError, match="no shard 99"):
            await trim_replica(node.replicas, 99, 1)
