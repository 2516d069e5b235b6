"""How a failing run is made small, whatever world it runs in: fewer faults, then a plainer world, until nothing is left out.

Delta debugging (ddmin) over the list of faults that happened: halves, then quarters and so on are taken out as long as the
same promise is still broken. Between two rounds of it the world itself is made plainer, one option at a time. A run is its
own judge: the same invariant has to fail. Every attempt is a whole run, so time and number are bounded and said at the end.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Run(Protocol):
    """What the results of all worlds have."""

    @property
    def options(self) -> Any:
        """A dataclass of all that is drawn."""

    @property
    def schedule(self) -> tuple[Any, ...]:
        """The faults that happened."""

    @property
    def failure(self) -> Any:
        """The broken promise with its name, `invariant`, or None."""


R = TypeVar("R", bound=Run)


@dataclass(frozen=True, slots=True)
class Shrunk(Generic[R]):
    """What is left: a run that still fails in the same way, after so many attempts."""

    result: R
    faults: int  # that are left
    faults_before: int
    runs: int
    seconds: float
    complete: bool  # nothing that was tried can be left out any more; False: time was up


def fewer(
    items: tuple[T, ...],
    attempt: Callable[[tuple[T, ...]], tuple[T, ...] | None],
    out_of_time: Callable[[], bool],
) -> tuple[T, ...]:
    """As few of the items as still fail. `attempt` gives what is left of those it was given where they fail, else None."""
    parts = 1  # all of them first: often none is needed
    while items and not out_of_time():
        parts = min(parts, len(items))
        for piece in _pieces(len(items), parts):
            left = attempt(tuple(item for at, item in enumerate(items) if at not in piece))
            if left is not None:
                items, parts = left, max(parts - 1, 2)
                break
        else:
            if parts >= len(items):
                break
            parts = min(2 * parts, len(items))
    return items


def _pieces(count: int, parts: int) -> Iterator[range]:
    """Cut range(count) into `parts` pieces; late ones first, since what is early often sets the scene."""
    bounds = [count * part // parts for part in range(parts + 1)]
    for at in range(parts - 1, -1, -1):
        yield range(bounds[at], bounds[at + 1])


class Shrinker(ABC, Generic[R]):
    """One failing run that gets smaller. A world says how it is run and what makes it plainer."""

    def __init__(
        self, failed: R, seconds_max: float, runs_max: int, progress: Callable[[str], None] = lambda _: None
    ) -> None:
        self.best = failed
        self.invariant: str = failed.failure.invariant if failed.failure is not None else ""
        self._progress = progress
        self._began = time.monotonic()
        self._seconds_max = seconds_max
        self._runs_max = runs_max
        self._faults_before = len(failed.schedule)
        self._runs = 0

    @abstractmethod
    def run(self, options: Any, schedule: tuple[Any, ...]) -> R:
        """Run this world with these faults and no others."""

    @abstractmethod
    def changes(self) -> Iterator[Mapping[str, Any]]:
        """Options that make the best run so far plainer, one change after the other."""

    @abstractmethod
    def words(self) -> str:
        """The best run so far, for who waits."""

    def out_of_time(self) -> bool:
        """Has a bound been reached?"""
        return self._runs >= self._runs_max or time.monotonic() - self._began >= self._seconds_max

    def attempt(self, options: Any, schedule: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Run it; where it fails in the same way it is the best so far. Returns the faults that it needed."""
        if self.out_of_time():
            return None
        self._runs += 1
        result = self.run(options, schedule)
        if result.failure is None or result.failure.invariant != self.invariant:
            return None
        self.best = result  # whose schedule ends where it failed
        self._progress(f"{self._runs} runs: {self.words()}")
        return result.schedule

    def _plainer(self) -> bool:
        """Make the world plainer where that keeps the failure; did it?"""
        found = False
        for changes in self.changes():
            options = replace(self.best.options, **changes)
            if options != self.best.options and self.attempt(options, self.best.schedule) is not None:
                found = True
        return found

    def shrink(self) -> Shrunk[R]:
        """Make it as small as it gets within the bounds."""
        while not self.out_of_time():
            faults = len(self.best.schedule)
            fewer(self.best.schedule, lambda kept: self.attempt(self.best.options, kept), self.out_of_time)
            if not self._plainer() and len(self.best.schedule) == faults:
                break
        seconds = time.monotonic() - self._began
        left, complete = len(self.best.schedule), not self.out_of_time()
        return Shrunk(self.best, left, self._faults_before, self._runs, seconds, complete)
