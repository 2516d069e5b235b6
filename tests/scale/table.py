"""A table with more keys, of one shard with three replicas: memory, puts and gets, a restart, a copy to another node."""

import asyncio
import time
from random import Random
from typing import Final

import antiphon
import antiphon.aio
from antiphon.client.addresses import parse_address
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.model.loads import LoadRows
from antiphon.model.metadata import ShardMeta
from antiphon.records.packed_rows import packed
from antiphon.tools.local_cluster import LocalCluster
from tests.scale.resting import Figures, memory_mib, timed, value

TABLE: Final = "large"
ROW_BYTES: Final = 100
LOADED_AT_ONCE: Final = 500
IN_FLIGHT: Final = 64
TIMEOUT_MS: Final = 120_000
NODES: Final = 4  # three have replicas, one is free to get one


class Keys:
    """The table, which grows from one number of keys to the next."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._keys = 0
        with antiphon.connect(cluster.native) as db:
            db.create_table(TABLE, shards=1, replicas=3)

    def measure(self, keys: int, seconds: float) -> Figures:
        """Load to so many keys; put and get drawn ones; move a replica to the free node; kill the leader."""
        loaded, began = keys - self._keys, time.perf_counter()
        self._load(keys)
        load_s = time.perf_counter() - began
        puts, gets = asyncio.run(self._work(seconds))
        copy_s = self._moved()
        memory = memory_mib(self._cluster)
        leader = self._shard().leader
        self._cluster.kill(leader)
        began = time.perf_counter()
        self._cluster.start_node(leader)
        return {
            "loaded_per_s": round(loaded / load_s),
            "memory_mib": memory,
            "puts_per_s": puts["rate"],
            "put_p99_ms": puts["p99_ms"],
            "gets_per_s": gets["rate"],
            "copy_s": round(copy_s, 2),
            "restart_s": round(time.perf_counter() - began, 2),
        }

    def _load(self, keys: int) -> None:
        shard_id, random = self._shard().shard_id, Random(self._keys)
        with Cluster([parse_address(one) for one in self._cluster.native.split(",")], TIMEOUT_MS) as cluster:
            while self._keys < keys:
                end = min(keys, self._keys + LOADED_AT_ONCE)
                rows = [(_key(number), random.randbytes(ROW_BYTES)) for number in range(self._keys, end)]
                request = LoadRows(shard_id, len(rows), timeout_ms=TIMEOUT_MS, bulk=False)
                cluster.call_all([ShardCall(shard_id, request, [packed(rows)])])
                self._keys = end

    async def _work(self, seconds: float) -> tuple[Figures, Figures]:
        random, data = Random(1), value(ROW_BYTES)
        async with antiphon.aio.connect(self._cluster.native) as db:
            table = db.table(TABLE)
            await table.put(_key(0), data)
            puts = await timed(
                lambda _number: table.put(_key(random.randrange(self._keys)), data), IN_FLIGHT, seconds
            )
            gets = await timed(
                lambda _number: table.get(_key(random.randrange(self._keys))), IN_FLIGHT, seconds
            )
        return puts, gets

    def _moved(self) -> float:
        """Seconds until the free node has a replica, and another one is free."""
        shard = self._shard()
        (free,) = set(range(NODES)) - set(shard.ensemble)
        leaves = next(node for node in shard.ensemble if node != shard.leader)
        began = time.perf_counter()
        with antiphon.connect(self._cluster.native) as db:
            db.move_replica(TABLE, 0, leaves, free)
            db.wait_for_moves(TABLE, timeout_s=TIMEOUT_MS / 1000)
        return time.perf_counter() - began

    def _shard(self) -> ShardMeta:
        with antiphon.connect(self._cluster.native) as db:
            while True:
                shard = next(topic for topic in db.metadata().topics if topic.name == TABLE).shards[0]
                if shard.leader >= 0:
                    return shard
                time.sleep(0.02)


def _key(number: int) -> bytes:
    return b"key-%010d" % number
