"""Tables with leases on whole nodes: what is served without a round, what is on the disk, and what a restart is bound by."""

import errno
from functools import partial

import msgspec
import pytest

import antiphon.aio
from antiphon.log.disk import replace_file
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.metadata import Kind
from antiphon.node import leased
from antiphon.node.peer_wire import decode_peer
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.replication.promise import LEASE_MS_MAX, US_PER_MS
from antiphon.wire.frames import PREFIX, encode_message, traced_frame
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

READS = 20


def leased_reads(nodes: Nodes) -> int:
    return sum(node.metrics.leased_reads for node in nodes.nodes.values())


def replica_on(nodes: Nodes, node_id: int, shard_id: int) -> SingleWriterPartition:
    host = nodes.nodes[node_id].hosts[shard_id]
    assert isinstance(host, SingleWriterPartition)
    return host


def noted(nodes: Nodes, shard_id: int) -> list[bool]:
    """On which nodes it is on the disk that the replica may have promised."""
    return [
        disk.exists(f"{path}/leased") for disk, path in (nodes.shard_path(n, shard_id) for n in nodes.nodes)
    ]


def goes_by(hosts: list[SingleWriterPartition], lease_ms: int) -> bool:
    return all(host.replica.config.lease_ms == lease_ms for host in hosts)


async def read(nodes: Nodes, name: str, count: int = READS) -> int:
    """So many gets; how many of them were served under a lease."""
    before = leased_reads(nodes)
    async with antiphon.aio.connect("node-0:7400") as db:
        table = db.table(name)
        await table.put("k", b"v")
        for _ in range(count):
            row = await table.find("k")
            assert row is not None
            assert row.value == b"v"
    return leased_reads(nodes) - before


@in_virtual_time
async def test_gets_of_a_table_with_a_lease_need_no_round() -> None:
    async with cluster_of(3) as nodes:
        with_lease = await nodes.new_shard("leased", Kind.TABLE, config={"read.lease.ms": "100"})
        plain = await nodes.new_shard("plain", Kind.TABLE)
        assert await read(nodes, "leased") >= READS - 2
        assert await read(nodes, "plain") == 0
        assert noted(nodes, with_lease) == [True] * 3
        assert noted(nodes, plain) == [False] * 3
        assert not replica_on(nodes, 0, plain).state.has_leases, "nobody asks a clock for it"


@in_virtual_time
async def test_the_option_is_turned_on_and_off() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard("t", Kind.TABLE)
        await nodes.leader(shard_id)
        async with antiphon.aio.connect("node-0:7400") as db:
            for value, expected in (("50", True), ("0", False), ("200", True)):
                await db.alter_topic("t", config={"read.lease.ms": value})
                hosts = [replica_on(nodes, node_id, shard_id) for node_id in nodes.nodes]
                await eventually(partial(goes_by, hosts, int(value)))
                assert (await read(nodes, "t") > READS // 2) == expected
        assert noted(nodes, shard_id) == [True] * 3, "it stays"


@in_virtual_time
async def test_a_disk_that_takes_no_note_makes_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing: list[SimulatedDisk] = []

    def replace_or_refuse(disk: SimulatedDisk, path: str, data: bytes) -> None:
        if disk in refusing:
            raise OSError(errno.ENOSPC, "no room")
        replace_file(disk, path, data)

    monkeypatch.setattr(leased, "replace_file", replace_or_refuse)
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard("t", Kind.TABLE)
        leader = await nodes.leader(shard_id)
        others = [node_id for node_id in nodes.nodes if node_id != leader.services.node_id]
        refusing.extend(nodes.disks[node_id] for node_id in others)
        async with antiphon.aio.connect("node-0:7400") as db:
            await db.alter_topic("t", config={"read.lease.ms": "100"})
        await eventually(lambda: replica_on(nodes, leader.services.node_id, shard_id).state.has_leases)
        assert [replica_on(nodes, node_id, shard_id).replica.config.lease_ms for node_id in others] == [
            0,
            0,
        ]
        assert await read(nodes, "t") == 0, "nobody has promised anything"


@in_virtual_time
async def test_who_was_just_opened_is_bound_if_it_may_have_promised() -> None:
    async with cluster_of(3) as nodes:
        shards = [
            await nodes.new_shard("leased", Kind.TABLE, config={"read.lease.ms": "50"}),
            await nodes.new_shard("voting", Kind.TABLE, config={"read.lease.ms": "50"}, profile="raft"),
        ]
        plain = await nodes.new_shard("plain", Kind.TABLE)
        for shard_id in (*shards, plain):
            await nodes.leader(shard_id)
        async with antiphon.aio.connect("node-0:7400") as db:
            await db.alter_topic("leased", config={"read.lease.ms": "0"})
        nodes.kill(2)
        await nodes.start(2)
        began_us = int(nodes.processes[2].began_s * 1_000_000)
        await eventually(lambda: {*shards, plain} <= nodes.nodes[2].hosts.keys())
        for shard_id in shards:
            until_us = replica_on(nodes, 2, shard_id).replica.in_term.promise.until_us
            assert until_us >= began_us + LEASE_MS_MAX * US_PER_MS, "also where the option is off by now"
        assert replica_on(nodes, 2, plain).replica.in_term.promise.until_us == 0


class EarlierAppend(msgspec.Struct, frozen=True, array_like=True, tag="Append"):
    """As a version without leases sends it."""

    shard: int
    term: int
    leader: int
    prev: tuple[int, int]
    high_watermark: int
    round: int
    entries: tuple[int, ...] = ()
    live: tuple[int, ...] = ()
    log_end: int = -1


class EarlierAck(msgspec.Struct, frozen=True, array_like=True, tag="Ack"):
    """The same, of an answer."""

    shard: int
    term: int
    end: tuple[int, int]
    round: int
    high_watermark: int = -1
    damaged: bool = False


@pytest.mark.parametrize("trace", ["", f"00-{'a' * 32}-{'b' * 16}-01"])
def test_messages_of_earlier_versions_ask_for_nothing_and_promise_nothing(trace: str) -> None:
    frame = encode_message(0, EarlierAppend(7, 1, 1, (1, 4), 4, 9))
    if trace:
        frame = traced_frame(frame, trace)
    _, append = decode_peer(bytes(frame[0])[PREFIX.size :])
    assert append.round == 9
    assert append.lease_ms == (trace or 0), "the replica takes no text for a number"
    _, ack = decode_peer(bytes(encode_message(0, EarlierAck(7, 1, (1, 4), 9))[0])[PREFIX.size :])
    assert (ack.round, ack.promised_ms) == (9, 0)
