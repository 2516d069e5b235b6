"""Which keys of a table a read is for: one key, or those that begin with some bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import key_hash
from antiphon.spark.option_values import Options

if TYPE_CHECKING:
    import pyarrow as pa


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
    """Options `key` and `keyPrefix`, of which one may be given; blanks count. Raises InvalidRequestError."""
    key, prefix = options.exact("key"), options.exact("keyPrefix")
    if key is not None and prefix is not None:
        raise InvalidRequestError("give key or keyPrefix, not both")
    if key is not None:
        start = key.encode()
        return KeyRange(start, start + b"\0", is_one=True)
    if prefix is None:
        return None
    if not prefix:
        raise InvalidRequestError("the option keyPrefix is empty: leave it out to read all keys")
    start = prefix.encode()
    return KeyRange(start, _after(start), is_one=False)


def _after(prefix: bytes) -> bytes:
    """The smallest key that is after all that begin with `prefix`: text in UTF-8 has no byte 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
