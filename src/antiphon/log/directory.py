"""A node's data directory: which node it belongs to, which process has it open, and where its shards are.

`identity.json` contains format, cluster, node and disk (`log.identity`). A directory of another cluster or node, or of a
later format, is refused. `disk_id` is random, drawn when the directory is made. So a disk that comes back empty or swapped
has another id, and is not taken for the disk that remembers its votes.

`bootstrap` says whether the node was told to found a cluster when the directory was made. Only then does an empty
directory prove that nothing was promised. Any other directory may replace a lost one; `joined` says that all replicas
which the cluster had placed on this node before that were checked.

`lock` is held with flock while the node runs. `shards/<id>/` holds one replica each (`ShardLog`). `inventory` lists the
replicas and how far they reach (`Inventory`). If the inventory is lost, other losses cannot be detected. The directory
then counts as another disk, with a new `disk_id`, and its contents as damaged.
"""

import contextlib
import os
from typing import Final

import msgspec

from antiphon import system
from antiphon.errors import (
    DirectoryInUseError,
    ForeignDirectoryError,
    StorageFailedError,
)
from antiphon.log.disk import (
    Disk,
    Lock,
    LockHeldError,
    RealDisk,
    discard_tree,
    not_permitted,
    replace_file,
)
from antiphon.log.hard_state import HARD_STATE_NAME
from antiphon.log.identity import FORMAT, IDENTITY_NAME, Found, Identity, find_identity, save_identity
from antiphon.log.inventory import LOST, Held, Holding, Inventory
from antiphon.log.segment import DATA_SUFFIX

JOINED_NAME: Final = "joined"
LOCK_NAME: Final = "lock"
SHARDS_NAME: Final = "shards"
_REMOVED_SUFFIX: Final = ".removed"


class NodeDirectory:
    """An open data directory; `close` it (or let the process end) to let another process have it."""

    def __init__(self, disk: Disk, path: str, identity: Identity, lock: Lock, inventory: Inventory) -> None:
        self.path = path
        self.identity = identity
        self.inventory = inventory
        self.is_remade = False  # the inventory was lost, and with it who knows what
        self.mended = ""  # why `identity.json` was made anew
        self._disk = disk
        self._lock = lock
        self._joined = identity.bootstrap or disk.exists(os.path.join(path, JOINED_NAME))

    @classmethod
    def open(
        cls, path: str, cluster_id: str, node_id: int, *, disk: Disk | None = None, bootstrap: bool = False
    ) -> "NodeDirectory":
        """Open the directory of this node of this cluster; make it where there is none, and note `bootstrap` then.

        Raises:
            DirectoryInUseError: another process has it open; `details` has its pid where that is known.
            ForeignDirectoryError: it belongs to another cluster or node, or holds files that are not ours.
            NewerFormatError: a later version of Antiphon wrote it.
        """
        path = os.path.abspath(path)
        disk = disk or RealDisk()
        disk.makedirs(path)
        lock = _lock(disk, path)
        try:
            found = find_identity(disk, path)
            identity = found.identity
            inventory = None if identity is None else Inventory.load(disk, path)
            if identity is None:
                _refuse_strange_files(disk, path)
                _keep_name(disk, path)
                inventory = Inventory.create(disk, path, {})
                identity = Identity(FORMAT, cluster_id, node_id, system.new_uuid().hex, bootstrap, True)
                save_identity(disk, path, identity)
            _refuse_foreign(path, identity, cluster_id, node_id)
            _keep(disk, path, found)
            shards = os.path.join(path, SHARDS_NAME)
            disk.makedirs(shards)
            disk.fsync_dir(path)
            disk.fsync_dir(shards)  # names that an earlier process left without a sync
            is_remade = identity.inventory and inventory is None
            if inventory is None:
                identity, inventory = _take_stock(disk, path, identity)
            directory = cls(disk, path, identity, lock, inventory)
            directory.is_remade = is_remade
            directory.mended = found.mended
            directory._sweep()
        except PermissionError as error:
            lock.release()
            raise StorageFailedError(not_permitted(error)) from error
        except BaseException:
            lock.release()
            raise
        return directory

    @property
    def may_replace(self) -> bool:
        """May this directory replace one that held replicas, and is that not decided yet?"""
        return not self._joined

    def note_joined(self) -> None:
        """Every replica that was placed here when this directory was made is open, or marked as forgetful. Blocking."""
        if not self._joined:
            replace_file(self._disk, os.path.join(self.path, JOINED_NAME), b"")
            self._joined = True

    def shard_path(self, shard_id: int) -> str:
        """Where the replica of a shard lives."""
        return os.path.join(self.path, SHARDS_NAME, str(shard_id))

    def shard_ids(self) -> list[int]:
        """Shards that have a replica here, or had one that was lost and not removed, in rising order."""
        found = _shards_in(self._disk.listdir(os.path.join(self.path, SHARDS_NAME)))
        return sorted({*found, *self.inventory.shard_ids()})

    def held(self, shard_id: int) -> Held:
        """What the inventory says of a replica."""
        return Held(self.inventory, shard_id)

    def renounce_shard(self, shard_id: int) -> None:
        """Note that a replica is about to be removed, so that its missing files do not count as damage. Blocking."""
        self.inventory.forget(shard_id)

    def remove_shard(self, shard_id: int) -> None:
        """Remove a replica with all its files. Blocking. Its log must not be in use any more.

        If the disk is too full for the note, the removal makes room first; after a crash at that moment the replica
        counts as lost.
        """
        with contextlib.suppress(OSError):
            self.renounce_shard(shard_id)
        doomed = self.shard_path(shard_id) + _REMOVED_SUFFIX
        discard_tree(self._disk, doomed)
        with contextlib.suppress(FileNotFoundError):
            self._disk.rename(self.shard_path(shard_id), doomed)
            self._disk.fsync_dir(os.path.join(self.path, SHARDS_NAME))
            discard_tree(self._disk, doomed)
        with contextlib.suppress(OSError):
            self.renounce_shard(shard_id)

    def close(self) -> None:
        """Write the inventory down and give up the lock."""
        with contextlib.suppress(OSError):  # it says less than it could
            self.inventory.save()
        self._lock.release()

    def _sweep(self) -> None:
        """Finish removals that a crash interrupted."""
        shards = os.path.join(self.path, SHARDS_NAME)
        for name in self._disk.listdir(shards):
            if name.endswith(_REMOVED_SUFFIX):
                discard_tree(self._disk, os.path.join(shards, name))


def _keep_name(disk: Disk, path: str) -> None:
    """Make the names on the way to a new directory durable. Who made them may have been killed right then."""
    while (parent := os.path.dirname(path)) != path:
        with contextlib.suppress(PermissionError):  # one that this process may not read it has not made
            disk.fsync_dir(parent)
        path = parent


def _lock(disk: Disk, path: str) -> Lock:
    try:
        return disk.lock(os.path.join(path, LOCK_NAME), str(system.pid()).encode())
    except LockHeldError as error:
        holder = error.note.decode("ascii", "replace").strip() or "?"
        raise DirectoryInUseError(
            f"{path} is in use by process {holder}; stop that node first", path=path, pid=holder
        ) from error
    except PermissionError as error:
        raise StorageFailedError(not_permitted(error)) from error


def _refuse_foreign(path: str, identity: Identity, cluster_id: str, node_id: int) -> None:
    if (identity.cluster_id, identity.node_id) != (cluster_id, node_id):
        raise ForeignDirectoryError(
            f"{IDENTITY_NAME} says that {path} belongs to node {identity.node_id} of cluster {identity.cluster_id}, "
            f"not to node {node_id} of cluster {cluster_id}; give each node its own directory and node.toml",
            path=path,
            found_cluster=identity.cluster_id,
            found_node=identity.node_id,
        )


def _keep(disk: Disk, path: str, found: Found) -> None:
    """Write the identity where it is not in both files; a full disk may wait with that until the next start."""
    if found.identity is not None and not found.is_kept:
        with contextlib.suppress(OSError):
            save_identity(disk, path, found.identity)


def _shards_in(names: list[str]) -> list[int]:
    return [int(name) for name in names if name.isascii() and name.isdigit()]


def _take_stock(disk: Disk, path: str, identity: Identity) -> tuple[Identity, Inventory]:
    """The inventory of a directory that has none: an older version made the directory, or the inventory was lost.

    After a crash in between it is done again.
    """
    shards = os.path.join(path, SHARDS_NAME)
    found = {
        shard
        for shard in _shards_in(disk.listdir(shards))
        if _holds_anything(disk, os.path.join(shards, str(shard)))
    }
    if not identity.inventory:
        inventory = Inventory.create(disk, path, dict.fromkeys(found, Holding()))
        identity = msgspec.structs.replace(identity, inventory=True)
        save_identity(disk, path, identity)
        return identity, inventory
    disk.remove(os.path.join(path, JOINED_NAME))
    identity = msgspec.structs.replace(identity, disk_id=system.new_uuid().hex, bootstrap=False)
    save_identity(disk, path, identity)
    return identity, Inventory.create(disk, path, dict.fromkeys(found, LOST))


def _holds_anything(disk: Disk, path: str) -> bool:
    """Has the replica in this directory ever promised or held anything?"""
    return any(name == HARD_STATE_NAME or name.endswith(DATA_SUFFIX) for name in disk.listdir(path))


def _refuse_strange_files(disk: Disk, path: str) -> None:
    """A new node starts in an empty directory (its log file, config and lock may be there already)."""
    shards = os.path.join(path, SHARDS_NAME)
    if disk.is_dir(shards) and disk.listdir(shards):
        raise ForeignDirectoryError(
            f"{path} holds shards but no {IDENTITY_NAME}: the file was lost, or the directory is somebody else's; "
            "restore it, or move the directory away to let the node start empty",
            path=path,
        )
