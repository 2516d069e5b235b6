"""Batches that a reader cannot read: what it is told of them, and how they are kept as dead letters.

A node refuses such batches today. Logs that are older, or that a node took without a look (`record.validation`), may have
some, and a reader chooses what becomes of them.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.records.batch import Buffer, iter_batches
from antiphon.records.builder import build_batch
from antiphon.records.compression import DECOMPRESSED_BYTES_MAX
from antiphon.records.decode import BadBatch

FAIL: Final = "fail"
SKIP: Final = "skip"
DEAD_LETTER: Final = "deadletter"
HINT: Final = ". To go on without it, choose on_corrupt='skip', or on_corrupt=antiphon.dead_letters(TOPIC)"

T = TypeVar("T")


class DeadLetters(NamedTuple):
    """The choice to append batches that cannot be read to this topic."""

    topic: str


def dead_letters(topic: str) -> DeadLetters:
    """For `on_corrupt`: append each batch that cannot be read to `topic`, as it stands in the log, and go on behind it.

    Its headers say where it comes from (`UnreadableBatch.headers`). It goes to the shard of the same number, or to that
    number modulo the shards of `topic`. A read that comes there again appends it again.
    """
    return DeadLetters(topic)


Choice = str | DeadLetters
"""What becomes of a batch that cannot be read: `fail`, `skip` or dead letters."""


def chosen(words: str, letters: str | None, names: tuple[str, str] = ("onCorrupt", "deadLetters")) -> Choice:
    """The choice of two options whose `names` the user knows. Raises InvalidRequestError."""
    if words not in {FAIL, SKIP, DEAD_LETTER}:
        raise InvalidRequestError(f"{names[0]} is {FAIL}, {SKIP} or {DEAD_LETTER}, not {words!r}")
    if (words == DEAD_LETTER) != bool(letters):
        raise InvalidRequestError(f"{names[0]} {DEAD_LETTER} and {names[1]}, a topic, go together")
    return dead_letters(letters) if letters else words


def checked(choice: Choice, *read: str) -> Choice:
    """The choice, if it is one for readers of these topics. Raises InvalidRequestError."""
    if isinstance(choice, DeadLetters):
        if choice.topic in read:
            raise InvalidRequestError(f"dead letters of {choice.topic} cannot go to {choice.topic} itself")
    elif choice not in {FAIL, SKIP}:
        raise InvalidRequestError(
            f"on_corrupt is {FAIL!r}, {SKIP!r} or antiphon.dead_letters(TOPIC), or a function where Python reads, "
            f"not {choice!r}"
        )
    return choice


def letters_of(choice: Choice) -> str | None:
    """The topic for dead letters, if that is the choice."""
    return choice.topic if isinstance(choice, DeadLetters) else None


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


def letter(
    batch: UnreadableBatch,
    now_ms: int,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
) -> bytearray:
    """A batch of the one record that is the dead letter."""
    return build_batch(
        [(None, batch.data, batch.headers, now_ms)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )


def letter_shard(batch: UnreadableBatch, shards: int) -> int:
    """The shard of a topic with so many that takes the dead letter: a shard's letters stay in their order."""
    return batch.shard % shards


def each_batch(buf: Buffer, decode: Callable[[Buffer], T]) -> "Iterator[T | BadBatch]":
    """What `decode` makes of each batch in `buf`, and the batches for which it raises CorruptBatchError.

    Raises CorruptBatchError where no whole batch stands: nobody knows where the next one would begin.
    """
    for header, batch in iter_batches(buf):
        try:
            found = decode(batch)
        except CorruptBatchError as error:
            yield BadBatch(header.base_offset, header.next_offset, bytes(batch), error)
        else:
            yield found


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
