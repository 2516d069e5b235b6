"""How a table's leader judges the removal of a range of keys: a part of `table.evaluator`, whose text says what is when."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.invariants import unreachable
from antiphon.model.attributes import PutAttributed
from antiphon.model.key_order import DeleteOrdered
from antiphon.model.requests import DeleteRange, Put, TableOp
from antiphon.model.sessions import PutEphemeral
from antiphon.records.changes import VersionTuple
from antiphon.records.key_order import is_text, key_of, sort_key
from antiphon.table.evaluation import DONE, Evaluation, Known, Steps
from antiphon.table.known_keys import KnownKeys
from antiphon.table.order_reads import bounds_of, check_ordered, versions_ordered
from antiphon.table.state import TableState
from antiphon.table.stored_versions import VersionsFound

RANGE_KEYS_MAX: Final = 100_000


class RangeRemovals(ABC):
    """See the module's text; of a `TableEvaluator`, which has the rest of it."""

    state: TableState
    _overlay: Known
    _appended_end: int

    @abstractmethod
    def _remove(self, to: Evaluation, index: int, key: bytes, removed: VersionTuple) -> None:
        """Add the removal of a key that has this version."""

    def _delete_range(self, to: Evaluation, index: int, ops: Sequence[TableOp], piece: int) -> Steps[None]:
        op = ops[index]
        if not isinstance(op, DeleteRange | DeleteOrdered):
            unreachable("only a range is looked through")
        order = ORDERED if isinstance(op, DeleteOrdered) else BY_BYTES
        known = yield from self._known(to, order, ops, piece)
        at, range_end = order.bounds(self.state, op)
        start: bytes | None = at
        while start is not None:
            stored, following = order.stored(self.state, start, range_end, min(piece, RANGE_KEYS_MAX + 1))
            end = range_end if following is None else following
            found = self._in_range(to, stored, map(order.key_at, known.between(start, end)))
            to.looked_at += max(len(stored), len(found))
            if to.looked_at > RANGE_KEYS_MAX:
                raise InvalidRequestError(
                    f"the ranges hold more than {RANGE_KEYS_MAX} keys: delete them in smaller ranges",
                    limit=RANGE_KEYS_MAX,
                )
            for key in sorted(found):
                self._remove(to, index, key, found[key])
            start = following
            if start is not None:
                yield to.records
        to.results.append(DONE)

    def _known(self, to: Evaluation, order: "Order", ops: Sequence[TableOp], piece: int) -> Steps[KnownKeys]:
        """The keys that may be otherwise than in the store, sorted for the first range that is looked through."""
        if to.known is None:
            to.known = {}
        known = to.known.get(order.name)
        if known is None:
            named = (other.key for other in ops if isinstance(other, Put | PutEphemeral | PutAttributed))
            known = to.known[order.name] = KnownKeys([*self._overlay, *named, *to.made], order.sort_key)
            while known.sort(piece):
                yield to.records
        return known

    def _in_range(
        self, to: Evaluation, stored: Iterable[tuple[bytes, VersionTuple]], known: Iterable[bytes]
    ) -> dict[bytes, VersionTuple]:
        """The keys of a range with their versions. The overlay may have changed what is `stored`, at the `known` keys."""
        overlay, changed = self._overlay, to.changed
        found = {key: version for key, version in stored if key not in changed and key not in overlay}
        for key in known:
            version = changed[key] if key in changed else overlay.get(key)
            if version is not None:
                found[key] = version
            if key in overlay:
                to.wait_for = self._appended_end
        return found


Bounds = tuple[bytes, bytes]
"""Where a range begins, and before what it ends (empty: nowhere), in an order."""


class Order(NamedTuple):
    """An order of keys, in which ranges are looked through.

    Attributes:
        name: of the order.
        sort_key: what a key is compared by, None where it is not in that order; itself None: the key.
        key_at: the key that is compared by this.
        bounds: of an operation. Raises InvalidRequestError.
        stored: rows of the store between bounds, of so many that are looked at, and where to go on.
    """

    name: str
    sort_key: Callable[[bytes], bytes | None] | None
    key_at: Callable[[bytes], bytes]
    bounds: Callable[[TableState, DeleteRange | DeleteOrdered], Bounds]
    stored: Callable[[TableState, bytes, bytes, int], VersionsFound]


def _plain_bounds(_state: TableState, op: DeleteRange | DeleteOrdered) -> Bounds:
    return op.start, op.end


def _ordered_bounds(state: TableState, op: DeleteRange | DeleteOrdered) -> Bounds:
    check_ordered(state)
    return bounds_of(op.start, op.end)


def _plain_versions(state: TableState, start: bytes, end: bytes, examined_max: int) -> VersionsFound:
    return state.versions_in(start, end, examined_max)


BY_BYTES: Final = Order("bytes", None, bytes, _plain_bounds, _plain_versions)
ORDERED: Final = Order(
    "hierarchical",
    lambda key: sort_key(key) if is_text(key) else None,
    key_of,
    _ordered_bounds,
    versions_ordered,
)
