"""The directories of tables' stores: a snapshot put in the place of one, and what a crash left of that."""

import os

from antiphon.log.disk import Disk, discard_tree

_ASIDE_SUFFIX = ".old"


def install_state(disk: Disk, snapshot: str, path: str) -> None:
    """Put the copy in directory `snapshot` in the place of the (closed) store `path`; both on one file system.

    After a crash at any point `finish_install` brings back the old store or the new one, whole.
    """
    aside = path + _ASIDE_SUFFIX
    disk.remove_tree(aside)
    if disk.exists(path):
        disk.rename(path, aside)
    disk.rename(snapshot, path)
    discard_tree(disk, aside)


def finish_install(disk: Disk, path: str) -> None:
    """Before the store `path` is opened: undo what a crash left half done."""
    aside = path + _ASIDE_SUFFIX
    if not disk.exists(path) and disk.exists(aside):
        disk.rename(aside, path)


def destroy_state(disk: Disk, path: str) -> None:
    """Remove the (closed) store `path`; nothing happens where there is none."""
    disk.remove_tree(path)
    disk.remove_tree(path + _ASIDE_SUFFIX)


def store_path(directory: str, shard_id: int) -> str:
    """Where the store of a table's shard is, in a node's directory `tables`."""
    return os.path.join(directory, str(shard_id))
