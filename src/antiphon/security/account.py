"""What a client proves who it is with."""

import base64
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

    @property
    def http_header(self) -> str:
        """The value of HTTP's `Authorization`."""
        if self.token:
            return f"Bearer {self.token}"
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


NOBODY: Final = Account()
