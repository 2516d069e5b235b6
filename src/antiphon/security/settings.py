"""What an operator decides about security: the section `[security]` of `node.toml`.

File names are relative to the node's directory. Everything is off by default, which is for a cluster that listens on the
loopback interface only.
"""

from typing import Final

import msgspec

from antiphon.errors import InvalidRequestError

CLIENT_AUTH: Final = ("none", "requested", "required")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class Tls(msgspec.Struct, forbid_unknown_fields=True):
    """Certificate of a listener, in PEM files. They are read again when they change.

    `authority` holds the certificates that those of clients (or other nodes) must be signed by. `client_auth` is Kafka's
    `ssl.client.auth`: a client's certificate is not asked for, taken when there is one, or demanded.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""
    client_auth: str = "none"

    @property
    def on(self) -> bool:
        """Is there a certificate?"""
        return bool(self.certificate)


class OAuth(msgspec.Struct, forbid_unknown_fields=True):
    """How bearer tokens (JWT) are checked; without `keys` none is taken."""

    keys: str = ""  # a JWKS file
    issuer: str = ""
    audience: str = ""
    principal_claim: str = "sub"


class Security(msgspec.Struct, forbid_unknown_fields=True):
    """See the module's text.

    Attributes:
        insecure: listen where others than this machine reach the node also without TLS and authentication.
        authentication: clients of every listener must say who they are, and access control lists decide what they may do.
        tls: of the listeners for clients (native, Kafka, HTTP).
        peer_tls: of the listener for other nodes; both sides show a certificate that `authority` signed.
        peer_key: file with a key that all nodes share; who does not prove that it knows it is no node.
        first_user: file with the user that a cluster without users gets (`antiphon.server.first_user`).
        super_users: principals that may do everything, such as `User:admin`.
        sasl_mechanisms: what Kafka's clients may authenticate with.
        oauth: how bearer tokens are checked.
    """

    insecure: bool = False
    authentication: bool = False
    tls: Tls = msgspec.field(default_factory=Tls)
    peer_tls: Tls = msgspec.field(default_factory=Tls)
    peer_key: str = ""
    first_user: str = ""
    super_users: list[str] = msgspec.field(default_factory=list)
    sasl_mechanisms: list[str] = msgspec.field(
        default_factory=lambda: ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    )
    oauth: OAuth = msgspec.field(default_factory=OAuth)

    @property
    def proves_nodes(self) -> bool:
        """Must a node prove that it is one?"""
        return bool(self.peer_key) or self.peer_tls.on


def check_security(security: Security) -> Security:
    """Return `security` when its parts fit together; raises InvalidRequestError saying what does not."""
    for name, tls in (("tls", security.tls), ("peer_tls", security.peer_tls)):
        if tls.client_auth not in CLIENT_AUTH:
            raise InvalidRequestError(
                f"security.{name}.client_auth must be {' or '.join(CLIENT_AUTH)}, not {tls.client_auth!r}"
            )
        if tls.on != bool(tls.key):
            raise InvalidRequestError(f"security.{name}: certificate and key belong together, one is missing")
        if (tls.client_auth != "none" or (tls is security.peer_tls and tls.on)) and not tls.authority:
            raise InvalidRequestError(
                f"security.{name}: to check the certificates of the other side name their `authority`"
            )
    unknown = sorted(set(security.sasl_mechanisms) - set(SASL_MECHANISMS))
    if unknown:
        raise InvalidRequestError(
            f"security.sasl_mechanisms: {', '.join(unknown)} is not known; known are {', '.join(SASL_MECHANISMS)}"
        )
    for name in security.super_users:
        kind, colon, rest = name.partition(":")
        if not (kind and colon and rest):
            raise InvalidRequestError(
                f"security.super_users: {name!r} is no principal; write it as User:alice"
            )
    return security
