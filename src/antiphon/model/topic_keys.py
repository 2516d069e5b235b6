"""Which shard of a topic Kafka's default partitioner puts a key into."""

from typing import Final

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFF_FFFF


def shard_of_topic_key(key: bytes, shards: int) -> int:
    """Index of the shard for a key, if whoever wrote it let the key decide."""
    return 0 if shards == 1 else (murmur2(key) & 0x7FFF_FFFF) % shards


def murmur2(data: bytes) -> int:
    """MurmurHash2 (32 bits) with the seed that Kafka's clients use, as an unsigned number."""
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        part ^= part >> 24
        value = (value * _M & _MASK) ^ (part * _M & _MASK)
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value ^= value >> 13
    value = value * _M & _MASK
    return value ^ (value >> 15)
