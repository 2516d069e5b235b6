"""What S0 says of clients and watchers, on nodes that run for real in this process."""

import asyncio
from pathlib import Path

import pytest

import antiphon.aio
from antiphon.errors import NotLeaderError
from antiphon.wire.requests import Delete, Put, TableGet, TableWrite
from tests.node.in_process import Nodes, cluster_of, eventually, run

pytestmark = pytest.mark.cluster


def _default_shards(nodes: Nodes) -> list[int]:
    return [shard.shard_id for shard in nodes.nodes[0].topic("default").shards]


def test_s0_18_put_get_and_delete_are_carried_out_by_the_leader_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, 3) as nodes:
            await eventually(lambda: any(topic.name == "default" for topic in nodes.nodes[0].metadata.topics))
            shard_id = _default_shards(nodes)[0]
            leader = (await nodes.leader(shard_id)).services.node_id
            for node_id, node in nodes.nodes.items():
                if node_id == leader:
                    continue
                for ops in ((Put(b"k", b"v"),), (Delete(b"k"),)):
                    with pytest.raises(NotLeaderError) as refused:
                        await node.table_write(TableWrite(shard_id, ops))
                    assert refused.value.details["leader"] in {leader, None}  # a hint
                with pytest.raises(NotLeaderError):
                    await node.table_get(TableGet(shard_id, (b"k",)))
            node = nodes.nodes[leader]
            assert (await node.table_write(TableWrite(shard_id, (Put(b"k", b"v"),)))).results[0].status == 0
            row = (await node.table_get(TableGet(shard_id, (b"k",)))).rows[0]
            assert row is not None
            assert row.value == b"v"

    run(test())


def test_s0_32_watchers_hear_of_a_put_after_its_commit_never_before(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster_of(tmp_path, 3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
            await db.create_table("watched", shards=1, replicas=3)
            table = db.table("watched")
            async with table.watch() as changes:
                await table.put("committed", b"1")
                first = await asyncio.wait_for(anext(changes), 10)
                assert (first.key, first.value) == (b"committed", b"1")
                shard_id = nodes.nodes[0].topic("watched").shards[0].shard_id
                leader = await nodes.leader(shard_id)
                others = [node_id for node_id in nodes.nodes if node_id != leader.services.node_id]
                for node_id in others:  # no majority: what is put now cannot be committed
                    await nodes.stop(node_id)
                waiting = asyncio.ensure_future(table.put("later", b"2"))
                hearing = asyncio.ensure_future(anext(changes))
                await eventually(lambda: leader.log.log_end > leader.high_watermark)
                assert not hearing.done()
                assert not waiting.done()
                for node_id in others:
                    await nodes.start(node_id)
                await asyncio.wait_for(waiting, 25)
                heard = await asyncio.wait_for(hearing, 10)
                assert (heard.key, heard.value) == (b"later", b"2")

    run(test())
