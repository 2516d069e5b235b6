"""`compression.type` of topics and the levels of its codecs, in Kafka's names, with Kafka's defaults and bounds."""

from typing import Final

PRODUCER: Final = "producer"
CODECS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Their numbers in batches."""

TYPES: Final = (PRODUCER, *CODECS)
LEVELS: Final = {"gzip": -1, "lz4": 9, "zstd": 3}
"""The default level of the codecs that have one."""

BOUNDS: Final = {"gzip": (1, 9, (-1,)), "lz4": (1, 17, ()), "zstd": (-131_072, 22, ())}
"""Lowest and highest level, and what else may be said: -1 is the library's own."""

QUICK_LEVELS: Final = {"gzip": range(-1, 7), "lz4": (1, 2, 9), "zstd": range(-131_072, 4)}
"""With these a small batch is packed in a fraction of a millisecond."""
