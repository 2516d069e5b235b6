"""Leaving out what aborted transactions wrote: by the headers of batches, no record is decoded."""

from collections.abc import Sequence

from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, Buffer, iter_batches

AbortedRange = tuple[int, int, int]
"""Producer, first offset, and the offset of the marker that aborted the transaction."""


def without_aborted(batches: Buffer, aborted: Sequence[AbortedRange]) -> memoryview:
    """The whole batches that stand in `batches`, without those of these transactions. Where none goes, nothing is copied.

    Raises CorruptBatchError where no whole batch stands.
    """
    view = memoryview(batches)
    if not aborted:
        return view
    ranges: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first, marker in aborted:
        ranges.setdefault(producer_id, []).append((first, marker))
    kept: list[memoryview] = []
    dropped = False
    for header, batch in iter_batches(view):
        is_part = header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT
        found = ranges.get(header.producer_id, ()) if is_part else ()
        if any(first <= header.base_offset < marker for first, marker in found):
            dropped = True
        else:
            kept.append(batch)
    return memoryview(b"".join(kept)) if dropped else view
