"""Removes old backups, and the files that no backup needs any more.

Backups share files, so a file goes once no manifest names it. A manifest is copied to `removed/`, removed from
`manifests/`, and then the remaining manifests are read: what they name stays. When all else is gone the copy goes, too. A
prune that was stopped is completed by the next one.

A backup that is being made names files of an earlier one. It looks for that one after it has written its own manifest
(`create`): either this module has seen the new manifest, and its files stay, or the new backup sees that its base is gone.
Files of a backup that did not end are named by no manifest, and are left alone.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from antiphon.backup.manifest import (
    MANIFEST_BYTES_MAX,
    SUFFIX,
    Backup,
    decoded,
    load,
    manifest_path,
    names_in,
)
from antiphon.backup.place import Place
from antiphon.errors import AntiphonError, BackupError

REMOVED: Final = "removed"

Tell = Callable[[str], None]


class Pruned(NamedTuple):
    """What went: backups by name, files, and their bytes. `kept`: the backups that are left."""

    backups: list[str]
    files: int
    size_bytes: int
    kept: list[str]


def old_ones(place: Place, keep: int, before_ms: int | None) -> list[Backup]:
    """Backups that go: all but the newest `keep` of each cluster; with `before_ms` only those that are older.

    Raises BackupError where a manifest cannot be read: what it needs is not known.
    """
    if keep < 1:
        raise BackupError(f"the newest backup of a cluster is never pruned: keep 1 or more, not {keep}")
    of_cluster: defaultdict[str, list[Backup]] = defaultdict(list)
    for backup in sorted(_all(place), key=lambda one: (one.created_ms, one.name)):
        of_cluster[backup.cluster_id].append(backup)
    older = (backup for those in of_cluster.values() for backup in those[:-keep])
    return [backup for backup in older if before_ms is None or backup.created_ms < before_ms]


def prune(place: Place, backups: Iterable[Backup], tell: Tell | None = None) -> Pruned:
    """Remove these backups, and what an earlier prune did not come to. Blocks. Raises BackupError."""
    say = tell or (lambda _text: None)
    gone = []
    for backup in backups:
        say(f"removing backup {backup.name}")
        path = manifest_path(backup.name)
        place.write(f"{REMOVED}/{backup.name}{SUFFIX}", place.read(path, MANIFEST_BYTES_MAX))
        place.remove(path)
        gone.append(backup.name)
    kept = _all(place)
    needed = {path for backup in kept for path in files_of(backup)}
    files = size_bytes = 0
    for name in [one for one in place.names(REMOVED) if one.endswith(SUFFIX)]:
        path = f"{REMOVED}/{name}"
        mine = files_of(decoded(place, path, place.read(path, MANIFEST_BYTES_MAX)))
        for file, size in mine.items():
            if file not in needed and place.remove(file):
                files, size_bytes = files + 1, size_bytes + size
                say(f"removed {files} files, {size_bytes} bytes")
        place.remove(path)
    return Pruned(gone, files, size_bytes, [backup.name for backup in kept])


def _all(place: Place) -> list[Backup]:
    found = []
    for name in names_in(place):
        try:
            found.append(load(place, name))
        except AntiphonError as error:
            raise BackupError(
                f"nothing is removed while a manifest cannot be read, as its files are not known: {error.message}. Move "
                f"{manifest_path(name)} out of {place.uri} to give that backup up"
            ) from error
    return found


def files_of(backup: Backup) -> dict[str, int]:
    """Paths of all files that a backup needs, with their bytes."""
    found: dict[str, int] = {}
    for shard in backup.shards:
        found |= {piece.path: piece.size_bytes for piece in shard.pieces}
        found |= {file.path: file.size_bytes for file in (() if shard.state is None else shard.state.files)}
    return found
