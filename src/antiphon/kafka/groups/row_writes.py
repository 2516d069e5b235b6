"""Writes of a classic group's row, as the group sees them: what is due, and who is answered when it is stored."""

from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.kafka.groups.types import Joined, Member, Token


class Held(NamedTuple):
    """An answer to a member that took another one's place: the row has to say so first."""

    member: Member
    token: Token
    joined: Joined


class _Written(NamedTuple):
    generation: int
    held: list[Held]


@dataclass(slots=True)
class RowWrites:
    """One write at a time. `is_due`: the row says something else than the group.

    `is_assigned`: the leader of the generation that is being formed has handed in the assignments.
    """

    is_due: bool = False
    is_assigned: bool = False
    _held: list[Held] = field(default_factory=list)
    _written: _Written | None = None

    @property
    def may_begin(self) -> bool:
        """Is there something to be written, and nothing being written?"""
        return self.is_due and self._written is None

    def begin(self, generation: int) -> None:
        """The group is written as it is, in this generation."""
        self._written = _Written(generation, self._held)
        self.is_due, self._held = False, []

    def hold(self, member: Member, token: Token, joined: Joined) -> None:
        """Answer this one when the row is stored with what it changed."""
        member.join_token = token
        self._held.append(Held(member, token, joined))
        self.is_due = True

    def forget(self) -> None:
        """A rebalance begins: the row will be about the generation after it, and who is held waits for that."""
        self.is_due = self.is_assigned = False
        self._held = []

    def end(self, generation: int, *, is_over: bool) -> tuple[bool, list[Held]]:
        """The write is over. Was it about this generation, which is not over yet? And who still waits for it?"""
        written, self._written = self._written, None
        if written is None or is_over or written.generation != generation:
            return False, []
        return True, [held for held in written.held if held.member.join_token is held.token]
