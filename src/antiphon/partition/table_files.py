"""The directories of tables' stores, and how a snapshot takes the place of a store and its log, whole or not at all.

`tables/<shard>` is a store. A snapshot that is installed replaces the store and empties the log; a crash in between must not
leave the new store beside the old log, whose end may be another one than what the store was made of. So the snapshot is put
beside the store (`<shard>.new`), and a durable file (`<shard>.install`) says that the installation has begun, with all that
it takes to finish it. From then on it is always finished: by `recover_install` at the next start. The file goes, durably,
when the log has begun anew, before anything is written to it.

A store that was found damaged is noted so beside its directory (`<shard>.damaged`), because the next start may not look
where the damage is. It is made anew where the log reaches back to its beginning; elsewhere the replica stays closed until
the node has emptied log and store (`node.mending`), for the leader to send both anew.
"""

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from antiphon.errors import UNDECODABLE, DamagedStoreError
from antiphon.log import layout
from antiphon.log.disk import Disk, read_whole, write_whole
from antiphon.log.snapshot import frame, unframe
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog
    from antiphon.table.state import TableState

INSTALL_MAGIC: Final = b"ANTIPHIN"
INSTALL_VERSION: Final = 1
INSTALL_SUFFIX: Final = ".install"
_DAMAGED_SUFFIX: Final = ".damaged"
_DRAFT_SUFFIX: Final = ".install.tmp"
_NEW_SUFFIX: Final = ".new"
_ASIDE_SUFFIX: Final = ".old"  # where former versions put the old store


class OpenedTable(Protocol):
    """A table whose store is open."""

    @property
    def state(self) -> "TableState":
        """The store."""


Opened = TypeVar("Opened", bound=OpenedTable)


class Installation(NamedTuple):
    """A snapshot that takes the place of a replica: what the log continues after, and what is known of before."""

    at: EntryId
    producers: bytes
    members: Members | None = None


def store_path(directory: str, shard_id: int) -> str:
    """Where the store of a table's shard is, in a node's directory `tables`."""
    return os.path.join(directory, str(shard_id))


def prepare_install(disk: Disk, path: str, installation: Installation) -> None:
    """Write down what is to be installed in the place of the store `path`; nothing has begun yet. Blocking."""
    data = frame(INSTALL_MAGIC, INSTALL_VERSION, msgspec.msgpack.encode(installation))
    write_whole(disk, path + _DRAFT_SUFFIX, data)
    disk.open(path + _DRAFT_SUFFIX).fdatasync()


def drop_install(disk: Disk, path: str) -> None:
    """The replica does not take what was prepared."""
    with contextlib.suppress(OSError):
        disk.remove(path + _DRAFT_SUFFIX)


def begin_install(disk: Disk, snapshot: str, path: str) -> None:
    """Put the durable copy in directory `snapshot` in the place of the (closed) store `path`; both on one file system.

    When this returns, or after a crash half-way, the installation that was prepared will be finished or has not begun.
    """
    disk.remove_tree(path + _NEW_SUFFIX)
    disk.rename(snapshot, path + _NEW_SUFFIX)
    disk.fsync_dir(os.path.dirname(path))
    disk.rename(path + _DRAFT_SUFFIX, path + INSTALL_SUFFIX)
    disk.fsync_dir(os.path.dirname(path))
    _swap(disk, path)


def _swap(disk: Disk, path: str) -> None:
    if disk.exists(path + _NEW_SUFFIX):
        disk.remove_tree(path)
        disk.rename(path + _NEW_SUFFIX, path)
        disk.fsync_dir(os.path.dirname(path))


def end_install(disk: Disk, path: str) -> None:
    """The log has begun anew, durably."""
    disk.remove(path + INSTALL_SUFFIX)
    disk.fsync_dir(os.path.dirname(path))


def recover_install(
    disk: Disk, path: str, log_path: str, shortened: Callable[[EntryId], None] | None = None
) -> Installation | None:
    """Before the store `path` and its log are opened: finish the installation that had begun, undo what had not. Blocking.

    `shortened` is told of the log's new end before the old log goes.

    Raises DamagedStoreError where the file that says what to finish is not as it was written: log and store are then to be
    emptied, and sent anew.
    """
    restore_aside(disk, path)
    drop_install(disk, path)
    data = read_whole(disk, path + INSTALL_SUFFIX)
    if data is None:
        disk.remove_tree(path + _NEW_SUFFIX)
        return None
    if not disk.is_dir(log_path):  # of a replica that was removed
        destroy_state(disk, path)
        return None
    found = _decode(data, path + INSTALL_SUFFIX)
    _swap(disk, path)
    if shortened is not None:
        shortened(found.at)
    layout.wipe(disk, log_path, found.at, found.producers, found.members)
    end_install(disk, path)
    return found


def _decode(data: bytes, path: str) -> Installation:
    payload = unframe(INSTALL_MAGIC, INSTALL_VERSION, data, path)
    try:
        return msgspec.msgpack.decode(payload or b"", type=Installation)
    except UNDECODABLE as error:
        raise DamagedStoreError(
            f"{path} is damaged: a snapshot was being installed and nothing says of what; the leader sends everything once "
            "a majority of the replicas is well without this one; where there are no others, restore log and store together "
            "from a backup",
            path=path,
        ) from error


def restore_aside(disk: Disk, path: str) -> None:
    """A former version crashed while it put a snapshot in the place of the store: take the old one back."""
    aside = path + _ASIDE_SUFFIX
    if not disk.exists(path) and disk.exists(aside):
        disk.rename(aside, path)
    else:
        disk.remove_tree(aside)


def destroy_state(disk: Disk, path: str) -> None:
    """Remove the (closed) store `path` with all that was to take its place; nothing happens where there is none."""
    if disk.exists(path + INSTALL_SUFFIX):
        end_install(disk, path)
    for suffix in ("", _NEW_SUFFIX, _ASIDE_SUFFIX):
        disk.remove_tree(path + suffix)
    disk.remove(path + _DAMAGED_SUFFIX)  # last: until then what is left is no store to be used


def open_or_rebuild(disk: Disk, path: str, log: "ShardLog", opened: Callable[[], Opened]) -> Opened:
    """What `opened` makes of the store `path`; of an empty one where it is damaged and the log can tell everything again.

    Raises DamagedStoreError where the log cannot, and what `opened` raises.
    """
    try:
        if is_noted_damaged(disk, path):
            raise DamagedStoreError(f"table store {path} was found damaged before", path=path)
        return _of_this_log(opened(), path, log)
    except DamagedStoreError as error:
        if log.log_start or log.damaged is not None:
            raise DamagedStoreError(
                f"{error.message}; the shard's log, which begins at {log.log_start}, cannot rebuild it: the leader "
                "sends everything once a majority of the replicas is well without this one; where there are no others, "
                "restore log and store together from a backup, or move the replica to another node",
                **error.details,
            ) from error
        structlog.get_logger().warning(
            "store_made_from_log", path=path, log_end=log.log_end, reason=error.message
        )
    destroy_state(disk, path)
    return opened()


def _of_this_log(table: Opened, path: str, log: "ShardLog") -> Opened:
    """A log is trimmed only behind what its store has, so a store that has less is not the one that was here.

    A store whose log is empty is of a replica that was removed: a crash left it, or its removal was not durable. Its history
    may have been given up, and then what the log is going to hold below `applied` is not what the store has.
    """
    applied = table.state.applied_offset
    if applied >= log.log_start and not (applied and _is_new(log)):
        return table
    table.state.close()
    why = (
        "and its log is empty, so it is a removed replica's"
        if _is_new(log)
        else "only, so it was lost or is an old one"
    )
    raise DamagedStoreError(f"table store {path} goes up to {applied} {why}", path=path)


def _is_new(log: "ShardLog") -> bool:
    return log.log_end == 0 and log.damaged is None


def note_damage(disk: Disk, path: str) -> None:
    """The store `path` was found damaged: the next start is not to use it. A crash may lose this note."""
    with contextlib.suppress(OSError):
        disk.open(path + _DAMAGED_SUFFIX, create=True)


def is_noted_damaged(disk: Disk, path: str) -> bool:
    """Was the store `path` found damaged?"""
    return disk.exists(path + _DAMAGED_SUFFIX)


def watermark_at_start(noted: int, applied: int, log_end: int, *, unclean: bool) -> int:
    """What of the log is taken for settled when a replica with a store is opened.

    What the store has applied is committed, and was durable here except for what a leader wrote last. A store that is ahead
    of its log says nothing of the entries that the log holds, so these are not settled by it. After an unclean election they
    count nevertheless: only so is it noticed when they are given up.
    """
    return max(noted, applied) if applied <= log_end or unclean else noted
