"""Brings a table up to what is committed: one step at once, and what takes longer one step in each turn of the event loop.

The leader judges writes, and makes what its store takes of a large one, before they are committed. Everywhere else an entry
is decoded when it is committed, and a large write would keep the node from all others meanwhile. So a commit counts for
clients and readers of the replica when the table has got there, which may be some turns after the replica has heard of it.
Commits that come meanwhile are next.

A fold of a table is one at a time: it ends, or is forgotten, before another one begins. A step may find that the store is
another one now: a snapshot has taken its place, or it was begun anew. Then what was under way is forgotten.

The table is behind for about `STEPS` turns at most: the further it is behind, the more a step applies.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from antiphon import system
from antiphon.replication.actions import Commit

if TYPE_CHECKING:
    from antiphon.partition.driver import ReplicaDriver
    from antiphon.partition.table_shard import TableShard
    from antiphon.table.folding import FoldSteps
    from antiphon.table.state import TableState
    from antiphon.tracing import Span

STEPS: Final = 128


class TableFolds:
    """See the module's text; of one replica.

    `told(commit, spans)` is called when the table has what was committed, within a step of the replica.

    Attributes:
        is_behind: is the log committed further than the table goes?
        begun: folds that were begun, since the start.
        target: up to where the log is committed.
        holds: as long as it is not 0 no fold is begun, and one that is under way waits.
    """

    def __init__(self, driver: "ReplicaDriver", told: "Callable[[Commit, Sequence[Span]], None]") -> None:
        self._driver = driver
        self._state = driver.state
        self._told = told
        self.is_behind = False
        self.begun = 0
        self.target = 0
        self.holds = 0
        self._end = 0  # of what is under way
        self._steps: FoldSteps | None = None  # that are left of it
        self._store: TableState | None = None  # that it goes to
        self._spans: Sequence[Span] = ()
        self._took_s = 0.0
        self._turn_asked = False

    @property
    def is_under_way(self) -> bool:
        """Has a fold begun that has not ended?"""
        return self._steps is not None

    def commit(self, high_watermark: int) -> None:
        """The log is committed up to here; within a step of the replica."""
        self.target = high_watermark
        if not self.is_behind:
            self.is_behind = True
            self._go_on()

    def finish(self) -> None:
        """Apply now what is left; within a step of the replica."""
        while self.is_behind:
            self._step()

    def give_up(self, from_offset: int) -> None:
        """What was committed from here on is not, and goes from the log."""
        self.target = min(self.target, from_offset)
        if self._end > from_offset:
            self.forget()

    def _piece(self) -> None:
        """A turn of the event loop, as it was asked for."""
        self._turn_asked = False
        state = self._state
        if state.closed or state.failed is not None:
            self.forget()
        elif self.is_behind:
            self._driver.call(self._go_on)

    def _go_on(self) -> Sequence[Any]:
        if not self.holds:
            self._step()
        if self.is_behind and not self._turn_asked:
            self._turn_asked = True
            self._state.services.turn.pieces.add(self, self._piece)
        return ()

    def _step(self) -> None:
        began_s = system.monotonic_s()
        table = self._state.require_table()
        if self._store is not table.state:
            self.forget()
        steps = self._steps
        if steps is None:
            steps = self._steps = self._begin(table)
        is_done = next(steps, self) is self
        self._took_s += system.monotonic_s() - began_s
        if is_done:
            self._steps = None
            self.is_behind = self.target > self._end
            self._state.services.metrics.apply_latency.observe(self._took_s)
            spans, self._spans = self._spans, ()
            self._told(Commit(self._end), spans)

    def _begin(self, table: "TableShard") -> "FoldSteps":
        state, traces = self._state, self._state.traces
        self.begun += 1
        self._store, self._end, self._took_s = table.state, self.target, 0.0
        self._spans = () if traces is None else traces.applying(self._end)
        behind = self._end - table.state.applied_offset
        return table.folding(self._end, max(state.services.turn.pieces.operations, behind // STEPS))

    def forget(self) -> None:
        """What is under way begins anew, or is nobody's any more: the replica has stopped."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        for span in self._spans:
            span.end("given up: the table is another one, or what was committed is not")
        self._spans = ()
