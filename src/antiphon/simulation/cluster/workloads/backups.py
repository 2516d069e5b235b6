"""Backups of the cluster into one place, each on top of the one before, prunes of old ones, and restores from new ones."""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.backup import prune
from antiphon.backup.create import create_backup
from antiphon.backup.manifest import Backup, load, names_in
from antiphon.backup.verify import log_of, verify_backup
from antiphon.model.metadata import Kind, is_multi
from antiphon.simulation.cluster.backup_place import MemoryPlace
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.restores import Restores
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
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "backed-up"
TABLE: Final = "backed-up-rows"
WRITERS: Final = 2
KEYS: Final = 60
LEASES_MS: Final = (250, 1_000)
OUTCOMES: Final = (
    "backups-made",
    "backups-failed",
    "backups-on-others",
    "backups-pruned",
    "restored-topics",
    "restored-tables",
)
FAILS: Final = 0.01  # of the place's writes and removals


@workload("backup_makers", 35, Drawn(seldom(0.1)), logs_in=False)
class BackupWorkload(Workload):
    """Makers of backups by the code of `antiphon backup create` and `prune`, into a place in memory that fails now and then.
    Writers append, and put rows. What was backed up is restored into new topics and tables.

    Checked: a backup that is there is whole; its logs are what was committed, up to its cut, and have all that had been
    committed before it began; a prune removes what nobody needs, and nothing else; what is restored is what was committed
    up to the cut.
    """

    may_pause = False  # a cut is judged by what was committed before its maker began

    def __init__(self, cluster: "SimulatedCluster") -> None:
        super().__init__(cluster, "backups")
        self.place = MemoryPlace(cluster.stream("place of backups"), FAILS)
        self.restores = Restores(cluster, self.place)
        self.shard_ids: list[int] = []
        self.outcomes = dict.fromkeys(OUTCOMES, 0)

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        await make_topic(self.cluster, db, TOPIC, 2)
        self.shard_ids = await shards_of(db, TOPIC)
        (table,) = await make_table(self.cluster, db, TABLE, shards=1)
        self.shard_ids.append(table.shard_id)

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(WRITERS, self.with_client(self._write))
        self.spawn_all(self.cluster.options.backup_makers, self._work)
        self.spawn("restorer", self.with_client(self._restore))

    async def _write(self, db: "AsyncClient", process: "Process", number: int) -> None:
        draw, serial = process.random, 0
        while not self.stopped:
            serial += 1
            text = f"{number}:{serial}"
            with self.tells("backed-up-write-unknown", text):
                if draw.random() < 0.6:
                    await db.topic(TOPIC).append(text, shard=draw.randrange(2), timeout_s=PATIENCE_S)
                else:
                    row = b"%d" % draw.randrange(KEYS)
                    await db.table(TABLE).put(row, text.encode(), timeout_s=PATIENCE_S)
            await self.think(process)

    async def _work_with(self, db: "AsyncClient", process: "Process", _number: int) -> None:
        draw = process.random
        while not self.stopped:
            await asyncio.sleep(draw.uniform(0.02, 0.5))
            with self.tells("backup-failed", count="backups-failed"):
                if draw.random() < 0.3:
                    await asyncio.to_thread(self._prune, draw.choice((1, 2, 3)))
                else:
                    await self._back_up(db, draw.choice(LEASES_MS))

    async def _restore(self, db: "AsyncClient", process: "Process") -> None:
        draw = process.random
        while not self.stopped:
            await asyncio.sleep(draw.uniform(0.2, 2.0))
            if not self.restores.may_begin:
                continue
            with self.tells("restore-failed"):
                kind = await self.restores.restore(db, draw.choice((TOPIC, TABLE)))
                self.outcomes["restored-tables" if kind is Kind.TABLE else "restored-topics"] += 1

    async def _back_up(self, db: "AsyncClient", lease_ms: int) -> None:
        before = {shard_id: self.cluster.evidence.truth(shard_id).end for shard_id in self.shard_ids}
        without = [topic.name for topic in (await db.metadata()).topics if is_multi(topic)]
        made = await create_backup(db, self.place, without=without, lease_ms=lease_ms, tries=2)
        self.outcomes["backups-made"] += 1
        self.outcomes["backups-on-others"] += bool(made.base)
        self.cluster.tell("backup-made", made.base != "", made.written_files)
        if made.name in names_in(self.place):
            self._judge(made)
        ends = {shard.shard_id: shard.end for shard in made.shards}
        for shard_id, end in before.items():
            require(
                ends[shard_id] >= end,
                "backup-lacks-committed",
                f"{made.name} has the log up to {ends[shard_id]}; {end} was committed before it was begun",
                shard_id,
            )

    def _prune(self, keep: int) -> None:
        """In a thread, as the command does."""
        going = prune.old_ones(self.place, keep, None)
        done = prune.prune(self.place, going)
        self.outcomes["backups-pruned"] += len(done.backups)
        needed = {path for name in names_in(self.place) for path in prune.files_of(load(self.place, name))}
        left = {path for backup in going for path in prune.files_of(backup)} & self.place.paths - needed
        require(not left, "prune-leaves-files", f"nobody needs them: {sorted(left)[:5]}")

    def _judge(self, backup: Backup) -> None:
        found = verify_backup(self.place, backup)
        require(not found.problems, "backup-whole", f"{backup.name}: {found.problems}")
        for shard in backup.shards:
            if shard.shard_id not in self.shard_ids:
                continue
            truth = self.cluster.evidence.truth(shard.shard_id)
            at = shard.pieces[0].start if shard.state is None and shard.pieces else shard.end
            for header, batch in log_of(self.place, shard):
                known = truth.at(header.base_offset)
                require(
                    known is not None and known.data == batch,
                    "backup-is-committed",
                    f"{backup.name} has a batch at {header.base_offset}; committed is {known}",
                    shard.shard_id,
                )
                at = header.next_offset
            require(at == shard.end, "backup-whole", f"the log ends at {at}, not {shard.end}", shard.shard_id)

    def check(self) -> None:
        """See `Workload`. What no manifest names is left over from backups that failed."""
        for name in names_in(self.place):
            self._judge(load(self.place, name))
