"""Files that name users and keys, damaged: the node says so and goes on. Tokens that nobody signed are refused."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from antiphon.errors import UnauthenticatedError
from antiphon.model.access import User
from antiphon.security.passwords import credentials
from antiphon.security.settings import OAuth
from antiphon.security.tokens import TokenCheck
from antiphon.server.first_user import make_first_user, write_first_user
from tests.security.made_credentials import RefusingGateway, key_set, token_of

NESTED = b"[" * 9000


@pytest.mark.parametrize("change", [(b"admin", b"\xff\xfe\xfdin"), (b"SCRAM", b"\xc0\x80RAM")])
def test_a_first_users_file_that_is_no_text_is_told_of(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    file = tmp_path / "first-user"
    write_first_user(file, "admin", "secret")
    file.write_bytes(file.read_bytes().replace(*change))
    with structlog.testing.capture_logs() as told:
        asyncio.run(make_first_user(RefusingGateway(), file))  # type: ignore[arg-type]  # all that it asks
    assert [line["event"] for line in told] == ["first_user_not_read"]
    assert file.exists()


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b"null",
        b"\xff",
        NESTED,
        b'{"keys": [[]]}',
        b'{"keys": [{"kty": 7}]}',
        b'{"keys": [{"kty": "RSA", "alg": []}]}',
        b'{"keys": [{"kty": "RSA", "n": 1, "e": "AQAB"}]}',
    ],
)
def test_a_key_set_that_is_none_lets_nobody_in_and_stops_nobody(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(text)
    token = token_of({"alg": "RS256", "kid": "k0"}, {"exp": 1 << 40, "sub": "eve"}).decode()
    with structlog.testing.capture_logs(), pytest.raises(UnauthenticatedError):
        TokenCheck(OAuth(keys=str(file))).check(token)


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize(
    "content", [NESTED, b'{"a":' * 2000, b"\xff", b"[]", b'{"exp": 1e999}', b'{"exp": "x"}']
)
def test_a_token_of_anything_is_refused(tmp_path: Path, part: int, content: bytes) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set())
    good: list[Any] = [{"alg": "RS256", "kid": "k0"}, {"exp": 1 << 40, "sub": "eve"}]
    parts = [encoded(json.dumps(one).encode()) for one in good]
    parts[part] = encoded(content)
    with pytest.raises(UnauthenticatedError):
        TokenCheck(OAuth(keys=str(file))).check(".".join([*parts, encoded(bytes(256))]))


def test_every_flipped_bit_of_a_first_users_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "first-user"
    write_first_user(file, "admin", "secret")
    good = file.read_bytes()
    for bit in range(0, 8 * len(good), 3):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with structlog.testing.capture_logs() as told:
            asyncio.run(make_first_user(RefusingGateway(), file))  # type: ignore[arg-type]  # all that it asks
        assert [line["event"] for line in told] == ["first_user_not_read"], bit


def test_a_first_users_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    file = tmp_path / "first-user"
    file.write_bytes(msgspec.msgpack.encode(User("admin", credentials("secret"))))
    with structlog.testing.capture_logs() as told:
        asyncio.run(make_first_user(RefusingGateway(), file))  # type: ignore[arg-type]  # all that it asks
    assert [line["event"] for line in told] == ["first_user_not_made"], "the gateway of this test refuses it"


def test_what_is_wrong_with_keys_of_tokens_is_told_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    for text, event in (
        (b"{", "token_keys_not_read"),
        (b'{"keys": [{"kty": "RSA"}]}', "token_key_not_taken"),
    ):
        file.write_bytes(text)
        with structlog.testing.capture_logs() as told:
            TokenCheck(OAuth(keys=str(file)))
        assert [line["event"] for line in told] == [event]
