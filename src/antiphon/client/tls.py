"""Whether a client speaks TLS, and whom it trusts: what its program says, else the environment.

A node must show a certificate that names the host (or IP address) that the client connects to. `ssl` is imported only
where TLS is spoken: most clusters on one machine do without.
"""

import os
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError, InvalidRequestError, UnauthenticatedError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    TlsChoice = bool | str | os.PathLike[str] | ssl.SSLContext | None
    """True: the system's authorities; a path: a PEM file of authorities; False: no TLS; None: the environment says."""
    Dialing = Callable[[str, int], ssl.SSLContext | None]
    """The context for a connection to a host and port; None: without TLS."""

TLS: Final = "ANTIPHON_TLS"
ON: Final = frozenset({"on", "true", "1"})
OFF: Final = frozenset({"", "off", "false", "0"})
PLAIN: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
HUNG_UP: Final = f"before it said hello; if it takes TLS only, connect with tls=, or set {TLS}"
HUNG_UP_ON_TLS: Final = (
    "before it said hello; if it wants a certificate of the client, give tls= an ssl.SSLContext that has one"
)


_own: "Final[ContextVar[Dialing | None]]" = ContextVar("antiphon_tls", default=None)


def use_tls(dialing: "Dialing") -> None:
    """Connect like this from now on where a program of this thread, or of this task, says nothing."""
    _own.set(dialing)


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
    return _system()


@cache
def _system() -> "ssl.SSLContext":
    import ssl

    return ssl.create_default_context()


def trusting_text(authorities: str, name: str = "what was given") -> "Dialing":
    """Trust these authorities, given as PEM. Raises InvalidRequestError, which names `name`, when they are none."""
    import ssl

    try:
        context = ssl.create_default_context(cadata=authorities)
    except (ssl.SSLError, ValueError):
        raise InvalidRequestError(f"tls: {name} holds no certificates in PEM") from None
    return lambda _host, _port: context


def _trusting(authorities: str | os.PathLike[str]) -> "ssl.SSLContext":
    import ssl

    try:
        return ssl.create_default_context(cafile=authorities)
    except ssl.SSLError:
        raise InvalidRequestError(f"tls: {os.fspath(authorities)} holds no certificates in PEM") from None
    except OSError as error:
        raise InvalidRequestError(f"tls: cannot read {os.fspath(authorities)}: {error.strerror}") from None
