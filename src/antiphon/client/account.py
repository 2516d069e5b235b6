"""With what a client logs in: what its program says, else the environment."""

import os
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import InvalidRequestError, UnauthenticatedError
from antiphon.model.requests import AuthenticateReply, HelloReply
from antiphon.security.account import NOBODY, Account

if TYPE_CHECKING:
    from antiphon.security.client_login import ClientLogin

USER: Final = "ANTIPHON_USER"
PASSWORD: Final = "ANTIPHON_PASSWORD"  # noqa: S105 - the name of a variable
PASSWORD_FILE: Final = "ANTIPHON_PASSWORD_FILE"  # noqa: S105 - the name of a variable
TOKEN: Final = "ANTIPHON_TOKEN"  # noqa: S105 - the name of a variable


_own: Final[ContextVar[Account]] = ContextVar("antiphon_account", default=NOBODY)


def use_account(account: Account) -> None:
    """Log in with this from now on where a program of this thread, or of this task, says nothing."""
    _own.set(account)


def default_account() -> Account:
    """What `use_account` said. Else the environment: ANTIPHON_TOKEN, or ANTIPHON_USER with ANTIPHON_PASSWORD or
    ANTIPHON_PASSWORD_FILE.

    Raises InvalidRequestError when that file cannot be read.
    """
    own = _own.get()
    if not own.is_empty:
        return own
    token, user = os.environ.get(TOKEN, ""), os.environ.get(USER, "")
    if token:
        return Account(token=token)
    if not user:
        return NOBODY
    file = os.environ.get(PASSWORD_FILE, "")
    if not file:
        return Account(user, os.environ.get(PASSWORD, ""))
    try:
        return Account(user, Path(file).read_text().rstrip("\n"))
    except OSError as error:
        raise InvalidRequestError(f"{PASSWORD_FILE}: cannot read {file}: {error.strerror}") from None


def account_of(user: str = "", password: str = "", token: str = "") -> Account | None:
    """What a program says; None: nothing, so that the environment counts. Raises InvalidRequestError."""
    if token and user:
        raise InvalidRequestError("give user and password, or a token, not both")
    if bool(user) != bool(password):
        raise InvalidRequestError("user and password belong together, one is missing")
    return Account(user, password, token) if user or token else None


def account_for(hello: HelloReply, account: Account | None) -> Account | None:
    """With what to log in at a node that answered like this; None: no login is needed. `account`: what a program says."""
    if not hello.mechanisms:
        return None
    found = account or default_account()
    return None if found.is_empty and hello.is_known else found


def client_login(account: Account, mechanisms: Sequence[str], address: str) -> "ClientLogin":
    """Begin to log in; raises UnauthenticatedError when the account fits nothing that the node offers."""
    from antiphon.security.client_login import ClientLogin  # most clusters on one machine ask for no login

    return ClientLogin(account, mechanisms, address)


def check_logged_in(login: "ClientLogin", reply: Any, address: str) -> None:
    """Raise UnauthenticatedError unless both sides have proved what they had to."""
    if not (isinstance(reply, AuthenticateReply) and reply.done and login.is_proved):
        raise UnauthenticatedError(f"{address} did not finish the login")


__all__ = [
    "NOBODY",
    "Account",
    "account_for",
    "account_of",
    "check_logged_in",
    "client_login",
    "default_account",
    "use_account",
]
