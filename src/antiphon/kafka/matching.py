"""Which of many names a client's regular expression matches: some in each turn of the event loop, and bounded in all."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from antiphon.coordination.patterns import BadRegexError, cost

PIECE_STEPS: Final = 50_000  # about 2 ms at most, in one turn
STEPS_MAX: Final = 100_000_000  # about 4 s at most, and mostly 40 ms, for one request


def check_steps(pattern: Any, names: Collection[str]) -> None:
    """Raise BadRegexError where to match all of these names may take too long."""
    if cost(pattern, names) > STEPS_MAX:
        raise BadRegexError(
            f"the regular expression may take too long for {len(names):,} names: repeat less in it"
        )


async def matching(pattern: Any, names: Collection[str], turn: Callable[[], Awaitable[None]]) -> list[str]:
    """The names that all of the expression matches, in their order. `turn` returns when it is the connection's turn.

    Raises BadRegexError before anything is matched.
    """
    check_steps(pattern, names)
    found, left = list[str](), PIECE_STEPS
    for name in names:
        if left <= 0:
            await turn()
            left = PIECE_STEPS
        left -= cost(pattern, (name,))
        if pattern.fullmatch(name) is not None:
            found.append(name)
    return found
