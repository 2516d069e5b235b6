"""Bearer tokens: JSON Web Tokens (RFC 7519), signed with a key of a JWKS file. The library `PyJWT` checks them."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import jwt
import structlog

from antiphon import system
from antiphon.errors import UnauthenticatedError
from antiphon.security.settings import OAuth

# Signatures with public keys only: a file of public keys must never be taken for a shared secret.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
)  # fmt: skip
TOKEN_BYTES_MAX: Final = 16 * 1024
LEEWAY_S: Final = 30
CHECK_EVERY_S: Final = 1.0


class Bearer(NamedTuple):
    """Whom a token names, and until when, in seconds since 1970."""

    name: str
    expires_s: float


class TokenCheck:
    """Checks tokens against the keys in a file, which is read again when it has changed."""

    def __init__(self, settings: OAuth) -> None:
        self._settings = settings
        self._stamp: tuple[int, int] | None = None
        self._checked_s = -CHECK_EVERY_S
        self._keys: list[jwt.PyJWK] = []
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
        except jwt.PyJWTError:
            raise UnauthenticatedError("the token is not accepted") from None
        name = claims.get(self._settings.principal_claim)
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UnauthenticatedError("the token is not accepted")
        return Bearer(name, float(claims["exp"]))

    def _claims(self, token: str, key_id: Any, algorithm: Any) -> dict[str, Any]:
        if algorithm not in ALGORITHMS:
            raise jwt.InvalidAlgorithmError(str(algorithm))
        for key in self._keys:
            if (key_id is None or key.key_id == key_id) and key.algorithm_name == algorithm:
                settings = self._settings
                return jwt.decode(
                    token,
                    key,
                    algorithms=[algorithm],
                    audience=settings.audience or None,
                    issuer=settings.issuer or None,
                    leeway=LEEWAY_S,
                    options={
                        "require": ["exp", *(["iss"] if settings.issuer else [])],
                        "verify_aud": bool(settings.audience),
                    },
                )
        raise jwt.InvalidKeyError("no such key")

    def _read_keys(self) -> None:
        now_s = system.monotonic_s()
        if now_s - self._checked_s < CHECK_EVERY_S:
            return
        self._checked_s = now_s
        path = Path(self._settings.keys)
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp == self._stamp:
                return
            self._keys, left_out = _keys_of(path.read_text())
            self._stamp = stamp
            if left_out:
                self._log.error("token_key_not_taken", file=str(path), keys=left_out)
        except (OSError, ValueError, RecursionError, jwt.PyJWTError) as error:
            self._log.error("token_keys_not_read", file=str(path), error=type(error).__name__)


def _keys_of(text: str) -> tuple[list[jwt.PyJWK], int]:
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
