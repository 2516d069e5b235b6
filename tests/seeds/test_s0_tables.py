"""What S0 says of clients and watchers (and S1 of completed requests), on nodes that run for real in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import antiphon.aio
from antiphon.errors import NotLeaderError
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, Delete, Put, TableGet, TableWrite
from antiphon.partition.partition import Partition
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

pytestmark = pytest.mark.cluster


def _default_shards(nodes: Nodes) -> list[int]:
    return [shard.shard_id for shard in nodes.nodes[0].gateway.topic("default").shards]


@in_virtual_time
async def test_s0_18_s0_21_put_get_and_delete_are_carried_out_by_the_leader_only() -> None:
    async with cluster_of(3) as nodes:
        await eventually(
            lambda: any(topic.name == "default" for topic in nodes.nodes[0].gateway.metadata.topics)
        )
        shard_id = _default_shards(nodes)[0]
        leader = (await nodes.leader(shard_id)).services.node_id
        for node_id, node in nodes.nodes.items():
            if node_id == leader:
                continue
            for ops in ((Put(b"k", b"v"),), (Delete(b"k"),)):
                with pytest.raises(NotLeaderError) as refused:
                    await node.gateway.table_write(TableWrite(shard_id, ops))
                assert refused.value.details["leader"] in {leader, None}  # a hint
            with pytest.raises(NotLeaderError):
                await node.gateway.table_get(TableGet(shard_id, (b"k",)))
        node = nodes.nodes[leader]
        assert (await node.gateway.table_write(TableWrite(shard_id, (Put(b"k", b"v"),)))).results[
            0
        ].status == 0
        row = (await node.gateway.table_get(TableGet(shard_id, (b"k",)))).rows[0]
        assert row is not None
        assert row.value == b"v"
        # Who asks for it by name gets what a follower knows to be committed (a divergence from S0.21).
        for follower in nodes.nodes.values():
            host = follower.hosts[shard_id]
            await eventually(lambda host=host: stored(host) == b"v")  # type: ignore[misc]
            row = (await follower.gateway.table_get(TableGet(shard_id, (b"k",), consistency="local"))).rows[0]
            assert row is not None
            assert row.value == b"v"


@in_virtual_time
async def test_s0_32_watchers_hear_of_a_put_after_its_commit_never_before() -> None:
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_table("watched", shards=1, replicas=3)
        table = db.table("watched")
        async with table.watch() as changes:
            await table.put("committed", b"1")
            first = await asyncio.wait_for(anext(changes), 10)
            assert (first.key, first.value) == (b"committed", b"1")
            shard_id = nodes.nodes[0].gateway.topic("watched").shards[0].shard_id
            leader = await nodes.leader(shard_id)
            others = [node_id for node_id in nodes.nodes if node_id != leader.services.node_id]
            for node_id in others:  # no majority: what is put now cannot be committed
                await nodes.stop(node_id)
            waiting = asyncio.ensure_future(table.put("later", b"2"))
            hearing = asyncio.ensure_future(anext(changes))
            await eventually(lambda: leader.log.log_end > leader.state.high_watermark)
            assert not hearing.done()
            assert not waiting.done()
            for node_id in others:
                await nodes.start(node_id)
            await asyncio.wait_for(waiting, 25)
            heard = await asyncio.wait_for(hearing, 10)
            assert (heard.key, heard.value) == (b"later", b"2")


@asynccontextmanager
async def slow_table() -> AsyncIterator[tuple[Nodes, Partition]]:
    """A node that leads a table with one row, `k` = `old`; from now on its disk takes half a second for a write."""
    async with cluster_of(1) as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", kind=Kind.TABLE))
        host = await nodes.leader(topic.shards[0].shard_id)
        await nodes.nodes[0].gateway.table_write(TableWrite(host.shard_id, (Put(b"k", b"old"),)))
        nodes.slow_s[0] = 0.5
        yield nodes, host


def stored(host: Partition, key: bytes = b"k") -> bytes | None:
    """What the table's store has by now."""
    row = host.state.require_table().state.get(key)
    return None if row is None else row.value


@in_virtual_time
async def test_s0_19_between_append_and_commit_a_get_returns_the_old_value() -> None:
    async with slow_table() as (nodes, host):
        node, shard_id = nodes.nodes[0], host.shard_id
        end = host.log.log_end
        putting = asyncio.ensure_future(node.gateway.table_write(TableWrite(shard_id, (Put(b"k", b"new"),))))
        await eventually(lambda: host.log.log_end > end)
        for consistency in ("linearizable", "leader"):
            row = (await node.gateway.table_get(TableGet(shard_id, (b"k",), consistency=consistency))).rows[0]
            assert row is not None
            assert row.value == b"old", consistency
        assert not putting.done()
        await putting
        row = (await node.gateway.table_get(TableGet(shard_id, (b"k",)))).rows[0]
        assert row is not None
        assert row.value == b"new"


@in_virtual_time
async def test_s0_20_s0_32_a_commit_is_applied_then_answered_then_notified() -> None:
    """At the moment when the client is answered the table has the value, and no watcher has heard of it."""
    async with slow_table() as (_, host):
        told: list[tuple[str, bytes | None]] = []
        end = host.log.log_end
        assert host.readers.follow(1, end, "committed", lambda: told.append(("notified", stored(host))))
        host.table_writes.write(
            TableWrite(host.shard_id, (Put(b"k", b"new"),)),
            lambda result: told.append((f"answered {getattr(result, 'offset', result)}", stored(host))),
        )
        await eventually(lambda: host.log.log_end > end)
        await asyncio.sleep(0.02)
        assert told == [], "nothing before the commit"
        await eventually(lambda: len(told) == 2)
        assert told == [(f"answered {end}", b"new"), ("notified", b"new")]


@in_virtual_time
async def test_s1_20_what_is_committed_is_applied_in_order_then_requests_are_completed_with_their_results() -> (
    None
):
    """Five puts of one key, committed at once: all are applied by the first answer; answers come in the log's order."""
    async with slow_table() as (_, host):
        answers: list[tuple[int, Any, bytes | None]] = []
        end = host.log.log_end

        def put(number: int) -> None:
            host.table_writes.write(
                TableWrite(host.shard_id, (Put(b"k", b"%d" % number),)),
                lambda result: answers.append((number, result, stored(host))),
            )

        for number in range(5):
            put(number)
        await eventually(lambda: host.log.log_end == end + 5)
        assert (answers, stored(host)) == ([], b"old")
        await eventually(lambda: len(answers) == 5)
        assert [number for number, _, _ in answers] == list(range(5))
        assert [result.offset for _, result, _ in answers] == list(range(end, end + 5))
        assert [result.results[0].version.modifications for _, result, _ in answers] == [1, 2, 3, 4, 5]
        first = answers[0][2]
        assert first is not None
        assert {value for _, _, value in answers} == {b"4"}, (
            "a group of entries is applied before its answers"
        )
