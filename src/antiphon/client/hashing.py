"""Which shard of a table a key belongs to, by its xxHash3 (`model.topic_keys`: of a topic), and keys as bytes."""

from typing import Final

from xxhash import xxh3_64_intdigest

from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import shard_of_hash

_MASK: Final = 0xFFFF_FFFF


def as_bytes(value: str | bytes | bytearray | memoryview, what: str) -> bytes:
    """Bytes as they are, text as UTF-8. Raises InvalidRequestError for anything else."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRequestError(f"a {what} is bytes or str, not {type(value).__name__}")


def shard_of_table_key(key: bytes, shards: int) -> int:
    """Index of the table shard that holds `key`: by the low 32 bits of its xxHash3, ranges of equal size."""
    return 0 if shards == 1 else shard_of_hash(xxh3_64_intdigest(key) & _MASK, shards)
