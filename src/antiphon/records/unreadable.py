"""Batches that a reader cannot read: what it is told of them, and how they are kept as dead letters.

A node refuses such batches today. Logs that are older, or that a node took without a look (`record.validation`), may have
some, and a reader chooses what becomes of them.
"""

from typing import Final, NamedTuple

from antiphon.errors import CorruptBatchError
from antiphon.records.compression import DECOMPRESSED_BYTES_MAX
from antiphon.records.decode import BadBatch

FAIL: Final = "fail"
SKIP: Final = "skip"
DEAD_LETTER: Final = "deadletter"


class UnreadableBatch(NamedTuple):
    """A batch that was passed over. Offsets `start` to `end` (exclusive) are its; `data` is the batch as the log has it."""

    topic: str
    shard: int
    start: int
    end: int
    reason: str
    data: bytes

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers of a dead letter whose value is `data`."""
        return [
            ("antiphon.reason", self.reason.encode()),
            ("antiphon.source", self.topic.encode()),
            ("antiphon.shard", b"%d" % self.shard),
            ("antiphon.offset", b"%d" % self.start),
            ("antiphon.end", b"%d" % self.end),
        ]


def unreadable(topic: str, shard: int, bad: BadBatch) -> UnreadableBatch:
    """A batch of a shard that cannot be read."""
    return UnreadableBatch(topic, shard, bad.offset, bad.next_offset, bad.error.message, bad.data)


def placed(
    topic: str, shard: int, offset: int, error: CorruptBatchError, hint: str = ""
) -> CorruptBatchError:
    """The error with the place of its batch, of the same kind."""
    message = f"{topic} shard {shard}, the batch at offset {offset}: {error.message}{hint}"
    return type(error)(message, **{**error.details, "topic": topic, "shard": shard, "offset": offset})


def plain_limit(config: dict[str, str]) -> int:
    """Bytes that a batch of a topic with these settings may unpack to."""
    try:
        return int(config.get("max.decompressed.bytes", DECOMPRESSED_BYTES_MAX))
    except ValueError:
        return DECOMPRESSED_BYTES_MAX
