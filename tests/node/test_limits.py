"""Bounds: what waits too long is answered, what is too much is refused or not read, and nothing is lost by either."""

import asyncio
from typing import Any

import pytest

from antiphon.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OverloadedError,
    TimedOutError,
)
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    PROTOCOL_VERSION,
    AppendBatch,
    Appended,
    Hello,
    HelloReply,
    Put,
    TableGet,
    TableScan,
    TableWrite,
)
from antiphon.node.config import Limits
from antiphon.records.batch import CONTROL_BIT, HEADER_BYTES
from antiphon.records.builder import build_batch, seal
from antiphon.wire.frames import FrameDecoder, decode_reply, encode_message
from tests.log.helpers import data_bytes
from tests.node.in_process import cluster_of, eventually, in_virtual_time


def one(value: bytes = b"x", **fields: Any) -> bytearray:
    return build_batch([(None, value, [], 1)], **fields)


@in_virtual_time
async def test_without_a_majority_nothing_is_acknowledged_and_every_request_is_answered() -> None:
    """S0.10, S0.15: no majority means no reply but the time-out's."""
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard()
        table_id = await nodes.new_shard("rows", Kind.TABLE)
        end = await nodes.append(shard_id, b"before")
        leader = await nodes.leader(shard_id)
        left = leader.services.node_id
        await nodes.leader(table_id)
        for node_id in [n for n in nodes.nodes if n != left]:
            await nodes.stop(node_id)
        node = nodes.nodes[left]
        if leader.state.is_serving:
            with pytest.raises((TimedOutError, NotLeaderError)):
                await node.gateway.append(shard_id, one(), timeout_s=0.3)
            with pytest.raises((TimedOutError, NotLeaderError)):
                await node.gateway.append(shard_id, one(), expected_offset=99, timeout_s=0.3)
            assert leader.state.high_watermark == end
        if node.hosts[table_id].state.is_serving:
            with pytest.raises((TimedOutError, NotLeaderError)):
                await node.gateway.table_write(TableWrite(table_id, (Put(b"k", b"v"),), timeout_ms=300))
        local = TableGet(table_id, (b"k",), consistency="local")
        assert (await node.gateway.table_get(local)).rows == (None,)


@in_virtual_time
async def test_what_is_not_a_batch_to_be_appended_is_refused() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await nodes.new_shard("t", Kind.TOPIC, config={"max.message.bytes": "1024"})
        node = nodes.nodes[0]
        await nodes.leader(shard_id)
        with pytest.raises(BatchTooLargeError):
            await node.gateway.append(shard_id, one(b"x" * 2000))
        flipped = one()
        flipped[-1] ^= 1
        control = one()
        control[22] |= CONTROL_BIT
        seal(control)
        for bad, error in (
            (flipped, CorruptBatchError),
            (one()[:-1], CorruptBatchError),
            (one() + b"x", CorruptBatchError),
            (b"", CorruptBatchError),
            (bytes(HEADER_BYTES), CorruptBatchError),
            (control, InvalidRequestError),
        ):
            with pytest.raises(error):
                await node.gateway.append(shard_id, bad)
        assert node.hosts[shard_id].log.log_end == node.hosts[shard_id].state.high_watermark


@in_virtual_time
async def test_what_is_no_longer_in_memory_is_read_from_the_disk_all_the_same() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await nodes.new_shard()
        node = nodes.nodes[0]
        for number in range(50):
            await nodes.append(shard_id, b"<%d>" % number)
        warm = await node.gateway.fetch(shard_id, 10, 2000)
        reads = node.hosts[shard_id].reads
        assert not reads.is_cold(10, "committed")
        node.hosts[shard_id].log.release_memory()
        assert reads.is_cold(10, "committed")
        cold = await node.gateway.fetch(shard_id, 10, 2000)
        assert b"".join(cold.batches) == b"".join(warm.batches)
        assert len(cold.batches) > 5
        with pytest.raises(OffsetOutOfRangeError):
            await node.gateway.fetch(shard_id, 10_000, 2000)


def flip_last_bit(disk: SimulatedDisk, shard: str) -> None:
    (name,) = (name for name in disk.listdir(shard) if name.endswith(".log"))
    path = f"{shard}/{name}"
    disk.flip_bit(path, 8 * (data_bytes(disk, path) - 3))


@in_virtual_time
async def test_a_replica_s_own_records_are_read_from_its_disk_and_damage_is_found_and_mended() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard()
        for number in range(20):
            await nodes.append(shard_id, b"<%d>" % number)
        leader = await nodes.leader(shard_id)
        victim = next(n for n in nodes.nodes.values() if n.node_id != leader.services.node_id)
        await eventually(lambda: victim.hosts[shard_id].state.high_watermark == 20)
        log = victim.hosts[shard_id].log
        await eventually(lambda: log.durable_end == 20)
        whole = b"".join((await victim.gateway.fetch(shard_id, 0, 1 << 20, "replica")).batches)
        assert log.is_in_memory(0)
        flip_last_bit(nodes.disks[victim.node_id], log.path)
        with pytest.raises(NotLeaderError, match="damaged at offset 19"):
            await victim.gateway.fetch(shard_id, 0, 1 << 20, "replica")

        await nodes.stop(victim.node_id)
        victim = await nodes.start(victim.node_id)
        await eventually(lambda: shard_id in victim.hosts and victim.hosts[shard_id].log.damaged is None)
        mended = await victim.gateway.fetch(shard_id, 0, 1 << 20, "replica")
        assert b"".join(mended.batches)[: len(whole)] == whole


@in_virtual_time
async def test_odd_questions_to_a_table_are_refused() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await nodes.new_shard("rows", Kind.TABLE)
        node = nodes.nodes[0]
        await nodes.leader(shard_id)
        for question in (
            TableGet(shard_id, (b"k",), consistency="psychic"),
            TableGet(shard_id, (b"k",), comparison=9),
        ):
            with pytest.raises(InvalidRequestError):
                await node.gateway.table_get(question)
        with pytest.raises(InvalidRequestError):
            await node.gateway.table_scan(TableScan(shard_id, b"", b"", limit=0))
        with pytest.raises(InvalidRequestError):
            await node.gateway.table_write(TableWrite(shard_id, ()))
        with pytest.raises(InvalidRequestError):
            await node.gateway.table_write(TableWrite(shard_id, (Put(b"k", b"v"),), producer_id=1 << 61))


@in_virtual_time
async def test_a_flood_is_slowed_down_and_loses_nothing() -> None:
    """A client that sends far more than the node may have underway: the node stops reading, and answers everything."""
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        node.limits = Limits(append_in_flight=100_000)
        native = nodes.servers[0].native
        native.limits = native.limits._replace(requests_per_connection=50)
        shard_id = await nodes.new_shard()
        await nodes.leader(shard_id)
        host, _, port = nodes.members[0].native.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        count = 1000
        frames = [*encode_message(1, Hello(PROTOCOL_VERSION, "t"))]
        for number in range(count):
            frames += encode_message(2 + number, AppendBatch(shard_id), [one(b"x" * 1000)])
        writer.write(b"".join(frames))
        decoder, answers = FrameDecoder(), dict[int, Any]()
        while len(answers) < count + 1:
            for frame in decoder.feed(await reader.read(1 << 16)):
                request_id, body = decode_reply(frame.header)
                answers[request_id] = body
        assert isinstance(answers.pop(1), HelloReply)
        failed = [body for body in answers.values() if not isinstance(body, Appended)]
        assert all(body.code == OverloadedError.code for body in failed)
        offsets = [body.base_offset for body in answers.values() if isinstance(body, Appended)]
        assert sorted(offsets) == list(range(offsets[0], offsets[0] + len(offsets)))
        assert len(offsets) > count // 2
        writer.close()
        await writer.wait_closed()


@in_virtual_time
async def test_a_client_that_takes_no_answers_holds_up_nobody() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        native = nodes.servers[0].native
        native.limits = native.limits._replace(connection_write_bytes=50_000)
        shard_id = await nodes.new_shard()
        await nodes.append(shard_id, b"x" * 100_000)
        host, _, port = nodes.members[0].native.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1000)
        from antiphon.model.requests import Fetch

        frames = [*encode_message(1, Hello(PROTOCOL_VERSION, "t"))]
        for number in range(300):
            frames += encode_message(2 + number, Fetch(shard_id, 0))
        writer.write(b"".join(frames))
        fetched = node.metrics.fetches
        await eventually(lambda: node.metrics.fetches > fetched)
        for number in range(20):
            assert await nodes.append(shard_id, b"%d" % number) > 0
        connections = [session.connection for session in native.sessions.values()]
        assert sum(one.waiting_bytes for one in connections if one is not None) < 64 * 1024 * 1024
        writer.transport.abort()
