"""What a node does when its disk is full or damaged, when it has been away for too long, and when it finds a bug."""

from typing import Any

import pytest

from antiphon.errors import (
    AlreadyAppliedError,
    DiskFullError,
    InternalError,
    NotLeaderError,
    StorageFailedError,
)
from antiphon.invariants import InvariantError
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.metadata import Kind
from antiphon.model.requests import Put, TableGet, TableWrite
from antiphon.records.builder import build_batch
from antiphon.replication.actions import Action
from antiphon.wire.frames import encode_message
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time


def fill(disk: SimulatedDisk) -> None:
    """There is no room for anything more."""
    disk.capacity_bytes = disk.used_bytes()


def break_syncs(disk: SimulatedDisk) -> None:
    """Each sync fails from now on."""
    disk.fail_kind, disk.fail_after = "fdatasync", disk.calls


@in_virtual_time
async def test_a_full_disk_refuses_writes_serves_reads_and_recovers() -> None:
    async with cluster_of(1) as nodes:
        node, disk = nodes.nodes[0], nodes.disks[0]
        shard_id = await nodes.new_shard()
        end = await nodes.append(shard_id, b"before")
        fill(disk)
        waiting = nodes.append(shard_id, b"caught by the full disk")
        host = await nodes.leader(shard_id)
        node.spawn(waiting)
        await eventually(lambda: node.wal.disk_full)
        with pytest.raises(DiskFullError):
            host.state.check_writable()
        assert host.status().state == "disk_full"
        assert (await node.gateway.fetch(shard_id, end - 1, 1000)).batches
        disk.capacity_bytes = None
        await eventually(lambda: not node.wal.disk_full)
        assert await nodes.append(shard_id, b"after") == end + 2


@in_virtual_time
async def test_a_failed_sync_stops_the_replica_and_another_one_leads() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard()
        await nodes.append(shard_id, b"kept")
        old = await nodes.leader(shard_id)
        victim = old.services.node_id
        break_syncs(nodes.disks[victim])
        end = await nodes.append(shard_id, b"the others have it")
        await eventually(lambda: old.state.failed is not None)
        assert isinstance(old.state.failed, StorageFailedError)
        assert old.status().state == "failed"
        await eventually(lambda: not old.state.is_serving)
        assert await nodes.append(shard_id, b"with another leader") > end
        assert (await nodes.leader(shard_id)).services.node_id != victim
        nodes.disks[victim].fail_after = None


@in_virtual_time
async def test_a_broken_invariant_stops_one_shard_and_acknowledges_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of(1) as nodes:
        sick, well = await nodes.new_shard("sick"), await nodes.new_shard("well")
        host = await nodes.leader(sick)

        def broken(_write_id: int) -> list[Action]:
            raise InvariantError("the impossible happened")

        monkeypatch.setattr(host.replica, "persisted", broken)
        with pytest.raises(NotLeaderError, match="the impossible happened"):
            await nodes.nodes[0].gateway.append(sick, build_batch([(None, b"never acknowledged", [], 1)]))
        assert isinstance(host.state.failed, InternalError)
        assert host.status().state == "failed"
        await nodes.append(well, b"goes on")


@in_virtual_time
async def test_a_damaged_log_is_refetched_before_it_counts_again() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard()
        end = 0
        for number in range(20):
            end = await nodes.append(shard_id, b"<%d>" % number)
        victim = ((await nodes.leader(shard_id)).services.node_id + 1) % 3
        host = nodes.nodes[victim].hosts[shard_id]
        await eventually(lambda: host.state.high_watermark == 20)
        await nodes.stop(victim)
        disk, directory = nodes.shard_path(victim, shard_id)
        for path in (f"{directory}/{name}" for name in disk.listdir(directory)):
            if path.endswith(".snapshot"):
                disk.lose(path)
            elif path.endswith(".log"):
                disk.flip_bit(path, 8 * (disk.open(path).size() // 2) + 4)
        await nodes.start(victim)
        await eventually(lambda: shard_id in nodes.nodes[victim].hosts)
        again = nodes.nodes[victim].hosts[shard_id]
        assert again.log.recovery is not None
        end = await nodes.append(shard_id, b"more")
        await eventually(lambda: again.log.damaged is None and again.state.high_watermark >= end)
        assert again.status().state == "ok"


@in_virtual_time
async def test_damage_that_a_read_finds_ends_the_replica_and_another_one_leads() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard()
        for number in range(20):
            await nodes.append(shard_id, b"<%d>" % number)
        old = await nodes.leader(shard_id)
        flip_a_bit(nodes.disks[old.services.node_id], old.log.path)
        old.log.release_memory()
        with pytest.raises(NotLeaderError, match="damaged"):
            old.reads.fetch(0, 100_000, "committed", at_least_one=True)
        assert old.status().state == "failed"
        await eventually(lambda: not old.state.is_serving)
        await nodes.append(shard_id, b"with another leader")
        again = await nodes.leader(shard_id)
        assert again is not old
        assert again.reads.fetch(0, 100_000, "committed", at_least_one=True).size_bytes > 1000


def flip_a_bit(disk: SimulatedDisk, directory: str) -> None:
    """Damage the only segment of a log."""
    (name,) = (name for name in disk.listdir(directory) if name.endswith(".log"))
    disk.flip_bit(f"{directory}/{name}", 8 * 100)


@pytest.mark.parametrize("kind", [Kind.TOPIC, Kind.TABLE])
@in_virtual_time
async def test_who_was_away_for_too_long_gets_a_snapshot(kind: Kind) -> None:
    """S0.37: retention has removed what the follower would need next."""
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(
            "t", kind, config={"segment.bytes": "4096", "retention.bytes": "4096"}
        )
        victim = ((await nodes.leader(shard_id)).services.node_id + 1) % 3
        await nodes.stop(victim)
        for number in range(40):
            await write(nodes, shard_id, kind, number)
        leader = await nodes.leader(shard_id)
        for node in nodes.nodes.values():
            table = node.hosts[shard_id].table
            if table is not None:
                table.state.flush()
            node.shards.apply_retention()
        assert leader.log.log_start > 5
        node = await nodes.start(victim)
        await eventually(lambda: shard_id in node.hosts and node.hosts[shard_id].log.log_start > 5)
        await write(nodes, shard_id, kind, 40)
        host = node.hosts[shard_id]
        await eventually(lambda: host.state.high_watermark == leader.state.high_watermark)
        if host.table is not None:
            keys = tuple(b"key%d" % number for number in range(41))
            rows = await node.gateway.table_get(TableGet(shard_id, keys, consistency="local"))
            assert [row.value for row in rows.rows if row is not None] == [b"x" * 1000] * 41


@pytest.mark.parametrize("kind", [Kind.TOPIC, Kind.TABLE])
@in_virtual_time
async def test_a_retry_from_before_the_snapshot_is_not_applied_again(kind: Kind) -> None:
    """The follower that got the snapshot leads, and a producer sends once more what retention has removed since."""
    batch = build_batch([(None, b"once", [], 1)], producer_id=9, producer_epoch=0, base_sequence=0)
    async with cluster_of(3) as nodes:
        settings = {"segment.bytes": "4096", "retention.bytes": "4096"}
        shard_id = await nodes.new_shard("t", kind, config=settings)
        leader = await nodes.leader(shard_id)
        old, victim = leader.services.node_id, (leader.services.node_id + 1) % 3
        once = TableWrite(shard_id, (Put(b"once", b"x"),), 9 | 1 << 61, 0, 0)
        if kind is Kind.TOPIC:
            first = await nodes.nodes[old].gateway.append(shard_id, batch)
        else:
            await nodes.nodes[old].gateway.table_write(once)
        await nodes.stop(victim)
        for number in range(40):
            await write(nodes, shard_id, kind, number)
        for node in nodes.nodes.values():
            table = node.hosts[shard_id].table
            if table is not None:
                table.state.flush()
            node.shards.apply_retention()
        assert (await nodes.leader(shard_id)).log.log_start > 5
        node = await nodes.start(victim)
        await eventually(lambda: shard_id in node.hosts and node.hosts[shard_id].log.log_start > 5)
        await write(nodes, shard_id, kind, 40)
        host = node.hosts[shard_id]
        await eventually(lambda: host.state.high_watermark >= leader.state.high_watermark)
        await nodes.stop(victim)  # what came with the snapshot is on the disk
        node = await nodes.start(victim)
        await eventually(lambda: shard_id in node.hosts)
        await node.gateway.elect_leader(shard_id, victim)
        host = await nodes.leader(shard_id)
        assert host.services.node_id == victim
        end = host.log.log_end
        if kind is Kind.TOPIC:
            again = await node.gateway.append(shard_id, batch)
            assert (again.base_offset, again.duplicate) == (first.base_offset, True)
        else:
            with pytest.raises(AlreadyAppliedError):
                await node.gateway.table_write(once)
        assert host.log.log_end == end


async def write(nodes: Nodes, shard_id: int, kind: Kind, number: int) -> None:
    """One more entry of either kind."""
    if kind is Kind.TOPIC:
        await nodes.append(shard_id, b"x" * 1000)
        return
    leader = await nodes.leader(shard_id)
    node = nodes.nodes[leader.services.node_id]
    await node.gateway.table_write(TableWrite(shard_id, (Put(b"key%d" % number, b"x" * 1000),)))


@in_virtual_time
async def test_messages_of_tomorrow_are_refused_one_by_one() -> None:
    """A request that this version does not know is answered as such; the connection stays."""
    import asyncio

    from antiphon.model.requests import PROTOCOL_VERSION, Failure, GetStatus, Hello, HelloReply, StatusReply
    from antiphon.wire.frames import FrameDecoder, decode_reply

    async with cluster_of(1) as nodes:
        host, _, port = nodes.members[0].native.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for request_id, body in enumerate([Hello(PROTOCOL_VERSION, "t"), ["FromTheFuture"], GetStatus()], 1):
            writer.writelines([bytes(part) for part in encode_message(request_id, body)])
        decoder = FrameDecoder()
        replies: list[tuple[int, Any]] = []
        while len(replies) < 3:
            replies += [decode_reply(frame.header) for frame in decoder.feed(await reader.read(65536))]
        assert [type(body) for _, body in sorted(replies, key=lambda one: one[0])] == [
            HelloReply,
            Failure,
            StatusReply,
        ]
        writer.close()
        await writer.wait_closed()
