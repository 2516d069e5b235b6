"""Cuts of the whole cluster, as a backup takes them, while clients write what depends on each other in several shards."""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.backup import cut as cuts
from antiphon.backup.log_copy import TrimmedError, copy_state, drop_state, read_batches, read_state_file
from antiphon.errors import AntiphonError
from antiphon.model.backup import ID_BYTES, LEASE_MS_MAX, HoldShard
from antiphon.model.metadata import is_multi
from antiphon.records.batch import iter_batches
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.cut_history import CutHistory, TakenCut, Write
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import (
    PATIENCE_S,
    Workload,
    make_table,
    make_topic,
    shards_of,
)
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.client.producer import AsyncProducer
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "cut"
TABLE: Final = "cut-rows"
SHARDS: Final = 3
WRITERS: Final = 3
KEYS: Final = 6
LEASES_MS: Final = (60, 250, 1_000)
SLACK_S: Final = 1.0  # a node may be slow to notice that a lease is over
TRANSACTION_S: Final = 5.0


@workload("cutters", 27, Drawn(one_of(0, 0, 0, 0, 1)))
class CutWorkload(Workload):
    """Cuts of the cluster by the code of `antiphon backup`, and holds that nobody ends. Writers append to one shard, and
    after the acknowledgement to another one or to a table; others commit transactions over all shards.

    Checked: what was acknowledged before a cut began is in it, what began after it ended is not; if a write is in it, so is
    all that was acknowledged before that write began; a transaction of which a marker is in is there whole, with its
    decision; what is copied up to the cut is what was committed; no shard is held for longer than its lease.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "cutters") -> None:
        super().__init__(cluster, name)
        self.shard_ids: list[int] = []
        self.table_shards: list[int] = []
        self.history = CutHistory(cluster)
        self.outcomes = {
            "cuts-taken": 0,
            "cuts-failed": 0,
            "holds-abandoned": 0,
            "cuts-read": 0,
            "states-read": 0,
        }

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        await make_topic(self.cluster, db, TOPIC, SHARDS)
        self.shard_ids = await shards_of(db, TOPIC)
        shards = await make_table(self.cluster, db, TABLE, shards=2)
        self.table_shards = [shard.shard_id for shard in shards]

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(WRITERS, self.with_client(self._write))
        self.spawn_all(1, self.with_client(self._transact))
        self.spawn_all(self.cluster.options.cutters, self._work)

    # -- writes -------------------------------------------------------------------------------------------------

    async def _write(self, db: "AsyncClient", process: "Process", number: int) -> None:
        """Each write is sent after the one before was acknowledged, or given up."""
        draw, serial = process.random, 0
        topic, table = db.topic(TOPIC), db.table(TABLE)
        while not self.stopped:
            serial += 1
            write = self.history.begun(Write(f"{number}:{serial}", self.now))
            with self.tells("cut-write-unknown", write.text):
                if draw.random() < 0.7:
                    await topic.append(write.text, shard=draw.randrange(SHARDS), timeout_s=PATIENCE_S)
                else:
                    await table.put(b"%d" % draw.randrange(KEYS), write.text.encode(), timeout_s=PATIENCE_S)
                write.acknowledged = self.now
            await self.think(process)

    async def _transact(self, db: "AsyncClient", process: "Process", number: int) -> None:
        draw, serial = process.random, 0
        producer: AsyncProducer | None = None
        while not self.stopped:
            serial += 1
            texts = [f"t{number}:{serial}:{shard}" for shard in range(SHARDS)]
            try:
                if producer is None:
                    producer = db.producer(f"cut-{number}", transaction_timeout_s=TRANSACTION_S)
                    await producer.start()
                transaction = producer.begin()
                begun = [self.history.begun(Write(text, self.now, in_transaction=True)) for text in texts]
                for shard, text in enumerate(texts):
                    await transaction.append(TOPIC, text, shard=shard)
                await transaction.flush()
                await (transaction.commit() if draw.random() < 0.8 else transaction.abort())
            except AntiphonError as error:
                self.cluster.tell("cut-transaction-unknown", number, serial, error.code)
                producer = None
            else:
                for write in begun:
                    write.acknowledged = self.now
            await self.think(process, 3)

    # -- cuts ---------------------------------------------------------------------------------------------------

    async def _work_with(self, db: "AsyncClient", process: "Process", _number: int) -> None:
        draw = process.random
        while not self.stopped:
            await asyncio.sleep(draw.uniform(0.05, 0.5))
            self._look_at_holds()
            with self.tells("cut-failed", count="cuts-failed"):
                if draw.random() < 0.15:
                    await self._abandon(db, process)
                else:
                    await self._cut(db, process)

    async def _abandon(self, db: "AsyncClient", process: "Process") -> None:
        """Have a shard held, and never come back."""
        draw = process.random
        lease_ms, shard_id = draw.choice((*LEASES_MS, LEASE_MS_MAX)), draw.choice(self.shard_ids)
        hold_id = draw.randbytes(ID_BYTES)
        await db.whole.ask_shard(shard_id, HoldShard(shard_id, hold_id, lease_ms), timeout_s=1.0)
        self.outcomes["holds-abandoned"] += 1

    async def _cut(self, db: "AsyncClient", process: "Process") -> None:
        draw, began = process.random, self.now
        without = [topic.name for topic in (await db.metadata()).topics if is_multi(topic)]
        cut = await cuts.take_cut(
            db, without=without, lease_ms=draw.choice(LEASES_MS), tries=draw.choice((1, 3))
        )
        ends = {shard_id: held.end for shard_id, held in cut.ends.items()}
        self.history.cuts.append(TakenCut(ends, began, self.now))
        self.outcomes["cuts-taken"] += 1
        self.cluster.tell("cut-taken", sorted(ends.items()))
        if draw.random() < 0.3:
            await self._read(db, cut, draw.choice([*self.shard_ids, *self.table_shards]))
        if draw.random() < 0.2:
            await self._copy(db, draw.choice(self.table_shards))

    async def _read(self, db: "AsyncClient", cut: cuts.Cut, shard_id: int) -> None:
        """Copy a log up to the cut, as a backup does."""
        held, truth = cut.ends[shard_id], self.cluster.evidence.truth(shard_id)
        at = held.log_start
        try:
            async for chunk in read_batches(db, shard_id, at, held.end):
                for header, batch in iter_batches(chunk):
                    known = truth.at(header.base_offset)
                    require(
                        header.base_offset == at and known is not None and known.data == batch,
                        "copied-is-committed",
                        f"a copy up to {held.end} has a batch at {header.base_offset}, after {at}; committed is {known}",
                        shard_id,
                    )
                    at = header.next_offset
        except TrimmedError:
            return
        require(at == held.end, "copied-whole", f"a copy ends at {at}, the cut at {held.end}", shard_id)
        self.outcomes["cuts-read"] += 1

    async def _copy(self, db: "AsyncClient", shard_id: int) -> None:
        """Copy the state of a table; each file is checked when it is whole."""
        copied = await copy_state(db, shard_id)
        for number in range(len(copied.files)):
            async for _ in read_state_file(db, shard_id, copied, number):
                pass
        await drop_state(db, shard_id, copied)
        end = self.cluster.evidence.truth(shard_id).end
        require(
            copied.offset <= end,
            "state-committed",
            f"a copied state goes up to {copied.offset}, committed is {end}",
            shard_id,
        )
        self.outcomes["states-read"] += 1

    # -- judged -------------------------------------------------------------------------------------------------

    def _look_at_holds(self) -> None:
        for machine in self.cluster.machines:
            if machine.process is None or machine.process.state is not None:
                continue
            for host in machine.hosts.values():
                _check_hold(host)

    def check(self) -> None:
        """See `Workload`."""
        self._look_at_holds()
        self.history.check(self.shard_ids, self.table_shards)


def _check_hold(host: "Partition") -> None:
    held_s = host.services.now_s() - host.hold.since_s if host.hold.holder else 0.0
    require(
        held_s <= LEASE_MS_MAX / 1000 + SLACK_S,
        "hold-outlives-lease",
        f"node {host.services.node_id} has held the log for {held_s:.1f} s; no lease is longer than {LEASE_MS_MAX} ms",
        host.shard_id,
    )
