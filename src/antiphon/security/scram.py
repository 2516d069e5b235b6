"""SCRAM (RFC 5802, RFC 7677) without channel binding: what each side says, and checks of what the other one says.

Both sides are pure: nonces come from the caller, as texts of visible ASCII without commas. Passwords and names are
prepared by SASLprep (RFC 4013) with the tables of Python's `stringprep`, whose Unicode is 3.2, as the RFC asks.
"""

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final, NamedTuple

SHA_256: Final = "SCRAM-SHA-256"
SHA_512: Final = "SCRAM-SHA-512"
HASHES: Final = {SHA_256: "sha256", SHA_512: "sha512"}
ITERATIONS_MIN: Final = (
    4096  # RFC 7677: a server that asks for fewer may be one that wants to guess the password
)
ITERATIONS_MAX: Final = 10_000_000  # ten seconds or so
_UNPREPARED: Final = (
    stringprep.in_table_a1,  # unassigned
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class ScramError(Exception):
    """A message that is none of SCRAM's, a proof that proves nothing, or a text that SASLprep does not allow."""


class Keys(NamedTuple):
    """What a server keeps of a password, beside its salt and iterations."""

    stored: bytes
    server: bytes


def prepared(text: str) -> str:
    """SASLprep of a text that is kept (RFC 4013): no unassigned code points. Raises ScramError."""
    kept = (" " if stringprep.in_table_c12(one) else one for one in text if not stringprep.in_table_b1(one))
    found = unicodedata.ucd_3_2_0.normalize("NFKC", "".join(kept))
    if any(table(one) for one in found for table in _UNPREPARED):
        raise ScramError("it has characters that are not allowed")
    from_right = [stringprep.in_table_d1(one) for one in found]
    if any(from_right):  # RFC 3454, 6
        mixed = any(stringprep.in_table_d2(one) for one in found)
        if mixed or not (from_right[0] and from_right[-1]):
            raise ScramError("it has characters of both directions of writing")
    return found


def salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword: takes milliseconds. Raises ScramError for a password that SASLprep does not allow."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], prepared(password).encode(), salt, iterations)


def keys_of(mechanism: str, salted_password: bytes) -> Keys:
    """StoredKey and ServerKey."""
    kind = HASHES[mechanism]
    stored = hashlib.new(kind, hmac.digest(salted_password, b"Client Key", kind)).digest()
    return Keys(stored, hmac.digest(salted_password, b"Server Key", kind))


class Found(NamedTuple):
    """What a server knows of a user: see `model.access.Credential`."""

    salt: bytes
    iterations: int
    keys: Keys


class Server:
    """The node's side of one login: `first`, then `final`. `look_up` is asked once, with the name that the client gave."""

    def __init__(self, mechanism: str, look_up: Callable[[str], Found], nonce: str) -> None:
        self._mechanism = mechanism
        self._look_up = look_up
        self._nonce = nonce
        self._header = ""
        self._said = ""  # client-first-message-bare, server-first-message
        self._keys = Keys(b"", b"")

    def first(self, message: str) -> str:
        """The answer to client-first-message. Raises ScramError."""
        flag, _, rest = message.partition(",")
        name, comma, bare = rest.partition(",")
        if (
            flag not in {"n", "y"} or name or not comma
        ):  # "p=": channel binding; a name: to act for somebody else
            raise ScramError("no header of a login without channel binding, for oneself")
        self._header = f"{flag},,"
        said = _attributes(bare, "nr")
        user = prepared(_unescaped(said["n"]))
        if not user:
            raise ScramError("no name")
        self._nonce = _visible(said["r"]) + self._nonce
        found = self._look_up(user)
        self._keys = found.keys
        answer = f"r={self._nonce},s={_text(found.salt)},i={found.iterations}"
        self._said = f"{bare},{answer}"
        return answer

    def final(self, message: str) -> str:
        """The answer to client-final-message, which proves that the client knows the password. Raises ScramError."""
        unproved, comma, proof = message.rpartition(",p=")
        said = _attributes(unproved, "cr")
        if not comma or _bytes(said["c"]) != self._header.encode() or said["r"] != self._nonce:
            raise ScramError("an answer to something else")
        signed = f"{self._said},{unproved}".encode()
        kind = HASHES[self._mechanism]
        client_key = _both(hmac.digest(self._keys.stored, signed, kind), _bytes(proof))
        if not hmac.compare_digest(hashlib.new(kind, client_key).digest(), self._keys.stored):
            raise ScramError("a wrong proof")
        return f"v={_text(hmac.digest(self._keys.server, signed, kind))}"


class Client:
    """The client's side of one login: `first`, `final`, `check`.

    Raises ScramError for a name or a password that SASLprep does not allow.
    """

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        name = prepared(user)
        if not name:
            raise ScramError("no name")
        prepared(password)  # told at once if it is not allowed
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> str:
        """client-first-message."""
        return f"n,,{self._bare}"

    def final(self, server_first: str) -> str:
        """client-final-message; raises ScramError for an answer that no server gives which means well."""
        said = _attributes(server_first, "rsi")
        nonce, rounds = _visible(said["r"]), said["i"]
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("an answer to somebody else")
        if not (rounds.isascii() and rounds.isdigit() and len(rounds) <= len(str(ITERATIONS_MAX))):
            raise ScramError("no number of iterations")
        if not ITERATIONS_MIN <= int(rounds) <= ITERATIONS_MAX:
            raise ScramError("too few iterations, or too many")
        password = salted(self._mechanism, self._password, _bytes(said["s"]), int(rounds))
        kind = HASHES[self._mechanism]
        unproved = f"c={_text(b'n,,')},r={nonce}"
        signed = f"{self._bare},{server_first},{unproved}".encode()
        keys = keys_of(self._mechanism, password)
        proof = _both(hmac.digest(password, b"Client Key", kind), hmac.digest(keys.stored, signed, kind))
        self._signature = hmac.digest(keys.server, signed, kind)
        return f"{unproved},p={_text(proof)}"

    def check(self, server_final: str) -> None:
        """Raises ScramError for a server that refuses, or does not prove that it knows the user."""
        said = _attributes(server_final, "v")
        if not self._signature or not hmac.compare_digest(_bytes(said["v"]), self._signature):
            raise ScramError("the server does not know the user")


def _attributes(message: str, names: str) -> dict[str, str]:
    """The values of a message that begins with attributes of these names, in this order; others may follow (extensions).

    Raises ScramError: also for `m=`, an extension that whoever does not know it must not pass over.
    """
    found: dict[str, str] = {}
    for at, part in enumerate(message.split(",")):
        name, equals, value = part[:1], part[1:2], part[2:]
        is_expected = name == names[at] if at < len(names) else name not in found
        if not (is_expected and name.isascii() and name.isalpha() and equals == "=" and value) or name == "m":
            raise ScramError("no message of SCRAM")
        found[name] = value
    if len(found) < len(names):
        raise ScramError("a part of a message")
    return found


def _unescaped(name: str) -> str:
    if name.count("=") != name.count("=2C") + name.count("=3D"):
        raise ScramError("a name with a bare =")
    return name.replace("=2C", ",").replace("=3D", "=")


def _visible(nonce: str) -> str:
    if not all("!" <= one <= "~" for one in nonce):
        raise ScramError("a nonce that is not visible")
    return nonce


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise ScramError("no base64") from None


def _both(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise ScramError("a proof of another length")
    return bytes(left ^ right for left, right in zip(one, other, strict=True))
