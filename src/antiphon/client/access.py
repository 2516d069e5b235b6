"""How a program in several processes gets into a cluster: whom it trusts and who it logs in as, beside the addresses.

Spark's drivers parse options once and send what they mean to planners and tasks. None of this is shown where it is printed:
addresses with an access print as addresses.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from antiphon.client.account import Account, account_of
from antiphon.client.addresses import Address
from antiphon.client.tls import OFF, ON, Shown, tls_of, trusting_text
from antiphon.errors import InvalidRequestError

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing


class Access(msgspec.Struct, frozen=True):
    """What a program says of TLS and of itself; what it leaves out is the environment's.

    `tls`: None, or whether to speak it; `authorities`: whom to trust, as PEM; empty: whom the system trusts. `shown`: the
    client's certificate and its key.
    """

    account: Account | None = None
    tls: bool | None = None
    authorities: str = ""
    shown: Shown | None = None

    def __repr__(self) -> str:
        return "Access(...)"

    def dialing(self) -> "Dialing | None":
        """How to connect; None: as the environment says."""
        if self.authorities or self.shown is not None:
            return trusting_text(self.authorities, shown=self.shown)
        return tls_of(self.tls)


def access_of(
    tls: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tls_certificate: str = "",
    tls_key: str = "",
) -> Access | None:
    """What a program says in words, as the environment's variables say it; None: nothing.

    Files (authorities, the client's certificate and its key) are read here and now, so other machines need none. Raises
    InvalidRequestError.
    """
    account = account_of(user, password, token)
    word = tls.strip()
    shown = _shown(tls_certificate.strip(), tls_key.strip())
    if shown is not None and word.lower() in OFF:
        raise InvalidRequestError("a client's certificate is shown with TLS: say with tls whom to trust")
    if not word and account is None:
        return None
    if word.lower() in OFF or (word.lower() in ON and shown is None):
        return Access(account, (word.lower() in ON) if word else None)
    text = "" if word.lower() in ON else _read(word)
    trusting_text(text, word, shown)
    return Access(account, True, text, shown)


def _shown(certificate: str, key: str) -> Shown | None:
    if key and not certificate:
        raise InvalidRequestError("the key of a client's certificate is given without the certificate")
    if not certificate:
        return None
    name = " and ".join(dict.fromkeys((certificate, key or certificate)))
    return Shown(_read(certificate), _read(key or certificate), name)


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError as error:
        raise InvalidRequestError(f"tls: cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"tls: {file} is no PEM file") from None


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
