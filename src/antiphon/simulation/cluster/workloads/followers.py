"""Readers that follow a topic: offsets rise without gaps, and what is read as committed is what was committed there.

Committed reads are held to the committed log at the moment in which they arrive. Where that is not promised (uncommitted
reads, a commit rule that may lose what it acknowledged, a topic that every replica writes) a reader may still see only what
somebody has sent, at offsets that rise; a fail-over may take the place away at which it reads.

A reader whose place was trimmed begins anew with the first record that is there. It may be none: what was trimmed at the
replica that leads in that moment is given to nobody, though others still have it.
"""

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import OffsetOutOfRangeError
from antiphon.records.decode import Record, decode_records
from antiphon.simulation.cluster.drawing import Drawn, sometimes
from antiphon.simulation.cluster.workloads.following import FollowingWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.topic import TopicWorkload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

READERS: Final = 2  # of each shard
RECORDS_MAX: Final = 400  # of one read, about, until it is begun anew
ISOLATIONS: Final = ("committed", "committed", "uncommitted", "")
EARLIEST: Final = -2


class _Reader:
    """One reader of one shard. `next`: behind the last record that it was given; -1: none since it began (anew)."""

    def __init__(self, shard: int, shard_id: int, isolation: str, *, judged: bool) -> None:
        self.shard = shard
        self.shard_id = shard_id
        self.isolation = isolation
        self.judged = judged  # against what is committed
        self.next = -1

    @property
    def start(self) -> int:
        """From where it reads on."""
        return EARLIEST if self.next < 0 else self.next


class _Committed:
    """The records of a shard's committed log, decoded as it grows."""

    def __init__(self, cluster: "SimulatedCluster", shard_id: int) -> None:
        self._truth = cluster.evidence.truth(shard_id)
        self._batches = 0
        self._following: dict[int, int] = {}  # by record: its place in `offsets`
        self.offsets: list[int] = []
        self.values: dict[int, bytes] = {}

    def learn(self) -> None:
        """Decode what was committed since."""
        for batch in self._truth.batches[self._batches :]:
            for record in decode_records(batch.data):
                self._following[record.offset] = len(self.offsets)
                self.offsets.append(record.offset)
                self.values[record.offset] = bytes(record.value or b"")
        self._batches = len(self._truth.batches)

    def before(self, offset: int) -> int:
        """The record before this one, -1 for the first."""
        place = self._following[offset]
        return self.offsets[place - 1] if place else -1

    def due(self, reader: _Reader) -> int:
        """From where on a reader has to be given everything. One that begins may begin where any log has begun."""
        return self._truth.latest_start if reader.next < 0 else reader.next


@workload("followers", 4, Drawn(sometimes(0.4), "loads", 5), reads="topic", switch=True)
class FollowerWorkload(FollowingWorkload):
    """`read(follow=True)`, committed, uncommitted and by the topic's default, of a shard and of the whole topic.

    Checked: committed reads return what is committed there, without gaps, from an offset where some log began; other
    reads: offsets rise, and a client has sent each record.

    `writers` append to the topic that is followed.
    """

    def __init__(self, cluster: "SimulatedCluster", writers: TopicWorkload) -> None:
        super().__init__(cluster, "followers", writers)
        self._topic = writers
        self._readers: list[_Reader] = []
        self._logs: dict[int, _Committed] = {}
        self.outcomes = {"read": 0, "reads": 0}

    def begin(self) -> None:
        """See `Workload`."""
        options = self.cluster.options
        promised = options.commit != "local" and options.profile != "multi"
        for shard, shard_id in enumerate(self._topic.shard_ids):
            self._logs[shard_id] = _Committed(self.cluster, shard_id)
            for number in range(READERS):
                isolation = self.random.choice(ISOLATIONS)
                reader = _Reader(
                    shard, shard_id, isolation, judged=promised and self._is_committed(isolation)
                )
                self._readers.append(reader)
                self.spawn_follower(f"{shard}-{number}", partial(self._read_once, reader), "read-failed")
        if options.whole_readers:
            isolation = self.cluster.stream("readers of whole topics").choice(ISOLATIONS)
            own = {
                shard: _Reader(shard, shard_id, isolation, judged=promised and self._is_committed(isolation))
                for shard, shard_id in enumerate(self._topic.shard_ids)
            }
            self._readers += own.values()
            self.spawn_follower("whole", partial(self._read_all_once, own), "read-failed")

    def _is_committed(self, isolation: str) -> bool:
        return isolation == "committed" or (not isolation and self.cluster.options.profile != "fluvio")

    async def _read_once(self, reader: _Reader, db: "AsyncClient", process: "Process") -> None:
        try:
            await self._read(db, {reader.shard: reader}, process, reader.shard, reader.start)
        except OffsetOutOfRangeError as error:
            self.cluster.tell("read-out-of-range", reader.shard_id, reader.next, error.message)
            self._check_gone(reader, int(error.details.get("start", 0)))
            reader.next = -1
            await self.think(process)

    async def _read_all_once(
        self, readers: dict[int, _Reader], db: "AsyncClient", process: "Process"
    ) -> None:
        """Follow all shards as one, from where each of them is."""
        try:
            starts = {shard: one.start for shard, one in readers.items()}
            await self._read(db, readers, process, None, starts)
        except OffsetOutOfRangeError as error:
            self.cluster.tell("read-out-of-range", "whole", error.message)
            for one in readers.values():  # it may be any of them
                one.next = -1
            await self.think(process)

    async def _read(
        self,
        db: "AsyncClient",
        readers: dict[int, _Reader],
        process: "Process",
        shard: int | None,
        start: Any,
    ) -> None:
        """Read some records of one shard, or of all."""
        records = process.random.randint(1, 2 * RECORDS_MAX)
        isolation = next(iter(readers.values())).isolation
        topic = await db.topic(self._topic.name)
        self.outcomes["reads"] += 1
        chunks = topic.read_chunks(shard, start, isolation=isolation, follow=True, timeout_s=PATIENCE_S)
        async with aclosing(chunks):
            async for chunk in chunks:
                for record in chunk:
                    self._given(readers[record.shard], record)
                records -= len(chunk)
                if records < 0:
                    return

    # -- the judge ------------------------------------------------------------------------------------------------

    def _given(self, reader: _Reader, record: Record) -> None:
        value, shard_id = bytes(record.value or b""), reader.shard_id
        self.outcomes["read"] += 1
        self.cluster.tell("read", shard_id, reader.isolation, record.offset, value)
        what = f"a reader of shard {shard_id} ({reader.isolation or 'default'}) was given {value!r} at {record.offset}"
        require(record.offset >= reader.next, "offsets-rise", f"{what}, after {reader.next - 1}", shard_id)
        require(self._topic.was_sent(value), "nobodys-record", f"{what}, which nobody has sent", shard_id)
        if reader.judged:
            log = self._logs[shard_id]
            log.learn()
            require(
                log.values.get(record.offset) == value,
                "read-committed",
                f"{what}; committed there is {log.values.get(record.offset)!r}",
                shard_id,
            )
            before = log.before(record.offset)
            require(
                before < log.due(reader),
                "read-without-gaps",
                f"{what}, and was to be given all from {log.due(reader)} on: {log.values.get(before)!r} is at {before}",
                shard_id,
            )
        reader.next = record.offset + 1

    def _check_gone(self, reader: _Reader, log_start: int) -> None:
        """Where a committed read cannot go on, the log was trimmed."""
        latest = self.cluster.evidence.truth(reader.shard_id).latest_start
        require(
            not reader.judged or reader.next < log_start <= latest,
            "read-goes-on",
            f"a reader at {reader.next} is told that the log begins at {log_start}, and none began after {latest}",
            reader.shard_id,
        )

    def has_everything(self) -> bool:
        """See `FollowingWorkload`."""
        for log in self._logs.values():
            log.learn()
        return not any(reader.judged and self._waits(reader) for reader in self._readers)

    def _waits(self, reader: _Reader) -> bool:
        """Is there something that it has to be given, and was not?"""
        log = self._logs[reader.shard_id]
        return bool(log.offsets) and log.offsets[-1] >= log.due(reader)

    def check(self) -> None:
        """See `Workload`: everything was judged when it arrived, and all have everything."""
