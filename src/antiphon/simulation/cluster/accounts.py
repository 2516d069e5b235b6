"""Users of a simulated cluster and their passwords. One of them may do everything: all clients that know of no other."""

from functools import cache
from typing import Final

from antiphon.model.access import Credential, User
from antiphon.security.account import Account
from antiphon.security.passwords import SALT_BYTES, SHA_256, credential

ITERATIONS: Final = 4096  # the least that is taken
ROOT: Final = "root"


def password_of(user: str) -> str:
    """What a user logs in with."""
    return f"the password of {user}"


@cache
def credential_of(user: str) -> Credential:
    """What the cluster keeps of it; the same each time."""
    return credential(SHA_256, password_of(user), user.encode().ljust(SALT_BYTES, b"."), ITERATIONS)


def root_account() -> Account:
    """Whom a client logs in as that says nothing else."""
    return Account(ROOT, password_of(ROOT))


def root_user() -> User:
    """The first user, as the cluster keeps it."""
    return User(ROOT, (credential_of(ROOT),))
