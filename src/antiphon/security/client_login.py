"""How a client proves who it is to a native listener: what it was told, and the messages that follow from that."""

from collections.abc import Sequence
from typing import Any

from scramp import ScramClient, ScramException

from antiphon import system
from antiphon.errors import UnauthenticatedError
from antiphon.security.account import Account
from antiphon.security.passwords import MECHANISMS


class ClientLogin:
    """One login. `mechanism` is the one that both sides know."""

    def __init__(self, account: Account, mechanisms: Sequence[str], address: str) -> None:
        """Raises UnauthenticatedError when the account fits no mechanism that the node serves."""
        self._account = account
        self._address = address
        self._scram: Any = None
        self._steps = 0
        if account.is_empty:
            raise UnauthenticatedError(f"{address} asks for a login: give user and password, or a token")
        if account.token:
            if "OAUTHBEARER" not in mechanisms:
                raise UnauthenticatedError(f"{address} takes no tokens on this connection (it needs TLS)")
            self.mechanism = "OAUTHBEARER"
            return
        known = [name for name in MECHANISMS[::-1] if name in mechanisms]
        if not known:
            raise UnauthenticatedError(f"{address} takes no passwords")
        self.mechanism = known[-1]
        nonce = system.new_uuid().hex
        try:
            self._scram = ScramClient([self.mechanism], account.user, account.password, c_nonce=nonce)
        except ScramException:
            raise UnauthenticatedError(
                f"the name or the password of user {account.user!r} has characters that none may have, such as line "
                "breaks: is it the right file?"
            ) from None

    def first(self) -> bytes:
        """The first message."""
        if self._scram is None:
            return f"n,,\x01auth=Bearer {self._account.token}\x01\x01".encode()
        return str(self._scram.get_client_first()).encode()

    def next(self, answer: bytes) -> bytes | None:
        """The message after an answer of the node; None: there is none. Raises UnauthenticatedError where the node does not
        prove that it knows the user.
        """
        if self._scram is None:
            return None
        self._steps += 1
        try:
            if self._steps == 1:
                self._scram.set_server_first(answer.decode())
                return str(self._scram.get_client_final()).encode()
            self._scram.set_server_final(answer.decode())
        except (ScramException, ValueError):
            raise UnauthenticatedError(
                f"{self._address} did not prove that it knows user {self._account.user!r}"
            ) from None
        return None

    @property
    def is_proved(self) -> bool:
        """Has the node proved all that it can?"""
        return self._scram is None or self._steps >= 2
