"""Which node of which cluster a data directory belongs to: `identity.json`, and its copy.

`identity.json` is JSON with a checksum, `crc`, of its other members; those of earlier versions have none. `identity.copy`
says the same, sealed (`snapshot.seal`, magic "ANTIPHID"). It is written first, durably: so it is never older than
`identity.json`, and no `disk_id` that was given up comes back. Where `identity.json` is lost, or not as it was written, it
is made anew from the copy. A whole file that names another node or cluster is never mended: somebody has mixed up
directories, and a node must not take another's promises for its own.
"""

import os
from typing import Any, Final, NamedTuple

import msgspec
from crc32c import crc32c

from antiphon.errors import UNDECODABLE, ForeignDirectoryError, NewerFormatError
from antiphon.log.disk import Disk, read_whole, replace_file
from antiphon.log.snapshot import seal, unframe

FORMAT: Final = 1
IDENTITY_NAME: Final = "identity.json"
IDENTITY_COPY_NAME: Final = "identity.copy"
EMPTY_START: Final = "the node then starts empty, and the others send it everything"
_MAGIC: Final = b"ANTIPHID"
_VERSION: Final = 1


class Identity(msgspec.Struct, frozen=True):
    """Content of `identity.json`, but for the checksum."""

    format: int
    cluster_id: str
    node_id: int
    disk_id: str
    bootstrap: bool = False
    inventory: bool = False  # the directory has one; those of older versions get it when they are opened


class Found(NamedTuple):
    """Whose directory it is; None: nobody's yet. `mended`: why that was read from the copy. `is_kept`: in both files?"""

    identity: Identity | None
    mended: str = ""
    is_kept: bool = True


class _Main(NamedTuple):
    """What `identity.json` says; `why` it cannot be believed. `is_checked`: it has a checksum."""

    identity: Identity | None = None
    why: str = ""
    is_checked: bool = False


def save_identity(disk: Disk, path: str, identity: Identity) -> None:
    """Write both files, the copy first; durable when this returns. Raises OSError."""
    said = msgspec.json.encode(identity)
    replace_file(disk, os.path.join(path, IDENTITY_COPY_NAME), seal(_MAGIC, _VERSION, said))
    checked = msgspec.json.decode(said, type=dict[str, Any]) | {"crc": crc32c(said)}
    replace_file(disk, os.path.join(path, IDENTITY_NAME), msgspec.json.encode(checked))


def find_identity(disk: Disk, path: str) -> Found:
    """Read both files.

    Raises:
        ForeignDirectoryError: neither can be believed, or they contradict each other.
        NewerFormatError: a later version of Antiphon wrote it.
        PermissionError: neither may be read.
    """
    file = os.path.join(path, IDENTITY_NAME)
    main, copy, refused = _Main(), None, None
    try:
        main = _decode(path, read_whole(disk, file))
    except PermissionError as error:
        refused, main = error, _Main(why=f"it cannot be opened: {error.strerror}")
    copy = _read_copy(disk, path)
    if main.identity is not None and copy is not None and main.identity != copy and not main.is_checked:
        raise ForeignDirectoryError(
            f"{file} and {IDENTITY_COPY_NAME} beside it are about two directories, or one is of an earlier start; restore "
            f"both from one backup, or move the directory away: {EMPTY_START}",
            path=path,
        )
    if main.identity is not None:
        return Found(main.identity, is_kept=main.is_checked and main.identity == copy)
    if copy is not None:
        return Found(copy, main.why or "it is missing", is_kept=False)
    if refused is not None:
        raise refused
    if main.why:
        raise ForeignDirectoryError(
            f"{file} is not a node's identity: {main.why}; restore it from a backup, or move the directory away: "
            f"{EMPTY_START}",
            path=path,
        )
    return Found(None)


def _decode(path: str, data: bytes | None) -> _Main:
    if data is None:
        return _Main()
    try:
        members = msgspec.json.decode(data, type=dict[str, Any])
        crc = members.pop("crc", None)
        if crc is not None and crc != crc32c(msgspec.json.encode(members)):
            return _Main(why="its checksum is another one")
        # The format first: a later one may hold other fields.
        found = members.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise NewerFormatError(
                f"{path} has format {found}, this version knows up to {FORMAT}; "
                "start the newer version of Antiphon that wrote it",
                path=path,
                found=found,
                known=FORMAT,
            )
        return _Main(msgspec.json.decode(data, type=Identity), is_checked=crc is not None)
    except UNDECODABLE as error:
        return _Main(why=str(error))


def _read_copy(disk: Disk, path: str) -> Identity | None:
    file = os.path.join(path, IDENTITY_COPY_NAME)
    try:
        payload = unframe(_MAGIC, _VERSION, read_whole(disk, file), file)
    except PermissionError:
        return None
    try:
        return None if payload is None else msgspec.json.decode(payload, type=Identity)
    except UNDECODABLE:
        return None
