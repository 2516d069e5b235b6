"""A table's store follows what is committed: at once where that is little, else a slice of it in each turn of the loop.

Clients, readers and watchers hear of a commit only when the store has it. So a commit that takes long is told of later, a
part at a time, each of which ends with a whole entry; the replica itself, its log and the other replicas go on meanwhile.
Nobody sees half of an entry, because it is made ready in slices and written as a whole (`table.state`).

Whoever needs the store to be at what is committed asks for that (`finish`). What is given up again before it was applied is
not applied any more (`give_up`).
"""

from collections.abc import Sequence
from typing import Any, Final

from antiphon.partition.driver import ReplicaDriver
from antiphon.replication.actions import Commit

NOTHING: Final = -1


class Applying:
    """See the module's text; of one replica.

    Attributes:
        target: first offset that is committed and about to be applied in slices; NOTHING where none are under way.
    """

    def __init__(self, driver: ReplicaDriver) -> None:
        self._driver = driver
        self._state = driver.state
        self.target = NOTHING
        self._asked = False

    def begin(self, high_watermark: int) -> None:
        """Apply the log up to here in coming turns of the loop."""
        self.target = max(self.target, high_watermark)
        if not self._asked:
            self._asked = True
            self._state.services.turn.pieces.add(self, self._piece)

    def _piece(self) -> None:
        self._asked = False
        state = self._state
        if self.target == NOTHING or state.failed is not None or state.closed:
            return
        self._driver.call(self._slice)
        if self.target != NOTHING:
            self.begin(self.target)

    def _slice(self) -> Sequence[Any]:
        """Event: one slice. What is in the store with it counts as a commit by itself."""
        state, table, target = self._state, self._state.require_table(), self.target
        if not table.go_on(target, state.services.turn.pieces.operations):
            self.target = NOTHING
        reached = min(table.state.applied_offset, target)
        return (Commit(reached),) if reached > state.high_watermark else ()

    def finish(self) -> int:
        """Apply now what is left, and say up to where; NOTHING where nothing was under way. Raises StorageFailedError."""
        target, self.target = self.target, NOTHING
        if target != NOTHING:
            self._state.require_table().committed(target)
        return target

    def give_up(self, offset: int) -> None:
        """What lies at or beyond `offset` is not committed after all, or nobody knows that it is."""
        if self.target > offset:
            self.target = offset
            self._state.require_table().turn_back()
