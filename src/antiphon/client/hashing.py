"""Which shard a key belongs to: xxHash3 for tables, Kafka's murmur2 for topics."""

from typing import Final

from xxhash import xxh3_64_intdigest

from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import shard_of_hash

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
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


def shard_of_topic_key(key: bytes, shards: int) -> int:
    """Index of the topic shard for `key`, the same as that of Kafka's default partitioner."""
    return 0 if shards == 1 else (murmur2(key) & 0x7FFF_FFFF) % shards


def murmur2(data: bytes) -> int:
    """MurmurHash2 (32 bits) with the seed that Kafka's clients use, as an unsigned number."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k ^= k >> 24
        value = (value * _M & _MASK) ^ (k * _M & _MASK)
    rest = data[whole:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * _M & _MASK
    value ^= value >> 13
    value = value * _M & _MASK
    return value ^ (value >> 15)
