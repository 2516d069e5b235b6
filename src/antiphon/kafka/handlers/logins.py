"""SaslHandshake and SaslAuthenticate: a client says who it is before anything else.

A login that fails is answered after a while, and its connection is closed: who guesses passwords waits, and nobody else.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon import system
from antiphon.errors import (
    NotReadyError,
    OverloadedError,
    ProtocolViolationError,
    UnauthenticatedError,
)
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.framing import LENGTH_BYTES
from antiphon.kafka.messages import security as m
from antiphon.security.authenticator import FAILED_DELAY_S
from antiphon.security.session import Session

if TYPE_CHECKING:
    from antiphon.kafka.connection import Answer

HANGS_UP: Final = (code.SASL_AUTHENTICATION_FAILED, code.ILLEGAL_SASL_STATE)
"""Errors after which the connection is closed, when they have been sent."""


async def bare_login(frame: memoryview, answer: "Answer") -> None:
    """A message of a login without Kafka's header. What is wrong can only be told by closing the connection."""
    connection = answer.connection
    try:
        await _hard_part(connection.session, bytes(frame))
        told = connection.session.step(bytes(frame))
    except UnauthenticatedError:
        await asyncio.sleep(FAILED_DELAY_S)
        connection.abort()
        return
    except (NotReadyError, OverloadedError) as error:
        connection.fail(error.message)
        return
    finally:
        connection.go_on(answer)
    if not connection.has_place():
        connection.abort()
        return
    answer.send(len(told).to_bytes(LENGTH_BYTES, "big") + told)


class LoginHandler:
    """Takes messages to the connection's session, and its answers back."""

    async def handshake(
        self, request: m.SaslHandshakeRequest, context: RequestContext
    ) -> m.SaslHandshakeResponse:
        """Choose a mechanism."""
        session = context.session
        mechanisms = list(session.mechanisms)
        if request.mechanism not in mechanisms:
            session.log_failed(request.mechanism)
            return m.SaslHandshakeResponse(error_code=code.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms)
        try:
            session.begin(request.mechanism)
        except UnauthenticatedError:  # another login of this connection has failed, and is answered soon
            return m.SaslHandshakeResponse(error_code=code.ILLEGAL_SASL_STATE, mechanisms=mechanisms)
        session.takes_bare_messages = context.version == 0
        return m.SaslHandshakeResponse(error_code=code.NONE, mechanisms=mechanisms)

    async def authenticate(
        self, request: m.SaslAuthenticateRequest, context: RequestContext
    ) -> m.SaslAuthenticateResponse:
        """One message of the mechanism."""
        session = context.session
        if not session.has_begun:
            return _failed(code.ILLEGAL_SASL_STATE, "SaslHandshake comes first")
        try:
            await _hard_part(session, request.auth_bytes)
            answer = session.step(request.auth_bytes)
        except UnauthenticatedError as error:
            await asyncio.sleep(FAILED_DELAY_S)
            return _failed(code.SASL_AUTHENTICATION_FAILED, error.message)
        except (
            NotReadyError,
            OverloadedError,
        ) as error:  # there is no code that clients would not take as final
            raise ProtocolViolationError(error.message) from None
        lifetime_ms = 0
        expires_s = session.expires_s
        if expires_s is not None:
            lifetime_ms = max(1, int((expires_s - system.wall_s()) * 1000))
        return m.SaslAuthenticateResponse(
            error_code=code.NONE, error_message=None, auth_bytes=answer, session_lifetime_ms=lifetime_ms
        )


async def _hard_part(session: Session, data: bytes) -> None:
    work = session.hard_part(data)
    if work is not None:
        await work


def _failed(error_code: int, message: str) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=error_code, error_message=message, auth_bytes=b"")
