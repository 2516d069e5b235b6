"""Kafka's hash of keys (murmur2, 32 bits), so that a key goes to the same shard whoever produces it."""

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFF_FFFF


def murmur2(key: bytes) -> int:
    """Unsigned 32-bit hash as the Java client computes it."""
    length = len(key)
    h = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length != whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def shard_of_key(key: bytes, shards: int) -> int:
    """Index of the shard, as Kafka's default partitioner chooses it."""
    return (murmur2(key) & 0x7FFF_FFFF) % shards
