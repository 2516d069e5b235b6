"""Holds of shards and cuts, on nodes in this process and in virtual time."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.backup.cut import take_cut
from antiphon.client.aio import AsyncClient
from antiphon.coordination.state import ClusterState
from antiphon.errors import BackupError, NotHeldError, OverloadedError, WrongKindError
from antiphon.model.backup import (
    LEASE_MS_MAX,
    ConfirmHold,
    HoldConfirmed,
    HoldShard,
    ReleaseHold,
    ShardHeld,
)
from antiphon.model.cluster import EndTransaction
from antiphon.model.metadata import CLUSTER_SHARD_ID, Kind, ShardMeta
from antiphon.model.requests import CreateTopic, DeleteRange, Put, TableWrite
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.records.builder import build_batch
from tests.node.in_process import Nodes, cluster_of, in_virtual_time

ONE, TWO = b"1" * 16, b"2" * 16
NOBODY = bytes(16)


async def shard_of(nodes: Nodes, name: str, kind: Kind = Kind.TOPIC, **config: str) -> tuple[Node, Partition]:
    topic = await nodes.nodes[0].gateway.create_topic(CreateTopic(name, kind=kind, config=config))
    host = await nodes.leader(topic.shards[0].shard_id)
    return nodes.nodes[host.services.node_id], host


def asked(node: Node, request: Any) -> "asyncio.Future[Any]":
    """The answer to a hold or a confirmation, whenever it comes."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if isinstance(request, HoldShard):
        node.gateway.backups.hold(request, future.set_result)
    else:
        node.gateway.backups.confirm(request, future.set_result)
    return future


def batch(value: bytes, sequence: int) -> bytes:
    return bytes(build_batch([(None, value, [], 1)], producer_id=7, producer_epoch=0, base_sequence=sequence))


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_what_clients_write_waits_in_its_order_until_the_hold_is_confirmed() -> None:
    async with cluster_of(3) as nodes:
        node, host = await shard_of(nodes, "t")
        await node.gateway.append(host.shard_id, batch(b"before", 0))
        under_way = asyncio.ensure_future(node.gateway.append(host.shard_id, batch(b"under way", 1)))
        await asyncio.sleep(0)
        held = await asked(node, HoldShard(host.shard_id, ONE, 1_000))
        assert held == ShardHeld(2, host.state.term, 0)
        writes = [
            asyncio.ensure_future(node.gateway.append(host.shard_id, batch(b"%d" % n, n)))
            for n in range(2, 6)
        ]
        await asyncio.sleep(0.3)
        assert (await under_way).base_offset == 1, "what was under way is acknowledged meanwhile"
        assert not any(write.done() for write in writes)
        assert host.log.log_end == 2
        told = await asked(node, ConfirmHold(host.shard_id, ONE, held.end, held.term))
        assert isinstance(told, HoldConfirmed)
        assert 299_000 <= told.held_us < 400_000
        assert [(await write).base_offset for write in writes] == [2, 3, 4, 5]


@in_virtual_time
async def test_a_table_the_ends_of_transactions_and_what_others_append_wait_too() -> None:
    async with cluster_of(1) as nodes:
        node, table = await shard_of(nodes, "k", Kind.TABLE)
        _, topic = await shard_of(nodes, "t")
        for host in (table, topic):
            await asked(node, HoldShard(host.shard_id, ONE, 500))
        put = asyncio.ensure_future(node.gateway.table_write(TableWrite(table.shard_id, (Put(b"k", b"v"),))))
        marker = asyncio.ensure_future(
            node.gateway.transactions.end(EndTransaction(topic.shard_id, 5, 0, 1, True, 3_000))
        )
        await asyncio.sleep(0.4)
        assert (put.done(), marker.done()) == (False, False)
        assert table.log.log_end == topic.log.log_end == 0
        await asyncio.sleep(0.2)
        assert (await put).offset == 0
        assert await marker == 0


@in_virtual_time
async def test_a_hold_ends_with_its_lease_whatever_becomes_of_who_asked() -> None:
    async with cluster_of(1) as nodes:
        node, host = await shard_of(nodes, "t")
        began = now()
        held = await asked(node, HoldShard(host.shard_id, ONE, 200))
        write = asyncio.ensure_future(node.gateway.append(host.shard_id, batch(b"waits", 0)))
        await asyncio.sleep(0.1)
        await asked(node, HoldShard(host.shard_id, ONE, LEASE_MS_MAX))  # again: the lease is what it was
        with pytest.raises(OverloadedError, match="another backup"):
            asked(node, HoldShard(host.shard_id, TWO, 200))
        await write
        assert now() - began < 0.25
        with pytest.raises(NotHeldError, match="take the cut again"):
            asked(node, ConfirmHold(host.shard_id, ONE, held.end, held.term))
        assert isinstance(await asked(node, HoldShard(host.shard_id, TWO, 200)), ShardHeld)
        node.gateway.backups.release(ReleaseHold(host.shard_id, ONE))
        assert host.hold.holder == TWO, "somebody else's hold is not let go of"


@in_virtual_time
async def test_only_an_unbroken_hold_of_this_leader_is_confirmed() -> None:
    async with cluster_of(3) as nodes:
        node, host = await shard_of(nodes, "t")
        held = await asked(node, HoldShard(host.shard_id, ONE, 1_000))
        for end, term in ((held.end + 1, held.term), (held.end, held.term + 1)):
            with pytest.raises(NotHeldError):
                asked(node, ConfirmHold(host.shard_id, ONE, end, term))
            held = await asked(node, HoldShard(host.shard_id, ONE, 1_000))
        host.driver.stage(bytearray(build_batch([(None, b"slips in", [], 1)], leader_epoch=held.term)), 1)
        with pytest.raises(NotHeldError):
            asked(node, ConfirmHold(host.shard_id, ONE, held.end, held.term))
        held = await asked(node, HoldShard(host.shard_id, ONE, 1_000))
        for other in [one for one in nodes.nodes if one != node.node_id]:
            node.link(other).send_replica_message = lambda *_: None  # type: ignore[method-assign]  # cut off
        confirmation = asked(node, ConfirmHold(host.shard_id, ONE, held.end, held.term))
        await asyncio.sleep(1)
        assert not confirmation.done(), "no majority has said that it still leads"


@in_virtual_time
async def test_a_write_that_is_judged_in_pieces_is_let_finish_first() -> None:
    async with cluster_of(1) as nodes:
        node, host = await shard_of(nodes, "k", Kind.TABLE)
        node.turn.pieces.operations = 10
        puts = tuple(Put(b"%03d" % n, b"v") for n in range(100))
        write = asyncio.ensure_future(node.gateway.table_write(TableWrite(host.shard_id, puts)))
        await asyncio.sleep(0)
        assert host.clients.queue.holds == 1
        held = await asked(node, HoldShard(host.shard_id, ONE, 1_000))
        assert held.end == 100, "it is in the cut"
        removal = TableWrite(host.shard_id, (DeleteRange(b"", b""),))
        later = asyncio.ensure_future(node.gateway.table_write(removal))
        await asyncio.sleep(0.1)
        assert not later.done()
        await asked(node, ConfirmHold(host.shard_id, ONE, held.end, held.term))
        assert (await write).offset == 0
        assert (await later).offset == 100


@in_virtual_time
async def test_the_clusters_log_is_asked_and_not_held() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        held = await asked(node, HoldShard(CLUSTER_SHARD_ID, NOBODY, 0))
        assert isinstance(
            await asked(node, ConfirmHold(CLUSTER_SHARD_ID, NOBODY, held.end, held.term)), HoldConfirmed
        )
        await node.gateway.create_topic(CreateTopic("t"))
        with pytest.raises(NotHeldError):
            asked(node, ConfirmHold(CLUSTER_SHARD_ID, NOBODY, held.end, held.term))


@in_virtual_time
async def test_cuts() -> None:
    """Of all shards there are; not while metadata change, nor of what no leader can hold."""
    async with cluster_of(3) as nodes, AsyncClient("node-0:7400,node-1:7400") as db:
        node, host = await shard_of(nodes, "t")
        await node.gateway.append(host.shard_id, batch(b"1", 0))
        cut = await take_cut(db)
        meta = nodes.nodes[0].gateway.metadata
        everywhere = {shard.shard_id for topic in meta.topics for shard in topic.shards}
        assert set(cut.ends) == everywhere | {CLUSTER_SHARD_ID}
        assert cut.ends[host.shard_id].end == 1
        assert cut.tries == 1
        assert {topic.name for topic in cut.topics} == {topic.name for topic in meta.topics}
        assert not any(one.hold.holder for each in nodes.nodes.values() for one in each.hosts.values())
        await asked(node, HoldShard(host.shard_id, ONE, LEASE_MS_MAX))
        assert (await take_cut(db)).tries > 1, "the other one's lease is over first"
        await asked(node, HoldShard(host.shard_id, ONE, LEASE_MS_MAX))
        with pytest.raises(BackupError, match=r"no cut in 1 tries.*another backup"):
            await take_cut(db, tries=1, lease_ms=100)
        await db.create_topic("all", config={"writers": "multi"})
        with pytest.raises(BackupError, match="--without all"):
            await take_cut(db)
        assert host.shard_id in (await take_cut(db, without=["all"])).ends
        other = next(
            one for one in nodes.nodes.values() for h in one.hosts.values() if h.state.has_many_writers
        )
        multi = next(h for h in other.hosts.values() if h.state.has_many_writers)
        with pytest.raises(WrongKindError, match="every replica writes"):
            asked(other, HoldShard(multi.shard_id, ONE, 100))


@in_virtual_time
async def test_a_split_is_waited_for() -> None:
    async with cluster_of(1) as nodes, AsyncClient("node-0:7400") as db:
        await shard_of(nodes, "k", Kind.TABLE)
        looks = iter((True, True, False))

        def split(state: ClusterState) -> list[ShardMeta]:
            return [next(iter(state.shards.values())).meta] if next(looks) else []

        with patch("antiphon.backup.cut.being_split", split):
            assert (await take_cut(db)).tries == 3
        looks = iter((True, True))
        with (
            patch("antiphon.backup.cut.being_split", split),
            pytest.raises(BackupError, match="is being split off another one"),
        ):
            await take_cut(db, tries=2)
