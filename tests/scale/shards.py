"""More shards on three nodes, each shard with three replicas: what they cost at rest, and what clients notice."""

import asyncio
import time
from typing import Final

import antiphon
import antiphon.aio
from antiphon.tools.local_cluster import LocalCluster
from tests.scale.resting import Figures, at_rest, timed, value

TOPIC: Final = "shards"
IN_FLIGHT: Final = 64
SETTLES_S: Final = 20.0
SETTLES_A_SECOND: Final = 50  # shards: nodes write down the state of new ones


def measure_shards(shards: int, seconds: float) -> Figures:
    """Seconds until all have leaders, CPU and memory at rest, appends of 100 B to all of them in turn."""
    with LocalCluster.start() as cluster:
        began = time.monotonic()
        with antiphon.connect(cluster.native) as db:
            db.create_topic(TOPIC, shards=shards, replicas=3, timeout_s=300)
        made_s = round(time.monotonic() - began, 2)
        time.sleep(SETTLES_S + shards / SETTLES_A_SECOND)
        resting = at_rest(cluster)
        busy = asyncio.run(_appends(cluster.native, shards, seconds))
        return {"made_s": made_s, **resting, **busy}


async def _appends(servers: str, shards: int, seconds: float) -> Figures:
    async with antiphon.aio.connect(servers) as db:
        topic, data = db.topic(TOPIC), value(100)
        for first in range(0, shards, IN_FLIGHT):  # the first append makes a shard's files
            some = range(first, min(shards, first + IN_FLIGHT))
            await asyncio.gather(*(topic.append(data, shard=shard) for shard in some))
        return await timed(lambda number: topic.append(data, shard=number % shards), IN_FLIGHT, seconds)
