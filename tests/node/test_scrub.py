"""The scrub of a running node: finds what decays on its disk, has it mended by the others, tells what it cannot mend."""

import asyncio
import errno
import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.errors import NotLeaderError, UnknownShardError, WrongKindError
from antiphon.http.listener import HttpListener
from antiphon.log.aborted import ABORTED_SUFFIX
from antiphon.log.simulated_faults import Fault
from antiphon.model.cluster import EndTransaction
from antiphon.model.findings import DEGRADED, Finding, StartScrub
from antiphon.model.metadata import CLUSTER_SHARD_ID, Kind
from antiphon.model.requests import AlterTopic, CreateTopic, GetStatus, Put, TableWrite
from antiphon.node import mending
from antiphon.node.config import Scrub
from antiphon.node.node import Node
from antiphon.node.scrub import BOOK_NAME
from antiphon.partition.partition import Partition
from antiphon.records.batch import TRANSACTIONAL_BIT
from antiphon.records.builder import build_batch, seal
from tests.coroutines import CoroutineTest, run_by
from tests.node.in_process import (
    DIRECTORY,
    NATIVE_PORT,
    Nodes,
    ask,
    cluster_of,
    eventually,
    in_virtual_time,
    run,
)

ROUNDS = 8
ON_REQUEST = Scrub(bytes_per_s=0)


async def topic_of(nodes: Nodes, name: str, **settings: str) -> int:
    """A shard with several closed segments on every node."""
    shard_id = await nodes.new_shard(
        name, replicas=len(nodes.nodes), config={"segment.bytes": "20000", **settings}
    )
    for number in range(ROUNDS):
        node_id = (await nodes.leader(shard_id)).services.node_id
        batch = build_batch([(b"%d" % number, bytes(8_000), [], 1)])
        await nodes.nodes[node_id].gateway.append(shard_id, batch)
    await eventually(lambda: all(is_whole(node, shard_id) for node in nodes.nodes.values()))
    return shard_id


async def table_of(nodes: Nodes, name: str) -> int:
    shard_id = await nodes.new_shard(name, kind=Kind.TABLE, replicas=len(nodes.nodes))
    leader = await nodes.leader(shard_id)
    address = f"node-{leader.services.node_id}:{NATIVE_PORT}"
    for number in range(ROUNDS):
        await ask(address, TableWrite(shard_id, (Put(b"%d" % number, bytes(500)),)))
    await eventually(lambda: all(is_whole(node, shard_id) for node in nodes.nodes.values()))
    for node in nodes.nodes.values():
        node.hosts[shard_id].state.require_table().state.flush()
    return shard_id


def is_whole(node: Node, shard_id: int) -> bool:
    """Has the replica everything, and is it well?"""
    host = node.hosts.get(shard_id)
    return (
        host is not None
        and host.status().state == "ok"
        and host.log.durable_end >= ROUNDS
        and host.mode.settled == host.log.log_end
    )


async def follower(nodes: Nodes, shard_id: int) -> Partition:
    leader = await nodes.leader(shard_id)
    return next(
        node.hosts[shard_id] for node in nodes.nodes.values() if node.node_id != leader.services.node_id
    )


def rot(nodes: Nodes, host: Partition, suffix: str) -> str:
    """Flip a bit of the first closed segment, or of the table's store."""
    disk = nodes.disks[host.services.node_id]
    folder = host.state.require_table().path if suffix == ".run" else host.log.path
    name = next(name for name in disk.listdir(folder) if name.endswith(suffix))
    host.log.release_memory()
    disk.flip_bit(f"{folder}/{name}", 50 * 8 + 3)
    return f"{folder}/{name}"


def current(node: Node) -> list[Finding]:
    return [one for one in node.status().findings if not one.mended_ms]


def health(node: Node) -> tuple[int, dict[str, Any]]:
    status, _, body = HttpListener(node.gateway, metrics=lambda: b"", status=dict).answer(
        b"GET /healthz HTTP/1.1"
    )
    return status, json.loads(body)


def on_nodes(count: int, scrub: Scrub = ON_REQUEST) -> Callable[[CoroutineTest], Callable[..., None]]:
    """A test of so many nodes, in virtual time."""

    def go(test: CoroutineTest) -> None:
        async def main() -> None:
            async with cluster_of(count, scrub=scrub) as nodes:
                await test(nodes)

        run(main())

    return run_by(go, given=1)


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("suffix", [".log", ".index", ".run"])
@on_nodes(3)
async def test_what_decays_is_found_and_fetched_again_while_the_node_serves_the_rest(
    nodes: Nodes, suffix: str, leads: bool
) -> None:
    other = await topic_of(nodes, "other")
    shard_id = await (table_of if suffix == ".run" else topic_of)(nodes, "t")
    host = await (Nodes.leader if leads else follower)(nodes, shard_id)
    node = nodes.nodes[host.services.node_id]
    kept = node.hosts[other]
    path = rot(nodes, host, suffix)
    rotten = bytes(nodes.disks[node.node_id].durable(path) or b"")
    began_ms = nodes.loop.time()
    assert not current(node)
    await ask(f"node-{node.node_id}:{NATIVE_PORT}", StartScrub())
    await eventually(lambda: node.metrics.scrub_errors == 1)
    await eventually(lambda: node.hosts.get(shard_id) not in {None, host} and is_whole(node, shard_id))
    await eventually(lambda: not current(node))
    (mended,) = node.status().findings
    assert (mended.shard_id, mended.mended_ms > mended.since_ms > 0) == (shard_id, True)
    assert nodes.loop.time() > began_ms
    assert bytes(nodes.disks[node.node_id].durable(path) or b"") != rotten
    assert node.hosts[other] is kept, "the other shards never stopped"
    assert kept.state.failed is None
    await nodes.append(shard_id, b"after") if suffix != ".run" else None
    # What was mended is read once more by itself, and is well.
    read = node.metrics.scrub_bytes
    await eventually(lambda: node.metrics.scrub_bytes > read and not node.care.scrub.status.waiting)
    assert node.metrics.scrub_errors == 1
    assert b"antiphon_scrub_errors_total 1.0" in node.metrics.render()


async def aborted_in(nodes: Nodes, name: str) -> int:
    """A shard with aborted transactions in closed segments on every node."""
    shard_id = await nodes.new_shard(name, replicas=len(nodes.nodes), config={"segment.bytes": "20000"})
    gateway = nodes.nodes[(await nodes.leader(shard_id)).services.node_id].gateway
    for number in range(ROUNDS):
        batch = build_batch(
            [(None, bytes(8_000), [], 1)], producer_id=7, producer_epoch=0, base_sequence=number
        )
        batch[22] |= TRANSACTIONAL_BIT
        seal(batch)
        await gateway.append(shard_id, batch, transaction_number=number + 1)
        await gateway.transactions.end(EndTransaction(shard_id, 7, 0, number + 1, number % 3 == 0))
    await eventually(lambda: all(is_whole(node, shard_id) for node in nodes.nodes.values()))
    return shard_id


@pytest.mark.parametrize("harm", ["flip", "lose", "swap"])
@pytest.mark.parametrize("count", [1, 3])
@in_virtual_time
async def test_an_index_of_aborted_transactions_is_made_anew_by_the_node_itself(
    count: int, harm: str
) -> None:
    async with cluster_of(count, scrub=ON_REQUEST) as nodes:
        shard_id = await aborted_in(nodes, "t")
        host = await nodes.leader(shard_id)
        node, disk = nodes.nodes[host.services.node_id], nodes.disks[host.services.node_id]
        names = [name for name in disk.listdir(host.log.path) if name.endswith(ABORTED_SUFFIX)]
        path, other = (f"{host.log.path}/{name}" for name in names[:2])
        good = bytes(disk.durable(path) or b"")
        if harm == "flip":
            disk.flip_bit(path, 20 * 8 + 3)
        elif harm == "lose":
            disk.lose(path)
        else:
            disk.restore(path, bytes(disk.durable(other) or b""))
        node.gateway.start_scrub(shard_id)
        await eventually(lambda: node.metrics.scrub_errors == 1)
        await eventually(lambda: not current(node))
        (mended,) = node.status().findings
        assert (mended.kind, mended.level, mended.shard_id) == ("damage_found", DEGRADED, shard_id)
        assert path in mended.what
        assert mended.do == "nothing: it is made anew from the log"
        assert bytes(disk.durable(path) or b"") == good
        assert node.hosts[shard_id] is host, "it served all the time"
        node.gateway.start_scrub(shard_id)
        await eventually(lambda: not node.care.scrub.status.waiting)
        assert node.metrics.scrub_errors == 1


@on_nodes(1)
async def test_the_only_replica_serves_what_it_can_and_says_since_when_it_is_damaged(nodes: Nodes) -> None:
    shard_id = await topic_of(nodes, "t")
    node = nodes.nodes[0]
    host = node.hosts[shard_id]
    rot(nodes, host, ".log")
    node.gateway.start_scrub(-1)
    await eventually(lambda: [one.do for one in current(node)] == [mending.ALONE])
    (found,) = current(node)
    assert (found.kind, found.level, found.shard_id) == ("damage_found", DEGRADED, shard_id)
    assert ".log" in found.what
    await asyncio.sleep(30)
    assert current(node) == [found], "since then, and unchanged"
    assert host.state.is_serving
    assert (await node.gateway.fetch(shard_id, 5, 1 << 20)).batches
    await nodes.append(shard_id, b"goes on")
    status, said = health(node)
    assert (status, said["state"], said["findings"][0]["since_ms"]) == (200, "degraded", found.since_ms)
    assert ".log" not in json.dumps(said), "everybody may ask for this page"


@on_nodes(3)
async def test_damage_waits_until_the_others_are_there_to_mend_it(nodes: Nodes) -> None:
    shard_id = await topic_of(nodes, "t")
    host = await nodes.leader(shard_id)
    node = nodes.nodes[host.services.node_id]
    away = next(one for one in nodes.nodes if one != node.node_id)
    await nodes.stop(away)
    rot(nodes, host, ".log")
    node.gateway.start_scrub(shard_id)
    await eventually(lambda: bool(current(node)))
    await asyncio.sleep(15)
    assert node.hosts[shard_id] is host
    assert host.state.is_serving, "two of three would not do without it"
    await nodes.start(away)
    await eventually(lambda: node.hosts.get(shard_id) not in {None, host} and is_whole(node, shard_id))


@on_nodes(3)
async def test_of_two_replicas_one_is_mended_when_the_shard_has_a_third(nodes: Nodes) -> None:
    """tarantool 8000025: it waited for ever, and said that nothing was to be done."""
    shard_id = await topic_of(nodes, "t")
    await nodes.nodes[0].gateway.alter_topic(AlterTopic("t", replicas=2))
    await eventually(lambda: sum(shard_id in node.hosts for node in nodes.nodes.values()) == 2)
    host = await follower_of_two(nodes, shard_id)
    node = nodes.nodes[host.services.node_id]
    rot(nodes, host, ".log")
    node.gateway.start_scrub(shard_id)
    await eventually(lambda: [one.do for one in current(node)] == [mending.NEEDED])
    await asyncio.sleep(15)
    assert node.hosts[shard_id] is host
    assert host.status().state == "ok", "the shard would have no majority without it"
    await nodes.nodes[0].gateway.alter_topic(AlterTopic("t", replicas=3))
    await eventually(lambda: node.hosts.get(shard_id) not in {None, host} and is_whole(node, shard_id))
    await eventually(lambda: not current(node))


async def follower_of_two(nodes: Nodes, shard_id: int) -> Partition:
    leader = await nodes.leader(shard_id)
    hosts = [node.hosts[shard_id] for node in nodes.nodes.values() if shard_id in node.hosts]
    return next(host for host in hosts if host is not leader)


@on_nodes(3)
async def test_damage_of_a_file_that_was_trimmed_since_costs_no_replica(nodes: Nodes) -> None:
    """raft 524122: a sound replica was given up for what was wrong with a file that it no longer had."""
    shard_id = await topic_of(nodes, "t")
    host = await nodes.leader(shard_id)
    node = nodes.nodes[host.services.node_id]
    away = next(one for one in nodes.nodes if one != node.node_id)
    await nodes.stop(away)
    path = rot(nodes, host, ".log")
    node.gateway.start_scrub(shard_id)
    await eventually(lambda: bool(current(node)))
    await node.gateway.trim(shard_id, -1, 10.0)
    await eventually(lambda: not nodes.disks[node.node_id].exists(path))
    await nodes.start(away)
    await eventually(lambda: not current(node))
    assert node.hosts[shard_id] is host
    assert host.state.is_serving


@on_nodes(3)
async def test_damage_that_a_read_has_met_and_had_mended_costs_no_replica(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """raft 9406722: between two looks the replica was opened anew and mended, and was then given up all the same."""
    monkeypatch.setattr(mending, "LOOK_S", 20.0)
    shard_id = await topic_of(nodes, "t")
    host = await follower(nodes, shard_id)
    node = nodes.nodes[host.services.node_id]
    await asyncio.sleep(1.0)
    rot(nodes, host, ".index")
    node.gateway.start_scrub(shard_id)
    await eventually(lambda: bool(current(node)))
    with pytest.raises(NotLeaderError, match="damaged"):
        await node.gateway.fetch(shard_id, 0, 100_000, "replica")
    await eventually(lambda: node.hosts.get(shard_id) not in {None, host})
    mended = node.hosts[shard_id]
    await eventually(lambda: mended.log.damaged is None and mended.log.durable_end >= ROUNDS)
    await asyncio.sleep(45)
    assert node.hosts[shard_id] is mended
    assert is_whole(node, shard_id)
    assert not current(node)


@on_nodes(3)
async def test_two_replicas_that_decay_are_mended_one_after_the_other_or_not_at_all(nodes: Nodes) -> None:
    shard_id = await topic_of(nodes, "t")
    hosts = [node.hosts[shard_id] for node in nodes.nodes.values()]
    for host in hosts[:2]:
        rot(nodes, host, ".log")
    for node in nodes.nodes.values():
        node.gateway.start_scrub(shard_id)
    await eventually(lambda: all(current(nodes.nodes[one]) for one in (0, 1)))
    await asyncio.sleep(20)
    assert (await nodes.leader(shard_id)).state.is_serving, "never do both give up their votes"
    await nodes.append(shard_id, b"goes on")
    assert all(len(current(nodes.nodes[one])) == 1 for one in (0, 1))


@pytest.mark.parametrize("leads", [True, False])
@on_nodes(3)
async def test_the_clusters_own_log_is_mended_while_the_node_runs(nodes: Nodes, leads: bool) -> None:
    """Where its replica led, another node coordinates meanwhile."""
    shard_id = await topic_of(nodes, "t")
    leader = (await nodes.leader(CLUSTER_SHARD_ID)).services.node_id
    node = nodes.nodes[leader if leads else (leader + 1) % 3]
    host, kept = node.hosts[CLUSTER_SHARD_ID], node.hosts[shard_id]
    path = rot(nodes, host, ".log")
    rotten = bytes(nodes.disks[node.node_id].durable(path) or b"")
    await ask(f"node-{node.node_id}:{NATIVE_PORT}", StartScrub(CLUSTER_SHARD_ID))
    await eventually(lambda: bool(current(node)))
    assert current(node)[0].shard_id == CLUSTER_SHARD_ID

    def is_well() -> bool:
        found = node.hosts.get(CLUSTER_SHARD_ID)
        return found not in {None, host} and found.status().state == "ok" and not current(node)

    await eventually(is_well, 40)
    assert bytes(nodes.disks[node.node_id].durable(path) or b"") != rotten
    assert node.hosts[shard_id] is kept
    assert kept.state.failed is None
    for one in nodes.nodes.values():  # each knows who coordinates, and that is not always another one
        await eventually(lambda one=one: one.agent.registered.is_set())  # type: ignore[misc]
        await one.gateway.create_topic(CreateTopic(f"by-{one.node_id}", replicas=3))
    others = [one for one in nodes.nodes if one != node.node_id]
    await nodes.stop(others[0])  # it votes again: two are enough
    await nodes.nodes[others[1]].gateway.alter_topic(AlterTopic("t", {"retention.ms": "1000000"}))
    found = node.hosts[CLUSTER_SHARD_ID]
    await eventually(lambda: found.log.durable_end == found.log.log_end == found.mode.settled)
    node.gateway.start_scrub(CLUSTER_SHARD_ID)
    await eventually(lambda: not node.care.scrub.status.waiting)
    assert not [one for one in current(node) if one.kind == "damage_found"]


@on_nodes(3)
async def test_a_disk_that_cannot_be_read_is_for_a_person_and_stops_nothing(nodes: Nodes) -> None:
    shard_id = await topic_of(nodes, "t")
    node = nodes.nodes[2]
    host = node.hosts[shard_id]
    nodes.disks[2].faults.append(Fault(("read",), errno.EIO, host.log.path))
    node.gateway.start_scrub(shard_id)
    await eventually(lambda: bool(current(node)))
    assert (current(node)[0].kind, host.state.failed) == ("not_readable", None)
    nodes.disks[2].faults.clear()
    node.gateway.start_scrub(shard_id)
    await eventually(lambda: not current(node))


@on_nodes(1, Scrub(bytes_per_s=16384, interval_s=15))
async def test_it_keeps_to_its_rate_and_goes_round_again_after_the_interval(nodes: Nodes) -> None:
    node = nodes.nodes[0]
    shard_id = await topic_of(nodes, "t")
    size = node.hosts[shard_id].log.size_bytes
    await eventually(lambda: node.care.scrub.completed_ms > 0)
    began_s, before = nodes.loop.time(), node.metrics.scrub_bytes
    node.gateway.start_scrub(shard_id)
    await eventually(lambda: node.care.scrub.status.shard_id == shard_id)
    assert node.care.scrub.status.total_bytes == size
    await eventually(lambda: node.care.scrub.status.shard_id != shard_id, 40)
    assert node.metrics.scrub_bytes - before >= size
    took_s = nodes.loop.time() - began_s
    assert size / 16_384 < took_s < 2 * size / 16_384 + 1
    completed_ms = node.care.scrub.completed_ms
    await asyncio.sleep(25)
    assert node.care.scrub.completed_ms > completed_ms, "again and again, by itself"


@on_nodes(1, Scrub())
async def test_where_it_was_outlives_a_restart_and_what_it_reads_is_bounded_by_the_interval(
    nodes: Nodes,
) -> None:
    await topic_of(nodes, "t")
    await eventually(lambda: nodes.nodes[0].care.scrub.completed_ms > 0)
    read = nodes.nodes[0].metrics.scrub_bytes
    assert read > 60_000
    await nodes.stop(0)
    node = await nodes.start(0)
    await asyncio.sleep(15)
    assert node.metrics.scrub_bytes == 0
    await nodes.stop(0)
    nodes.disks[0].flip_bit(f"{DIRECTORY}/{BOOK_NAME}", 3)  # it cannot be read any more
    node = await nodes.start(0)
    await eventually(lambda: node.metrics.scrub_bytes >= read)


@on_nodes(1)
async def test_nobody_is_read_where_it_is_off_and_unknown_shards_are_named(nodes: Nodes) -> None:
    await topic_of(nodes, "t")
    await asyncio.sleep(30)
    assert nodes.nodes[0].metrics.scrub_bytes == 0
    with pytest.raises(UnknownShardError, match="no open replica of shard 77"):
        await ask(f"node-0:{NATIVE_PORT}", StartScrub(77))
    reply = await ask(f"node-0:{NATIVE_PORT}", GetStatus())
    assert (reply.scrub.bytes_per_s, reply.scrub.completed_ms, reply.findings) == (0, 0, ())


@pytest.mark.parametrize(("config", "can"), [({}, True), ({"writers": "multi"}, False)], ids=["one", "multi"])
@in_virtual_time
async def test_a_majority_has_what_one_replica_had_but_not_where_every_replica_writes(
    config: dict[str, str], can: bool
) -> None:
    async with cluster_of(5) as nodes:
        shard_id = await nodes.new_shard(profile="tarantool", replicas=5, config=config)
        judge = nodes.nodes[0].care._mending

        async def answers(expected: bool) -> bool:
            for _ in range(200):
                if await judge._can_do_without(shard_id) is expected:
                    return True
                await asyncio.sleep(0.1)
            return False

        assert await answers(True)
        nodes.kill(4)
        assert await answers(can)
        if can:
            nodes.nodes[0].replicas.host(shard_id).snapshots.source()
        else:
            with pytest.raises(WrongKindError, match="no state to copy"):
                nodes.nodes[0].replicas.host(shard_id).snapshots.source()
