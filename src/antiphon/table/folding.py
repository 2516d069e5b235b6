"""How the committed log of a table becomes the rows of its store: batch by batch, a large batch in steps.

The batch of a large write may have as many records as a request has operations. Those are decoded, and made into what the
store takes, so many in a step. All of it comes to the store in one write of its own, at the end, together with how far the
store is. So between two steps whoever reads the store, or copies it, finds all of a batch there or nothing, and to forget
the steps that are left changes nothing.

Nothing else may be applied between two steps. Rows that a split took away may be removed then: no batch that comes after
that changes them.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from antiphon.invariants import invariant, unreachable
from antiphon.records.attributes import Entry
from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, Buffer, iter_batches
from antiphon.records.changes import Effect, effects_in, effects_in_pieces
from antiphon.records.session_entries import session_entry_of
from antiphon.records.split_entries import SplitEntry, split_entry_of
from antiphon.table import prepared_rows, session_rows
from antiphon.table.effects import USER, newest_id
from antiphon.table.evaluation import AT_ONCE, finished
from antiphon.table.prepared import Prepare, TransactionChange
from antiphon.table.session_rows import SessionChange
from antiphon.table.stored_state import StoredState

if TYPE_CHECKING:
    from antiphon.records.packed_effects import EffectKernels

FoldSteps = Generator[None, None, None]
"""Steps after the last of which all is applied."""


class Folding(StoredState):
    """The part of a `TableState` that applies its log."""

    def apply(self, batches: Iterable[Buffer]) -> None:
        """Apply committed batches, which continue the log at `applied_offset` or overlap what is applied already.

        Each buffer holds one or more whole batches. Raises CorruptBatchError at a batch of which nothing is applied, and
        StorageFailedError.
        """
        finished(self.folding(batches, AT_ONCE))

    def folding(self, batches: Iterable[Buffer], piece: int) -> FoldSteps:
        """`apply` in steps of about `piece` records; see the module's text for what may happen between two."""
        effects: list[Effect] = []
        entries: list[tuple[SplitEntry, int]] = []
        end = self.applied_offset
        taken, kernels = 0, self.kernels  # records of this step
        for header, batch, next_offset in _following(batches, self.applied_offset):
            if header.attributes & TRANSACTIONAL_BIT:
                self._apply_found(effects, end, entries)
                effects, entries = [], []
                self._apply_in_transaction(prepared_rows.change_in(header, batch), next_offset)
                end = next_offset
                continue
            if taken + header.record_count > piece and (taken or end > self.applied_offset):
                self._apply_found(effects, end, entries)
                effects, entries, taken = [], [], 0
                yield
            if header.record_count <= piece and kernels is not None and kernels.are_for(header.record_count):
                self._apply_found(effects, end, entries)  # first: rows may get indexes by it
                effects, entries = [], []
                if _apply_stored(self, kernels, header, batch, next_offset):
                    end, taken = next_offset, taken + header.record_count
                    continue
            if header.attributes & CONTROL_BIT:
                found: list[Effect] = []
                said = session_entry_of(batch)
                change = None if said is None else session_rows.change_by(said)
                entry = split_entry_of(batch)
                if entry is not None:
                    entries.append((entry, header.base_offset))
            elif header.record_count > piece:
                yield from self._fold_large(header, batch, next_offset, piece)
                end = next_offset
                continue
            else:
                found = effects_in(header, batch)
                change = session_rows.end_in(found)
            if change is not None:  # by itself: what it takes away has to be in the store
                self._apply_found(effects, end, entries)
                self._apply_found(found, next_offset, (), change)
                effects, entries = [], []
            else:
                effects += found
                taken += len(found)
            end = next_offset
        self._apply_found(effects, end, entries)

    def _fold_large(self, header: BatchHeader, data: Buffer, end: int, piece: int) -> FoldSteps:
        """One batch of data, `piece` records in a step."""
        begun_at, newest = self.applied_offset, -1
        batch, now = self.batch(), dict[bytes, tuple[Entry, ...]]()
        for number, effects in enumerate(effects_in_pieces(header, data, piece)):
            if not number:
                change = session_rows.end_in(effects)
                if change is not None:  # its keys are few, whatever a step is
                    self._apply_found(effects_in(header, data), end, (), change)
                    return
            self.follow_attributes(batch, effects, self.add_effects(batch, effects), now)
            newest = max(newest, newest_id(effects))
            yield
        invariant(
            self.applied_offset == begun_at,
            f"something was applied while a batch was: the store was at {begun_at}, is at {self.applied_offset}",
        )
        self.apply_prepared(batch, end, max(self.next_version_id, newest + 1))

    def _apply_in_transaction(self, change: TransactionChange | None, end: int) -> None:
        if change is None:
            self.apply_effects([], end, self.next_version_id)
            return
        newest = newest_id(change.effects) if isinstance(change, Prepare) else -1
        self.apply_transaction(change, end, max(self.next_version_id, newest + 1))

    def _apply_found(
        self,
        effects: list[Effect],
        end: int,
        entries: Sequence[tuple[SplitEntry, int]],
        change: SessionChange | None = None,
    ) -> None:
        if end > self.applied_offset:
            newest = max(self.next_version_id, newest_id(effects) + 1)
            self.apply_effects(effects, end, newest, entries, change)


def _following(batches: Iterable[Buffer], end: int) -> Iterator[tuple[BatchHeader, Buffer, int]]:
    """Batches that are not applied up to `end`, each with the offset behind it."""
    for buffer in batches:
        for header, batch in iter_batches(buffer):
            next_offset = header.base_offset + header.last_offset_delta + 1
            if next_offset <= end:
                continue
            if header.base_offset != end:
                unreachable(
                    f"a table applies without gaps: at {end}, got a batch {header.base_offset}..{next_offset}"
                )
            yield header, batch, next_offset
            end = next_offset


def _apply_stored(
    state: Folding, kernels: "EffectKernels", header: BatchHeader, data: Buffer, end: int
) -> bool:
    """Apply a batch of many rows, if nothing but the rows follows from it; False: it is to be looked at closely."""
    if state.has_indexes:
        return False
    rows = kernels.stored(header, data, USER[0])
    if rows is None:
        return False
    batch = state.batch()
    put = batch.put
    for key, value in zip(rows.keys, rows.values, strict=True):
        if value is None:
            batch.delete(key)
        else:
            put(key, value)
    effects: list[Effect] = []
    if state.ordered:
        effects = [(key[1:], value, b"") for key, value in zip(rows.keys, rows.values, strict=True)]
    newest = max(state.next_version_id, rows.newest_id + 1)
    state.apply_prepared(batch, end, newest, unordered=effects)
    return True
