"""Requests of nodes that the coordinator has begun, and has not answered."""

from collections.abc import Callable
from typing import Any, NamedTuple

from antiphon.errors import AntiphonError, NotLeaderError, NotReadyError, UnavailableError


class BegunRequest(NamedTuple):
    """One of them, with who waits for it.

    Attributes:
        deadline_ms: until when.
        answered: told the body that is sent, or an AntiphonError.
        reply: makes that body from the coordinator's result.
        repeatable: does it no harm to ask another coordinator for it, whatever became of it here?
    """

    deadline_ms: int
    answered: Callable[[Any], None]
    reply: Callable[[Any], Any]
    repeatable: bool

    def finished(self, result: Any) -> None:
        """The coordinator's result, or an AntiphonError."""
        self.answered(result if isinstance(result, AntiphonError) else self.reply(result))

    def dropped(self, error: AntiphonError) -> None:
        """The coordinator ended. What it had written may be committed, and then the next one carries it on.

        That this node does not coordinate would say that nothing was begun.
        """
        if not self.repeatable and isinstance(error, NotLeaderError | NotReadyError):
            error = UnavailableError(
                f"{error.message} any more; whether the command is carried out is not known"
            )
        self.answered(error)
