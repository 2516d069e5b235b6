"""Leaving out what aborted transactions wrote: by the headers of batches, no record is decoded."""

from collections.abc import Iterator, Sequence

from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, Buffer, iter_batches

AbortedRange = tuple[int, int, int]
"""Producer, first offset, and the offset of the marker that aborted the transaction."""


def without_aborted(batches: Buffer, aborted: Sequence[AbortedRange]) -> memoryview:
    """The whole batches that stand in `batches`, without those of these transactions. Where none goes, nothing is copied.

    Raises CorruptBatchError where no whole batch stands.
    """
    view = memoryview(batches)
    if not aborted:
        return view
    kept = [batch for _, batch, is_aborted in _marked(view, aborted) if not is_aborted]
    return memoryview(b"".join(kept)) if sum(map(len, kept)) < len(view) else view


def offsets_left_out(batches: Buffer, aborted: Sequence[AbortedRange], start: int, end: int) -> int:
    """How many offsets within `start` .. `end` `without_aborted` takes away."""
    return sum(
        max(0, min(header.next_offset, end) - max(header.base_offset, start))
        for header, _, is_aborted in _marked(memoryview(batches), aborted)
        if is_aborted
    )


def _marked(
    view: memoryview, aborted: Sequence[AbortedRange]
) -> Iterator[tuple[BatchHeader, memoryview, bool]]:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for producer_id, first, marker in aborted:
        ranges.setdefault(producer_id, []).append((first, marker))
    for header, batch in iter_batches(view):
        is_part = header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT
        found = ranges.get(header.producer_id, ()) if is_part else ()
        yield header, batch, any(first <= header.base_offset < marker for first, marker in found)
