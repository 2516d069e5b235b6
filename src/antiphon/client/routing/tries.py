"""The tries of a call: what to do after one that failed, until one succeeds, another cannot help, or the time is over.

A client says what failed: `failed`, `failed_anywhere`, `lacking`; several requests that were tried together may have. Then
it asks for the next `step`: how long to pause, and which question about newer metadata to ask then, if any. What ends the
tries is raised.

Times are seconds of any clock that does not go back. `draw(low, high)` gives a random number between the two.
"""

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, NoReturn, TypeVar

from antiphon.client.routing.outcomes import (
    leaves_doubt,
    leaves_doubt_anywhere,
    leaves_doubt_at_coordinator,
)
from antiphon.client.routing.routes import Next, Routes
from antiphon.errors import (
    AntiphonError,
    TimedOutError,
    UnavailableError,
    UnknownShardError,
    WrongShardError,
)

PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 0.5
NEWS_WAIT_MS: Final = 300  # how long a node may keep a question for newer metadata
GAVE_UP: Final = "gave up: no try succeeded"

Draw = Callable[[float, float], float]
PlaceT = TypeVar("PlaceT")


class BackOff:
    """Growing pauses with jitter, so that those who failed together do not come back together."""

    __slots__ = ("_least_s", "_most_s", "_next_s")

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = self._next_s = least_s
        self._most_s = most_s

    def next_s(self, draw: Draw) -> float:
        """The next pause: half of what it can be at least, and twice as long the next time."""
        pause_s = self._next_s * draw(0.5, 1.0)
        self._next_s = min(2 * self._next_s, self._most_s)
        return pause_s

    def begin_anew(self) -> None:
        """Something succeeded: pauses are short again."""
        self._next_s = self._least_s


class Shunned(Generic[PlaceT]):
    """Places that did not answer lately: each is left alone for a while, and longer each time."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._times = least_s, most_s
        self._backoffs: dict[PlaceT, BackOff] = {}
        self._until_s: dict[PlaceT, float] = {}
        self._problems: dict[PlaceT, str] = {}

    def failed(self, place: PlaceT, problem: str, now_s: float, draw: Draw) -> None:
        """It did not answer."""
        backoff = self._backoffs.setdefault(place, BackOff(*self._times))
        self._until_s[place] = now_s + backoff.next_s(draw)
        self._problems[place] = problem

    def answered(self, place: PlaceT) -> None:
        """It did."""
        for kept in (self._backoffs, self._until_s, self._problems):
            kept.pop(place, None)

    def problem(self, place: PlaceT, now_s: float) -> str | None:
        """Why a place is left alone now; None: it is not."""
        return self._problems[place] if now_s < self._until_s.get(place, now_s) else None


class Question(NamedTuple):
    """Have newer metadata: ask a node, unless some newer than `known` came during the pause.

    `avoid`: the address that is asked last. `holds`: the node may keep the question until it has something newer.
    """

    known: int
    avoid: str | None
    holds: bool


class Step(NamedTuple):
    """Pause for so long, then ask the question if there is one, then try again."""

    pause_s: float
    question: Question | None


class Tries:
    """See the module's text.

    Attributes:
        count: tries that failed.
        deadline_s: when the time is over; it may be moved.
        reason: why the last one failed, until the next step: an error that was raised holds on to whoever raised it.
        unknown: may one that failed have been carried out?
    """

    __slots__ = (
        "_avoid",
        "_backoff",
        "_began_s",
        "_coordinated",
        "_fruitless",
        "_holds",
        "_learns",
        "_retries",
        "_routes",
        "count",
        "deadline_s",
        "reason",
        "unknown",
    )

    def __init__(
        self,
        routes: Routes,
        now_s: float,
        deadline_s: float,
        *,
        retries: int | None = None,
        coordinated: bool = False,
    ) -> None:
        """`retries`: so many tries may fail one after the other; None: as many as the time allows. `coordinated`: a step
        of a transaction or group is tried.
        """
        self.deadline_s = deadline_s
        self.count = 0
        self.unknown = False
        self._routes = routes
        self._began_s = now_s
        self._retries = retries
        self._fruitless = 0
        self._coordinated = coordinated
        self._backoff = BackOff(PAUSE_S_MIN, PAUSE_S_MAX)
        self.reason: AntiphonError | None = None
        self._learns, self._holds = False, True
        self._avoid: str | None = None

    def left_s(self, now_s: float) -> float:
        """Seconds until the time is over."""
        return self.deadline_s - now_s

    # -- what happened ------------------------------------------------------------------------------------------

    def failed(self, shard_id: int, error: AntiphonError, now_s: float, *, wrote: bool = False) -> None:
        """A request to a shard's leader failed. `wrote`: it was a write, and was sent.

        Raises the error if another try cannot help.
        """
        doubts = leaves_doubt_at_coordinator if self._coordinated else leaves_doubt
        self.unknown = self.unknown or (wrote and doubts(error))
        self.reason = error
        asked = self._routes.known_address(shard_id)
        try:
            after = self._routes.after(shard_id, error, now_s - self._began_s)
        except AntiphonError:
            self.end(error)
        if after is Next.LEARN:
            self.lacking(error)
            if not isinstance(error, WrongShardError):  # who was split knows best into what
                self._avoid = asked

    def failed_anywhere(self, error: AntiphonError, *, wrote: bool = False) -> None:
        """A request that any node answers failed. Raises the error if another node cannot help."""
        if not error.retriable:
            raise error
        self.unknown = self.unknown or (wrote and leaves_doubt_anywhere(error))
        self.reason = error

    def lacking(self, error: AntiphonError) -> None:
        """The metadata lacks something that is about to be there, such as the shards that another was split into."""
        self.reason = error
        self._learns = True
        self._holds = self._holds and not isinstance(error, UnknownShardError)

    def progressed(self) -> None:
        """One of several requests was answered since the last step."""
        self._fruitless = -1
        self._backoff.begin_anew()

    def renewed(self, now_s: float, deadline_s: float) -> None:
        """The same, where it also gives the requests that are left all of their time again."""
        self.progressed()
        self.count = 0
        self._began_s, self.deadline_s = now_s, deadline_s

    # -- what comes next ----------------------------------------------------------------------------------------

    def step(self, now_s: float, draw: Draw, said: str = GAVE_UP) -> Step:
        """What to do before the next try.

        Raises TimedOutError when the time ends before it, UnavailableError after too many tries; `said` begins the message.
        """
        self.count += 1
        self._fruitless += 1
        question = None
        if self._learns:
            meta = self._routes.meta
            # The first time, what a node knows by now will do; later there is reason to wait for news.
            holds = self._holds and self.count > 1
            question = Question(-1 if meta is None else meta.version, self._avoid, holds)
        self._learns, self._holds, self._avoid = False, True, None
        reason = self.reason
        told = "nothing was tried" if reason is None else f"lastly because of {reason.code}: {reason.message}"
        if self._retries is not None and self._fruitless > self._retries:
            self.end(UnavailableError(f"{said} in {self._fruitless} tries (option retries), {told}"))
        pause_s = self._backoff.next_s(draw)
        if self.left_s(now_s) <= pause_s:
            self.end(TimedOutError(f"{said} in time, {told}"))
        self.reason = None
        return Step(pause_s, question)

    def end(self, final: AntiphonError) -> NoReturn:
        """Raise what the tries end with, which says so if one of them may have been carried out."""
        if self.unknown and (self._coordinated or isinstance(final, TimedOutError)):
            final.with_unknown_outcome()
        if final is self.reason:
            raise final
        raise final from self.reason
