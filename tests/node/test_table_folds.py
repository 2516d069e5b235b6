"""A large write is applied in turns where no leader has judged it, and counts for nobody before all of it is there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final
from unittest.mock import patch

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.gateway.turns import Turns
from antiphon.model.attributes import PutAttributed
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    Delete,
    DeleteRange,
    OpStatus,
    Put,
    TableGet,
    TableOp,
    TableWrite,
    TableWritten,
)
from antiphon.node.node import Node
from antiphon.partition import table_folds
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.partition.partition import Partition
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.records.attributes import Attributes
from antiphon.replication.actions import Commit, LostTail
from antiphon.simulation.cluster.slow_turns import SlowTurns
from antiphon.table.index_reads import scan_index
from antiphon.table.merge import pack_id
from antiphon.table.merge_evaluator import MergingEvaluator
from antiphon.table.merge_state import MergedState, Merging
from antiphon.table.state import TableState
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

PIECE: Final = 10
COUNT: Final = 95
MULTI: Final = {"writers": "multi"}


def puts(count: int = COUNT, value: bytes = b"v") -> tuple[TableOp, ...]:
    return tuple(Put(b"%05d" % number, value) for number in range(count))


@asynccontextmanager
async def a_table(config: dict[str, str] | None = None) -> AsyncIterator[tuple[Nodes, Node, list[Partition]]]:
    """Three nodes, the one that is asked to write, and the replicas on the two others."""
    async with cluster_of(3) as nodes:
        profile = "tarantool" if config else "oxia"
        shard_id = await nodes.new_shard("t", Kind.TABLE, replicas=3, profile=profile, config=config or {})
        leader = await nodes.leader(shard_id)
        await eventually(lambda: all(shard_id in node.hosts for node in nodes.nodes.values()))
        for node in nodes.nodes.values():
            node.turn.pieces.operations = PIECE
        others = [node.hosts[shard_id] for node in nodes.nodes.values() if node.hosts[shard_id] is not leader]
        if config:
            hosts = [leader, *others]
            await eventually(lambda: all(host.replica.ready for host in hosts))
        yield nodes, nodes.nodes[leader.services.node_id], others


async def written(node: Node, shard_id: int, *ops: TableOp) -> TableWritten:
    return await node.gateway.table_write(TableWrite(shard_id, ops))


def applied(host: Partition) -> int:
    return host.state.require_table().state.applied_offset


def origin_of(host: Partition) -> int:
    assert isinstance(host, MultiWriterPartition)
    return host.replica.origin


def durable_end(host: Partition) -> int:
    assert isinstance(host, MultiWriterPartition)
    return host.replica.log.durable_end


class PerTurn:
    """How many effects each replica took between two turns of the loop, at most."""

    def __init__(self) -> None:
        self.most = 0
        self.total = 0
        self._now: dict[int, int] = {}

    @asynccontextmanager
    async def watched(self, owner: type, name: str, argument: int) -> AsyncIterator[None]:
        run, take = Turns._run, getattr(owner, name)

        def next_turn(turns: Turns) -> None:
            self._now.clear()
            run(turns)

        def counted(one: Any, *args: Any) -> Any:
            self.total += len(args[argument])
            self._now[id(one)] = self._now.get(id(one), 0) + len(args[argument])
            self.most = max(self.most, self._now[id(one)])
            return take(one, *args)

        with patch.object(Turns, "_run", next_turn), patch.object(owner, name, counted):
            yield


@in_virtual_time
async def test_followers_apply_a_large_write_a_piece_in_each_turn() -> None:
    async with a_table() as (_, node, others):
        turns = PerTurn()
        async with turns.watched(TableState, "add_effects", 1):
            await written(node, others[0].shard_id, *puts())
            await eventually(lambda: all(applied(host) == COUNT for host in others))
        assert turns.total == 3 * COUNT
        assert turns.most == PIECE
        rows = [host.state.require_table().state.scan(b"", b"", 1000)[0] for host in others]
        assert [row.key for row in rows[0]] == [op.key for op in puts() if isinstance(op, Put)]
        assert rows[0] == rows[1]


@in_virtual_time
async def test_every_replica_merges_a_large_write_a_piece_in_each_turn() -> None:
    async with a_table(MULTI) as (_, node, others):
        turns = PerTurn()
        async with turns.watched(Merging, "take", 0):
            answer = await written(node, others[0].shard_id, *puts())
            assert applied(node.hosts[others[0].shard_id]) == COUNT, "it is answered when it is merged"
            await eventually(lambda: all(applied(host) == COUNT for host in others))
        assert answer.offset == 0
        assert turns.total == 3 * COUNT
        assert turns.most == PIECE


def indexed(count: int = COUNT, secondary: bytes = b"s") -> tuple[TableOp, ...]:
    said = Attributes("me", indexes=(("i", secondary),))
    return tuple(PutAttributed(b"%05d" % number, b"v", said) for number in range(count))


@in_virtual_time
async def test_a_leader_makes_what_the_store_takes_of_attributes_a_piece_in_each_turn() -> None:
    """Also what the indexes lose: of rows that are in the store, and of those that wait for their commit."""
    async with a_table() as (_, node, others):
        shard_id = others[0].shard_id
        turns = PerTurn()
        async with turns.watched(TableState, "add_effects", 1):
            await written(node, shard_id, *indexed())
            both = [
                asyncio.ensure_future(written(node, shard_id, *indexed(secondary=one)))
                for one in (b"t", b"u")
            ]
            await asyncio.gather(*both)
            await eventually(lambda: all(applied(host) == 3 * COUNT for host in others))
        assert turns.total == 9 * COUNT
        assert turns.most == PIECE
        for host in (node.hosts[shard_id], *others):
            state = host.state.require_table().state
            found, _ = scan_index(state, "i", (b"", b""), None, 1_000)
            assert [(secondary, row.key) for secondary, row in found] == [
                (b"u", op.key) for op in puts() if isinstance(op, Put)
            ]


@in_virtual_time
async def test_a_table_that_every_replica_writes_judges_a_large_write_a_piece_in_each_turn() -> None:
    async with a_table(MULTI) as (_, node, others):
        turns = PerTurn()
        async with turns.watched(MergingEvaluator, "_view", 0):
            answer = await written(node, others[0].shard_id, *puts())
        assert turns.total == COUNT
        assert turns.most == PIECE
        assert [result.version.id for result in answer.results if result.version] == [
            pack_id(1, origin_of(node.hosts[others[0].shard_id]), place) for place in range(COUNT)
        ]
        await eventually(lambda: all(applied(host) == COUNT for host in others))


@in_virtual_time
async def test_a_range_in_such_a_table_is_judged_in_turns_too() -> None:
    async with a_table(MULTI) as (_, node, others):
        shard_id = others[0].shard_id
        await written(node, shard_id, *puts())
        turns = PerTurn()
        async with turns.watched(Merging, "take", 0):
            begun = node.turn.pieces.begun
            await written(node, shard_id, DeleteRange(b"", b""))
            assert node.turn.pieces.begun - begun >= COUNT // PIECE
        await eventually(lambda: all(applied(host) == 2 * COUNT for host in others))
        assert all(not host.state.require_table().state.scan(b"", b"", 10)[0] for host in others)


@in_virtual_time
async def test_what_is_written_meanwhile_is_next_in_its_order() -> None:
    """Of one replica: each write is numbered as the entry that it becomes."""
    async with a_table(MULTI) as (_, node, others):
        shard_id = others[0].shard_id
        node.turn.pieces = SlowTurns(1, Random(1))
        large = asyncio.ensure_future(written(node, shard_id, *puts()))
        await asyncio.sleep(0.01)
        small = [
            asyncio.ensure_future(written(node, shard_id, Put(b"00003", b"%d" % number))) for number in (1, 2)
        ]
        await asyncio.gather(large, *small)
        ends = [(await one).offset for one in (large, *small)]
        assert ends == [0, COUNT, COUNT + 1]
        await eventually(lambda: all(applied(host) == COUNT + 2 for host in others))
        for host in (node.hosts[shard_id], *others):
            row = host.state.require_table().state.get(b"00003")
            assert row is not None
            assert row.value == b"2"


@in_virtual_time
async def test_what_others_write_is_merged_before_a_large_write_or_after_it_and_not_in_between() -> None:
    async with a_table(MULTI) as (nodes, node, others):
        shard_id, host = others[0].shard_id, node.hosts[others[0].shard_id]
        other = nodes.nodes[others[0].services.node_id]
        await written(other, shard_id, Put(b"00094", b"before"))
        await eventually(lambda: applied(host) == 1)
        row = host.state.require_table().state.get(b"00094")
        assert row is not None
        node.turn.pieces = SlowTurns(1, Random(1))
        ops = (*puts(COUNT - 1), Put(b"00094", b"mine", row.version.id))
        large = asyncio.ensure_future(written(node, shard_id, *ops))
        await asyncio.sleep(0.01)
        later = await written(other, shard_id, Put(b"00094", b"theirs"))
        await eventually(lambda: durable_end(host) > 1)
        assert applied(host) == 1, "it waits until the large write is in the log"
        answer = (await large).results[-1]
        assert answer.status == OpStatus.OK, "as when it began"
        await eventually(lambda: all(applied(one) == COUNT + 2 for one in (host, *others)))
        assert later.results[0].version is not None
        assert {
            one.state.require_table().state.get_many([b"00094"])[0].value  # type: ignore[union-attr]
            for one in (host, *others)
        } == {b"theirs"}


@in_virtual_time
async def test_large_writes_one_after_the_other_do_not_keep_out_what_others_write() -> None:
    async with a_table(MULTI) as (nodes, node, others):
        shard_id, host = others[0].shard_id, node.hosts[others[0].shard_id]
        other = nodes.nodes[others[0].services.node_id]
        node.turn.pieces = SlowTurns(1, Random(1))
        large = [asyncio.ensure_future(written(node, shard_id, *puts())) for _ in range(3)]
        await asyncio.sleep(0.01)
        await written(other, shard_id, *(Put(b"theirs-%d" % number, b"v") for number in range(PIECE)))
        await eventually(lambda: durable_end(host) >= 2 * COUNT + PIECE)
        assert applied(host) >= PIECE, "what was committed was merged before the second one was judged"
        await asyncio.gather(*large)


@in_virtual_time
async def test_a_large_write_that_is_given_up_lets_the_merging_go_on() -> None:
    async with a_table(MULTI) as (nodes, node, others):
        shard_id, host = others[0].shard_id, node.hosts[others[0].shard_id]
        other = nodes.nodes[others[0].services.node_id]
        node.turn.pieces = SlowTurns(1, Random(1))
        large = asyncio.ensure_future(written(node, shard_id, *puts(), Put(b"k" * (1 << 17), b"")))
        await asyncio.sleep(0.01)
        await written(other, shard_id, Put(b"theirs", b"v"))
        with pytest.raises(InvalidRequestError, match="a key has at most"):
            await large
        await eventually(lambda: applied(host) == 1)
        await written(node, shard_id, Put(b"next", b"v"))


@pytest.mark.parametrize("config", [{}, MULTI], ids=["follower", "multi"])
def test_readers_see_all_of_a_write_or_nothing_and_no_commit_before_its_rows(config: dict[str, str]) -> None:
    @in_virtual_time
    async def test() -> None:
        async with a_table(config) as (nodes, node, others):
            shard_id = others[0].shard_id
            await written(node, shard_id, *puts(value=b"old"))
            await eventually(lambda: all(applied(host) == COUNT for host in others))
            host = others[0]
            other = nodes.nodes[host.services.node_id]
            other.turn.pieces = SlowTurns(PIECE, Random(1))
            keys = tuple(op.key for op in puts() if isinstance(op, Put))
            large = asyncio.ensure_future(written(node, shard_id, *puts(value=b"new")))
            seen, in_between = set[tuple[bytes | None, ...]](), 0
            while applied(host) < 2 * COUNT:
                get = TableGet(shard_id, keys, consistency="local")
                found = (await other.gateway.table_get(get)).rows
                seen.add(tuple({None if row is None else row.value for row in found}))
                assert host.state.high_watermark == applied(host)
                settled = durable_end(host) if config else host.replica.high_watermark
                in_between += settled > applied(host)
                await asyncio.sleep(0.0005)
            assert seen <= {(b"old",), (b"new",)}
            assert in_between, "it was never looked at in the middle"
            await large

    test()


@in_virtual_time
async def test_a_follower_that_is_elected_meanwhile_has_all_of_it_before_it_leads() -> None:
    async with a_table() as (nodes, node, others):
        shard_id = others[0].shard_id
        for host in others:
            nodes.nodes[host.services.node_id].turn.pieces = SlowTurns(1, Random(1))
        await written(node, shard_id, *puts())
        await eventually(lambda: all(host.replica.high_watermark == COUNT for host in others))
        assert all(applied(host) < COUNT for host in others), "it is under way"
        nodes.kill(node.node_id)
        leader = await nodes.leader(shard_id)
        assert leader in others
        assert applied(leader) >= COUNT
        new = nodes.nodes[leader.services.node_id]
        await written(new, shard_id, Put(b"00000", b"next"))
        row = (await new.gateway.table_get(TableGet(shard_id, (b"00094",)))).rows[0]
        assert row is not None


def folds_of(host: Partition) -> table_folds.TableFolds:
    assert isinstance(host, SingleWriterPartition)
    return host._common.folds


async def in_the_middle(nodes: Nodes, node: Node, host: Partition) -> None:
    """Return when the replica has applied some of a large write, and nothing of it is in the store."""
    nodes.nodes[host.services.node_id].turn.pieces = SlowTurns(1, Random(1))
    await written(node, host.shard_id, *puts())
    await eventually(lambda: folds_of(host).is_under_way)
    assert applied(host) == 0


@in_virtual_time
async def test_what_is_committed_meanwhile_is_next() -> None:
    async with a_table() as (nodes, node, others):
        host = others[0]
        await in_the_middle(nodes, node, host)
        await written(node, host.shard_id, Put(b"00003", b"small"), Delete(b"00004"))
        await eventually(lambda: host.replica.high_watermark == COUNT + 2)
        assert applied(host) == 0
        await eventually(lambda: applied(host) == COUNT + 2)
        rows = host.state.require_table().state.get_many([b"00003", b"00004"])
        assert [None if row is None else row.value for row in rows] == [b"small", None]
        assert host.state.high_watermark == COUNT + 2
        assert not folds_of(host).is_behind


@in_virtual_time
async def test_what_is_lost_meanwhile_is_not_applied() -> None:
    async with a_table() as (nodes, node, others):
        host = others[0]
        await in_the_middle(nodes, node, host)
        host.driver.call(lambda: (LostTail(0, COUNT),))
        assert not folds_of(host).is_under_way
        await eventually(lambda: not folds_of(host).is_behind)
        assert (applied(host), host.state.high_watermark) == (0, 0)
        host.driver.call(lambda: (Commit(COUNT),))
        await eventually(lambda: applied(host) == COUNT)


@in_virtual_time
async def test_what_was_under_way_is_forgotten_where_another_store_takes_the_place() -> None:
    async with a_table() as (nodes, node, others):
        host = others[0]
        await in_the_middle(nodes, node, host)
        begun, table = folds_of(host).begun, host.state.require_table()
        table.start_over()
        await eventually(lambda: applied(host) == COUNT)
        assert folds_of(host).begun == begun + 1
        assert table.state.get(b"00094") is not None


@in_virtual_time
async def test_nothing_is_applied_once_the_replica_is_closed() -> None:
    async with a_table() as (nodes, node, others):
        host = others[0]
        await in_the_middle(nodes, node, host)
        host.close()
        await asyncio.sleep(1.0)
        assert applied(host) == 0
        assert not folds_of(host).is_under_way


@in_virtual_time
async def test_a_store_that_fails_in_the_middle_stops_the_replica() -> None:
    async with a_table() as (nodes, node, others):
        host = others[0]
        await in_the_middle(nodes, node, host)
        with patch.object(TableState, "apply_prepared", side_effect=ZeroDivisionError("a bug")):
            await eventually(lambda: host.state.failed is not None)
        assert "a bug" in str(host.state.failed)
        await asyncio.sleep(0.1)
        assert applied(host) == 0


@in_virtual_time
async def test_the_further_a_table_is_behind_the_more_a_turn_applies() -> None:
    async with a_table() as (nodes, node, others):
        host = others[0]
        with patch.object(table_folds, "STEPS", 5):
            turns = PerTurn()
            async with turns.watched(TableState, "add_effects", 1):
                nodes.nodes[host.services.node_id].turn.pieces = SlowTurns(1, Random(1))
                await written(node, host.shard_id, *puts())
                await eventually(lambda: applied(host) == COUNT)
        assert turns.most == COUNT // 5


@in_virtual_time
async def test_no_tombstone_is_forgotten_while_older_changes_may_wait_to_be_merged() -> None:
    async with a_table(MULTI) as (_, node, others):
        shard_id = others[0].shard_id
        await written(node, shard_id, Put(b"k", b"v"))
        await written(node, shard_id, Delete(b"k"))
        host = node.hosts[shard_id]
        await eventually(lambda: all(applied(one) == 2 for one in others))
        state = host.state.require_table().state
        assert isinstance(state, MergedState)
        await eventually(lambda: not host.replica.needs_tick)  # all have said what they have
        node.turn.pieces = SlowTurns(1, Random(1))
        large = asyncio.ensure_future(written(node, shard_id, *puts()))
        await eventually(lambda: durable_end(host) > applied(host))
        host.upkeep.apply_retention(0)
        assert state.tombstones() == 1
        await large
        await eventually(lambda: not host.replica.needs_tick)
        host.upkeep.apply_retention(0)
        assert state.tombstones() == 0
