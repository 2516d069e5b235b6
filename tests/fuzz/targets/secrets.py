"""What says who somebody is: bearer tokens, key sets, messages of logins, the first user's file, the nodes' key."""

import asyncio
import base64
import os
from typing import Final

import msgspec

from antiphon.errors import InvalidRequestError, UnauthenticatedError
from antiphon.model.access import AccessBook, User
from antiphon.security import tokens
from antiphon.security.authenticator import Authenticator
from antiphon.security.passwords import credential, credentials
from antiphon.security.peer_key import PeerKey
from antiphon.security.session import Session
from antiphon.security.settings import OAuth, Security
from antiphon.server import first_user
from tests.fuzz.target import FolderTarget, check
from tests.security.made_credentials import RefusingGateway, key_set, token_of

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class Counters:
    """Counts what an authenticator has counted."""

    logins_failed = 0
    denied = 0


class Logins(FolderTarget):
    """Messages of a login, of up to three steps: mechanism, then `length, message` each. Nobody gets in by chance."""

    slow_s = 1.0

    def __init__(self) -> None:
        super().__init__()
        keys = self.folder / "keys.json"
        keys.write_bytes(key_set())
        settings = Security(
            authentication=True, oauth=OAuth(keys=str(keys)), sasl_mechanisms=list(MECHANISMS)
        )
        book = AccessBook()
        book.users["eve"] = User(
            "eve", tuple(credential(name, "secret", iterations=4096) for name in MECHANISMS[1:3])
        )
        self._authenticator = Authenticator(settings, book, Counters(), b"s" * 32)

    def seeds(self) -> list[bytes]:
        messages: list[tuple[int, list[bytes]]] = [
            (0, [b"\0eve\0guess"]),
            (1, [b"n,,n=eve,r=abcdefgh", b"c=biws,r=abcdefgh,p=" + base64.b64encode(bytes(32))]),
            (2, [b"n,a=eve,n=eve,r=abcdefgh", b"c=biws,r=abcdefgh,p=" + base64.b64encode(bytes(64))]),
            (
                3,
                [
                    b"n,,\x01auth=Bearer "
                    + token_of({"alg": "RS256", "kid": "k0"}, {"exp": 1 << 40})
                    + b"\x01\x01"
                ],
            ),
            (
                3,
                [
                    b"n,,\x01auth=Bearer "
                    + token_of({"alg": "ES256", "kid": "k1"}, {"sub": "eve"})
                    + b"\x01\x01"
                ],
            ),
        ]
        return [
            bytes([number]) + b"".join(len(one).to_bytes(2, "big") + one for one in steps)
            for number, steps in messages
        ]

    def run(self, data: bytes) -> None:
        if not data:
            return
        session = Session(self._authenticator, "127.0.0.1")
        at = 1
        try:
            session.begin(MECHANISMS[data[0] % len(MECHANISMS)])
            while at + 2 <= len(data) and session.has_begun:
                size = int.from_bytes(data[at : at + 2], "big")
                session.step(data[at + 2 : at + 2 + size])
                at += 2 + size
        except UnauthenticatedError:
            pass
        check(
            b"secret" in data or session.identity is None, f"{session.identity} got in without the password"
        )


class KeySets(FolderTarget):
    """A JWKS file, read while a token is checked: keys that cannot be read are left out or kept as they were."""

    def __init__(self) -> None:
        super().__init__()
        self._file = self.folder / "keys.json"
        self._token = token_of({"alg": "RS256", "kid": "k0"}, {"exp": 1 << 40, "sub": "eve"}).decode()

    def seeds(self) -> list[bytes]:
        return [key_set(), b'{"keys": []}', b"[]"]

    def run(self, data: bytes) -> None:
        self._file.write_bytes(data)
        try:
            tokens.TokenCheck(OAuth(keys=str(self._file))).check(self._token)
        except UnauthenticatedError:
            return
        check(False, "a token without a signature is good")


class OwnFiles(FolderTarget):
    """The first user's file, or a peer key: the first byte says which."""

    def __init__(self) -> None:
        super().__init__()
        self._file = self.folder / "first-user"

    def seeds(self) -> list[bytes]:
        user = msgspec.msgpack.encode(User("admin", credentials("secret")))
        return [b"\x00" + user, b"\x01" + os.urandom(32).hex().encode()]

    def run(self, data: bytes) -> None:
        if data[:1] == b"\x01":
            try:
                PeerKey(data[1:])
            except InvalidRequestError:
                return
            return
        self._file.write_bytes(data[1:])
        gateway = RefusingGateway()
        asyncio.run(first_user.make_first_user(gateway, self._file))  # type: ignore[arg-type]  # all that it asks
        check(self._file.exists(), "a file whose user was not made is removed")
