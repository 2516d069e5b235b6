"""What the indexes and the order of a table's store have to be: the entries that its rows name, and no others."""

from typing import TYPE_CHECKING, Final

from antiphon.records.attributes import unpack
from antiphon.simulation.violation import require
from antiphon.table.index_reads import scan_index
from antiphon.table.state import SCAN_ROWS_MAX

if TYPE_CHECKING:
    from antiphon.table.state import TableState

ENTRY: Final = b"\x05"
ORDERED: Final = b"\x06"


def check_indexes(shard_id: int, node_id: int, state: "TableState") -> None:
    """Raise ViolationError where an entry is too many, or one is missing. Stores without any are passed over."""
    stored = [key for key, _ in state.store.items(ENTRY) if key.startswith(ENTRY)]
    rows, _ = state.scan(b"", b"", SCAN_ROWS_MAX, include_value=False)
    wanted = {
        (name, secondary, row.key)
        for row in rows
        if row.attributes is not None
        for name, secondary in unpack(row.attributes).indexes
    }
    found = {
        (name, secondary, row.key)
        for name in {name for name, _, _ in wanted}
        for secondary, row in scan_index(state, name, (b"", b""), None, SCAN_ROWS_MAX)[0]
    }
    has_all = len(stored) == len(wanted) or state.owned.purging  # what a split took away is removed some time
    require(
        found == wanted and has_all,
        "index-is-its-rows",
        f"on node {node_id} {len(wanted)} entries of indexes follow from the rows, {len(found)} are found, and the store "
        f"has {len(stored)}; they differ in {sorted(found ^ wanted)[:3]}",
        shard_id,
    )


def check_order(shard_id: int, node_id: int, state: "TableState") -> None:
    """Raise ViolationError where a row lacks its entry in the hierarchical order, or an entry its row, or there is any where
    the table has no such order. Keys without slashes need none while the store does not say that it has them all.
    """
    found = [
        key[3:].replace(b"\xff", b"/") for key, _ in state.store.items(ORDERED) if key.startswith(ORDERED)
    ]
    rows = [row.key for row in state.scan(b"", b"", SCAN_ROWS_MAX, include_value=False)[0]]
    wanted = [key for key in rows if state.ordered and _is_text(key)]
    needed = {key for key in wanted if b"/" in key or (state.order is not None and state.order.is_complete)}
    strays = set(found) - set(wanted)
    require(
        not needed - set(found) and (not strays or state.owned.purging) and len(found) == len(set(found)),
        "order-is-its-rows",
        f"on node {node_id} {len(needed)} rows need an entry in the order, {len(found)} entries are there; they differ in "
        f"{sorted(needed - set(found) | strays)[:3]}",
        shard_id,
    )


def _is_text(key: bytes) -> bool:
    return key.decode(errors="replace").encode() == key
