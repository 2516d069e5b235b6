"""Who gives bearer tokens in a simulated cluster: keys that are the same in each run, tokens, and the nodes' key sets.

Signatures are Ed25519, which draws nothing. A machine has the key set as a file that no fault touches. The issuer replaces
it on one machine after the other, so a node knows a new key, or forgets an old one, at a moment of its own.
"""

import base64
import json
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.security.settings import OAuth

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ISSUER: Final = "https://issuer.simulated"
AUDIENCE: Final = "antiphon"
OAUTH: Final = OAuth(keys="keys.json", issuer=ISSUER, audience=AUDIENCE)
KEYS: Final = 6  # that there are; key sets have some of them
STRANGE_KEY: Final = 99  # of somebody else, in no key set


class TokenKeys:
    """A machine's key set: see `security.tokens.KeySource`. `numbers`: of the keys that are in it."""

    name = "keys.json"

    def __init__(self) -> None:
        self.numbers: tuple[int, ...] = (0,)
        self._stamp = 0

    def put(self, numbers: tuple[int, ...]) -> None:
        """Replace the file."""
        self.numbers = numbers
        self._stamp += 1

    def stamp(self) -> object:
        """See `KeySource`."""
        return self._stamp

    def text(self) -> str:
        """See `KeySource`."""
        return json.dumps({"keys": [_public(number) for number in self.numbers]})


class Token(NamedTuple):
    """A token, and what is true of it. Times are in seconds since 1970.

    Attributes:
        key: number of the key that it is signed with; -1: it is not signed.
        good: is it of the right issuer, for this cluster, and as it was signed?
    """

    text: str
    key: int
    since_s: float
    until_s: float
    good: bool


def make_token(key: int, user: str, since_s: float, until_s: float, **wrong: Any) -> Token:
    """A token for a user, from one time to another. `wrong`: claims that are others than they have to be."""
    import jwt

    claims = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "nbf": since_s, "exp": until_s, **wrong}
    header = {"kid": _name(key)}
    if key < 0:
        return Token(jwt.encode(claims, "", "none", header), key, since_s, until_s, good=False)
    text = jwt.encode(claims, _private(key), "EdDSA", header)
    return Token(text, key, since_s, until_s, good=not wrong)


def _name(key: int) -> str:
    return f"key-{key}"


@cache
def _private(key: int) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(_name(key).encode().ljust(32, b"."))


def _public(key: int) -> dict[str, str]:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    raw = _private(key).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    point = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    return {"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": _name(key), "x": point}
