"""Damage that the cleaner of a node meets while it compacts a log."""

from antiphon.node.compaction import extent_now
from antiphon.node.config import Cleaner
from antiphon.records.builder import build_batch
from tests.node.in_process import DIRECTORY, cluster_of, eventually, in_virtual_time

CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "16384",
    "min.cleanable.dirty.ratio": "0.9",
    "segment.ms": "600000",
}


@in_virtual_time
async def test_a_replica_whose_damage_the_cleaner_finds_is_mended_by_the_others() -> None:
    """The cleaner tells nobody but the replica, which stops, is opened again as damaged, and fetches what it lacks."""
    async with cluster_of(
        3, cleaner=Cleaner(0, 1 << 20, 600_000)
    ) as nodes:  # nobody compacts until it is asked to
        shard_id = await nodes.new_shard(replicas=3, config=CONFIG)
        leader = (await nodes.leader(shard_id)).services.node_id
        victim = nodes.nodes[(leader + 1) % 3]
        value = b"x" * 4_000
        for number in range(20):
            batch = build_batch([(b"k%d" % (number % 3), value, [], 1)])
            await nodes.nodes[leader].gateway.append(shard_id, batch)
        host = victim.hosts[shard_id]
        end = (await nodes.leader(shard_id)).log.log_end
        await eventually(lambda: host.log.durable_end == end and len(host.log.compacting.closed(end)) > 2)
        host.log.release_memory()
        first = host.log.compacting.closed(end)[0]
        nodes.disks[victim.node_id].flip_bit(
            f"{DIRECTORY}/shards/{shard_id}/{first.base_offset:020}.index", 403
        )

        await victim.care.cleaner.clean(host, extent_now(host))
        assert host.log.damaged is not None
        await eventually(lambda: victim.hosts.get(shard_id) not in (None, host))
        again = victim.hosts[shard_id]
        await eventually(lambda: again.log.damaged is None and again.status().state == "ok", 60)
        assert again.log.log_end >= end
