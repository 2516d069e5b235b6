"""Is a file of a simulated node as it was written? Judged by the bytes themselves, past what the node makes of them."""

from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from antiphon.log.segment import DATA_SUFFIX, INDEX_SUFFIX
from antiphon.simulation.memory_store import is_whole_run

if TYPE_CHECKING:
    from antiphon.simulation.cluster.machine import Machine

_INDEX_PIECE: Final = 40  # the header and each entry, with a CRC of all before it at the end
_CRC_AT: Final = 36
_LENGTH: Final = slice(8, 12)
_BATCH_HEAD: Final = 61
_BATCH_CRC: Final = slice(17, 21)
_COVERED_FROM: Final = 21


def is_rotten(machine: "Machine", path: str) -> bool:
    """Is the file there, and damaged? What of a log's data no CRC covers is compared with what was committed elsewhere."""
    data = machine.disk.durable(path)
    if data is None:
        return False
    if path.endswith(INDEX_SUFFIX):
        return any(
            crc32c(data[at : at + _CRC_AT]) != int.from_bytes(data[at + _CRC_AT : at + _INDEX_PIECE], "big")
            for at in range(0, len(data) - _INDEX_PIECE + 1, _INDEX_PIECE)
        )
    if path.endswith(DATA_SUFFIX):
        return not _are_batches(bytes(data))
    return path.endswith(".run") and not is_whole_run(bytes(data))


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
