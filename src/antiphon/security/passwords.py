"""Passwords, as the cluster keeps them: stored keys of SCRAM (RFC 5802, RFC 7677), which prove one and do not reveal it.

The computations are those of the library `scramp`, which is loaded when somebody first has a password.
"""

import hashlib
import hmac
import secrets
from functools import cache
from typing import TYPE_CHECKING, Final

from antiphon import system
from antiphon.errors import InvalidRequestError
from antiphon.model.access import AccessBook, Credential

if TYPE_CHECKING:
    from scramp import ScramMechanism

SHA_256: Final = "SCRAM-SHA-256"
SHA_512: Final = "SCRAM-SHA-512"
MECHANISMS: Final = (SHA_256, SHA_512)
ITERATIONS: Final = 8192
SALT_BYTES: Final = 24
PASSWORD_BYTES_MAX: Final = 1024

_HASHES: Final = {SHA_256: "sha256", SHA_512: "sha512"}


@cache
def mechanism_of(name: str) -> "ScramMechanism":
    """The library's own, by name."""
    from scramp import ScramMechanism

    return ScramMechanism(name)


def new_password() -> str:
    """A password that nobody guesses (144 bits)."""
    return secrets.token_urlsafe(18)


def credential(
    mechanism: str, password: str, salt: bytes | None = None, iterations: int = ITERATIONS
) -> Credential:
    """What is kept of a password. Takes milliseconds. Raises InvalidRequestError for one that SASLprep does not allow."""
    if not 0 < len(password.encode()) <= PASSWORD_BYTES_MAX:
        raise InvalidRequestError(f"a password has 1 to {PASSWORD_BYTES_MAX:,} bytes")
    from scramp import ScramException

    salt = system.secret_bytes(SALT_BYTES) if salt is None else salt
    try:
        _, stored, server, _ = mechanism_of(mechanism).make_auth_info(password, iterations, salt)
    except ScramException:
        raise InvalidRequestError("the password has characters that are not allowed in one") from None
    return Credential(mechanism, salt, iterations, stored, server)


def credentials(password: str) -> tuple[Credential, ...]:
    """For every mechanism."""
    return tuple(credential(name, password) for name in MECHANISMS)


def from_salted(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """The same of what Kafka's clients send when they set a password: PBKDF2 has been carried out already."""
    kind = _HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", kind)
    server_key = hmac.digest(salted_password, b"Server Key", kind)
    return Credential(mechanism, salt, iterations, hashlib.new(kind, client_key).digest(), server_key)


def proves(found: Credential, password: str) -> bool:
    """Is it the password of the credential? Takes the same time whether it is or not."""
    try:
        made = credential(found.mechanism, password, found.salt, found.iterations)
    except InvalidRequestError:
        return False
    return hmac.compare_digest(made.stored_key, found.stored_key)


def of_nobody(book: AccessBook, mechanism: str, name: str, secret: bytes) -> Credential:
    """What an unknown user's credential looks like: the same each time, proved by no password.

    Its iterations are those of some user, so that it looks like any other. It takes no longer where there are many users:
    that would tell which names there are.
    """
    digest = hmac.digest(secret, f"{mechanism}/{name}".encode(), "sha512")
    common = book.iterations(mechanism) or [ITERATIONS]
    size = hashlib.new(_HASHES[mechanism]).digest_size
    return Credential(
        mechanism,
        digest[:SALT_BYTES],
        common[digest[-1] % len(common)],
        system.secret_bytes(size),
        bytes(size),
    )
