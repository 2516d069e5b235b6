"""Logins by the `Authorization` header of a request: Basic or Bearer (RFC 7617, RFC 6750)."""

import base64
import binascii
from collections.abc import Coroutine
from typing import Any

from antiphon.errors import UnauthenticatedError
from antiphon.security.authenticator import FAILED, OAUTHBEARER, PLAIN
from antiphon.security.session import Session


def hard_part(session: Session, authorization: bytes) -> Coroutine[Any, Any, None] | None:
    """What is to be awaited before `log_in`, as it takes milliseconds (a password); None: nothing does.

    Raises UnauthenticatedError, and when it is awaited OverloadedError.
    """
    if PLAIN not in session.mechanisms or authorization[:6].lower() != b"basic ":
        return None
    message = _message_of(authorization)
    if message is None:
        return None
    session.begin(PLAIN)
    return session.hard_part(message)


def log_in(session: Session, authorization: bytes) -> None:
    """Log a session in with what the header says. Raises UnauthenticatedError."""
    if not session.mechanisms:
        return  # nobody asks, or a password would be read on the way: then it is not looked at
    scheme, _, rest = authorization.partition(b" ")
    rest = rest.strip()
    if scheme.lower() == b"basic":
        message = _message_of(authorization)
        if message is None:
            session.log_failed(PLAIN)
            raise UnauthenticatedError(FAILED)
        if not session.has_begun:  # else its `hard_part` is done
            session.begin(PLAIN)
        session.step(message)
    elif scheme.lower() == b"bearer":
        session.begin(OAUTHBEARER)
        session.step(b"n,,\x01auth=Bearer " + rest + b"\x01\x01")
    else:
        session.log_failed("")  # not the scheme: it may be a password that somebody has put there
        raise UnauthenticatedError("Basic and Bearer are taken")


def _message_of(authorization: bytes) -> bytes | None:
    """What a client would send who logs in by PLAIN (RFC 4616); None for what says no name and password."""
    try:
        user, _, password = base64.b64decode(authorization[6:].strip(), validate=True).partition(b":")
    except binascii.Error:
        return None
    return b"\0" + user + b"\0" + password
