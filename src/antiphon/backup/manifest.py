"""What belongs to a backup: its manifest, a JSON file that is written last. A backup without one does not exist.

`manifests/NAME.json` is an object with `format`, `checksum` (XXH3-128 of the bytes of `backup`) and `backup`, which this
module describes. Names sort by time. A manifest names every file that it needs, also those of earlier backups.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from xxhash import xxh3_128

from antiphon import system
from antiphon.backup.place import Place
from antiphon.errors import UNDECODABLE, BackupError, NewerFormatError

FORMAT: Final = 1
MANIFESTS: Final = "manifests"
SUFFIX: Final = ".json"
MANIFEST_BYTES_MAX: Final = 256 * 1024 * 1024
LATEST: Final = "latest"
_TIME: Final = "%Y%m%dT%H%M%SZ"
_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

Offset = Annotated[int, Meta(ge=0, lt=1 << 62)]
Term = Annotated[int, Meta(ge=-1, lt=(1 << 31) - 1_000)]


class Piece(msgspec.Struct, frozen=True):
    """A file with whole batches of a log, from `start` to `end`. `term`: of the last one."""

    path: str
    start: Offset
    end: Offset
    size_bytes: Offset
    checksum: str
    term: Term


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a state: `name` there, `path` here. `crc`: CRC-32C, as the node said."""

    name: str
    path: str
    size_bytes: Offset
    checksum: str
    crc: int


class State(msgspec.Struct, frozen=True):
    """What a log continues from, where it does not begin at 0: of a table the store, and the producers."""

    term: Term
    offset: Offset
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of its files."""
        return sum(file.size_bytes for file in self.files)


class ShardBackup(msgspec.Struct, frozen=True):
    """A shard up to the cut. Without a `state` the pieces begin at 0; with one they go on from its offset, or before.

    `deleted_before`: records before it were deleted on request. A batch of a piece may have some of them.
    """

    shard_id: Offset
    index: int
    term: Term
    start: Offset
    end: Offset
    pieces: tuple[Piece, ...]
    state: State | None = None
    deleted_before: Offset = 0

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        of_state = 0 if self.state is None else self.state.size_bytes
        return of_state + sum(piece.size_bytes for piece in self.pieces)


class TopicBackup(msgspec.Struct, frozen=True):
    """A topic or table as of the cut. `topic_id`: hexadecimal."""

    name: str
    topic_id: str
    kind: str
    replicas: int
    profile: str
    config: dict[str, str]
    internal: bool
    shards: tuple[ShardBackup, ...]


class CutReport(msgspec.Struct, frozen=True):
    """How the cut was taken. Times are ms since 1970 by the clock of who took it; the others ms."""

    began_ms: int
    ended_ms: int
    held_ms: float
    tries: int
    tried_ms: float


class Backup(msgspec.Struct, frozen=True):
    """A whole backup. `cluster`: the log `__cluster`, which has users, lists, quotas and settings as well.

    `written_bytes`: of the files that this backup wrote; the others are of `base`, an earlier one, and those before it.
    """

    name: str
    cluster_id: str
    version: str
    created_ms: int
    took_ms: int
    cut: CutReport
    cluster: ShardBackup
    topics: tuple[TopicBackup, ...]
    without: tuple[str, ...] = ()
    base: str = ""
    written_bytes: int = 0
    written_files: int = 0

    @property
    def shards(self) -> list[ShardBackup]:
        """All shards, `__cluster` first."""
        return [self.cluster, *(shard for topic in self.topics for shard in topic.shards)]

    @property
    def size_bytes(self) -> int:
        """Of all files that it needs."""
        return sum(shard.size_bytes for shard in self.shards)

    def topic(self, name: str) -> TopicBackup:
        """A topic or table by name; raises BackupError."""
        found = next((topic for topic in self.topics if topic.name == name), None)
        if found is None:
            left_out = " (it was left out)" if name in self.without else ""
            raise BackupError(
                f"backup {self.name} has no topic or table {name!r}{left_out}: `antiphon backup show PLACE "
                f"{self.name}` lists what it has"
            )
        return found


class _Manifest(msgspec.Struct, frozen=True):
    format: int
    checksum: str
    backup: msgspec.Raw


def new_name(known: Sequence[str] = ()) -> str:
    """A name for a backup that is made now: behind the `known` ones, also where a clock was set back."""
    from datetime import UTC, datetime, timedelta

    at = datetime.fromtimestamp(system.wall_ms() / 1000, UTC).replace(microsecond=0)
    with suppress(ValueError, OverflowError):  # a name that no backup gave itself
        newest = datetime.strptime(max(known).partition("-")[0], _TIME).replace(tzinfo=UTC)
        at = max(at, newest + timedelta(seconds=1))
    return f"{at:{_TIME}}-{system.new_uuid().hex[:8]}"


def manifest_path(name: str) -> str:
    """Where the manifest of a backup is."""
    return f"{MANIFESTS}/{name}{SUFFIX}"


def save(place: Place, backup: Backup) -> None:
    """Write the manifest: from now on the backup exists."""
    body = msgspec.json.encode(backup)
    manifest = _Manifest(FORMAT, xxh3_128(body).hexdigest(), msgspec.Raw(body))
    place.write(manifest_path(backup.name), msgspec.json.encode(manifest))


def names_in(place: Place) -> list[str]:
    """Names of the backups there, the oldest first."""
    found = (name.removesuffix(SUFFIX) for name in place.names(MANIFESTS) if name.endswith(SUFFIX))
    return [name for name in found if _NAME.fullmatch(name)]


def load(place: Place, name: str = LATEST) -> Backup:
    """Read a manifest and judge it. Raises BackupError for one that is not there or not whole, NewerFormatError."""
    if name == LATEST:
        names = names_in(place)
        if not names:
            raise BackupError(
                f"there is no backup in {place.uri}: `antiphon backup create {place.uri}` makes one"
            )
        name = names[-1]
    if not _NAME.fullmatch(name):
        raise BackupError(
            f"{name[:100]!r} is no name of a backup: `antiphon backup list {place.uri}` shows them"
        )
    path = manifest_path(name)
    backup = decoded(place, path, place.read(path, MANIFEST_BYTES_MAX))
    problem = "it has another name inside" if backup.name != name else _problem(backup)
    if problem:
        raise BackupError(f"{place.uri}: {path} contradicts itself: {problem}; use another backup")
    return backup


def decoded(place: Place, path: str, data: bytes) -> Backup:
    """What the bytes of a manifest say. Raises BackupError, NewerFormatError."""
    try:
        found = msgspec.json.decode(data, type=_Manifest)
        if found.format > FORMAT:
            raise NewerFormatError(
                f"{place.uri}: {path} has format {found.format}, this version reads up to {FORMAT}: use the newer antiphon "
                "that wrote it"
            )
        if xxh3_128(bytes(found.backup)).hexdigest() != found.checksum:
            raise BackupError(
                f"{place.uri}: {path} is damaged: its checksum is another one; use another backup"
            )
        return msgspec.json.decode(found.backup, type=Backup)
    except UNDECODABLE as error:
        raise BackupError(
            f"{place.uri}: {path} is no manifest of a backup: {error}; use another one"
        ) from error


def _problem(backup: Backup) -> str:
    """What cannot be so; empty: nothing."""
    ids = [shard.shard_id for shard in backup.shards]
    names = [topic.name for topic in backup.topics]
    if len(set(ids)) < len(ids) or len(set(names)) < len(names) or backup.cluster.shard_id:
        return "shards or topics are there twice"
    for shard in backup.shards:
        at = shard.pieces[0].start if shard.pieces else shard.end
        begins = (
            (shard.start if shard is backup.cluster else 0) if shard.state is None else shard.state.offset
        )
        if at > begins or begins > shard.end:
            return f"the log of shard {shard.shard_id} has nothing from {begins} to {at}"
        for piece in shard.pieces:
            if piece.start != at or piece.end <= at:
                return f"pieces of shard {shard.shard_id} do not follow each other at {at}"
            at = piece.end
        if at != shard.end or not shard.start <= shard.end:
            return f"the log of shard {shard.shard_id} ends at {at}, not at {shard.end}"
        for file in () if shard.state is None else shard.state.files:
            if not _FILE_NAME.fullmatch(file.name):
                return f"{file.name[:100]!r} is no name of a file of a state"
    return ""
