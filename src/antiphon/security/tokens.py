"""Bearer tokens: JSON Web Tokens (RFC 7519), signed with a key of a JWKS file.

The library `PyJWT` checks signatures. Times are checked here, by the node's clock, which also says when a login ends.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import structlog

from antiphon import system
from antiphon.errors import InvalidRequestError, UnauthenticatedError
from antiphon.security.settings import OAuth

if TYPE_CHECKING:
    import jwt
else:
    try:
        import jwt
    except ModuleNotFoundError:  # it comes with the extra `oauth`
        jwt = None

HAS_TOKENS: Final = jwt is not None
# Signatures with public keys only: a file of public keys must never be taken for a shared secret.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
)  # fmt: skip
TOKEN_BYTES_MAX: Final = 16 * 1024
LEEWAY_S: Final = 30  # that the clock of whoever gave a token may be ahead of the node's
CHECK_EVERY_S: Final = 1.0


class Bearer(NamedTuple):
    """Whom a token names, and until when, in seconds since 1970."""

    name: str
    expires_s: float


class KeySource(Protocol):
    """Where the text of a JWKS stands. `name`: for the log."""

    name: str

    def stamp(self) -> object:
        """Another value when the text has changed. Raises OSError."""

    def text(self) -> str:
        """The text. Raises OSError, ValueError."""


class KeyFile:
    """A file of keys."""

    def __init__(self, file: str) -> None:
        self.name = file
        self._path = Path(file)

    def stamp(self) -> object:
        """See `KeySource`."""
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size

    def text(self) -> str:
        """See `KeySource`."""
        return self._path.read_text()


class TokenCheck:
    """Checks tokens against keys, which are read again when they have changed. `keys`: the settings' file by default."""

    def __init__(self, settings: OAuth, keys: KeySource | None = None) -> None:
        """Raises InvalidRequestError where the library is missing, or the keys cannot be read."""
        if jwt is None:
            raise InvalidRequestError(
                "security.oauth asks for logins by bearer tokens, and PyJWT is not installed: "
                "pip install 'antiphon[oauth]'"
            )
        self._settings = settings
        self._source = keys or KeyFile(settings.keys)
        self._stamp: object = None
        self._checked_s = -CHECK_EVERY_S
        self._keys: list[jwt.PyJWK] = []
        self._signed = jwt.PyJWS()
        self._log = structlog.get_logger()
        self._read_keys()  # what is wrong with them is told at the start
        self._checked_s = -CHECK_EVERY_S

    def check(self, token: str) -> Bearer:
        """Whom the token names; raises UnauthenticatedError."""
        self._read_keys()
        if len(token) > TOKEN_BYTES_MAX:
            raise UnauthenticatedError("the token is not accepted")
        try:
            header = jwt.get_unverified_header(token)
            claims = self._claims(token, header.get("kid"), header.get("alg"))
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError):
            raise UnauthenticatedError("the token is not accepted") from None
        name = claims.get(self._settings.principal_claim)
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UnauthenticatedError("the token is not accepted")
        return Bearer(name, float(claims["exp"]))

    def claimed(self, token: str) -> str:
        """Whom a token that may not hold says to be about; empty where that cannot be read."""
        if len(token) > TOKEN_BYTES_MAX:
            return ""
        try:
            claims = json.loads(jwt.utils.base64url_decode(token.split(".")[1]))
        except (IndexError, ValueError, RecursionError):
            return ""
        name = claims.get(self._settings.principal_claim) if isinstance(claims, dict) else None
        return name if isinstance(name, str) else ""

    def _claims(self, token: str, key_id: Any, algorithm: Any) -> dict[str, Any]:
        if algorithm not in ALGORITHMS:
            raise jwt.InvalidAlgorithmError(str(algorithm))
        for key in self._keys:
            if (key_id is None or key.key_id == key_id) and key.algorithm_name == algorithm:
                claims = json.loads(self._signed.decode(token, key, [algorithm]))
                return self._checked(claims)
        raise jwt.InvalidKeyError("no such key")

    def _checked(self, claims: Any) -> dict[str, Any]:
        """The claims of a signed token; raises jwt.PyJWTError for those that are not for this cluster, or at this time."""
        if not isinstance(claims, dict):
            raise jwt.DecodeError("the claims are no object")
        issuer, audience, now_s = self._settings.issuer, self._settings.audience, system.wall_s()
        if issuer and claims.get("iss") != issuer:
            raise jwt.InvalidIssuerError("another issuer")
        if audience and audience not in _texts(claims.get("aud")):
            raise jwt.InvalidAudienceError("for others")
        if _seconds(claims, "exp", None) <= now_s:  # as `Authenticator.holds` goes by: who is let in may stay
            raise jwt.ExpiredSignatureError("it has expired")
        if max(_seconds(claims, name, 0.0) for name in ("nbf", "iat")) > now_s + LEEWAY_S:
            raise jwt.ImmatureSignatureError("it is not valid yet")
        return claims

    def _read_keys(self) -> None:
        now_s = system.monotonic_s()
        if now_s - self._checked_s < CHECK_EVERY_S:
            return
        self._checked_s = now_s
        source = self._source
        try:
            stamp = source.stamp()
            if stamp == self._stamp:
                return
            self._keys, left_out = _keys_of(source.text())
            self._stamp = stamp
            if left_out:
                self._log.error("token_key_not_taken", file=source.name, keys=left_out)
        except (OSError, ValueError, RecursionError, jwt.PyJWTError) as error:
            self._log.error("token_keys_not_read", file=source.name, error=type(error).__name__)


def _seconds(claims: dict[str, Any], name: str, absent: float | None) -> float:
    """A time, in seconds since 1970; raises jwt.DecodeError for what is none, and where `absent` is None for none at all."""
    found = claims.get(name, absent)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise jwt.DecodeError(f"{name} is no time")
    return float(found)


def _texts(audience: Any) -> list[str]:
    """Whom a token is for: one text, or a list of them."""
    found = [audience] if isinstance(audience, str) else audience
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else []


def _keys_of(text: str) -> "tuple[list[jwt.PyJWK], int]":
    """The keys of a JWKS that verify signatures, and how many of those cannot be used. ValueError for no JWKS."""
    found, left_out = [], 0
    whole = json.loads(text)
    listed = whole.get("keys") if isinstance(whole, dict) else None
    if not isinstance(listed, list):
        raise ValueError('no key set: it is a JSON object with a list "keys"')
    for plain in listed:
        if isinstance(plain, dict) and (plain.get("use", "sig") != "sig" or plain.get("kty") == "oct"):
            continue
        try:
            found.append(jwt.PyJWK(plain))
        except (jwt.PyJWTError, AttributeError, TypeError, ValueError):
            left_out += 1
    return found, left_out
