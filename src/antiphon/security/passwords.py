"""Passwords, as the cluster keeps them: stored keys of SCRAM (`scram.py`), which prove one and do not reveal it."""

import hashlib
import hmac
import secrets
from typing import Final

from antiphon import system
from antiphon.errors import InvalidRequestError
from antiphon.model.access import AccessBook, Credential
from antiphon.security.scram import HASHES, SHA_256, SHA_512, ScramError, keys_of, salted

MECHANISMS: Final = (SHA_256, SHA_512)
ITERATIONS: Final = 8192
SALT_BYTES: Final = 24
PASSWORD_BYTES_MAX: Final = 1024


def new_password() -> str:
    """A password that nobody guesses (144 bits)."""
    return secrets.token_urlsafe(18)


def credential(
    mechanism: str, password: str, salt: bytes | None = None, iterations: int = ITERATIONS
) -> Credential:
    """What is kept of a password. Takes milliseconds. Raises InvalidRequestError for one that SASLprep does not allow."""
    if not 0 < len(password.encode()) <= PASSWORD_BYTES_MAX:
        raise InvalidRequestError(f"a password has 1 to {PASSWORD_BYTES_MAX:,} bytes")
    salt = system.secret_bytes(SALT_BYTES) if salt is None else salt
    try:
        secret = salted(mechanism, password, salt, iterations)
    except ScramError:
        raise InvalidRequestError("the password has characters that are not allowed in one") from None
    return from_salted(mechanism, secret, salt, iterations)


def credentials(password: str) -> tuple[Credential, ...]:
    """For every mechanism."""
    return tuple(credential(name, password) for name in MECHANISMS)


def from_salted(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """The same of what Kafka's clients send when they set a password: PBKDF2 has been carried out already."""
    return Credential(mechanism, salt, iterations, *keys_of(mechanism, salted_password))


def proves(found: Credential, password: str) -> bool:
    """Is it the password of the credential? Takes the same time whether it is or not."""
    try:
        made = credential(found.mechanism, password, found.salt, found.iterations)
    except InvalidRequestError:
        return False
    return hmac.compare_digest(made.stored_key, found.stored_key)


def of_nobody(book: AccessBook, mechanism: str, name: str, secret: bytes) -> Credential:
    """What an unknown user's credential looks like: the same each time, proved by no password.

    Its iterations are those of some user, so that it looks like any other.
    """
    digest = hmac.digest(secret, f"{mechanism}/{name}".encode(), "sha512")
    common = sorted(
        {
            one.iterations
            for user in book.users.values()
            for one in user.credentials
            if one.mechanism == mechanism
        }
    ) or [ITERATIONS]
    size = hashlib.new(HASHES[mechanism]).digest_size
    return Credential(
        mechanism,
        digest[:SALT_BYTES],
        common[digest[-1] % len(common)],
        system.secret_bytes(size),
        bytes(size),
    )
