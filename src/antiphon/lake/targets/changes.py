"""Changes of a table, a row each, reduced to the last one a key and to those that a lake table has not seen."""

import pyarrow as pa
import pyarrow.compute as pc

from antiphon.lake.targets.target import DELETED, KEY, VERSION


def last_changes(changes: pa.Table) -> pa.Table:
    """The last change of each key.

    Versions of a key only rise, and a deletion has the version of the row that it removes: so the highest version wins, and
    among equal ones the deletion.
    """
    if changes.num_rows < 2:
        return changes
    order = [(KEY, "ascending"), (VERSION, "descending"), (DELETED, "descending")]
    plain = pa.table(
        {
            KEY: changes.column(KEY),
            VERSION: changes.column(VERSION),
            DELETED: changes.column(DELETED).cast(pa.int8()),
        }
    )
    ranked = pc.sort_indices(plain, sort_keys=order)
    keys = changes.column(KEY).combine_chunks().take(ranked)
    first = pa.concat_arrays([pa.array([True]), pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))])
    return changes.take(ranked.filter(first))


def last_rows(rows: pa.Table) -> pa.Table:
    """Of a table's changes as they are read (columns key and offset, of one shard or several): the last of each key.

    Offsets tell the order within a shard; a key that was in two shards, around a split, is left to `last_changes`.
    """
    if rows.num_rows < 2:
        return rows
    by = ("key", "partition", "offset")
    ranked = pc.sort_indices(rows.select(by), sort_keys=[(name, "ascending") for name in by])
    keys, shards = (rows.column(name).combine_chunks().take(ranked) for name in by[:2])
    count = len(keys)
    differs = pc.or_kleene(
        pc.not_equal(keys.slice(1), keys.slice(0, count - 1)),
        pc.not_equal(shards.slice(1), shards.slice(0, count - 1)),
    )
    last = pa.concat_arrays([differs, pa.array([True])])
    return rows.take(ranked.filter(last))


def newer_than(changes: pa.Table, known: pa.Table) -> pa.Table:
    """The changes, one a key, that are still to be applied to a table with rows `known` (columns KEY and VERSION)."""
    rows = pc.index_in(changes.column(KEY), known.column(KEY).combine_chunks())
    versions = known.column(VERSION).take(rows)
    put = pc.greater(changes.column(VERSION), versions)
    removed = pc.greater_equal(changes.column(VERSION), versions)
    applies = pc.if_else(changes.column(DELETED), removed, put)
    unknown = pc.invert(changes.column(DELETED))
    return changes.filter(pc.if_else(pc.is_null(rows), unknown, applies))
