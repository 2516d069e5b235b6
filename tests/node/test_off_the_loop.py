"""What blocks on the disk for long is done in threads: a node serves its other shards meanwhile.

A `Held` thread pool keeps what is to run in a thread until the test lets go. What ran on the event loop instead would be
over before, and was not held.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from antiphon.errors import DamagedLogError, NotLeaderError
from antiphon.log.recovery import DamageReport
from antiphon.log.simulated_faults import descriptors_used_up
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, ElectLeader, Put, TableWrite
from antiphon.node.node import Node
from antiphon.node.partition_opener import PartitionOpener
from antiphon.node.trimming import trim_replica
from antiphon.partition.partition import Partition
from antiphon.partition.table_shard import TableShard
from antiphon.table.state import TableState
from tests.node.in_process import NATIVE_PORT, Nodes, ask, cluster_of, eventually, in_virtual_time

ROUNDS = 40


class Held:
    """Work for threads that waits to be begun."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def let_go(self) -> None:
        """Have it done, all of it."""
        held, self.waiting = self.waiting, []
        for begin in held:
            begin()


@contextmanager
def held(nodes: Nodes, wanted: Callable[[Any], bool]) -> Iterator[Held]:
    """From now on, work for threads that is `wanted` is kept."""
    loop, kept = nodes.loop, Held()
    at_once = loop.run_in_executor

    def run_in_executor(pool: Any, work: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        if not wanted(work):
            return at_once(pool, work, *args)
        future = loop.create_future()

        def begin() -> None:
            done = at_once(pool, work, *args)
            done.add_done_callback(lambda _: _hand_on(done, future))

        kept.waiting.append(begin)
        return future

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "run_in_executor", run_in_executor)
        yield kept


def _hand_on(done: "asyncio.Future[Any]", to: "asyncio.Future[Any]") -> None:
    if to.done():
        return
    error = done.exception()
    if error is None:
        to.set_result(done.result())
    else:
        to.set_exception(error)


def is_flush(work: Any) -> bool:
    return getattr(work, "__func__", None) is TableState.flush


def is_closing(work: Any) -> bool:
    return getattr(work, "__func__", None) is TableShard.let_go


def is_recovery(work: Any) -> bool:
    return getattr(getattr(work, "func", None), "__func__", None) is PartitionOpener.recover


async def one_table(nodes: Nodes) -> int:
    """A table's shard whose log has much that need not be kept."""
    config = {"segment.bytes": "4096", "retention.bytes": "8192"}
    shard_id = await nodes.new_shard(kind=Kind.TABLE, config=config)
    await nodes.leader(shard_id)
    for number in range(ROUNDS):
        await nodes.nodes[0].gateway.table_write(
            TableWrite(shard_id, (Put(b"k%d" % (number % 7), bytes(900)),))
        )
    return shard_id


async def other_shard(nodes: Nodes) -> int:
    topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("other", replicas=len(nodes.nodes)))
    await nodes.leader(topic.shards[0].shard_id)
    return topic.shards[0].shard_id


@in_virtual_time
async def test_retention_has_a_store_flushed_while_the_node_serves_and_trims_then() -> None:
    async with cluster_of(1) as nodes:
        shard_id, other = await one_table(nodes), await other_shard(nodes)
        node = nodes.nodes[0]
        host = node.hosts[shard_id]
        with held(nodes, is_flush) as flushes:
            node.shards.apply_retention()
            node.shards.apply_retention()
            assert len(flushes.waiting) == 1, "one at a time"
            await nodes.append(other, b"meanwhile")
            await node.gateway.table_write(TableWrite(shard_id, (Put(b"k0", b"meanwhile"),)))
            assert host.log.log_start == 0, "nothing goes that the store does not have on disk"
            flushes.let_go()
            await eventually(lambda: host.log.size_bytes < 17_000)
        assert host.log.log_start <= host.state.require_table().state.durable_offset


@pytest.mark.parametrize("ask", [True, False])
@in_virtual_time
async def test_a_replica_that_goes_while_its_store_is_flushed_takes_nothing_with_it(ask: bool) -> None:
    """Whoever asked for the trim is told; retention is silent. The node goes on."""
    async with cluster_of(1) as nodes:
        shard_id, other = await one_table(nodes), await other_shard(nodes)
        node = nodes.nodes[0]
        with held(nodes, is_flush) as flushes:
            asked = asyncio.create_task(trim_replica(node.replicas, shard_id, ROUNDS)) if ask else None
            if asked is None:
                node.shards.apply_retention()
            await eventually(lambda: bool(flushes.waiting))
            await node.gateway.delete_topic("t")
            await eventually(lambda: shard_id not in node.hosts)
            flushes.let_go()
            if asked is not None:
                with pytest.raises(NotLeaderError):
                    await asked
            await nodes.append(other, b"after")
        assert node.metrics.shard_failures == 0
        assert not wrong(node)


@in_virtual_time
async def test_a_store_that_goes_is_closed_in_a_thread_and_its_files_are_removed_then() -> None:
    async with cluster_of(1) as nodes:
        shard_id, other = await one_table(nodes), await other_shard(nodes)
        node = nodes.nodes[0]
        path = node.hosts[shard_id].state.require_table().path
        with held(nodes, is_closing) as closings:
            await node.gateway.delete_topic("t")
            await eventually(lambda: bool(closings.waiting))
            assert shard_id not in node.hosts
            await nodes.append(other, b"meanwhile")
            assert nodes.disks[0].is_dir(path), "nothing is removed under a store that is open"
            closings.let_go()
            await eventually(lambda: not nodes.disks[0].is_dir(path))
        assert not wrong(node)


@in_virtual_time
async def test_a_stop_waits_for_a_store_that_is_being_closed() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await one_table(nodes)
        node = nodes.nodes[0]
        with held(nodes, is_closing) as closings:
            await node.gateway.delete_topic("t")
            await eventually(lambda: bool(closings.waiting))
            stop = asyncio.create_task(nodes.stop(0))
            await asyncio.sleep(2)
            assert not stop.done()
            closings.let_go()
            await stop
        await nodes.start(0)
        await eventually(lambda: shard_id not in nodes.nodes[0].hosts)


KINDS: dict[str, dict[str, Any]] = {
    "log": {},
    "votes": {"profile": "raft"},
    "rows": {"kind": Kind.TABLE},
    "carts": {"config": {"writers": "multi"}, "profile": "tarantool"},
}


async def follower_with_damage(nodes: Nodes, kind: str) -> tuple[Node, Partition]:
    """A node whose replica of a new shard, a follower, has met damage in the middle of its log, and stopped."""
    options = KINDS[kind]
    shard_id = await nodes.new_shard(replicas=3, **options)
    for number in range(6):
        if kind == "rows":
            writer = nodes.nodes[(await nodes.leader(shard_id)).services.node_id]
            await writer.gateway.table_write(TableWrite(shard_id, (Put(b"%d" % number, bytes(500)),)))
        else:
            await nodes.append(shard_id, bytes(500))
    leader = (await nodes.leader(shard_id)).services.node_id
    await eventually(lambda: all(has_all(node, shard_id) for node in nodes.nodes.values()))
    node = nodes.nodes[(leader + 1) % 3]
    host = node.hosts[shard_id]
    log = host.log
    log.release_memory()
    at = log.log_end // 2
    log.note_damage(DamageReport(at, log.path, 0, "the disk lost it"))
    nodes.disks[node.node_id].flip_bit(f"{log.path}/{log.log_start:020d}.log", log.size_bytes * 4)
    host.driver.fail(DamagedLogError("the disk lost it", offset=at, position=0))
    return node, host


def has_all(node: Node, shard_id: int) -> bool:
    host = node.hosts.get(shard_id)
    return (
        host is not None
        and host.status().state == "ok"
        and host.log.durable_end == host.log.log_end == host.mode.settled >= 6
    )


@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_a_damaged_replica_is_read_while_the_node_leads_and_follows_other_shards(kind: str) -> None:
    async with cluster_of(3) as nodes:
        other = await other_shard(nodes)
        with held(nodes, is_recovery) as recoveries:
            node, stopped = await follower_with_damage(nodes, kind)
            await eventually(lambda: bool(recoveries.waiting))
            await ask(f"node-{node.node_id}:{NATIVE_PORT}", ElectLeader(other))
            for number in range(20):
                await nodes.append(other, b"meanwhile %d" % number)
            end = (await nodes.leader(other)).log.log_end
            await eventually(lambda: node.hosts[other].log.durable_end == end)
            assert stopped.shard_id not in node.hosts
            assert len(recoveries.waiting) == 1
            assert wrong(node), "it is told while it lasts"
            recoveries.let_go()
            await eventually(lambda: has_all(node, stopped.shard_id))
        assert node.hosts[stopped.shard_id] is not stopped
        await eventually(lambda: not wrong(node))


@in_virtual_time
async def test_a_start_serves_other_shards_before_a_damaged_replica_is_read() -> None:
    async with cluster_of(3) as nodes:
        other = await other_shard(nodes)
        node, stopped = await follower_with_damage(nodes, "log")
        nodes.kill(node.node_id)
        with held(nodes, is_recovery) as recoveries:
            node = await nodes.start(node.node_id)
            await eventually(lambda: bool(recoveries.waiting) and other in node.hosts)
            await nodes.append(other, b"meanwhile")
            end = (await nodes.leader(other)).log.log_end
            await eventually(lambda: node.hosts[other].log.durable_end == end)
            recoveries.let_go()
            await eventually(lambda: has_all(node, stopped.shard_id))


@pytest.mark.parametrize("was_broken", [True, False])
@in_virtual_time
async def test_a_shard_that_is_deleted_while_its_replica_is_read_leaves_nothing(was_broken: bool) -> None:
    """Also where the replica could not be opened before. Nothing goes while a thread is at the files."""
    async with cluster_of(3) as nodes:
        with held(nodes, is_recovery) as recoveries:
            node, stopped = await follower_with_damage(nodes, "rows")
            disk, table = nodes.disks[node.node_id], stopped.state.require_table()
            await eventually(lambda: bool(recoveries.waiting))
            if was_broken:
                disk.faults.append(descriptors_used_up(stopped.log.path))
                recoveries.let_go()
                await eventually(lambda: stopped.shard_id in node.shards.broken)
                disk.faults.clear()
                node.shards.open_again(stopped.shard_id)
                await eventually(lambda: bool(recoveries.waiting))
            await node.gateway.delete_topic("t")
            await eventually(lambda: node.view.shard(stopped.shard_id) is None)
            await asyncio.sleep(1)
            assert disk.exists(stopped.log.path)
            recoveries.let_go()
            await eventually(lambda: not disk.exists(stopped.log.path) and not disk.exists(table.path))
        assert not node.shards.broken
        await eventually(lambda: not wrong(node))


@in_virtual_time
async def test_a_node_that_stops_waits_for_the_thread_and_finds_the_replica_at_the_next_start() -> None:
    async with cluster_of(3) as nodes:
        with held(nodes, is_recovery) as recoveries:
            node, stopped = await follower_with_damage(nodes, "rows")
            await eventually(lambda: bool(recoveries.waiting))
            stopping = asyncio.create_task(nodes.stop(node.node_id))
            await asyncio.sleep(5)
            assert not stopping.done(), "the directory is somebody else's to open then"
            recoveries.let_go()
            await stopping
        node = await nodes.start(node.node_id)
        await eventually(lambda: has_all(node, stopped.shard_id))


def wrong(node: Node) -> list[str]:
    return [one.what for one in node.status().findings if not one.mended_ms]
