"""What a simulated disk durably holds of a shard, read past the node that uses it."""

import os
import struct
from functools import lru_cache
from typing import Final

from crc32c import crc32c

from antiphon.log.directory import SHARDS_NAME
from antiphon.log.hard_state import HARD_STATE_NAME
from antiphon.log.segment import DATA_SUFFIX
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.snapshot import START_NAME, decode_start
from antiphon.records.batch import HEADER_BYTES, Buffer, read_header
from antiphon.records.entry_id import EMPTY, EntryId

DIRECTORY: Final = "/data"  # of each simulated node
_PROMISE_AT: Final = 16  # magic, version and CRC come first
_PROMISE: Final = struct.Struct(">qq")
_BEGINNING: Final = struct.Struct(">qiibIhi")
"""Of a batch: base offset, length after these two fields, term, magic, CRC, attributes, its last offset less the first."""
_LENGTH_FIELDS: Final = 12  # of a batch, not counted by its length


def shard_path(shard_id: int) -> str:
    """Where a simulated node keeps its replica of a shard."""
    return f"{DIRECTORY}/{SHARDS_NAME}/{shard_id}"


def promise_of(disk: SimulatedDisk, shard_path: str) -> tuple[int, int]:
    """Term and vote (-1: nobody) that would be found after a power failure now; (0, -1) where there is nothing.

    Where the file is not whole the term is at least that of the log, or of its start, and nobody knows the vote.
    """
    data = disk.durable(f"{shard_path}/{HARD_STATE_NAME}")
    if data is None:
        return 0, -1
    if len(data) < _PROMISE_AT + _PROMISE.size or not _is_whole(data):
        return max(end_of_log(disk, shard_path).term, _start_term(disk, f"{shard_path}/{START_NAME}")), -1
    term, vote = _PROMISE.unpack_from(data, _PROMISE_AT)
    return term, vote


def _start_term(disk: SimulatedDisk, path: str) -> int:
    data = disk.durable(path)
    start = None if data is None else decode_start(bytes(data), path)
    return 0 if start is None else start.start_term


def _is_whole(data: Buffer) -> bool:
    return bool(crc32c(data[_PROMISE_AT:]) == int.from_bytes(data[_PROMISE_AT - 4 : _PROMISE_AT], "big"))


def end_of_log(disk: SimulatedDisk, shard_path: str) -> EntryId:
    """Id of the last whole batch in a replica's files; `EMPTY` where there is none."""
    names = [name for name in disk.durable_names(shard_path) if name.endswith(DATA_SUFFIX)]
    found = EMPTY
    for name in names:
        data, at = disk.durable(os.path.join(shard_path, name)) or bytearray(), 0
        while at + HEADER_BYTES <= len(data):
            _, length, *_ = _BEGINNING.unpack_from(data, at)
            end = at + length + _LENGTH_FIELDS
            if length + _LENGTH_FIELDS < HEADER_BYTES or end > len(data):
                break
            header = read_header(bytes(data[at:end]))
            found, at = max(found, EntryId(header.leader_epoch, header.next_offset)), end
    return found


@lru_cache(4096)
def _base_of(name: str) -> int:
    """The first offset in a file of batches by its name; -1 for other files."""
    return int(name[: -len(DATA_SUFFIX)]) if name.endswith(DATA_SUFFIX) else -1


class DurableLog:
    """The batches of one shard on one machine's disk, as they would be found after a power failure now.

    Where a batch lies is remembered; what is there is read anew each time.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._positions: dict[str, dict[int, int]] = {}  # by file: base offset -> position
        self._ends: dict[str, dict[int, int]] = {}  # by file: next offset -> base offset
        self._scanned: dict[str, int] = {}
        self._content: dict[str, bytearray] = {}  # by file: compaction puts another one under the same name

    def batch(self, disk: SimulatedDisk, base_offset: int) -> bytes | None:
        """The batch that begins at `base_offset`; None where there is none, or not the whole of it."""
        name = self._file_of(disk, base_offset)
        data = None if name is None else disk.durable(f"{self._path}/{name}")
        if name is None or data is None:
            return None
        for _ in range(2):
            self._scan(name, data)
            found = self._at(name, data, base_offset)
            if found is not None or self._is_beyond(name, data, base_offset):
                return found
            self._forget(name)  # perhaps the file was cut and written anew
        return None

    def has_end(self, disk: SimulatedDisk, end: int, term: int) -> bool:
        """Is there a whole batch of `term` that ends at `end`? Those before it are not looked at."""
        name = self._file_of(disk, end - 1)
        data = None if name is None else disk.durable(f"{self._path}/{name}")
        if name is None or data is None:
            return False
        for _ in range(2):
            self._scan(name, data)
            found = self._at(name, data, self._ends[name].get(end, -1))
            if found is not None:
                base, _, epoch, *_, delta = _BEGINNING.unpack_from(found)
                if (base + delta + 1, epoch) == (end, term):
                    return True
            self._forget(name)
        return self._fills(name, data, end, term)

    def _fills(self, name: str, data: bytearray, end: int, term: int) -> bool:
        """Is `end` within a batch that compaction has left in the place of neighbours?"""
        self._scan(name, data)
        base = max((one for one in self._positions[name] if one < end), default=-1)
        found = self._at(name, data, base)
        if found is None:
            return False
        header = read_header(found)
        return (
            not header.record_count
            and header.producer_id < 0
            and header.leader_epoch == term
            and header.next_offset > end
        )

    def _is_beyond(self, name: str, data: bytearray, base_offset: int) -> bool:
        """Is what was found in the file still there, and all of it before `base_offset`?"""
        last = next(reversed(self._positions[name]), -1)
        found = self._at(name, data, last) if last < base_offset else None
        # One of another length in its place means that the file was cut before it, and written anew.
        return found is not None and self._positions[name][last] + len(found) == self._scanned[name]

    def _forget(self, name: str) -> None:
        self._positions.pop(name, None)
        self._scanned.pop(name, None)

    def _file_of(self, disk: SimulatedDisk, base_offset: int) -> str | None:
        best, best_base = None, -1
        for name in disk.durable_names(self._path):
            base = _base_of(name)
            if best_base < base <= base_offset:
                best, best_base = name, base
        return best

    def _scan(self, name: str, data: bytearray) -> None:
        """Find the batches that were written since the last time."""
        if self._content.get(name) is not data:
            self._forget(name)
            self._content[name] = data
        at = self._scanned.get(name, 0)
        if not at:
            self._positions[name], self._ends[name] = {}, {}
        positions, ends = self._positions[name], self._ends[name]
        last = next(reversed(positions), -1)
        while at + HEADER_BYTES <= len(data):
            base, length, *_, delta = _BEGINNING.unpack_from(data, at)
            if length + _LENGTH_FIELDS < HEADER_BYTES or base <= last:
                break  # nothing is here yet; or the middle of a batch, in a file that was cut and written anew
            positions[base], last = at, base
            ends[base + delta + 1] = base
            at += length + _LENGTH_FIELDS
        self._scanned[name] = at

    def _at(self, name: str, data: bytearray, base_offset: int) -> bytes | None:
        place = self._positions[name].get(base_offset)
        if place is None or place + HEADER_BYTES > len(data):
            return None
        found, length, *_ = _BEGINNING.unpack_from(data, place)
        end = place + length + _LENGTH_FIELDS
        return bytes(data[place:end]) if found == base_offset and end <= len(data) else None
