"""One event of a replica at a time, and news of it only when all that follows from it is done.

A step is an event and the actions that the replica answers it with. While they are carried out nothing else may reach the
replica: an event that comes meanwhile waits for the next step. And nobody outside the replica is told anything in between,
because whoever is told may do anything in turn, such as append to the log whose end the remaining actions rely on. What is
to be told is noted (`later`) and told when the steps are done (`notify`), in the order in which it was noted.

After a step the replica and its log agree on where the log ends; a step that leaves them apart is an error.

Both queues are bounded by what a step comes to: the actions of one event, and what follows from them.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from antiphon.errors import NotLeaderError, NotReadyError, OverloadedError
from antiphon.invariants import InvariantError, unreachable
from antiphon.partition.replica_view import HasEnd

REFUSALS: Final = (NotLeaderError, NotReadyError, OverloadedError)
"""What an event may raise to say no: nothing has changed then."""

BUSY: Final = "an event came to a replica whose actions were being carried out"

Event = Callable[..., Sequence[Any]]
"""Returns the actions that follow from it."""


class Steps:
    """See the module's text. `carry_out` says what is done for an action, by its type.

    `events` are those that wait, with their arguments; whoever steps takes them out. `news` are functions with their
    arguments, to be called when the steps are done. `stirred` gets the shard's id with each event.
    """

    __slots__ = (
        "_carry_out",
        "_log",
        "_notifying",
        "_replica",
        "_shard_id",
        "_stirred",
        "events",
        "is_acting",
        "is_stopped",
        "news",
    )

    def __init__(
        self,
        carry_out: Mapping[type, Callable[[Any], None]],
        log: HasEnd,
        replica: HasEnd,
        shard_id: int,
        stirred: set[int],
    ) -> None:
        self._shard_id = shard_id
        self._stirred = stirred
        self.is_acting = False
        self.is_stopped = False
        self._carry_out = carry_out
        self._log = log
        self._replica = replica
        self.events: deque[tuple[Event, tuple[Any, ...]]] = deque()
        self.news: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._notifying = False

    def step(self, event: Event, *arguments: Any) -> None:
        """Take one event and carry out all of its actions; raises what the event or an action does.

        One of `REFUSALS` comes from the event only. InvariantError when a step is under way already, by whatever way it is
        entered again.
        """
        if self.is_acting:
            unreachable(BUSY)
        carry_out = self._carry_out
        self._stirred.add(self._shard_id)
        self.is_acting = True
        try:
            actions = event(*arguments)
            try:
                for action in actions:
                    carry_out[type(action)](action)
                    if self.is_stopped:
                        return
            except REFUSALS as error:
                raise InvariantError(f"an action cannot be refused: {error.message}") from error
        finally:
            self.is_acting = False
        log_end, said = self._log.log_end, self._replica.log_end
        if log_end != said and not self.is_stopped:
            unreachable(f"the log ends at {log_end}, the replica's at {said}")

    def queue(self, event: Event, *arguments: Any) -> None:
        """Take an event when the step that is under way is done."""
        self.events.append((event, arguments))

    def later(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call it when the steps are done."""
        self.news.append((function, arguments))

    def notify(self, failed: Callable[[Exception], None]) -> None:
        """Tell what was noted, and what comes up while it is told; errors of the listeners go to `failed`."""
        if self._notifying or self.is_acting:
            return
        self._notifying = True
        try:
            while self.news:
                function, arguments = self.news.popleft()
                try:
                    function(*arguments)
                except Exception as error:  # noqa: BLE001 - whoever it is relies on what it was told
                    failed(error)
        finally:
            self._notifying = False

    def stop(self) -> None:
        """The replica stopped for good: no more events, and nothing of what was noted is true enough to be told."""
        self.is_stopped = True
        self.events.clear()
        self.news.clear()
