"""The file that says which snapshot takes the place of a table is damaged: the others send all of it again."""

import pytest

from antiphon.model.metadata import Kind
from antiphon.model.requests import Put, TableScan, TableWrite
from tests.node.damage_kinds import being_installed
from tests.node.in_process import NATIVE_PORT, ask, cluster_of, eventually, in_virtual_time


@pytest.mark.parametrize("content", [b"", b"ANTIPHIN", bytes(200)])
@in_virtual_time
async def test_the_replica_is_made_anew_from_the_others(content: bytes) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard("rows", kind=Kind.TABLE, replicas=3)
        leader = (await nodes.leader(shard_id)).services.node_id
        for number in range(9):
            put = TableWrite(shard_id, (Put(b"%d" % number, b"value"),))
            await ask(f"node-{leader}:{NATIVE_PORT}", put)
        victim = (leader + 1) % 3
        end = nodes.nodes[leader].hosts[shard_id].log.log_end
        await eventually(lambda: nodes.nodes[victim].hosts[shard_id].state.high_watermark == end)
        await nodes.stop(victim)
        disk = nodes.disks[victim]
        path = being_installed(disk, {"rows": shard_id})
        disk.restore(path, content)
        node = await nodes.start(victim)
        await eventually(lambda: any(one.kind == "replica_closed" for one in node.care.findings.all))
        await eventually(lambda: shard_id in node.hosts and node.hosts[shard_id].status().state == "ok", 40)
        await eventually(lambda: not node.care.findings.now)
        assert not disk.exists(path)
        await eventually(lambda: node.hosts[shard_id].state.high_watermark >= end)
        rows = await node.gateway.table_scan(TableScan(shard_id, b"", b"", 100, consistency="local"))
        assert len(rows.rows) == 9
