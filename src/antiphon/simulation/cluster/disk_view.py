"""What a simulated disk durably holds of a shard, read past the node that uses it."""

import os
import struct
from typing import Final

from antiphon.log.hard_state import HARD_STATE_NAME
from antiphon.log.segment import DATA_SUFFIX
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.records.batch import HEADER_BYTES

_PROMISE_AT: Final = 16  # magic, version and CRC come first
_BEGINNING: Final = struct.Struct(">qi")  # of a batch: base offset, and its length after these fields
_LENGTH_FIELDS: Final = 12  # of a batch, not counted by its length


def promise_of(disk: SimulatedDisk, shard_path: str) -> tuple[int, int]:
    """Term and vote (-1: nobody) that would be found after a power failure now; (0, -1) where there is nothing."""
    data = disk.durable(os.path.join(shard_path, HARD_STATE_NAME))
    if data is None or len(data) < _PROMISE_AT + 16:
        return 0, -1
    return (
        int.from_bytes(data[_PROMISE_AT : _PROMISE_AT + 8], "big", signed=True),
        int.from_bytes(data[_PROMISE_AT + 8 : _PROMISE_AT + 16], "big", signed=True),
    )


class DurableLog:
    """The batches of one shard on one machine's disk, as they would be found after a power failure now.

    Where a batch lies is remembered; what is there is read anew each time.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._positions: dict[str, dict[int, int]] = {}  # by file
        self._scanned: dict[str, int] = {}

    def batch(self, disk: SimulatedDisk, base_offset: int) -> bytes | None:
        """The batch that begins at `base_offset`; None where there is none, or not the whole of it."""
        name = self._file_of(disk, base_offset)
        data = None if name is None else disk.durable(os.path.join(self._path, name))
        if name is None or data is None:
            return None
        for _ in range(2):
            found = self._look(name, data, base_offset)
            if found is not None:
                return found
            self._positions.pop(name, None)  # perhaps the file was cut and written anew
            self._scanned.pop(name, None)
        return None

    def _file_of(self, disk: SimulatedDisk, base_offset: int) -> str | None:
        best, best_base = None, -1
        for name in disk.durable_names(self._path):
            if name.endswith(DATA_SUFFIX):
                base = int(name[: -len(DATA_SUFFIX)])
                if best_base < base <= base_offset:
                    best, best_base = name, base
        return best

    def _look(self, name: str, data: bytearray, base_offset: int) -> bytes | None:
        positions = self._positions.setdefault(name, {})
        at = self._scanned.get(name, 0)
        while base_offset not in positions and at + HEADER_BYTES <= len(data):
            found, length = _BEGINNING.unpack_from(data, at)
            if length + _LENGTH_FIELDS < HEADER_BYTES:
                break
            positions[found] = at
            at += length + _LENGTH_FIELDS
        self._scanned[name] = at
        place = positions.get(base_offset)
        if place is None or place + HEADER_BYTES > len(data):
            return None
        found, length = _BEGINNING.unpack_from(data, place)
        end = place + length + _LENGTH_FIELDS
        return bytes(data[place:end]) if found == base_offset and end <= len(data) else None
