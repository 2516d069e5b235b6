"""Snapshots that are cut, interrupted by a restart or damaged on the disk (S0.37) go on or begin again, and are whole."""

import random
from typing import Any

import msgspec
import pytest

from antiphon.errors import TimedOutError
from antiphon.log.disk import write_whole
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, Put, TableGet, TableWrite
from antiphon.node import snapshots
from antiphon.node.peer_wire import SnapshotBegin, SnapshotChunk, SnapshotEnd, SnapshotFile
from antiphon.node.peers import PeerLink
from antiphon.node.received_snapshots import MANIFEST_FILE, ReceivedSnapshots
from antiphon.records.entry_id import EntryId
from tests.node.in_process import DIRECTORY, Nodes, cluster_of, eventually, in_virtual_time

ROWS = 64
VALUE_BYTES = 64 * 1024


def value(number: int) -> bytes:
    """One that cannot be compressed, the same each time."""
    return random.Random(number).randbytes(VALUE_BYTES)


async def table_that_needs_a_snapshot(nodes: Nodes) -> tuple[int, int]:
    """A table's shard whose log no longer begins at 0, and a stopped follower that has none of it."""
    node = nodes.nodes[0]
    settings = {"segment.bytes": "65536", "retention.bytes": "65536"}
    topic = await node.gateway.create_topic(CreateTopic("t", kind=Kind.TABLE, replicas=3, config=settings))
    shard_id = topic.shards[0].shard_id
    leader = await nodes.leader(shard_id)
    victim = (leader.services.node_id + 1) % 3
    await nodes.stop(victim)
    for number in range(ROWS):
        put = Put(b"key%03d" % number, value(number))
        await nodes.nodes[leader.services.node_id].gateway.table_write(TableWrite(shard_id, (put,)))
    for other in nodes.nodes.values():
        table = other.hosts[shard_id].table
        assert table is not None
        table.state.flush()
        other.shards.apply_retention()
    assert leader.log.log_start > 0
    return shard_id, victim


async def wait_until_whole(nodes: Nodes, shard_id: int, victim: int) -> None:
    """Every row is on the victim."""
    node = nodes.nodes[victim]
    leader = await nodes.leader(shard_id)

    def has_all() -> bool:
        host = node.hosts.get(shard_id)
        return host is not None and host.state.high_watermark >= leader.state.high_watermark

    await eventually(has_all)
    keys = tuple(b"key%03d" % number for number in range(ROWS))
    rows = (await node.gateway.table_get(TableGet(shard_id, keys, consistency="local"))).rows
    assert [row.value for row in rows if row is not None] == [value(number) for number in range(ROWS)]


def received(nodes: Nodes, shard_id: int, victim: int) -> dict[str, int]:
    """The files of the snapshot that have arrived so far, with their sizes."""
    disk, part = nodes.disks[victim], f"{DIRECTORY}/snapshots/receive-{shard_id}"
    names = disk.listdir(part) if disk.is_dir(part) else []
    return {f"{part}/{name}": disk.open(f"{part}/{name}").size() for name in names}


def cut_after(monkeypatch: pytest.MonkeyPatch, chunks: int) -> list[int]:
    """Let the connection fail once, after so many chunks; returns the numbers of chunks that were let through."""
    ask = PeerLink.ask
    passed: list[int] = []
    failed: list[bool] = []

    async def cutting(self: PeerLink, body: Any, timeout_s: float, payload: Any = None) -> Any:
        if isinstance(body, SnapshotChunk):
            if len(passed) >= chunks and not failed:
                failed.append(True)
            if len(failed) and len(passed) == chunks and failed[0]:
                failed[0] = False
                raise TimedOutError("the connection was cut")
            passed.append(body.file)
        return await ask(self, body, timeout_s, payload)

    monkeypatch.setattr(PeerLink, "ask", cutting)
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", 128 * 1024)
    monkeypatch.setattr(snapshots, "CHUNKS_IN_FLIGHT", 1)
    return passed


@in_virtual_time
async def test_a_snapshot_that_is_cut_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(3) as nodes:
        shard_id, victim = await table_that_needs_a_snapshot(nodes)
        cut_after(monkeypatch, 12)
        sender = nodes.nodes[(await nodes.leader(shard_id)).services.node_id].snapshots
        await nodes.start(victim)
        await wait_until_whole(nodes, shard_id, victim)
        assert sender.resumed_bytes >= 10 * 128 * 1024
        assert sender.sent_bytes < 1.5 * ROWS * VALUE_BYTES, "what had arrived was not sent again"
        left = nodes.disks[victim].listdir(f"{DIRECTORY}/snapshots")
        assert not [name for name in left if name.startswith("receive-")]


@in_virtual_time
async def test_what_has_arrived_outlives_the_receivers_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(3) as nodes:
        shard_id, victim = await table_that_needs_a_snapshot(nodes)
        ask = PeerLink.ask
        never: list[bool] = [True]

        async def endless(self: PeerLink, body: Any, timeout_s: float, payload: Any = None) -> Any:
            if isinstance(body, SnapshotEnd) and never:
                raise TimedOutError("not yet")
            return await ask(self, body, timeout_s, payload)

        monkeypatch.setattr(PeerLink, "ask", endless)
        sender = nodes.nodes[(await nodes.leader(shard_id)).services.node_id].snapshots
        await nodes.start(victim)
        await eventually(lambda: sum(received(nodes, shard_id, victim).values()) > ROWS * VALUE_BYTES)
        await nodes.stop(victim)
        never.clear()
        sent = sender.sent_bytes
        await nodes.start(victim)
        await wait_until_whole(nodes, shard_id, victim)
        assert sender.sent_bytes - sent < 64 * 1024, "nearly all of it was there"
        assert sender.resumed_bytes >= ROWS * VALUE_BYTES


@in_virtual_time
async def test_a_part_that_rotted_is_noticed_and_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(3) as nodes:
        shard_id, victim = await table_that_needs_a_snapshot(nodes)
        ask = PeerLink.ask
        rotted: list[str] = []

        async def rotting(self: PeerLink, body: Any, timeout_s: float, payload: Any = None) -> Any:
            if isinstance(body, SnapshotEnd) and not rotted:
                part = received(nodes, shard_id, victim)
                largest = max(part, key=part.__getitem__)
                nodes.disks[victim].flip_bit(largest, 8 * (part[largest] // 2))
                rotted.append(largest)
            return await ask(self, body, timeout_s, payload)

        monkeypatch.setattr(PeerLink, "ask", rotting)
        sender = nodes.nodes[(await nodes.leader(shard_id)).services.node_id].snapshots
        await nodes.start(victim)
        await wait_until_whole(nodes, shard_id, victim)
        assert rotted
        assert sender.sent_bytes > 1.9 * ROWS * VALUE_BYTES, "a damaged part is not patched, it is sent anew"


@pytest.mark.parametrize("bad", [b"", b"\xff\xfe", b"\x91" * 4000])
def test_a_part_whose_manifest_is_damaged_is_dropped(bad: bytes) -> None:
    """It is written without a checksum; what a power failure leaves of it must not keep a node from starting."""
    disk = SimulatedDisk(random.Random(1))
    disk.makedirs("/tables/receive-7")
    begin = SnapshotBegin(7, 1, EntryId(1, 5), "the snapshot", (SnapshotFile("a", 3, 7),))
    whole = msgspec.msgpack.encode(begin)
    write_whole(disk, f"/tables/receive-7/{MANIFEST_FILE}", bad or whole.replace(b"the", b"\xff\xfe\xfd"))
    ReceivedSnapshots(disk, "/tables")
    assert disk.listdir("/tables") == []
