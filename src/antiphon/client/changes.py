"""Changes of a table for programs that block; `table.watch` of the blocking client makes them."""

from typing import TYPE_CHECKING, Generic, Self

from antiphon.client.closing import Closes
from antiphon.client.loop_thread import LoopThread
from antiphon.client.watch import Change, Watch
from antiphon.records.value_type import ValueT

if TYPE_CHECKING:
    from collections.abc import Iterator


class Changes(Closes, Generic[ValueT]):
    """A blocking iterator of `Change`; also a context manager. `close` ends it, from another thread too."""

    def __init__(self, thread: LoopThread, watch: Watch[ValueT]) -> None:
        self._thread = thread
        self._watch = watch
        self._current: Iterator[Change[ValueT]] = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change[ValueT]:
        for change in self._current:
            return change
        chunk = self._thread.call(self._watch.next_chunk())
        if not chunk:
            raise StopIteration
        self._current = iter(chunk)
        return next(self._current)

    def close(self) -> None:
        """Stop following."""
        self._thread.call(self._watch.close())
