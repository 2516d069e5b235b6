"""What a client proves who it is with."""

from typing import Final

import msgspec


class Account(msgspec.Struct, frozen=True):
    """A user and password, or a bearer token. Neither is shown where this is printed."""

    user: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"Account(user={self.user!r})"

    @property
    def is_empty(self) -> bool:
        """Does it say nothing?"""
        return not (self.user or self.token)


NOBODY: Final = Account()
