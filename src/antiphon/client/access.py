"""How a program in several processes gets into a cluster: whom it trusts and who it logs in as, beside the addresses.

Spark's drivers parse options once and send what they mean to planners and tasks. None of this is shown where it is printed:
addresses with an access print as addresses.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from antiphon.client.account import Account, account_of
from antiphon.client.tls import OFF, ON, tls_of, trusting_text
from antiphon.errors import InvalidRequestError

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing

Address = tuple[str, int]


class Access(msgspec.Struct, frozen=True):
    """What a program says of TLS and of itself; what it leaves out is the environment's.

    `tls`: None, or whether to speak it; `authorities`: whom to trust, as PEM; empty: whom the system trusts.
    """

    account: Account | None = None
    tls: bool | None = None
    authorities: str = ""

    def __repr__(self) -> str:
        return "Access(...)"

    def dialing(self) -> "Dialing | None":
        """How to connect; None: as the environment says."""
        return trusting_text(self.authorities) if self.authorities else tls_of(self.tls)


def access_of(tls: str = "", user: str = "", password: str = "", token: str = "") -> Access | None:
    """What a program says in words, as the environment's variables say it; None: nothing.

    A file of authorities is read here and now, so other machines need none. Raises InvalidRequestError.
    """
    account = account_of(user, password, token)
    word = tls.strip()
    if not word and account is None:
        return None
    if not word or word.lower() in ON or word.lower() in OFF:
        return Access(account, (word.lower() in ON) if word else None)
    try:
        text = Path(word).read_text()
    except OSError as error:
        raise InvalidRequestError(f"tls: cannot read {word}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"tls: {word} holds no certificates in PEM") from None
    trusting_text(text, word)
    return Access(account, True, text)


class Addresses(tuple[Address, ...]):
    """Addresses of nodes, with the access to them."""

    access: Access | None

    def __new__(cls, addresses: Iterable[Address] = (), access: Access | None = None) -> Self:
        """Access of None: the environment says it."""
        made = super().__new__(cls, addresses)
        made.access = access
        return made


def access_with(addresses: Any) -> Access | None:
    """The access that comes with addresses, if any does."""
    return addresses.access if isinstance(addresses, Addresses) else None
