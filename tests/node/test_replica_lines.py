"""Lines about a replica say of which shard they are, in which term, and where its log ends."""

import structlog

from antiphon.model.requests import ElectLeader
from tests.node.in_process import append_to, cluster_of, eventually, in_virtual_time, leader_of, new_shard

PLACE = {"shard", "term", "log_end"}


@in_virtual_time
async def test_every_line_about_a_replica_says_where() -> None:
    async with cluster_of(3) as nodes:
        with structlog.testing.capture_logs() as lines:
            shard_id = await new_shard(nodes)
            at = await append_to(nodes, shard_id, b"x")
            first = (await leader_of(nodes, shard_id)).state.term
            await nodes.nodes[0].gateway.administer(ElectLeader(shard_id))
            await eventually(lambda: nodes.nodes[0].hosts[shard_id].state.term > first)
            leader = await leader_of(nodes, shard_id)
            leader.driver.fail(OSError("the disk is gone"))
        told = [line for line in lines if line.get("shard") == shard_id]
        assert {line["event"] for line in told} >= {"leader_ready", "role_changed", "replica_stopped"}
        assert [line for line in told if not line.keys() >= PLACE] == []
        (stopped,) = [line for line in told if line["event"] == "replica_stopped"]
        assert stopped["term"] > first
        assert stopped["log_end"] > at
