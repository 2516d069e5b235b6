"""Key sets, tokens and a coordinator that takes nobody, for tests of what is done with bad ones."""

import base64
import json
from typing import Any

from antiphon.errors import InvalidRequestError


def key_set() -> bytes:
    """A JWKS with keys of several kinds."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm

    keys = [
        {
            **RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 2048).public_key(), as_dict=True),
            "alg": "RS256",
        },
        {
            **ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True),
            "alg": "ES256",
        },
    ]
    return json.dumps(
        {"keys": [{**key, "kid": f"k{n}", "use": "sig"} for n, key in enumerate(keys)]}
    ).encode()


def token_of(header: dict[str, Any], claims: dict[str, Any]) -> bytes:
    """A token with a wrong signature."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), bytes(64)]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


class RefusingGateway:
    """Takes the first user, and refuses what a coordinator would refuse."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def administer(self, request: Any) -> None:
        """As a node's gateway."""
        self.asked.append(request)
        raise InvalidRequestError("not here")
