"""Reads a whole backup back: every file against its checksum, every batch of a log against its own and its neighbours."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from antiphon.backup.manifest import Backup, Piece, ShardBackup
from antiphon.backup.metadata import Metadata, topics_of
from antiphon.backup.place import Place
from antiphon.errors import AntiphonError, BackupError
from antiphon.model.metadata import ShardMeta
from antiphon.records.batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    UNCHECKED_BYTES,
    BatchHeader,
    read_header,
)

BATCH_BYTES_MAX: Final = 1 << 30
PROBLEMS_MAX: Final = 100

Look = Callable[[int], None]
"""Is told how many bytes more were read."""


class Problem(NamedTuple):
    """What is wrong with a file."""

    shard: int
    path: str
    what: str


class Verified(NamedTuple):
    """What was read, and what is wrong; at most `PROBLEMS_MAX` are told."""

    files: int
    size_bytes: int
    batches: int
    problems: tuple[Problem, ...]


def batches_of(place: Place, piece: Piece, look: Look | None = None) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches of a piece, each checked. Raises BackupError, at the end for the file's checksum."""
    at, held = piece.start, bytearray()
    for data in place.pieces(piece.path, piece.size_bytes, piece.checksum):
        if look is not None:
            look(len(data))
        held += data
        done = 0
        while (size := _size_at(held, done, piece)) is not None:
            batch = bytes(held[done : done + size])
            header = read_header(batch)
            if header.base_offset != at or crc32c(batch[UNCHECKED_BYTES:]) != header.crc:
                raise BackupError(f"{piece.path}: the batch at {header.base_offset}, after {at}, is damaged")
            yield header, batch
            at, done = header.next_offset, done + size
        del held[:done]
    if held or at != piece.end:
        raise BackupError(f"{piece.path} ends at {at}, within a batch or before {piece.end}")


def _size_at(held: bytearray, at: int, piece: Piece) -> int | None:
    """Bytes of the batch that begins there; None while it is not whole."""
    if len(held) - at < HEADER_BYTES:
        return None
    header = read_header(held, at)
    size = LENGTH_PREFIX_BYTES + header.batch_length
    if header.magic != 2 or not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
        raise BackupError(f"{piece.path} has something else than a batch after {size} bytes")
    return size if len(held) - at >= size else None


def log_of(place: Place, shard: ShardBackup, look: Look | None = None) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches of a shard's log, from where its state ends. Raises BackupError."""
    begins = 0 if shard.state is None else shard.state.offset
    for piece in shard.pieces:
        for header, batch in batches_of(place, piece, look):
            if header.next_offset <= begins:
                continue
            if header.base_offset < begins:
                raise BackupError(f"{piece.path} has no bound of batches at {begins}, where the state ends")
            yield header, batch


def metadata_of(place: Place, backup: Backup) -> Metadata:
    """The cluster's metadata as of the cut. Raises BackupError where it is not that of the manifest."""
    pieces = backup.cluster.pieces
    metadata = Metadata(pieces[0].start if pieces else 0)
    for _, batch in log_of(place, backup.cluster):
        metadata.fold([batch])
    state = metadata.state
    if not metadata.is_whole:
        raise BackupError(f"backup {backup.name} has no checkpoint of the metadata where their log begins")
    if state.cluster is None or state.cluster.cluster_id != backup.cluster_id:
        raise BackupError(f"backup {backup.name} has the metadata of another cluster")
    found = {
        topic.name: (topic.topic_id.hex(), _ids(topic.shards))
        for topic in topics_of(state)
        if topic.name not in backup.without
    }
    said = {
        topic.name: (topic.topic_id, [(shard.shard_id, shard.index) for shard in topic.shards])
        for topic in backup.topics
    }
    if found != said:
        raise BackupError(f"backup {backup.name} has other topics than its metadata")
    return metadata


def _ids(shards: tuple[ShardMeta, ...]) -> list[tuple[int, int]]:
    return [(shard.shard_id, shard.index) for shard in shards]


def verify_backup(
    place: Place, backup: Backup, look: Look | None = None, *, of_cluster: bool = True
) -> Verified:
    """Read everything; see the module's text. `of_cluster`: the metadata too, which must be those of the manifest."""
    files = batches = size_bytes = 0
    problems: list[Problem] = []
    for shard in backup.shards:
        for piece in shard.pieces:
            files, size_bytes = files + 1, size_bytes + piece.size_bytes
            try:
                batches += sum(1 for _ in batches_of(place, piece, look))
            except AntiphonError as error:
                problems.append(Problem(shard.shard_id, piece.path, error.message))
        for file in () if shard.state is None else shard.state.files:
            files, size_bytes = files + 1, size_bytes + file.size_bytes
            try:
                place.check(file.path, file.size_bytes, file.checksum)
            except AntiphonError as error:
                problems.append(Problem(shard.shard_id, file.path, error.message))
            if look is not None:
                look(file.size_bytes)
    try:
        if of_cluster and not problems:
            metadata_of(place, backup)
    except AntiphonError as error:
        problems.append(Problem(0, "", error.message))
    return Verified(files, size_bytes, batches, tuple(problems[:PROBLEMS_MAX]))
