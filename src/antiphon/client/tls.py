"""Whether a client speaks TLS, and whom it trusts: what its program says, else the environment.

A node must show a certificate that names the host (or IP address) that the client connects to. A client shows one of its
own where ANTIPHON_TLS_CERTIFICATE names it (with ANTIPHON_TLS_KEY, or the key in the same file), or `tls=` has it. `ssl` is
imported only where TLS is spoken: most clusters on one machine do without.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import AntiphonError, InvalidRequestError, UnauthenticatedError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    Paths = tuple[str | os.PathLike[str], ...]
    TlsChoice = bool | str | os.PathLike[str] | Paths | ssl.SSLContext | None
    """True: the system's authorities; a path: a PEM file of authorities; False: no TLS; None: the environment says. Paths:
    the authorities, then the client's certificate and its key (or both in one file)."""
    Dialing = Callable[[str, int], ssl.SSLContext | None]
    """The context for a connection to a host and port; None: without TLS."""

TLS: Final = "ANTIPHON_TLS"
CERTIFICATE: Final = "ANTIPHON_TLS_CERTIFICATE"
KEY: Final = "ANTIPHON_TLS_KEY"
ON: Final = frozenset({"on", "true", "1"})
OFF: Final = frozenset({"", "off", "false", "0"})
PLAIN: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
HUNG_UP: Final = f"before it said hello; if it takes TLS only, connect with tls=, or set {TLS}"
HUNG_UP_ON_TLS: Final = (
    f"before it said hello; if it wants a certificate of the client, name one in {CERTIFICATE}, or in tls="
)


_own: "Final[ContextVar[Dialing | None]]" = ContextVar("antiphon_tls", default=None)


def use_tls(dialing: "Dialing") -> None:
    """Connect like this from now on where a program of this thread, or of this task, says nothing."""
    _own.set(dialing)


def environment_says_tls() -> bool:
    """Is it said how to connect, by `use_tls` or ANTIPHON_TLS, also that it is without TLS?"""
    return _own.get() is not None or TLS in os.environ


def tls_of(choice: "TlsChoice") -> "Dialing | None":
    """How to connect, by what a program says; None: it says nothing. Raises InvalidRequestError for a file that holds no
    authorities.
    """
    if choice is None or choice == "":
        return None
    if choice is False:
        return _without
    if choice is True:
        return _trusting_the_system
    if isinstance(choice, tuple):
        if not 2 <= len(choice) <= 3:
            raise InvalidRequestError("tls: give the authorities, the client's certificate and its key")
        context = _showing(_trusting(choice[0], shows=False), *(os.fspath(file) for file in choice[1:]))
    else:
        context = _trusting(choice) if isinstance(choice, str | os.PathLike) else choice
    return lambda _host, _port: context


def context_for(dialing: "Dialing | None", host: str, port: int) -> "ssl.SSLContext | None":
    """The context to connect to an address with; None: without TLS.

    `dialing` of None: what `use_tls` said, else ANTIPHON_TLS: `on` for the system's authorities, or a PEM file of
    authorities. Raises InvalidRequestError for a file that holds none.
    """
    dialing = dialing or _own.get()
    if dialing is None:
        said = os.environ.get(TLS, "")
        if said.lower() in OFF:
            return None
        dialing = _trusting_the_system if said.lower() in ON else tls_of(said)
    return None if dialing is None else dialing(host, port)


def why_no_tls(address: str, error: OSError) -> AntiphonError | str:
    """What a handshake with a node failed of: an error that no retry can fix, or words for one that may be."""
    import ssl

    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UnauthenticatedError(
            f"the certificate of {address} is not trusted: {error.verify_message or error}; "
            "give tls= the authority that signed it, and connect to a name that it is for"
        )
    if reason in PLAIN:
        return InvalidRequestError(f"{address} speaks no TLS: connect without tls=, and without {TLS}")
    if isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
        return f"{address} ended the TLS handshake: {str(error) or type(error).__name__}; does it speak TLS?"
    return f"{address} cannot be reached: {error}"


def _without(_host: str, _port: int) -> None:
    return None


def _trusting_the_system(_host: str, _port: int) -> "ssl.SSLContext":
    return _system(*_own_files())


@cache
def _system(*own: str) -> "ssl.SSLContext":
    import ssl

    return _showing(ssl.create_default_context(), *own)


def _own_files() -> tuple[str, ...]:
    """The client's certificate and key, as the environment says; the key may stand in the certificate's file."""
    return tuple(file for file in (os.environ.get(CERTIFICATE), os.environ.get(KEY)) if file)


def _showing(context: "ssl.SSLContext", *own: str) -> "ssl.SSLContext":
    """Show the certificate of these files to nodes that ask for one. Raises InvalidRequestError."""
    if own:
        try:
            _load(context, own[0], own[-1], " and ".join(own))
        except OSError as error:
            raise InvalidRequestError(f"tls: cannot read {' or '.join(own)}: {error.strerror}") from None
    return context


def _load(context: "ssl.SSLContext", certificate: str, key: str, name: str) -> None:
    import ssl

    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise InvalidRequestError(
            f"tls: {name} are not a client's certificate and its key in PEM: {reason}"
        ) from None


def _no_passphrase() -> str:
    """OpenSSL would ask the terminal."""
    raise ValueError("the key has a passphrase; give one without, for its owner only")


class Shown(NamedTuple):
    """A client's certificate and its key as PEM. `name`: where they are from, for errors."""

    certificate: str
    key: str
    name: str = "what was given"

    def __repr__(self) -> str:
        return "Shown(...)"


def trusting_text(authorities: str, name: str = "what was given", shown: Shown | None = None) -> "Dialing":
    """Trust these authorities, given as PEM (empty: whom the system trusts), and show this certificate (None: what the
    environment names). Raises InvalidRequestError, which names `name`, when they are none.
    """
    import ssl

    try:
        context = ssl.create_default_context(cadata=authorities)
    except (ssl.SSLError, ValueError):
        raise InvalidRequestError(f"tls: {name} holds no certificates in PEM") from None
    if shown is None:
        _showing(context, *_own_files())
    else:
        with _unnamed(shown.certificate) as certificate, _unnamed(shown.key) as key:
            _load(context, certificate, key, shown.name)
    return lambda _host, _port: context


@contextmanager
def _unnamed(text: str) -> Iterator[str]:
    """A path to this text. OpenSSL reads keys from files only; this one has no name in any folder, so nobody else can open
    it, and nothing is left when the process is killed.
    """
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"


def _trusting(authorities: str | os.PathLike[str], *, shows: bool = True) -> "ssl.SSLContext":
    import ssl

    try:
        context = ssl.create_default_context(cafile=authorities)
    except ssl.SSLError:
        raise InvalidRequestError(f"tls: {os.fspath(authorities)} holds no certificates in PEM") from None
    except OSError as error:
        raise InvalidRequestError(f"tls: cannot read {os.fspath(authorities)}: {error.strerror}") from None
    return _showing(context, *_own_files()) if shows else context
