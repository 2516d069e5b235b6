"""Which keys of a table a read is for: one key, or those that begin with some bytes."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import key_hash
from antiphon.spark.option_values import Options

if TYPE_CHECKING:
    import pyarrow as pa

ENCODINGS: Final = ("text", "hex", "base64")


@dataclass(frozen=True)
class KeyRange:
    """Keys with `start` <= key, and key < `end` unless that is empty. `is_one`: there is just one such key."""

    start: bytes
    end: bytes
    is_one: bool

    def is_within(self, hashes: Sequence[tuple[int, int]]) -> bool:
        """Can a key of this range be where these ranges of hashes are?"""
        return not self.is_one or any(first <= key_hash(self.start) <= last for first, last in hashes)

    def of(self, rows: "pa.RecordBatch") -> "pa.RecordBatch":
        """The rows whose key is in the range."""
        import pyarrow as pa
        import pyarrow.compute as pc

        keys = rows.column("key")
        chosen = pc.greater_equal(keys, pa.scalar(self.start, pa.binary()))
        if self.end:
            chosen = pc.and_(chosen, pc.less(keys, pa.scalar(self.end, pa.binary())))
        return rows.filter(chosen)


def parse_keys(options: Options) -> KeyRange | None:
    """Options `key` and `keyPrefix`, of which one may be given, in `keyEncoding`. Raises InvalidRequestError."""
    names = [name for name in ("key", "keyPrefix") if options.exact(name) is not None]
    if not names:
        if options.text("keyEncoding") is not None:
            raise InvalidRequestError(
                "keyEncoding says how key or keyPrefix is written: give one of them, too"
            )
        return None
    if len(names) > 1:
        raise InvalidRequestError("give key or keyPrefix, not both")
    start = _bytes_of(options, names[0])
    if names[0] == "key":
        return KeyRange(start, start + b"\0", is_one=True)
    if not start:
        raise InvalidRequestError("the option keyPrefix is empty: leave it out to read all keys")
    return KeyRange(start, _after(start), is_one=False)


def _bytes_of(options: Options, name: str) -> bytes:
    """A key as it was given, blanks and all where it is text."""
    encoding = options.choice("keyEncoding", "text", ENCODINGS)
    value = options.exact(name) or ""
    if encoding == "text":
        return value.encode()
    try:
        return bytes.fromhex(value) if encoding == "hex" else base64.b64decode(value.strip(), validate=True)
    except ValueError as error:
        raise InvalidRequestError(
            f"option {name}={value!r} is not in {encoding} (keyEncoding): {error}"
        ) from error


def _after(prefix: bytes) -> bytes:
    """The smallest key that is after all that begin with `prefix`; empty where none is."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b""
