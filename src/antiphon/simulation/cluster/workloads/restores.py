"""Restores of a topic or table from a backup into a new one, by the code of `antiphon backup restore`, in a cluster at work.

- `restore-is-the-cut`: a client reads what was committed up to the backup's cut, once, in its order, and nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from antiphon.backup.manifest import Backup, ShardBackup, load, names_in
from antiphon.backup.restore_topic import restore_topic
from antiphon.backup.workspace import Workspace
from antiphon.log.disk import discard_tree
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.metadata import Kind
from antiphon.simulation.cluster.backup_place import MemoryPlace
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.memory_store import MemoryEngine
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster

RESTORES_MAX: Final = 3  # in one world: each makes shards that stay


class Restores:
    """See the module's text."""

    def __init__(self, cluster: "SimulatedCluster", place: MemoryPlace) -> None:
        self._cluster = cluster
        self._place = place
        self._random = cluster.stream("stores of restores")
        self._begun = 0

    @property
    def may_begin(self) -> bool:
        """Is there a backup, and room for what it has?"""
        return self._begun < RESTORES_MAX and bool(names_in(self._place))

    async def restore(self, db: "AsyncClient", name: str) -> Kind:
        """Restore it from the newest backup, and read it. Raises AntiphonError where either fails."""
        self._begun += 1
        backup = load(self._place, names_in(self._place)[-1])
        done = await restore_topic(
            db, self._place, backup, name, f"restored-{self._begun}", workspace=self._workspace(self._begun)
        )
        if done.kind is Kind.TABLE:
            await self._judge_table(db, backup, name, done.name)
        else:
            await self._judge_topic(db, backup, name, done.name)
        return done.kind

    def _workspace(self, number: int) -> Workspace:
        """On a disk of the maker's own."""
        disk = SimulatedDisk(self._random)

        @contextmanager
        def directory() -> Iterator[str]:
            path = f"restore-{number}"
            disk.makedirs(path)
            try:
                yield path
            finally:
                discard_tree(disk, path)

        return Workspace(disk, MemoryEngine(disk, self._random), directory)

    async def _judge_topic(self, db: "AsyncClient", backup: Backup, name: str, made: str) -> None:
        for saved in backup.topic(name).shards:
            read = db.topic(made).read(saved.index, 0, timeout_s=PATIENCE_S)
            found = [record.value async for record in read]
            wanted = self._values(saved)
            require(
                found == wanted,
                "restore-is-the-cut",
                f"{made} has other records in shard {saved.index} than {name} in {backup.name}: {found} for {wanted}",
                saved.shard_id,
            )

    def _values(self, saved: ShardBackup) -> list[bytes | None]:
        first = max(saved.start, saved.deleted_before)
        return [
            record.value
            for record in self._cluster.evidence.truth(saved.shard_id).up_to(saved.end).records()
            if record.offset >= first
        ]

    async def _judge_table(self, db: "AsyncClient", backup: Backup, name: str, made: str) -> None:
        saved = backup.topic(name).shards
        if len(saved) > 1:  # it was split, and a row may be in the logs of several
            return
        wanted: dict[bytes, bytes] = {}
        for key, value, _ in self._cluster.evidence.truth(saved[0].shard_id).up_to(saved[0].end).effects():
            if value is None:
                wanted.pop(key, None)
            else:
                wanted[key] = value
        found = {row.key: row.value async for row in db.table(made).scan(timeout_s=PATIENCE_S)}
        require(
            found == wanted,
            "restore-is-the-cut",
            f"{made} has other rows than {name} in {backup.name}: {found} for {wanted}",
            saved[0].shard_id,
        )
