"""Logins by the `Authorization` header of a request: Basic or Bearer (RFC 7617, RFC 6750)."""

import base64
import binascii

from antiphon.errors import UnauthenticatedError
from antiphon.security.authenticator import FAILED, OAUTHBEARER, PLAIN
from antiphon.security.session import Session


def log_in(session: Session, authorization: bytes) -> None:
    """Log a session in with what the header says. Raises UnauthenticatedError."""
    if not session.mechanisms:
        return  # nobody asks, or a password would be read on the way: then it is not looked at
    scheme, _, rest = authorization.partition(b" ")
    rest = rest.strip()
    if scheme.lower() == b"basic":
        try:
            user, _, password = base64.b64decode(rest, validate=True).partition(b":")
        except binascii.Error:
            session.log_failed(PLAIN)
            raise UnauthenticatedError(FAILED) from None
        session.begin(PLAIN)
        session.step(b"\0" + user + b"\0" + password)
    elif scheme.lower() == b"bearer":
        session.begin(OAUTHBEARER)
        session.step(b"n,,\x01auth=Bearer " + rest + b"\x01\x01")
    else:
        session.log_failed("")  # not the scheme: it may be a password that somebody has put there
        raise UnauthenticatedError("Basic and Bearer are taken")
