"""A compacted topic: producers write few keys over and over, with tombstones and transactions; nodes compact it meanwhile.

What lies on disks is judged by `compaction_judge`. What readers get is judged here:

- `compacted-read`: whoever reads all that is committed gets the newest record of each key that was there when it began and
  still is the newest when it ends, or one behind it; a key whose newest record was a tombstone may be missing.
- `compacted-fetch`: a fetch gives batches from where it asks on, one behind the other, that compaction may have left.
- `key-required`: a record without a key is refused.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from antiphon import system
from antiphon.errors import AntiphonError, TopicExistsError
from antiphon.kafka import error_codes as code
from antiphon.records.batch import iter_batches
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster.compaction_judge import CompactionJudge
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.kafka_consume import RETRIABLE
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import insist
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "newest"
KEYS: Final = 8
VALUE_BYTES: Final = 200  # at most, so that segments are closed
TRIES: Final = 30
EARLIEST: Final = -2
CODECS: Final = ("none", "none", "gzip")
FETCH_VERSIONS: Final = (5, 11, 12)  # by name, with the log's start in the answer


@workload("compacted_writers", 24, Drawn(one_of(0, 0, 0, 1, 2), "compaction", 0), logs_in=False)
class CompactedWorkload(KafkaWorkload):
    """Producers write few keys of a compacted topic over and over, compressed and not, with tombstones, transactions that
    commit and abort, and records without a key; readers build their state from it, others fetch at any offset. Segments
    are small, passes are a tenth of a second apart, some worlds have room for five keys a pass.

    Checked: each segment before it takes its place, and all disks in the end, by `compaction_judge.py`: offsets, terms and
    control batches are as committed; no record that was not committed; a record is gone only if it was aborted, a newer
    one of its key is committed, or it is a tombstone that is old enough; each producer's last batch is known. A reader
    gets each key's newest record, or a newer one, unless it was written again meanwhile; a record without a key is
    refused.
    """

    topic = TOPIC
    partitions = 1

    def __init__(self, cluster: "SimulatedCluster", name: str = "compacted") -> None:
        super().__init__(cluster, name)
        self.outcomes = {
            "keyed": 0,
            "keyless-refused": 0,
            "transactions": 0,
            "compacted-read": 0,
            "compacted-fetched": 0,
        }
        self._judges: dict[int, CompactionJudge] = {}
        self._config: dict[str, str] = {}

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        options, draw = self.cluster.options, self.cluster.stream("compaction")
        retention_ms = options.delete_retention_ms
        self._config = {
            "cleanup.policy": draw.choice(("compact", "compact", "compact,delete")),
            "segment.bytes": "4096",
            "min.cleanable.dirty.ratio": draw.choice(("0", "0.3")),
            "min.compaction.lag.ms": draw.choice(("0", "0", "200")),
            "delete.retention.ms": str(retention_ms),
        }
        if options.commit not in {"", "local"}:
            self._config["commit"] = options.commit
        profile = options.profile if options.profile in {"raft", "fluvio", "kip27"} else "oxia"
        with contextlib.suppress(TopicExistsError):  # an answer was lost
            await insist(
                lambda: db.create_topic(
                    TOPIC,
                    shards=self.partitions,
                    replicas=options.replicas,
                    profile=profile,
                    config=self._config,
                )
            )
        await super().set_up(db)
        for shard_id in self.shard_ids.values():
            truth = self.cluster.evidence.truth(shard_id)
            truth.compaction = self._judges[shard_id] = CompactionJudge(
                truth, retention_ms, lambda: self.cluster.loop.now, self._last_started_s
            )

    def _last_started_s(self) -> float:
        processes = [machine.process for machine in self.cluster.machines]
        return max(process.began_s for process in processes if process is not None)

    def begin(self) -> None:
        """See `Workload`."""
        for number in range(self.cluster.options.compacted_writers):
            self.spawn(f"{number}", self._write)
        self.spawn("transactor", self.with_client(self._transact))
        self.spawn("reader", self.with_client(self._read_on))
        self.spawn("fetcher", self._fetch_on)

    # -- writers ----------------------------------------------------------------------------------------------------

    def _records(self, process: "Process") -> list[tuple[bytes | None, bytes | None, tuple[()], int]]:
        draw = process.random
        return [
            (
                b"key-%d" % draw.randrange(KEYS),
                None if draw.random() < 0.2 else draw.randbytes(draw.randint(1, VALUE_BYTES)),
                (),
                system.wall_ms(),
            )
            for _ in range(draw.randint(1, 4))
        ]

    async def _write(self, process: "Process") -> None:
        client, draw, sequences = self.client(process), process.random, dict.fromkeys(self.shard_ids, 0)
        producer = await client.producer_id()
        while not self.stopped:
            partition, records = draw.choice(sorted(self.shard_ids)), self._records(process)
            if draw.random() < 0.05:
                await self._without_key(client, partition)
                continue
            batch = build_batch(
                records,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequences[partition],
                compression=draw.choice(CODECS),
            )
            if await self._sent(client, partition, bytes(batch)):
                sequences[partition] += len(records)
                self.outcomes["keyed"] += 1
            else:  # its outcome is not known
                producer, sequences = await client.producer_id(), dict.fromkeys(self.shard_ids, 0)
            await self.think(process)
        client.close()

    async def _sent(self, client: KafkaClient, partition: int, batch: bytes) -> bool:
        for _ in range(TRIES):
            found = await self._produce(client, partition, batch)
            if found == code.NONE:
                return True
            if found is not None and found not in RETRIABLE:
                return False
            client.forget(TOPIC, partition)
            await client.back_off()
            if self.stopped:
                return False
        return False

    async def _produce(self, client: KafkaClient, partition: int, batch: bytes) -> int | None:
        """The error code; None where no answer came."""
        address, _ = await client.leader(TOPIC, partition)
        try:
            return (await client.produce(address, TOPIC, partition, batch)).error_code
        except NoAnswerError:
            return None

    async def _without_key(self, client: KafkaClient, partition: int) -> None:
        records = [(b"key", b"", (), 1), (None, b"no key", (), 1)]
        found = await self._produce(client, partition, bytes(build_batch(records)))
        require(
            found is None or found == code.INVALID_RECORD or found in RETRIABLE,
            "key-required",
            f"a record without a key is answered with {found}",
            self.shard_ids[partition],
        )
        self.outcomes["keyless-refused"] += found == code.INVALID_RECORD
        client.forget(TOPIC, partition)

    async def _transact(self, db: "AsyncClient", process: "Process") -> None:
        draw, number = process.random, 0
        while not self.stopped:
            try:
                async with db.producer("compactor", transaction_timeout_s=2.0) as producer:
                    for _ in range(draw.randint(1, 5)):
                        transaction = producer.begin()
                        for key, value, *_ in self._records(process):
                            await transaction.append(
                                TOPIC, value, key=key, shard=draw.choice(sorted(self.shard_ids))
                            )
                        await transaction.flush()
                        await self.sleep(process, 0.3)
                        await (transaction.commit() if draw.random() < 0.6 else transaction.abort())
                        self.outcomes["transactions"] += 1
                        await self.think(process)
                        if self._has_stopped():
                            break
            except AntiphonError as error:
                self.cluster.tell("transaction-failed", number, error.code)
                await asyncio.sleep(0.1)
            number += 1

    # -- readers ----------------------------------------------------------------------------------------------------

    def _has_stopped(self) -> bool:
        """Is nothing new to be begun?"""
        return self.stopped

    async def _read_on(self, db: "AsyncClient", process: "Process") -> None:
        while not self.stopped:
            with self.tells("read-failed"):
                await self._read(db, process.random.choice(sorted(self.shard_ids)))
            await self.sleep(process, 0.5)

    async def _read(self, db: "AsyncClient", partition: int) -> None:
        """All of a partition, as an application does that builds its state from it."""
        shard_id = self.shard_ids[partition]
        judge, truth = self._judges[shard_id], self.cluster.evidence.truth(shard_id)
        wanted, end = judge.fold(truth.end), 0
        found: dict[bytes, int] = {}
        async for record in db.topic(TOPIC).read(partition, EARLIEST, isolation="committed"):
            found[record.key or b""] = end = record.offset
            require(
                record.offset not in judge.aborted,
                "compacted-read",
                f"a reader of committed records is given {record}, which was aborted",
                shard_id,
            )
        self.outcomes["compacted-read"] += 1
        now = judge.fold(truth.end)
        for key, newest in wanted.items():
            require(
                found.get(key, -1) >= newest.offset
                or now[key]
                != newest  # what was the newest may be gone since, and the newer one is behind the end
                or newest.value is None
                or not truth.latest_start
                <= newest.offset
                < end,  # this leader's log may begin, or be stable, elsewhere
                "compacted-read",
                f"a reader of all up to {end} finds {key!r} at {found.get(key)}; when it began the newest was {newest}",
                shard_id,
            )

    async def _fetch_on(self, process: "Process") -> None:
        client = self.client(process)
        while not self.stopped:
            try:
                await self._fetch(client, process.random.choice(sorted(self.shard_ids)))
            except NoAnswerError:
                client.forget(TOPIC, min(self.shard_ids))
            await self.sleep(process, 0.1)
        client.close()

    async def _fetch(self, client: KafkaClient, partition: int) -> None:
        draw, shard_id = client.random, self.shard_ids[partition]
        address, _ = await client.leader(TOPIC, partition)
        position = draw.randint(0, self.end_of(partition))
        max_bytes, version = draw.choice((1, 3_000, 100_000)), draw.choice(FETCH_VERSIONS)
        found = await client.fetch(address, TOPIC, partition, position, max_bytes, version)
        if found.error_code:
            client.forget(TOPIC, partition)
            return
        for header, batch in iter_batches(found.records or b""):
            require(
                header.base_offset <= position < header.next_offset,
                "compacted-fetch",
                f"a fetch at {position} gives {header.base_offset}..{header.next_offset}",
                shard_id,
            )
            self._judges[shard_id].check(header, bytes(batch), f"a fetch at {position}")
            position = header.next_offset
        self.outcomes["compacted-fetched"] += 1

    def check(self) -> None:
        """See `Workload`: what is on the disks in the end."""
        options = self.cluster.options
        for shard_id, judge in self._judges.items():
            for machine, host in self.cluster.replicas_of(shard_id):
                if host.log.log_start or options.fault_every_ms:
                    continue
                batches = self.cluster.evidence.durable_batches(machine, host)
                records = decode_records(b"".join(bytes(batch) for batch in batches))
                judge.check_resurrected(records, f"node {machine.node_id}")
