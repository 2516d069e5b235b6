"""A longer log, of one shard with three replicas: restart after SIGKILL, the first records, a follower's way back."""

import time
from contextlib import suppress
from typing import Final

import antiphon
from antiphon.errors import AntiphonError
from antiphon.model.metadata import ClusterMeta, ShardMeta
from antiphon.tools.bench.cluster import produce
from antiphon.tools.local_cluster import LocalCluster
from tests.scale.resting import MIB, Figures, memory_mib

TOPIC: Final = "long"
RECORD_BYTES: Final = 10_000
BATCH_BYTES: Final = 1_000_000
PIECE_S: Final = 1.0  # of producing, after which it is looked whether it is enough
SMALL_MIB: Final = 8
PATIENCE_S: Final = 900.0


class Log:
    """The shard, which grows from one size to the next."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        with antiphon.connect(cluster.native) as db:
            # No size of these is retained for less than the run.
            db.create_topic(
                TOPIC, shards=1, replicas=3, config={"retention.bytes": "-1", "retention.ms": "-1"}
            )
            self._shard = _shard(db.metadata())

    def measure(self, size_mib: int) -> Figures:
        """Grow to so many MiB while a follower is away, then wait for it, kill the leader, and read from the start."""
        leader = self._leader()
        away = next(node for node in self._shard.ensemble if node != leader)
        self._cluster.kill(away)
        grown_s = self._grow(size_mib)
        began = time.perf_counter()
        self._cluster.start_node(away)
        back_s, missed = self._in_step(began, away), self._missed
        killed = self._leader()
        self._cluster.kill(killed)
        began = time.perf_counter()
        self._cluster.start_node(killed)
        restart_s = time.perf_counter() - began
        first_ms = self._first_ms()
        return {
            "produced_mib_per_s": round(missed / MIB / grown_s, 1),
            "catch_up_s": round(back_s, 2),
            "caught_up_mib_per_s": round(missed / MIB / back_s, 1),
            "restart_s": round(restart_s, 2),
            "first_record_ms": round(first_ms, 1),
            "memory_mib": memory_mib(self._cluster),
        }

    def _grow(self, size_mib: int) -> float:
        began, self._missed = time.perf_counter(), 0
        while self._end() * RECORD_BYTES < size_mib * MIB:
            if size_mib <= SMALL_MIB:
                with antiphon.connect(self._cluster.native) as db:
                    db.topic(TOPIC).append_batch([bytes(RECORD_BYTES)] * 50, shard=0)
                self._missed += 50 * RECORD_BYTES
                continue
            done = produce(self._cluster.kafka, TOPIC, RECORD_BYTES, BATCH_BYTES, PIECE_S)
            self._missed += done.acknowledged * RECORD_BYTES
        return time.perf_counter() - began

    def _leader(self) -> int:
        with antiphon.connect(self._cluster.native) as db:
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end:
                leader = _shard(db.metadata()).leader
                if leader >= 0:
                    return leader
                time.sleep(0.02)
        raise AssertionError("nobody leads")

    def _end(self) -> int:
        with antiphon.connect(self._cluster.native) as db:
            return db.topic(TOPIC).offsets(0)[1]

    def _in_step(self, began: float, node: int) -> float:
        """Seconds until the node has the whole log."""
        whole = self._end()
        with antiphon.connect(self._cluster.native) as db:
            while time.perf_counter() - began < PATIENCE_S:
                with suppress(AntiphonError):  # it may not have said hello to the others yet
                    replicas = db.node_status(node).replicas
                    if any(one.shard_id == self._shard.shard_id and one.log_end >= whole for one in replicas):
                        return time.perf_counter() - began
                time.sleep(0.05)
        raise AssertionError(f"node {node} did not get the log within {PATIENCE_S:g} s")

    def _first_ms(self) -> float:
        with antiphon.connect(self._cluster.native) as db:
            topic = db.topic(TOPIC)
            began = time.perf_counter()
            with topic.read(0) as records:
                first = next(iter(records))
            took_s = time.perf_counter() - began
        if first.offset:
            raise AssertionError(f"the first record has offset {first.offset}")
        return took_s * 1000


def _shard(meta: ClusterMeta) -> ShardMeta:
    return next(topic for topic in meta.topics if topic.name == TOPIC).shards[0]
