"""Is a file of a simulated node as it was written? Judged by the bytes themselves, past what the node makes of them."""

import os
from typing import Final

from crc32c import crc32c

from antiphon.log.aborted import ABORTED_SUFFIX
from antiphon.log.segment import DATA_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.log.snapshot import decode_snapshot
from antiphon.simulation.memory_store import MANIFEST, is_whole_run, runs_named_in

_AROUND: Final = 64
_INDEX_PIECE: Final = 40  # the header and each entry, with a CRC of all before it at the end
_CRC_AT: Final = 36
_LENGTH: Final = slice(8, 12)
_SEALED: Final = 12  # magic and version, before the CRC of all but itself
_SEALED_CRC: Final = 16
_BATCH_HEAD: Final = 61
_BATCH_CRC: Final = slice(17, 21)
_COVERED_FROM: Final = 21


def bytes_around(disk: SimulatedDisk, path: str, bit: int) -> bytes:
    """What is on the disk around a bit, to know the place again."""
    at = bit // 8
    return bytes((disk.durable(path) or b"")[max(0, at - _AROUND) : at + _AROUND])


def is_rotten(disk: SimulatedDisk, path: str) -> bool:
    """Is it there, damaged, and in use? What no CRC covers of a log is compared elsewhere with what was committed.

    "There" is what a power failure would leave, so a removal that is not durable does not count. Of a store's runs those are
    in use that its manifest names: any other is removed by the next opening.
    """
    data = disk.durable(path)
    if data is None:
        return False
    if path.endswith(INDEX_SUFFIX):
        return any(
            crc32c(data[at : at + _CRC_AT]) != int.from_bytes(data[at + _CRC_AT : at + _INDEX_PIECE], "big")
            for at in range(0, len(data) - _INDEX_PIECE + 1, _INDEX_PIECE)
        )
    if path.endswith(SNAPSHOT_SUFFIX):
        return decode_snapshot(bytes(data), path) is None
    if path.endswith(DATA_SUFFIX):
        return not _are_batches(bytes(data))
    if path.endswith(ABORTED_SUFFIX):
        head, crc, payload = data[:_SEALED], data[_SEALED:_SEALED_CRC], data[_SEALED_CRC:]
        return bool(crc32c(bytes(head + payload)) != int.from_bytes(crc, "big"))
    return path.endswith(".run") and _is_named(disk, path) and not is_whole_run(bytes(data))


def _is_named(disk: SimulatedDisk, path: str) -> bool:
    """Does the manifest that a power failure would leave name this run? One that cannot be read may name all."""
    folder, name = os.path.split(path)
    named = runs_named_in(bytes(disk.durable(os.path.join(folder, MANIFEST)) or b""))
    return named is None or name in named


def _are_batches(data: bytes) -> bool:
    at = 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at:][_LENGTH], "big")
        batch = data[at:end]
        if len(batch) < _BATCH_HEAD or end > len(data):
            return not any(data[at:])  # room for what comes next
        if crc32c(batch[_COVERED_FROM:]) != int.from_bytes(batch[_BATCH_CRC], "big"):
            return False
        at = end
    return True
