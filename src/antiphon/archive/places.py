"""Where archived files may be: what a reader opens because a row of the catalog says so.

A row is data. Whoever could write one could have readers open any address that fsspec understands. So a row's address must
be that of a file as the archive job names it, on a file system that keeps files: others, and any place at all, only where
the reader's environment allows it. `ANTIPHON_ARCHIVE_LOCATIONS` names directories, separated by spaces: then only files
below one of them are opened, whatever their file system.
"""

import os
import re
from typing import Any, Final

from antiphon.model.metadata import TopicMeta

LOCATIONS_VARIABLE: Final = "ANTIPHON_ARCHIVE_LOCATIONS"
FILE_SYSTEMS: Final = (
    "file", "local", "memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hdfs", "oss", "obs", "oci", "cos",
)  # fmt: skip
OBJECT_STORES: Final = frozenset(FILE_SYSTEMS) - {"file", "local", "memory", "hdfs"}
simulated: Final[dict[str, Any]] = {}
"""Others by scheme, for simulated nodes: those of fsspec ask the real machine for its time and its process."""
_ATTEMPT: Final = re.compile(r"[0-9]{13}-[0-9a-f]{8}\.parquet")


def make_directory(system: Any, path: str) -> None:
    """Make a directory on a file system of fsspec, with those above it, where it has any.

    Object stores have none: s3fs would make a bucket of the name, where somebody has mistyped one. Raises OSError.
    """
    protocol = getattr(system, "protocol", ())
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    if not names & OBJECT_STORES:
        system.makedirs(path, exist_ok=True)


def are_named() -> bool:
    """Has the operator named the directories of archives? Of simulated nodes nothing but the simulation is in reach."""
    return bool(os.environ.get(LOCATIONS_VARIABLE, "").split()) or bool(simulated)


def topic_directory(topic: TopicMeta) -> str:
    """Name of the directory of a topic's files below the archive's."""
    return f"{topic.name}-{topic.topic_id.hex()[:8]}"


def shard_directory(shard: int) -> str:
    """Name of a shard's directory below its topic's."""
    return f"{shard:05d}"


def file_prefix(start: int, end: int) -> str:
    """What the name of a file begins with that holds start <= offset < end; the time and the attempt follow."""
    return f"{start:020d}-{end:020d}-"


def location_problem(uri: str) -> str | None:
    """Why readers with this environment open nothing at this address, or None."""
    if "::" in uri or any(part in {".", ".."} for part in uri.split("/")):
        return "chained file systems and relative paths are not opened"
    full = _with_scheme(uri)
    locations = os.environ.get(LOCATIONS_VARIABLE, "").split()
    if locations:
        below = any(full.startswith(_with_scheme(place).rstrip("/") + "/") for place in locations)
        return None if below else f"it is not below a directory of {LOCATIONS_VARIABLE}"
    scheme = full.partition("://")[0]
    if scheme not in FILE_SYSTEMS and scheme not in simulated:
        return f"{scheme!r} is no file system that is opened by itself: name the directory in {LOCATIONS_VARIABLE}"
    return None


def address_problem(uri: str, topic: str, topic_id: str, shard: int, start: int, end: int) -> str | None:
    """Why a file of the catalog is not opened, or None: its place, or a name that the archive job does not give."""
    *_, directory, of_shard, name = ("", "", *uri.split("/"))
    prefix = file_prefix(start, end)
    if (
        (directory, of_shard) != (f"{topic}-{topic_id[:8]}", shard_directory(shard))
        or not name.startswith(prefix)
        or _ATTEMPT.fullmatch(name, len(prefix)) is None
    ):
        return "the archive does not name its files so"
    return location_problem(uri)


def _with_scheme(uri: str) -> str:
    """An address as fsspec tells it; a plain path is of this machine."""
    return uri if "://" in uri else f"file://{os.path.abspath(uri)}"
