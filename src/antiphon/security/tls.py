"""TLS: contexts of listeners, which are made anew when their files change, contexts of clients, and who a peer is.

A listener asks `ServerTls.current()` at each handshake. So a new certificate, key or authority counts for the next
connection, and connections that stand stay as they are. Sessions of TLS 1.3 are never resumed. Those of TLS 1.2 are, by
OpenSSL's cache, which Python cannot turn off; but it belongs to a context, so it ends when the files change and every 10 s.
"""

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from antiphon import system
from antiphon.errors import InvalidRequestError
from antiphon.security.bounded_lines import BoundedLines
from antiphon.security.principal import Principal
from antiphon.security.settings import Tls

HANDSHAKE_S: Final = 10.0  # what a peer may take for a handshake
SHUTDOWN_S: Final = 5.0  # and to say goodbye
TELL_EVERY_S: Final = 5.0
RESUMED_S: Final = 10.0  # for at most so long a session of TLS 1.2 may be resumed

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption only. TLS 1.3 has no others."""

_PLAIN: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG"}
_ALERTS: Final = ("TLSV1_ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE_UNKNOWN")
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Types of RFC 2253, by OpenSSL's names."""

_Signature = tuple[tuple[int, int, int], ...]


class HandshakeCount(Protocol):
    """Where handshakes are counted."""

    tls_handshakes: int
    tls_handshakes_failed: int


class _Watched:
    """A context that is made anew when one of its files has changed. `make` raises InvalidRequestError."""

    def __init__(self, tls: Tls, directory: Path, name: str, make: Callable[[], ssl.SSLContext]) -> None:
        self._name = name
        self._files = [directory / file for file in (tls.certificate, tls.key, tls.authority) if file]
        self._make = make
        self._log = structlog.get_logger()
        self._seen = self._signature()
        self._context = make()

    def current(self) -> ssl.SSLContext:
        """The context for a handshake that begins now. Files that changed and are not good are logged once; the last
        good ones stay in use.
        """
        found = self._signature()
        if found != self._seen:
            self._seen = found
            try:
                self._context = self._make()
            except InvalidRequestError as error:
                self._log.error("tls_files_not_taken", setting=f"security.{self._name}", error=error.message)
            else:
                self._log.info("tls_files_taken", setting=f"security.{self._name}")
        return self._context

    def _renew(self) -> None:
        """Make the context anew of the files that it was made of; where they are not good any more it stays."""
        if self._signature() == self._seen:
            with suppress(InvalidRequestError):
                self._context = self._make()

    def _signature(self) -> _Signature:
        """Changes when a file does."""
        found = []
        for file in self._files:
            try:
                stat = os.stat(file)
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)


class PeerDialTls(_Watched):
    """The TLS of connections that this node makes to others. Raises InvalidRequestError when its files cannot be used."""

    def __init__(self, tls: Tls, directory: Path) -> None:
        super().__init__(tls, directory, "peer_tls", lambda: peer_client_context(tls, directory))


class ServerTls(_Watched):
    """The TLS of a listener; see the module's text.

    Args:
        tls: its files, relative to `directory`.
        directory: the node's.
        name: of the listener's setting, for the log, such as `tls`.
        counters: where handshakes are counted.
        protocol: that clients have to name in the handshake (ALPN), where one is.

    Raises InvalidRequestError when the files cannot be used.
    """

    def __init__(
        self, tls: Tls, directory: Path, name: str, counters: HandshakeCount, protocol: str = ""
    ) -> None:
        super().__init__(tls, directory, name, lambda: server_context(tls, directory, name, protocol))
        self._counters = counters
        self._failures = BoundedLines(
            "tls_handshake_failed", "address", "handshakes", "failed", told_max=1, every_s=TELL_EVERY_S
        )
        self._made_s = system.monotonic_s()

    def current(self) -> ssl.SSLContext:
        """See _Watched; with a new context every 10 s (it takes 2 ms), which knows no sessions."""
        now_s = system.monotonic_s()
        if now_s - self._made_s >= RESUMED_S:
            self._made_s = now_s
            self._renew()
        return super().current()

    def succeeded(self) -> None:
        """Count a handshake."""
        self._counters.tls_handshakes += 1

    def failed(self, peer: str, error: BaseException) -> None:
        """Count a handshake that failed; one line in the log for all of an address in five seconds."""
        self._counters.tls_handshakes_failed += 1
        self._failures.log(
            peer.rpartition(":")[0],
            self._counters.tls_handshakes_failed,
            peer=peer,
            setting=f"security.{self._name}",
            reason=why_failed(error),
        )


def why_failed(error: BaseException) -> str:
    """What a failed handshake is about, in words for the operator of the listener."""
    reason = getattr(error, "reason", None) or ""
    if reason in _PLAIN:
        return "the client spoke without TLS, and this port takes TLS only: configure the client for TLS"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client showed no certificate, and client_auth demands one"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"the client's certificate is refused: {getattr(error, 'verify_message', '') or error}"
    if reason.endswith(_ALERTS):
        return "the client does not trust this node's certificate: give it the authority that signed it"
    if reason == "UNSUPPORTED_PROTOCOL":
        return "the client speaks no version of TLS from 1.2 on"
    if isinstance(error, ConnectionAbortedError):
        return f"the client did not finish the handshake within {HANDSHAKE_S:.0f} s"
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError):
        return "the client hung up during the handshake"
    return str(error) or type(error).__name__


def server_context(tls: Tls, directory: Path, name: str = "tls", protocol: str = "") -> ssl.SSLContext:
    """A context for handshakes that others begin; raises InvalidRequestError saying which file is not good."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    where = f"security.{name}"
    _load_chain(context, directory / tls.certificate, directory / tls.key, where)
    if tls.client_auth != "none":
        _load_authority(context, directory / tls.authority, where)
        context.verify_mode = _VERIFY[tls.client_auth]
    if protocol:
        context.set_alpn_protocols([protocol])
    return context


def peer_client_context(tls: Tls, directory: Path) -> ssl.SSLContext:
    """A context for handshakes that this node begins with another: it shows its own certificate, and takes those that the
    authority signed, whatever their names. Raises InvalidRequestError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.check_hostname = (
        False  # the authority signs for nodes only: a node is whoever holds one of its certificates
    )
    _load_authority(context, directory / tls.authority, "security.peer_tls")
    _load_chain(context, directory / tls.certificate, directory / tls.key, "security.peer_tls")
    return context


def nodes_client_context(tls: Tls, directory: Path, *, itself: bool) -> ssl.SSLContext:
    """A context for handshakes that this node begins at listeners for clients: at its own, it takes its own certificate,
    whatever names that has; at another's, what its own file or `authority` or the system's authorities signed for that name.

    It shows its certificate where clients must show one. Raises InvalidRequestError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a certificate of the file is enough
    _load_authority(context, directory / tls.certificate, "security.tls")
    if itself:
        context.check_hostname = False
    else:
        context.load_default_certs()
        if tls.authority:
            _load_authority(context, directory / tls.authority, "security.tls")
    if tls.client_auth == "required":
        _load_chain(context, directory / tls.certificate, directory / tls.key, "security.tls")
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path, where: str) -> None:
    for what, file in (("certificate", certificate), ("key", key)):
        _readable(file, f"{where}.{what}")
    try:
        context.load_cert_chain(certificate, key, password=_no_password(key))
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise InvalidRequestError(
            f"{where}: {certificate} and {key} are not a certificate and its key in PEM: {reason}; restore both, or make "
            "new ones"
        ) from None


def _load_authority(context: ssl.SSLContext, authority: Path, where: str) -> None:
    _readable(authority, f"{where}.authority")
    try:
        context.load_verify_locations(authority)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise InvalidRequestError(
            f"{where}.authority: {authority} holds no certificates in PEM: {reason}; restore it"
        ) from None


def _readable(file: Path, where: str) -> None:
    try:
        with file.open("rb"):
            return
    except OSError as error:
        raise InvalidRequestError(
            f"{where}: cannot read {file}: {error.strerror}; restore it, or give this user the right to read it"
        ) from None


def _no_password(key: Path) -> Callable[[], str]:
    """OpenSSL would ask the terminal."""

    def refuse() -> str:
        raise ValueError(
            f"{key.name} is encrypted; give a key without a passphrase, readable by the node only"
        )

    return refuse


# -- who the peer is ----------------------------------------------------------------------------------------------


def is_encrypted(transport: Any) -> bool:
    """Does this transport speak TLS?"""
    return transport.get_extra_info("ssl_object") is not None


def principal_of(transport: Any) -> Principal | None:
    """Who the peer's certificate says it is: `User:CN=...`, the distinguished name of its subject, as Kafka's default
    principal builder names it. None without TLS, or where the peer showed no certificate.
    """
    certificate = transport.get_extra_info("peercert")
    if not certificate or not certificate.get("subject"):
        return None
    return Principal("User", distinguished_name(certificate["subject"]))


def distinguished_name(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """A subject as `SSLSocket.getpeercert` gives it, in the text form of RFC 2253: the last part first."""
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{letter}" if letter in ',+"\\<>;' else letter for letter in value)
    if text.endswith(" "):
        text = text[:-1] + "\\ "
    return f"\\{text}" if text.startswith((" ", "#")) else text
