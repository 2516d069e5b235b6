"""Nodes that are started, or go on, on a full disk: they serve reads, refuse writes by name, and take them again later."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.errors import DiskFullError
from antiphon.model.findings import Finding
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, Fetch, Put, TableScan, TableWrite
from antiphon.node.config import Limits
from antiphon.node.node import Node
from antiphon.node.reserve import RESERVE_NAME
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from tests.node.in_process import (
    DIRECTORY,
    NATIVE_PORT,
    Nodes,
    ask,
    cluster_of,
    connected,
    eventually,
    in_virtual_time,
)

RESERVE_BYTES = 64 * 1024
ROUNDS = 6


class Full:
    """A cluster with a topic and a table; its disks can be full."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.topic = self.table = -1

    async def fill(self) -> None:
        gateway = self.nodes.nodes[0].gateway
        count = len(self.nodes.nodes)
        self.topic = (await gateway.create_topic(CreateTopic("t", replicas=count))).shards[0].shard_id
        made = await gateway.create_topic(CreateTopic("k", kind=Kind.TABLE, replicas=count))
        self.table = made.shards[0].shard_id
        for number in range(ROUNDS):
            await self.nodes.append(self.topic, b"%d" % number)
            await ask(await self.leader(self.table), TableWrite(self.table, (Put(b"%d" % number, b"value"),)))
        await eventually(lambda: all(self.has_reserve(one) for one in self.nodes.nodes))

    async def leader(self, shard_id: int) -> str:
        return f"node-{(await self.nodes.leader(shard_id)).services.node_id}:{NATIVE_PORT}"

    def has_reserve(self, node_id: int) -> bool:
        return self.nodes.disks[node_id].exists(f"{DIRECTORY}/{RESERVE_NAME}")

    def reserved(self, node_id: int) -> int:
        """How large the reserve is now, in bytes."""
        disk, path = self.nodes.disks[node_id], f"{DIRECTORY}/{RESERVE_NAME}"
        return disk.open(path).size() if disk.exists(path) else 0

    def fill_disks(self) -> None:
        for disk in self.nodes.disks.values():
            disk.capacity_bytes = disk.used_bytes()

    def make_room(self) -> None:
        for disk in self.nodes.disks.values():
            disk.capacity_bytes = None

    async def restart(self, *, how: str) -> None:
        """All nodes at once, with disks that are full by then."""
        for node_id in list(self.nodes.nodes):
            if how == "killed":
                self.nodes.kill(node_id)
            else:
                await self.nodes.stop(node_id)
        self.fill_disks()
        for member in self.nodes.members:
            await self.nodes.start(member.id)

    async def serves_reads(self) -> None:
        async with connected(await self.leader(self.topic)) as client:
            found: Any = await client.request(Fetch(self.topic, 0))
        values = [record.value for record in decode_records(bytes(found[1]))]
        assert values == [b"%d" % number for number in range(ROUNDS)]
        rows = await ask(await self.leader(self.table), TableScan(self.table, b"", b"", 100))
        assert [row.key for row in rows.rows] == [b"%d" % number for number in range(ROUNDS)]

    async def refuses_writes(self) -> None:
        host = await self.nodes.leader(self.topic)
        node = self.nodes.nodes[host.services.node_id]
        with pytest.raises(DiskFullError, match=f"node {node.node_id} has no room on the disk"):
            await node.gateway.append(self.topic, build_batch([(None, b"more", [], 1)]))
        with pytest.raises(DiskFullError):
            await ask(await self.leader(self.table), TableWrite(self.table, (Put(b"more", b"value"),)))
        await eventually(lambda: any(one.kind == "disk_full" for one in node.status().findings))
        assert {one.state for one in node.status().replicas} == {"disk_full"}


def unmended(node: Node) -> list[Finding]:
    return [one for one in node.status().findings if not one.mended_ms]


@asynccontextmanager
async def full_disks(count: int) -> AsyncIterator[Full]:
    async with cluster_of(count, limits=Limits(disk_reserve=RESERVE_BYTES)) as nodes:
        full = Full(nodes)
        await full.fill()
        yield full
        full.make_room()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("how", ["stopped", "killed"])
@in_virtual_time
async def test_a_restart_on_a_full_disk_serves_reads_and_takes_writes_when_there_is_room(
    how: str, count: int
) -> None:
    async with full_disks(count) as full:
        await full.restart(how=how)
        await full.serves_reads()
        await full.refuses_writes()
        assert not any(full.has_reserve(one) for one in full.nodes.nodes)
        full.make_room()
        await full.nodes.append(full.topic, b"there is room again")
        await eventually(lambda: all(full.has_reserve(one) for one in full.nodes.nodes))
        await eventually(lambda: not any(unmended(node) for node in full.nodes.nodes.values()))


@in_virtual_time
async def test_a_disk_that_fills_up_under_a_running_node_lets_others_be_elected() -> None:
    async with full_disks(3) as full:
        full.fill_disks()
        await eventually(lambda: all(node.wal.is_low for node in full.nodes.nodes.values()))
        await full.serves_reads()
        await full.refuses_writes()
        full.nodes.kill((await full.nodes.leader(full.topic)).services.node_id)
        await full.serves_reads()


@pytest.mark.parametrize("count", [1, 3])
@in_virtual_time
async def test_what_a_running_node_gives_up_may_be_taken_and_a_restart_still_serves_reads(count: int) -> None:
    """Whatever fills the disk goes on, and takes the part of the reserve which the running node gave up."""

    async with full_disks(count) as full:
        full.fill_disks()
        await eventually(lambda: all(full.reserved(one) == RESERVE_BYTES // 2 for one in full.nodes.nodes))
        await full.restart(how="killed")
        await full.serves_reads()
        await full.refuses_writes()
        full.make_room()
        await full.nodes.append(full.topic, b"there is room again")
        await eventually(lambda: all(full.reserved(one) == RESERVE_BYTES for one in full.nodes.nodes))


@in_virtual_time
async def test_the_reserve_is_for_elections_and_not_for_what_leaders_send() -> None:
    """One node's disk is full, the others' are not: it votes, and takes no entries until there is room."""

    async with full_disks(3) as full:
        host = await full.nodes.leader(full.topic)
        node = next(one for one in full.nodes.nodes.values() if one.node_id != host.services.node_id)
        disk = full.nodes.disks[node.node_id]
        disk.capacity_bytes = disk.used_bytes()
        await eventually(lambda: node.wal.is_low)
        for _ in range(40):
            await full.nodes.append(full.topic, bytes(4_000))
        assert disk.free_bytes(DIRECTORY) > RESERVE_BYTES // 8
        assert not node.wal.disk_full
        disk.capacity_bytes = None
        end = (await full.nodes.leader(full.topic)).log.log_end
        await eventually(lambda: node.hosts[full.topic].log.durable_end == end)
