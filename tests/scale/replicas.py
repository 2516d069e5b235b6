"""More replicas of one shard: appends one at a time, and many records in batches."""

import asyncio

import antiphon
import antiphon.aio
from antiphon.tools.bench.cluster import produce
from antiphon.tools.local_cluster import LocalCluster
from tests.scale.resting import Figures, timed, value

NODES = 5
RECORD_BYTES, BATCH_BYTES = 100, 131_072


def measure_replicas(cluster: LocalCluster, replicas: int, seconds: float) -> Figures:
    """Records of 100 B a second in batches of 131 KB, and how long a lone append of 100 B takes."""
    topic = f"replicas-{replicas}"
    with antiphon.connect(cluster.native) as db:
        db.create_topic(topic, shards=1, replicas=replicas)
    done = produce(cluster.kafka, topic, RECORD_BYTES, BATCH_BYTES, seconds)
    alone = asyncio.run(_appends(cluster.native, topic, seconds))
    return {
        "records_per_s": round(done.acknowledged / done.took_s),
        "lone_p50_ms": alone["p50_ms"],
        "lone_p99_ms": alone["p99_ms"],
    }


async def _appends(servers: str, name: str, seconds: float) -> Figures:
    async with antiphon.aio.connect(servers) as db:
        topic, data = db.topic(name), value(RECORD_BYTES)
        await topic.append(data, shard=0)
        return await timed(lambda _number: topic.append(data, shard=0), 1, seconds)
