"""One connection of a client: who it has said that it is, and what it may do therefore."""

import ipaddress
from collections.abc import Coroutine
from typing import Any, Final

from antiphon.errors import OverloadedError, UnauthenticatedError
from antiphon.security import passwords
from antiphon.security.authenticator import (
    FAILED,
    MESSAGE_BYTES_MAX,
    Aside,
    Authenticator,
    HardPart,
    Identity,
    Login,
)
from antiphon.security.authorizer import EVERYTHING, Rights
from antiphon.security.principal import Principal
from antiphon.security.tls import is_encrypted, principal_of


class Session:
    """See the module's text. Without an authenticator, or where that asks for nothing, everybody is let in.

    Args:
        authenticator: of the node.
        host: the client's address, for access control lists.
        private: nobody else can read what the client sends.
        principal: whom its certificate names, where it showed one that counts.
        listener: where it came, for the log.
    """

    def __init__(
        self,
        authenticator: Authenticator | None,
        host: str = "",
        *,
        private: bool = True,
        principal: Principal | None = None,
        listener: str = "",
    ) -> None:
        on = authenticator is not None and authenticator.on
        self._authenticator = authenticator if on else None
        self._host = host
        self._listener = listener
        self._mechanism = ""
        self._private = private
        self._login: Login | None = None
        self._has_failed = (
            False  # then no other login is looked at: its connection is to be closed, after a while
        )
        self.takes_bare_messages = False  # of a login, as frames without Kafka's header (SaslHandshake 0)
        self.identity: Identity | None = None if principal is None else Identity(principal)
        self.rights = EVERYTHING if self._authenticator is None else self._rights()

    def _rights(self) -> Rights:
        if self._authenticator is None:
            return EVERYTHING
        return self._authenticator.rights(self.identity, self._host)

    @property
    def is_open(self) -> bool:
        """May it ask for anything besides a login?"""
        return self._authenticator is None or self.identity is not None

    @property
    def has_logged_in(self) -> bool:
        """Has it said who it is? Not who is known by a certificate, and has said nothing."""
        return self.identity is not None and bool(self.identity.mechanism)

    def client(self, host: str) -> object:
        """Who shares turns with all of his other connections: a user, or, where nobody has logged in, an address."""
        return (
            self.rights.principal if self.identity is not None and self.rights.limited else f"address {host}"
        )

    @property
    def has_failed(self) -> bool:
        """Has a login failed? Then none is looked at any more."""
        return self._has_failed

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """What it may log in with; none where nobody has to."""
        found = self._authenticator
        return () if found is None else found.mechanisms(private=self._private)

    def begin(self, mechanism: str) -> None:
        """Begin a login, also one that is to renew what is there; raises UnauthenticatedError.

        After one that failed it always does: who guesses passwords has one guess for each connection that he makes.
        """
        self._login = None
        if self._has_failed:
            raise UnauthenticatedError(FAILED)
        if self._authenticator is None:
            raise UnauthenticatedError("no login is asked for here")
        self._mechanism = mechanism
        try:
            self._login = self._authenticator.begin(mechanism, private=self._private)
        except UnauthenticatedError:
            self._has_failed = True
            self.log_failed(mechanism)
            raise

    def log_failed(self, mechanism: str, claimed: str = "") -> None:
        """A login has failed: count it, and tell the log."""
        if self._authenticator is not None:
            self._authenticator.log_failed(self._listener, self._host, mechanism, claimed)

    @property
    def has_begun(self) -> bool:
        """Is a login under way?"""
        return self._login is not None

    def hard_part(self, data: bytes) -> Coroutine[Any, Any, None] | None:
        """What is to be awaited before the `step` with this message, as it takes milliseconds; None: nothing does.

        Nothing else of the connection's is to be looked at meanwhile. Raises OverloadedError where too many wait, after
        which the login is over; it has not failed.
        """
        found = self._authenticator
        if self._login is None or found is None or found.aside is None or self._has_failed:
            return None
        part = self._login.hard_part(data) if len(data) <= MESSAGE_BYTES_MAX else None
        return None if part is None else self._proved(part, found.aside)

    async def _proved(self, part: HardPart, aside: Aside) -> None:
        try:
            part.proves = await aside.run(self._host, passwords.proves, part.found, part.password)
        except OverloadedError:
            self._login = None
            raise

    def step(self, data: bytes) -> bytes:
        """The answer to a message of a login; raises UnauthenticatedError, after which the login is over.

        Who has logged in can renew that as the same principal only; who has a certificate can log in as anybody else.
        """
        login, self._login = self._login, None
        try:
            if login is None or self._has_failed or len(data) > MESSAGE_BYTES_MAX:
                raise UnauthenticatedError(FAILED)
            return self._stepped(login, data)
        except UnauthenticatedError:
            if self._has_failed:
                raise  # it is told already
            self._has_failed = True
            self.log_failed(self._mechanism, "" if login is None else login.claimed)
            raise

    def _stepped(self, login: Login, data: bytes) -> bytes:
        answer = login.step(data)
        found = login.identity
        if found is None:
            self._login = login
            return answer
        before = self.identity
        if before is not None and self.has_logged_in and before.principal != found.principal:
            raise UnauthenticatedError(FAILED)
        self.identity = found
        self.rights = self._rights()
        return answer

    @property
    def holds(self) -> bool:
        """Is the client still who it said? False for one that has to go."""
        if self._authenticator is None or self.identity is None:
            return True
        return self._authenticator.holds(self.identity)

    @property
    def expires_s(self) -> float | None:
        """When the identity ends, in seconds since 1970; None: never by itself."""
        return None if self.identity is None else self.identity.expires_s


OPEN: Final = Session(None)
"""Of a connection that nobody asks anything."""


def session_of(authenticator: Authenticator | None, transport: Any, listener: str) -> Session:
    """The session of a connection that `listener` has accepted."""
    if authenticator is None or not authenticator.on:
        return OPEN
    peer = transport.get_extra_info("peername")
    host = str(peer[0]) if peer else ""
    private = is_encrypted(transport) or is_loopback(host)
    return Session(authenticator, host, private=private, principal=principal_of(transport), listener=listener)


def is_loopback(host: str) -> bool:
    """Is it an address of this machine's own?"""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)
