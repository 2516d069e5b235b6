"""Backups of the cluster, and at the end of the run another cluster in its place, restored from one of them."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from antiphon.backup import restore_cluster as restores
from antiphon.backup.create import create_backup
from antiphon.errors import AntiphonError
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.access import Acl, Operation, Resource
from antiphon.model.metadata import is_multi
from antiphon.model.quotas import Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser
from antiphon.simulation.cluster.accounts import credential_of
from antiphon.simulation.cluster.backup_place import MemoryPlace
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.settle import check_everything, folded, is_settled, what_is_open
from antiphon.simulation.cluster.whole_restore import KnownCut, committed_in, open_in, repeatable
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import (
    PATIENCE_S,
    Until,
    Workload,
    administer_all,
    make_table,
    make_topic,
)

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.client.producer import AsyncProducer
    from antiphon.coordination.state import ClusterState
    from antiphon.model.metadata import ShardMeta
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "whole"
TABLE: Final = "whole-rows"
USER: Final = "of-the-backup"
GROUP: Final = "whole-readers"
SHARDS: Final = 2
WRITERS: Final = 2
TRANSACTORS: Final = 2
KEYS: Final = 40
BACKUPS_MAX: Final = 3
LAST_TRIES: Final = 30  # for a first backup, when nothing is wrong any more
LEASE_MS: Final = 500
TRANSACTION_S: Final = 3.0
Written = tuple[int, int]
"""A record of the topic: a writer's number, and its serial."""
RESTORED: Final = "/restored"
USED_S: Final = 60.0
T = TypeVar("T")


@workload("whole_restores", 43, Drawn(seldom(0.04)))
class WholeRestoreWorkload(Workload):
    """Backups by the code of `antiphon backup create`, while clients write a topic and a table, commit transactions with
    offsets of a group, and change access control lists and settings. When the run is over the nodes end. Another cluster is
    restored from one of the backups by the code of `antiphon backup restore`, on the disk of a machine that then loses
    power, and its nodes start on new machines in the place of the others.

    Checked: all that is checked of a cluster, with what was committed at the backup's cut as committed
    (`whole_restore.py`); its metadata are those of the cut; transactions that were decided end so, and no other is
    committed; offsets of groups are those of committed transactions; the cut is one moment; clients read what there was, a
    repeated batch is known, new records and rows are taken.
    """

    def __init__(self, cluster: "SimulatedCluster") -> None:
        super().__init__(cluster, "whole")
        self.place = MemoryPlace(cluster.stream("place of whole backups"), 0.0)
        self.made: list[
            tuple[KnownCut, frozenset[Written]]
        ] = []  # and what was acknowledged before it was begun
        self._acknowledged: set[Written] = set()
        self.outcomes = {
            "whole-backups": 0,
            "whole-restores": 0,
            "repeats-known": 0,
            "groups-known": 0,
            "decided-at-the-cut": 0,
        }

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        await make_topic(self.cluster, db, TOPIC, SHARDS)
        await make_table(self.cluster, db, TABLE, shards=1)
        user, acls = AlterUser(USER, (credential_of(USER),)), AlterAcls((_read_of(TOPIC),))
        await administer_all(db, (user, acls, AlterQuota(Quota(USER, producer_byte_rate=1_000_000.0))))

    # -- before -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(WRITERS, self.with_client(self._write))
        self.spawn_all(TRANSACTORS, self.with_client(self._transact))
        self.spawn("operator", self.with_client(self._operate))
        self.spawn("maker", self.with_client(self._make))

    async def _write(self, db: "AsyncClient", process: "Process", number: int) -> None:
        draw, serial = process.random, 0
        while not self.stopped:
            serial += 1
            text = f"{number}:{serial}"
            with self.tells("whole-write-unknown", text):
                if draw.random() < 0.6:
                    await db.topic(TOPIC).append(text, shard=draw.randrange(SHARDS), timeout_s=PATIENCE_S)
                    self._acknowledged.add((number, serial))
                else:
                    row = b"%d" % draw.randrange(KEYS)
                    await db.table(TABLE).put(row, text.encode(), timeout_s=PATIENCE_S)
            await self.think(process)

    async def _transact(self, db: "AsyncClient", process: "Process", number: int) -> None:
        draw, serial = process.random, 0
        producer: AsyncProducer | None = None
        while not self.stopped:
            serial += 1
            try:
                if producer is None:
                    producer = db.producer(f"whole-{number}", transaction_timeout_s=TRANSACTION_S)
                    await producer.start()
                transaction = producer.begin()
                for shard in range(SHARDS):
                    await transaction.append(TOPIC, f"t{number}:{serial}:{shard}", shard=shard)
                await transaction.commit_offsets(f"{GROUP}-{number}", {(TOPIC, 0): serial})
                await (transaction.commit() if draw.random() < 0.7 else transaction.abort())
            except AntiphonError as error:
                self.cluster.tell("whole-transaction-unknown", number, serial, error.code)
                producer = None
            await self.think(process, 3)

    async def _operate(self, db: "AsyncClient", process: "Process") -> None:
        """Metadata change, though not so often that there is no cut."""
        draw, serial = process.random, 0
        while not self.stopped:
            await asyncio.sleep(draw.uniform(0.5, 3.0))
            serial += 1
            with self.tells("whole-change-unknown", serial):
                if draw.random() < 0.5:
                    await db.administer(
                        AlterAcls((_read_of(f"{TOPIC}-{serial}"),))
                    )  # no quota: that lets others go on
                else:
                    await db.alter_topic(TOPIC, config={"segment.ms": str(10**9 + serial)})

    async def _make(self, db: "AsyncClient", process: "Process") -> None:
        draw, tries = process.random, LAST_TRIES
        while len(self.made) < BACKUPS_MAX and (not self.stopped or (not self.made and tries)):
            await asyncio.sleep(draw.uniform(0.1, 1.5))
            tries -= self.stopped
            before = frozenset(self._acknowledged)
            try:
                without = [topic.name for topic in (await db.metadata()).topics if is_multi(topic)]
                made = await create_backup(db, self.place, without=without, lease_ms=LEASE_MS, tries=2)
            except AntiphonError as error:
                self.cluster.tell("whole-backup-failed", error.code)
                continue
            self.made.append((KnownCut(self.cluster, self.place, made), before))
            self.outcomes["whole-backups"] += 1

    def check(self) -> None:
        """See `Workload`."""
        for known, before in self.made:
            self._check_moment(known, before)

    # -- the other cluster --------------------------------------------------------------------------------------

    def afterwards(self, until: Until) -> None:
        """See `Workload`."""
        if not self.made:
            return
        cluster = self.cluster
        rarer = [known for known, _ in self.made if known.decided]
        known = self.random.choice(rarer or [known for known, _ in self.made])
        disk = SimulatedDisk(cluster.stream("disk of the restore"))
        done = self._run(until, "restore", self._restore(known, disk))
        disk = disk.crash()
        cluster.replace_by(
            done.cluster_id, [disk.copy(str(one)) for one in done.directories], known.evidence()
        )
        known.check_named(cluster)
        cluster.tell("restored-whole", known.backup.name, done.topics, done.shards)
        cluster.start_all()
        settle_s = cluster.options.settle_ms / 1000
        until(lambda: is_settled(cluster), settle_s, lambda: what_is_open(cluster))
        known.check_metadata(self._coordinated())
        known.check_starts(cluster)
        self.outcomes["decided-at-the-cut"] += known.decided
        until(
            lambda: not known.unfinished(cluster),
            settle_s,
            lambda: f"{known.unfinished(cluster)} have no marker",
        )
        mine = [shard.shard_id for shard in known.backup.topic(TOPIC).shards]
        until(
            lambda: not any(open_in(cluster.evidence.truth(one)) for one in mine),
            settle_s,
            lambda: "transactions are open",
        )
        self._run(until, "after", self._use(known))
        until(lambda: is_settled(cluster), settle_s, lambda: what_is_open(cluster))
        known.unfinished(cluster)
        check_everything(cluster)
        self.outcomes["whole-restores"] += 1

    def _check_moment(self, known: KnownCut, before: frozenset[Written]) -> None:
        """Each writer's records are sent one after the other: of no writer one is missing before one that is there."""
        found: set[Written] = set()
        for shard in known.backup.topic(TOPIC).shards:
            for _, value in committed_in(known.truth(shard.shard_id)):
                name, _, serial = (value or b"").decode().partition(":")
                if name.isdecimal():  # of no transaction
                    found.add((int(name), int(serial)))
        newest = dict(sorted(found))
        earlier = {one for one in self._acknowledged if one[1] < newest.get(one[0], 0)}
        missing = (earlier | before) - found
        known.require(not missing, -1, f"it lacks {sorted(missing)}, and has up to {newest} of the writers")

    def _run(self, until: Until, name: str, work: Coroutine[Any, Any, T]) -> T:
        task: asyncio.Task[T] = self.cluster.client_process(f"{self.name}-{name}").run(work)
        until(task.done, USED_S, lambda: f"{name} is not done")
        return task.result()

    async def _restore(self, known: KnownCut, disk: SimulatedDisk) -> restores.Restored:
        nodes = self.cluster.options.nodes
        return await asyncio.to_thread(
            lambda: restores.restore_cluster(self.place, known.backup, Path(RESTORED), nodes, disk=disk)
        )

    def _coordinated(self) -> "ClusterState":
        shells = [node.coordinator for node in self.cluster.nodes]
        return next(shell.state for shell in shells if shell is not None and shell.is_active)

    async def _use(self, known: KnownCut) -> None:
        db = await self.connected()
        found = {topic.name: topic for topic in (await db.metadata()).topics}
        for shard in found[TOPIC].shards:
            await self._use_topic(db, known, shard)
        await self._check_groups(db, known, found[TOPIC].shards[0].shard_id)
        if len(found[TABLE].shards) == 1:  # it was not split: all rows are in one log
            await self._use_table(db, known, found[TABLE].shards[0].shard_id)
        await db.close()

    async def _use_topic(self, db: "AsyncClient", known: KnownCut, shard: "ShardMeta") -> None:
        topic, truth = db.topic(TOPIC), self.cluster.evidence.truth(shard.shard_id)
        start, end = await topic.offsets(shard.index)
        read = topic.read(shard.index, start, timeout_s=PATIENCE_S)
        found = [(record.offset, record.value) async for record in read]
        wanted = [one for one in committed_in(truth) if one[0] >= start]
        known.require(
            found == wanted, shard.shard_id, f"clients read {found} of {TOPIC}, committed is {wanted}"
        )
        for batch in repeatable(known.truth(shard.shard_id)):
            reply = await db.append_raw(shard.shard_id, batch.data)
            known.require(
                reply.base_offset == batch.base_offset,
                shard.shard_id,
                f"the last batch of a producer, at {batch.base_offset}, was sent again, and is at {reply.base_offset}",
            )
            self.outcomes["repeats-known"] += 1
        at = await topic.append("after", shard=shard.index)
        known.require(
            at.offset >= end, shard.shard_id, f"a new record is at {at.offset}, the log ended at {end}"
        )

    async def _check_groups(self, db: "AsyncClient", known: KnownCut, shard_id: int) -> None:
        """What each transactor's group is to read next was committed with its records."""
        newest: dict[str, int] = {}
        for _, value in committed_in(self.cluster.evidence.truth(shard_id)):
            name, *rest = (value or b"").decode().split(":")
            if name.startswith("t"):
                newest[name[1:]] = int(rest[0])
        for number, serial in newest.items():
            offsets = await db.group_offsets(f"{GROUP}-{number}", [(TOPIC, 0)])
            known.require(
                offsets.get((TOPIC, 0)) == serial,
                shard_id,
                f"group {GROUP}-{number} is at {offsets}, and its last transaction that is committed was number {serial}",
            )
            self.outcomes["groups-known"] += 1

    async def _use_table(self, db: "AsyncClient", known: KnownCut, shard_id: int) -> None:
        table = db.table(TABLE)
        wanted = {key: value for key, (value, _) in folded(self.cluster, shard_id).items()}
        found = {row.key: row.value async for row in table.scan(timeout_s=PATIENCE_S)}
        known.require(found == wanted, shard_id, f"clients read rows {found}, committed are {wanted}")
        await table.put(b"after", b"1")
        row = await table.get(b"after")
        known.require(row.value == b"1", shard_id, f"a new row reads as {row}")


def _read_of(topic: str) -> Acl:
    return Acl(f"User:{USER}", Resource.TOPIC, topic, Operation.READ)
