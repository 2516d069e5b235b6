"""Many effects of a table at once: into the bytes of a batch, and out of them, without a Python object per record.

What does it is compiled (`records.effect_kernels`), which takes a second and 60 MB to load. So a node loads it when it has
seen many rows in large batches, in a thread, and goes row by row until then; where numba is not installed it always does.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.records.batch import (
    BATCH_BYTES_MAX,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    HEADER_STRUCT,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    check_batch,
)
from antiphon.records.builder import seal
from antiphon.records.packed_rows import LENGTHS_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from antiphon.records.changes import VersionTuple

AFTER_RECORDS: Final = 10_000
AT_LEAST: Final = 64  # records of a batch for which it pays
_LOOKED_AT: Final = CODEC_MASK | CONTROL_BIT | TRANSACTIONAL_BIT


class StoredRows(NamedTuple):
    """What a store takes of a batch: keys with the byte in front, and versions with their values; None: removed."""

    keys: list[bytes]
    values: list[bytes | None]
    newest_id: int


class EffectKernels:
    """The kernels of one node. `in_thread` has a function called in another thread.

    Attributes:
        at_least: batches of fewer records are left alone.
        left: rows that are left alone before the kernels are loaded.
    """

    def __init__(self, in_thread: Callable[[Callable[[], None]], object]) -> None:
        self._in_thread = in_thread
        self._kernels: Any = None
        self._may_load = find_spec("numba") is not None
        self.at_least = AT_LEAST
        self.left = AFTER_RECORDS

    def load(self) -> None:
        """Load them. Takes a second or more."""
        from antiphon.records import effect_kernels

        effect_kernels.store_rows(0, 0, 0, 0, 0, 0, _edges(0).ctypes.data)
        effect_kernels.log_rows(0, 0, 0, 0, 0, 0, 0)
        effect_kernels.store_records(0, 0, 0, 0, 0, _edges(0).ctypes.data)
        self._kernels = effect_kernels

    def are_for(self, records: int) -> bool:
        """Are they there, and is a batch of so many records for them? Asks for them when there is enough work."""
        if records < self.at_least:
            return False
        if self._kernels is not None:
            return True
        self.left -= records
        if self.left < 0 and self._may_load:
            self._may_load = False
            self._in_thread(self.load)
        return False

    def stored(self, header: BatchHeader, batch: Buffer, prefix: int) -> StoredRows | None:
        """What a store takes of a batch of effects; None: it has others than plain ones, so each is to be looked at.

        Raises CorruptBatchError where the batch's CRC is wrong.
        """
        if header.attributes & _LOOKED_AT:
            return None
        check_batch(header, batch)
        count, size = header.record_count, len(batch) - HEADER_BYTES
        if header.last_offset_delta + 1 != count or not 1 <= count <= size // self._kernels.RECORD_BYTES_MIN:
            return None  # no plain effects; a count that bytes do not bear out gets no memory
        stored, edges = _room(size), _edges(count)
        source = _bytes(batch)
        at = _address(source) + HEADER_BYTES
        newest = self._kernels.store_records(at, size, count, prefix, _address(stored), _address(edges))
        if newest < 0:
            return None
        places = edges.tolist()
        data = stored[: places[-1]].tobytes()
        return StoredRows(_keys(data, places), [one or None for one in _values(data, places)], newest)

    def rows(self, payload: Buffer, rows: int, prefix: int) -> "LoadedRows | None":
        """Packed rows on their way into a batch; None: there are removals among them, or they are not so many rows."""
        lengths_bytes = LENGTHS_BYTES * rows
        content_bytes = len(payload) - lengths_bytes
        if content_bytes < 0:
            return None
        stored, edges = _room(content_bytes + 33 * rows), _edges(rows)
        source = _bytes(payload)
        at = _address(source)
        used = self._kernels.store_rows(
            at, rows, at + lengths_bytes, content_bytes, prefix, _address(stored), _address(edges)
        )
        return None if used < 0 else LoadedRows(self._kernels, stored[:used], edges, rows)


class LoadedRows:
    """Rows of a load, laid out as they are stored.

    Attributes:
        keys: with the byte in front that the store has.
    """

    def __init__(
        self, kernels: Any, stored: "NDArray[np.uint8]", edges: "NDArray[np.int64]", rows: int
    ) -> None:
        self._kernels = kernels
        self._stored = stored
        self._edges = edges
        self._rows = rows
        self._places = edges.tolist()
        self.keys = _keys(stored.tobytes(), self._places)

    def batch(
        self,
        first_id: int,
        before: "list[VersionTuple | None] | None",
        now_ms: int,
        producer: tuple[int, int, int],
    ) -> bytearray:
        """The batch of putting these rows, to be stamped; `producer`: id, epoch and base sequence.

        `first_id`: of the first row's new version. `before`: the versions that the rows had; None: no row was there.
        """
        import numpy as np

        kept = None
        if before is not None:
            kept = np.array(
                [(0, now_ms) if one is None else (one[1] + 1, one[2]) for one in before], np.int64
            )
        rows = self._rows
        room = HEADER_BYTES + len(self._stored) + self._kernels.RECORD_BYTES_MAX * rows
        batch = bytearray(room)
        view = np.frombuffer(batch, np.uint8)
        size = self._kernels.log_rows(
            _address(self._stored),
            _address(self._edges),
            rows,
            first_id,
            0 if kept is None else _address(kept),
            now_ms,
            _address(view) + HEADER_BYTES,
        )
        del view
        used = HEADER_BYTES + size
        del batch[used:]
        if used > BATCH_BYTES_MAX:
            return batch  # whoever appends it finds that it is too large
        head = (0, used - LENGTH_PREFIX_BYTES, -1, MAGIC, 0, 0, rows - 1, now_ms, now_ms, *producer, rows)
        HEADER_STRUCT.pack_into(batch, 0, *head)
        seal(batch)
        return batch

    def values(self) -> list[bytes]:
        """Versions with their values, as the store takes them, once `batch` was made."""
        return _values(self._stored.tobytes(), self._places)


def _room(size: int) -> "NDArray[np.uint8]":
    import numpy as np

    return np.empty(max(1, size), np.uint8)


def _edges(rows: int) -> "NDArray[np.int64]":
    import numpy as np

    return np.zeros(2 * rows + 1, np.int64)


def _bytes(data: Buffer) -> "NDArray[np.uint8]":
    import numpy as np

    return np.frombuffer(data, np.uint8)


def _address(array: "NDArray[Any]") -> int:
    return int(array.__array_interface__["data"][0])  # `.ctypes.data` takes three calls of Python to it


def _keys(stored: bytes, places: list[int]) -> list[bytes]:
    return [stored[at:end] for at, end in zip(places[:-1:2], places[1::2], strict=True)]


def _values(stored: bytes, places: list[int]) -> list[bytes]:
    """Versions with values."""
    return [stored[at:end] for at, end in zip(places[1::2], places[2::2], strict=True)]
