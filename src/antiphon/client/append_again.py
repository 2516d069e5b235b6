"""An append whose outcome is not known, and what it takes to try it again without writing it twice.

A batch carries a producer id and a sequence, by which a shard recognises its repeats. A retry by hand sends the batch as it
was sent, with whatever other callers' records travelled in it: either all of it is in the log already, and the shard says
where, or none of it is, and all of it gets in. So a record of a caller who gave up may still get in while another caller
tries again; that is what an unknown outcome is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Self

from antiphon.client.pipeline import Item
from antiphon.client.topic_writer import Append, Position, TopicWriter
from antiphon.errors import AntiphonError, InvalidRequestError, TimedOutError

Place = tuple[int, int]
"""Offset of the first record, and the term."""
Add = Callable[[int, Append, float], Awaitable[Place]]
"""Append to the shard with this index, until this time of the loop."""


class Unsettled(NamedTuple):
    """One shard's part of an append, as its writer knows it."""

    writer: TopicWriter
    item: Item


class Part:
    """One shard's part of an append: records at these places of what the caller gave, and what became of them."""

    __slots__ = ("append", "index", "outcome", "places")

    def __init__(self, index: int, append: Append, places: Sequence[int]) -> None:
        self.index = index
        self.append = append
        self.places = places
        self.outcome: Place | BaseException | None = None

    def positions(self) -> dict[int, Position]:
        """By place. Raises what the part ended with."""
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        if self.outcome is None:
            return {}
        offset, term = self.outcome
        return {at: Position(self.index, offset + number, term) for number, at in enumerate(self.places)}


class Attempt:
    """An append of a program, in parts by shard."""

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self.name = name
        self.parts = parts

    @classmethod
    def of_one(cls, name: str, index: int, append: Append, error: TimedOutError) -> Self:
        """That of a single record, which ended with an error."""
        part = Part(index, append, (0,))
        part.outcome = error
        return cls(name, (part,))

    async def run(self, add: Add, deadline: float) -> list[Position]:
        """Try what is not done: positions of all records. Raises the first error, which carries this if it is unsettled."""
        left = [part for part in self.parts if not isinstance(part.outcome, tuple)]
        outcomes = await asyncio.gather(
            *(_tried(part, add, deadline) for part in left), return_exceptions=True
        )
        for part, outcome in zip(left, outcomes, strict=True):
            part.outcome = outcome
        positions: dict[int, Position] = {}
        for part in self.parts:
            try:
                positions.update(part.positions())
            except TimedOutError as error:
                if error.outcome_unknown:
                    error.attempt = self
                raise
        return [positions[at] for at in range(len(positions))]


async def _tried(part: Part, add: Add, deadline: float) -> Place:
    before = part.outcome
    unsettled = before.unsettled if isinstance(before, TimedOutError) else None
    if unsettled is not None:
        return await settled(unsettled, deadline)
    return await add(part.index, part.append, deadline)


async def settled(unsettled: Unsettled, deadline: float) -> Place:
    """Where the part is, at last. Raises TimedOutError, unsettled again, and what the shard says to it."""
    try:
        return await unsettled.writer.again(unsettled.item, deadline)
    except TimedOutError as error:
        raise carrying(error, unsettled) from error.__cause__


def carrying(error: TimedOutError, unsettled: Unsettled) -> TimedOutError:
    """The caller's own copy of an error, with what it takes to try again; as it is where nothing was sent."""
    if not error.outcome_unknown:
        return error
    found = TimedOutError(error.message, **error.details)
    found.unsettled = unsettled
    return found


def attempt_of(error: BaseException, name: str) -> Attempt:
    """What an error carries. Raises InvalidRequestError for any other error than that of an append to this topic."""
    attempt = getattr(error, "attempt", None)
    if not isinstance(attempt, Attempt) or attempt.name != name:
        told = " that may have been carried out" if isinstance(error, AntiphonError) else ""
        raise InvalidRequestError(
            f"retry takes the TimedOutError of an append to {name!r}{told} (`error.outcome_unknown`), not {error!r}: append "
            "again what was not carried out"
        )
    return attempt
