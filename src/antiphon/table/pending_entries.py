"""What indexes lead to the rows that a large write changes, as it will be when the write is applied.

The leader makes what the store takes of a large write before it appends it, so in turns of the event loop. What the indexes
lose by the write follows from the rows before it. Those are in the store, but for keys that something changes which is
appended and not committed. Nothing else is appended meanwhile, so it is known by then what the rows will be.
"""

from collections.abc import Container, Iterable

from antiphon.records.attributes import Entry
from antiphon.table.evaluation import Evaluation, Pending, Steps, effects_in
from antiphon.table.indexes import entries_of

Entries = dict[bytes, tuple[Entry, ...]]
"""By key; none: there is no row, or no index leads to it."""


def pending_entries(pending: Iterable[Pending], evaluation: Evaluation, piece: int) -> Steps[Entries]:
    """What leads to those of the keys of an evaluation that something of `pending` changes, in steps of about `piece` keys.

    What is committed between two steps was pending, and is the same in the store.
    """
    found: Entries = {}
    keys, looked_at = evaluation.changed, 0
    for item in list(pending):
        for key, entries in _of(item, keys):
            looked_at += 1
            if key in keys:
                found[key] = entries
            if not looked_at % piece:
                yield evaluation.records
    return found


def _of(item: Pending, keys: Container[bytes]) -> Iterable[tuple[bytes, tuple[Entry, ...]]]:
    """What it leaves of each key that it changes."""
    if item.entries is not None:
        yield from item.entries.items()
        return
    if not item.records:
        # It is prepared, and no index leads to any of it; or it ends a transaction, which has no attributes.
        yield from ((key, ()) for key in item.changed)
        return
    for record in item.records:
        key = record[0]
        if key in keys and record[1] is not None and len(record[2]) > 1:
            ((_, _, version),) = effects_in((record,))
            yield key, entries_of(version)
        else:
            yield key, ()
