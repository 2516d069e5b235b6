"""How groups of one kind become groups of another one: what their hosts hand to each other, and to whoever waits."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import Member
from antiphon.errors import AntiphonError
from antiphon.model.requests import Put, TableOp

if TYPE_CHECKING:
    import asyncio


class Adoption(NamedTuple):
    """A group of another kind whose members this one takes over: who they are, in which generation, and what is written
    together with that.
    """

    generation: int
    members: tuple[Member, ...]
    ops: tuple[TableOp, ...]


class Converter(Protocol):
    """Makes groups that have no member of their own protocol left ones of another kind."""

    def becomes(self, group_id: str, group: ConsumerGroup) -> Put | None:
        """The row of the other kind that goes in place of all of the group's; None: it stays what it is."""

    def became(self, group_id: str, row: Put, version: int) -> None:
        """The row is written. Goes on with the group from here."""

    async def look(self, group_id: str) -> None:
        """The group may have become one of the other kind: go on with that, if so."""


def tell(answers: Iterable[tuple["asyncio.Future[Any]", Any]]) -> None:
    """Give answers to those who still wait."""
    for answer, result in answers:
        if not answer.done():
            answer.set_result(result)


def fail(answer: "asyncio.Future[Any]", error: AntiphonError) -> None:
    """Refuse a request, if somebody still waits."""
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # it is no fault where nobody waits any more
