"""Puts of many rows at once, judged together: nothing is asked but what versions the keys have now.

It comes to what the puts would be, one by one, in the log and in the store. Rows are laid out for both by what is compiled
(`records.packed_effects`). For anything beyond that (removals, a key twice, indexes, locked keys) there is no `Loading`, and
whoever asked judges operations.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from antiphon.errors import OverloadedError
from antiphon.invariants import unreachable
from antiphon.table.effects import USER
from antiphon.table.evaluation import KEY_BYTES_MAX, OVERLAY_KEYS_MAX, Known, Pending
from antiphon.table.prepared import PreparedTransactions
from antiphon.table.state import TableState
from antiphon.table.stored_versions import Versions, versions_between, versions_of

if TYPE_CHECKING:
    from antiphon.records.packed_effects import EffectKernels, LoadedRows

WALKED_SHARE: Final = 8  # look-ups cost what a walk over an eighth of as many rows does
LOOKED_UP: Final = 16  # after a walk that met too many rows


class Loading(NamedTuple):
    """Judged rows. `batch` is to be stamped and appended, and then `Loads.appended` is to be called at once."""

    rows: "LoadedRows"
    batch: bytearray
    changed: Known
    next_version_id: int
    number: int


class Judge(Protocol):
    """What loads ask of the `TableEvaluator` that they belong to."""

    state: TableState
    has_indexes: bool
    transactions: PreparedTransactions


class Loads:
    """See the module's text; of one evaluator."""

    def __init__(
        self,
        judge: Judge,
        known: Callable[[], Sequence[Known]],
        place: Callable[[], tuple[int, int]],
        append: Callable[[int, Pending], None],
    ) -> None:
        """`known`: versions that are known beside the store's, the newest last. `place`: the next version id, and a number
        that every append changes. `append`: something is in the log.
        """
        self._judge = judge
        self._known = known
        self._place = place
        self._append = append
        self._looked_up = 0  # loads that are looked up without a try to walk

    def judged(
        self,
        payload: bytes,
        count: int,
        now_ms: int,
        producer: tuple[int, int, int],
        kernels: "EffectKernels",
    ) -> Loading | None:
        """Judge packed rows at time `now_ms` (ms since 1970). Changes nothing. None: see the module's text.

        `producer`: id, epoch and sequence. Raises OverloadedError.
        """
        judge, state = self._judge, self._judge.state
        if judge.has_indexes or state.has_indexes or judge.transactions.locked:
            return None
        *_, overlay = self._known()
        if len(overlay) > OVERLAY_KEYS_MAX:
            raise OverloadedError(f"{len(overlay)} keys wait for their commit")
        rows = kernels.rows(payload, count, USER[0])
        if rows is None:
            return None
        keys = [key[1:] for key in rows.keys]
        if max(map(len, keys)) > KEY_BYTES_MAX:
            return None
        before, (first, number) = self._before(keys, rows.keys), self._place()
        ids = range(first, first + count)
        changed: Known
        if before is None:
            changed = dict(zip(keys, zip(ids, repeat(0), repeat(now_ms), repeat(now_ms)), strict=True))
        else:
            changed = {
                key: (at, 0, now_ms, now_ms) if old is None else (at, old[1] + 1, old[2], now_ms)
                for key, at, old in zip(keys, ids, before, strict=True)
            }
        if len(changed) != count:
            return None
        batch = rows.batch(first, before, now_ms, producer)
        return Loading(rows, batch, changed, first + count, number)

    def _before(self, keys: list[bytes], stored_keys: list[bytes]) -> Versions | None:
        """The versions that keys have now; None: there is none of them."""
        found = self._stored(stored_keys)
        for known in self._known():
            if known and not known.keys().isdisjoint(keys):
                found = [known.get(key, old) for key, old in zip(keys, found, strict=True)]
        return found if any(found) else None

    def _stored(self, stored_keys: list[bytes]) -> Versions:
        """The versions that keys have in the store. Loads that come sorted have little between their first and last key."""
        store = self._judge.state.store
        if self._looked_up:
            self._looked_up -= 1
            return versions_of(store, stored_keys)
        found = versions_between(store, stored_keys, len(stored_keys) // WALKED_SHARE)
        if found is None:
            self._looked_up = LOOKED_UP
            return versions_of(store, stored_keys)
        return found

    def appended(self, loading: Loading, base_offset: int) -> None:
        """The batch of a load is in the log at `base_offset`."""
        if loading.number != self._place()[1]:
            unreachable(
                "a load is appended before anything else is, else it was judged against an older state"
            )
        prepared = self._judge.state.batch()
        put = prepared.put
        for key, row in zip(loading.rows.keys, loading.rows.values(), strict=True):
            put(key, row)
        end = base_offset + len(loading.changed)
        self._append(
            base_offset,
            Pending(end, [], loading.changed, loading.next_version_id, prepared=prepared, unordered=True),
        )
