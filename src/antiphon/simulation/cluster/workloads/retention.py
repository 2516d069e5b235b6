"""A topic whose records are kept for a second or so: what is too old goes, and nothing else does.

- `retained-too-little`: where a replica's log begins, only batches are gone whose records are all older than
  `retention.ms` by the fastest clock that a node can have.
- `retained-too-long`: in the end, what is too old by the slowest clock, and in a segment before the one that holds
  anything newer, is gone from every replica.
- `retained-read`: a fetch is refused as out of range only below the start of a log; else it gives what is committed there
  (`fetched-is-committed`).
"""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon import system
from antiphon.kafka import error_codes as code
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.timing import RETENTION_CHECK_MS
from antiphon.simulation.cluster.workloads.kafka_consume import FETCHED_AGAIN
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.runtime.process import EPOCH_NS
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.truth import Batch
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "aging"
FETCH_VERSION: Final = 12
RETENTION_MS: Final = (500, 1_000, 2_000)
SEGMENT_BYTES: Final = 4096
VALUE_BYTES: Final = 1_000
OLD_MS: Final = 60_000  # some records are as old as that when they are written
YOUNG_MS: Final = 1_000  # and some have a time that is yet to come
CLOCK_GAIN_MS: Final = 20  # at most, of a node's clock between two looks
LOOKS_S: Final = 0.1
LAST_S: Final = 20.0  # how long what is too old may take to go, in the end


@workload("retention_writers", 37, Drawn(seldom(0.12, 2), "retention"), logs_in=False)
class RetentionWorkload(KafkaWorkload):
    """Producers write to a topic with `retention.ms` of 0.5 to 2 s and small segments, some records with a time long past
    or yet to come, while nodes look for what is too old four times a second, and consumers fetch at any offset; one world
    in eight has it.

    Checked: no replica's log begins behind a record that is younger than that by any node's clock; in the end no replica
    has a whole segment, and a batch, that is older; what is there is read as it was committed.
    """

    topic = TOPIC
    partitions = 1

    def __init__(self, cluster: "SimulatedCluster", name: str = "retention") -> None:
        super().__init__(cluster, name)
        self.outcomes = {"aging": 0, "aged-out": 0, "aging-read": 0, "aging-gone": 0}
        self._retention_ms = 0
        self._ahead_ms = 0  # how far the fastest clock of a node ever was before the world's
        self._behind_ms = 0  # and the slowest one behind it
        self._started: dict[int, int] = {}  # by partition: the latest start of a log that was judged

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        self._retention_ms = self.cluster.stream("retention time").choice(RETENTION_MS)
        self.config = {"retention.ms": str(self._retention_ms), "segment.bytes": str(SEGMENT_BYTES)}
        await super().set_up(db)
        self._started = dict.fromkeys(self.shard_ids, 0)

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(self.cluster.options.retention_writers, self._work)
        self.spawn("looks", self._look_on)

    # -- clients --------------------------------------------------------------------------------------------------

    async def _work(self, process: "Process", _number: int) -> None:
        client, draw = self.client(process), process.random
        while not self.stopped:
            partition = draw.choice(sorted(self.shard_ids))
            try:
                await (self._append if draw.random() < 0.7 else self._read)(client, partition)
            except NoAnswerError:
                client.forget(TOPIC, partition)
            await self.think(process)
        client.close()

    async def _append(self, client: KafkaClient, partition: int) -> None:
        address, _ = await client.leader(TOPIC, partition)
        draw = client.random
        records = [(None, draw.randbytes(VALUE_BYTES), (), _time_ms(draw)) for _ in range(draw.randint(1, 3))]
        if (await client.produce(address, TOPIC, partition, bytes(build_batch(records)))).error_code:
            client.forget(TOPIC, partition)
        else:
            self.outcomes["aging"] += 1

    async def _read(self, client: KafkaClient, partition: int) -> None:
        """Fetch once, from anywhere in what was ever committed."""
        draw, shard_id = client.random, self.shard_ids[partition]
        address, _ = await client.leader(TOPIC, partition)
        position = draw.randint(0, self.end_of(partition))
        found = await client.fetch(
            address, TOPIC, partition, position, draw.choice((1, 10_000)), FETCH_VERSION
        )
        if found.error_code == code.OFFSET_OUT_OF_RANGE:
            self.outcomes["aging-gone"] += 1
            self._judge_start(partition, position + 1, "a fetch was refused as out of range")
        elif found.error_code:
            require(found.error_code in FETCHED_AGAIN, "retained-read", f"error {found.error_code}", shard_id)
            client.forget(TOPIC, partition)
        else:
            self.outcomes["aging-read"] += 1
            self.judge_fetched(partition, position, found.records or b"")

    # -- what is kept, and what is not ----------------------------------------------------------------------------

    async def _look_on(self, _process: "Process") -> None:
        """Look where logs begin; when all is over, until what is too old had the time to go."""
        while not self.stopped:
            self._look()
            await asyncio.sleep(LOOKS_S)
        apart_ms = self._ahead_ms + self._behind_ms
        await asyncio.sleep((self._retention_ms + YOUNG_MS + apart_ms + RETENTION_CHECK_MS) / 1000)
        for _ in range(int(LAST_S / LOOKS_S)):  # a node may still be in repair
            self._look()
            if not any(self._left_too_long()):
                return
            await asyncio.sleep(LOOKS_S)

    def _look(self) -> None:
        world_ms = _world_ms(self.now)
        for machine in self.cluster.machines:
            if machine.process is not None:
                ahead_ms = machine.process.wall_ns() // 1_000_000 - world_ms
                self._ahead_ms = max(self._ahead_ms, ahead_ms)
                self._behind_ms = max(self._behind_ms, -ahead_ms)
        for partition, shard_id in self.shard_ids.items():
            for machine, host in self.cluster.replicas_of(shard_id):
                if host.state.failed is None:
                    self._judge_start(
                        partition, host.log.log_start, f"the log of node {machine.node_id} begins there"
                    )

    def _judge_start(self, partition: int, start: int, what: str) -> None:
        """All that is committed before `start` must be too old by now."""
        seen = self._started[partition]
        if start <= seen:
            return
        now_ms = _world_ms(self.now) + self._ahead_ms + CLOCK_GAIN_MS
        shard_id = self.shard_ids[partition]
        for batch in self.cluster.evidence.truth(shard_id).batches:
            if not seen <= batch.base_offset < start:
                continue
            age_ms = now_ms - _newest_ms(batch)
            require(
                age_ms > self._retention_ms,
                "retained-too-little",
                f"{start}: {what}; of {batch.base_offset}..{batch.next_offset} a record is {age_ms} ms old at most, and "
                f"{self._retention_ms} ms are to be kept",
                shard_id,
            )
            self.outcomes["aged-out"] += 1
        self._started[partition] = start

    def check(self) -> None:
        """See `Workload`."""
        for shard_id, what in self._left_too_long():
            require(False, "retained-too-long", what, shard_id)

    def _left_too_long(self) -> "Iterator[tuple[int, str]]":
        """What is too old for certain and still there, though not in a segment with something newer."""
        slowest_ms = _world_ms(self.now) - self._behind_ms - CLOCK_GAIN_MS
        oldest_ms = slowest_ms - self._retention_ms - RETENTION_CHECK_MS
        for shard_id in self.shard_ids.values():
            batches = self.cluster.evidence.truth(shard_id).batches
            old = _old_ones(batches, oldest_ms)
            for machine, host in self.cluster.replicas_of(shard_id):
                if host.state.failed is not None:
                    continue
                begins = host.log.log_start
                left = sum(len(batch.data) for batch in old if batch.base_offset >= begins)
                if left > (SEGMENT_BYTES if len(old) < len(batches) else 0):
                    yield (
                        shard_id,
                        (
                            f"the log of node {machine.node_id} begins at {begins}; {left} bytes of batches behind it are "
                            f"older than {self._retention_ms} ms, and segments have {SEGMENT_BYTES} bytes at most"
                        ),
                    )


def _time_ms(draw: "Random") -> int:
    kind, now_ms = draw.random(), system.wall_ms()
    if kind < 0.1:
        return now_ms - draw.randint(0, OLD_MS)
    return now_ms + (draw.randint(0, YOUNG_MS) if kind < 0.15 else 0)


def _world_ms(world_s: float) -> int:
    return EPOCH_NS // 1_000_000 + int(world_s * 1000)


def _newest_ms(batch: "Batch") -> int:
    return read_header(batch.data).max_timestamp


def _old_ones(batches: "list[Batch]", oldest_ms: int) -> "list[Batch]":
    """The batches from the first one on that are all too old."""
    for place, batch in enumerate(batches):
        if _newest_ms(batch) >= oldest_ms:
            return batches[:place]
    return batches
