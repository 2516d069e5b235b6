"""Replicas that are opened anew while their node runs: after rot in an old segment, and where room was missing."""

import errno
from collections.abc import Callable
from functools import partial

import pytest

from antiphon.errors import NotLeaderError, ResourceExhaustedError
from antiphon.log.simulated_faults import Fault, descriptors_used_up
from antiphon.model.metadata import CLUSTER_SHARD_ID, Kind
from antiphon.model.requests import CreateTopic, Put, TableWrite
from antiphon.node.reopening import REOPEN_EVERY_S
from antiphon.node.trimming import trim_replica
from antiphon.partition.partition import Partition
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from antiphon.replication.actions import Action
from tests.node.in_process import NATIVE_PORT, Nodes, ask, cluster_of, eventually, in_virtual_time

SETTINGS = {"segment.bytes": "1048576"}
BATCHES = 6


async def filled(nodes: Nodes, profile: str, settings: dict[str, str]) -> int:
    """A shard with several segments on every node."""
    shard_id = await nodes.new_shard(profile=profile, replicas=3, config={**SETTINGS, **settings})
    for i in range(BATCHES):
        node_id = (await nodes.leader(shard_id)).services.node_id
        batch = build_batch([(b"%d" % i, bytes(500_000), [], 1)])
        await nodes.nodes[node_id].gateway.append(shard_id, batch)

    def same() -> bool:
        hosts = [node.hosts.get(shard_id) for node in nodes.nodes.values()]
        return all(h and h.log.segment_count > 2 and keys(h) == want(BATCHES) for h in hosts)

    await eventually(same)
    return shard_id


def want(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def keys(host: Partition) -> list[bytes]:
    found: list[bytes] = []
    at = host.log.log_start
    while at < host.log.durable_end:
        for batch in host.log.read(at, 1 << 20, host.log.durable_end):
            for record in decode_records(batch, include_control=True):
                at = record.offset + 1
                if record.value is not None and len(record.value) > 1000 and record.key is not None:
                    found.append(record.key)
    return found


def rot(nodes: Nodes, host: Partition) -> None:
    """Flip a bit in the first segment, which nobody has in memory any more."""
    host.log.release_memory()
    disk = nodes.disks[host.services.node_id]
    disk.flip_bit(f"{host.log.path}/{host.log.log_start:020d}.log", 300_000 * 8 + 2)


@pytest.mark.parametrize(
    ("profile", "settings"), [("oxia", {}), ("raft", {}), ("tarantool", {"writers": "multi"})]
)
@pytest.mark.parametrize("leads", [True, False])
@in_virtual_time
async def test_a_replica_with_a_rotten_segment_is_fetched_again_without_a_restart(
    profile: str, settings: dict[str, str], leads: bool
) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await filled(nodes, profile, settings)
        leader = await nodes.leader(shard_id)
        followers = [n.hosts[shard_id] for n in nodes.nodes.values() if n.hosts[shard_id] is not leader]
        host = leader if leads else followers[0]
        node = nodes.nodes[host.services.node_id]
        rot(nodes, host)
        with pytest.raises(NotLeaderError):
            host.reads.read(host.log.log_start, 1 << 20, host.log.log_end)
        assert host.state.failed is not None

        def mended() -> bool:
            found = node.hosts.get(shard_id)
            return (
                found is not None
                and found is not host
                and found.status().state == "ok"
                and keys(found) == want(BATCHES)
            )

        await eventually(mended)
        node.hosts[shard_id].log.release_memory()
        assert node.hosts[shard_id].log.reader.verify() >= BATCHES
        await nodes.append(shard_id, b"after")


@in_virtual_time
async def test_a_replica_is_not_opened_anew_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await filled(nodes, "oxia", {})
        node = nodes.nodes[1]

        async def break_it(opened: Callable[[], bool]) -> Partition:
            await eventually(
                lambda: (
                    opened()
                    and node.hosts[shard_id].status().state == "ok"
                    and keys(node.hosts[shard_id]) == want(BATCHES)
                )
            )
            host = node.hosts[shard_id]
            rot(nodes, host)
            with pytest.raises(NotLeaderError):
                host.reads.read(host.log.log_start, 1 << 20, host.log.log_end)
            return host

        first = await break_it(lambda: True)
        second = await break_it(lambda: node.hosts.get(shard_id) not in {None, first})
        node.shards.mend_damaged()
        assert node.hosts[shard_id] is second
        assert second.status().state == "failed"
        monkeypatch.setattr(node, "now_s", lambda: node.loop.time() + REOPEN_EVERY_S)
        await eventually(lambda: node.hosts.get(shard_id) not in {None, second})


@in_virtual_time
async def test_a_node_gets_all_its_shards_back_in_one_go() -> None:
    """oxia 8001230: one shard was mended at each look, 2 s apart, however many a disk had lost."""
    async with cluster_of(3) as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", shards=30, replicas=3))
        shard_ids = [shard.shard_id for shard in topic.shards]
        for shard_id in shard_ids:
            await nodes.append(shard_id, b"kept")
        lost = next(one for one in nodes.nodes if not leads(nodes, one, CLUSTER_SHARD_ID))
        await nodes.stop(lost)
        for shard_id in shard_ids:
            disk, path = nodes.shard_path(lost, shard_id)
            disk.lose(path)
        node = await nodes.start(lost)
        await eventually(lambda: all(shard_id in node.hosts for shard_id in shard_ids))
        assert all(node.hosts[shard_id].status().state == "damaged" for shard_id in shard_ids)
        await eventually(
            lambda: all(node.hosts[shard_id].status().state == "ok" for shard_id in shard_ids), 2.0
        )
        assert all(node.hosts[shard_id].log.durable_end > 1 for shard_id in shard_ids)


def leads(nodes: Nodes, node_id: int, shard_id: int) -> bool:
    return nodes.nodes[node_id].hosts[shard_id].state.is_serving


@pytest.mark.parametrize("profile", ["oxia", "raft"])
@pytest.mark.parametrize("what", ["room", "descriptors"])
@in_virtual_time
async def test_a_table_that_found_no_room_goes_on_without_a_restart(profile: str, what: str) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(kind=Kind.TABLE, profile=profile, replicas=3)
        leader = await nodes.leader(shard_id)
        node = next(n for n in nodes.nodes.values() if n.node_id != leader.services.node_id)
        host, disk = node.hosts[shard_id], nodes.disks[node.node_id]
        await put(nodes, shard_id, b"before")
        table = host.state.require_table()
        await eventually(lambda: table.state.applied_offset > 0)
        if what == "room":
            disk.faults.append(Fault(("write", "create"), errno.ENOSPC, table.path))
            with pytest.raises(NotLeaderError):
                await trim_replica(node.replicas, shard_id, host.mode.settled)
        else:
            disk.faults.append(descriptors_used_up(host.log.path))
            host.log.release_memory()
            with pytest.raises(OSError, match="Too many open files"):
                host.log.read(0, 1000, host.log.log_end)
            host.driver.call(partial(read_first, host))
        assert isinstance(host.state.failed, ResourceExhaustedError)
        await put(nodes, shard_id, b"meanwhile")
        disk.faults.clear()

        def is_back() -> bool:
            found = node.hosts.get(shard_id)
            return found is not None and found.state.failed is None and found.mode.settled > host.mode.settled

        await eventually(is_back)
        assert node.hosts[shard_id].state.require_table().state.applied_offset > host.mode.settled
        assert not node.shards.broken


def read_first(host: Partition) -> list[Action]:
    """What applying does where a batch is no longer in memory."""
    host.log.read(0, 1000, host.log.log_end)
    return []


async def put(nodes: Nodes, shard_id: int, key: bytes) -> None:
    leader = await nodes.leader(shard_id)
    await ask(
        f"node-{leader.services.node_id}:{NATIVE_PORT}",
        TableWrite(shard_id, (Put(key, b"value"),)),
    )
