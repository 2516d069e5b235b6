"""`invariant()`: an assertion that stays on in production.

`assert` disappears under `python -O`; a replication protocol must rather stop than go on with a broken promise.
"""

from typing import NoReturn


class InvariantError(RuntimeError):
    """The program found itself in a state that its own rules exclude: a bug here, never a caller's mistake."""


def invariant(condition: object, message: str) -> None:
    """Raise `InvariantError(message)` unless `condition` is true."""
    if not condition:
        raise InvariantError(message)


def unreachable(message: str) -> NoReturn:
    """Mark a branch that no input can lead to."""
    raise InvariantError(message)
