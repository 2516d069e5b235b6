"""What Spark's reads do with batches that cannot be read: fail with their place, skip them, or keep them as dead letters."""

import struct
from collections.abc import Iterator

import pytest

from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.records.builder import recompress
from antiphon.records.decode import Record, decode_records
from tests.records.test_intake import INSIDE, field, with_records
from tests.spark.native_server import MemoryShard, NativeServer
from tests.spark.test_reading import Source, fill, moved, read, values

GARBAGE = INSIDE[0][1]  # three records
EARLIEST = {"startingOffsets": "earliest"}


def bomb() -> bytearray:
    """Compressed bytes that lie about their size."""
    packed = with_records(bytes(90_000_000), 3, 1)
    struct.pack_into("<I", packed, len(packed) - 4, 5)
    return field(packed, 8, ">i", len(packed) - 12)


@pytest.fixture
def source(server: NativeServer) -> Iterator[Source]:
    source = Source(server)
    yield source
    source.close()


def letters_in(shard: MemoryShard) -> list[Record]:
    return [record for _, batch in shard.batches for record in decode_records(batch)]


def offsets_of(letters: list[Record]) -> list[bytes | None]:
    return [dict(letter.headers)["antiphon.offset"] for letter in letters]


@pytest.mark.parametrize(
    "bad", [GARBAGE, recompress(bytearray(GARBAGE), 1), bomb()], ids=["garbage", "packed", "bomb"]
)
def test_a_read_goes_past_a_batch_that_cannot_be_read(
    server: NativeServer, source: Source, bad: bytearray
) -> None:
    (shard,) = server.create("t")
    fill(shard, 20)
    at = shard.put(bytearray(bad)).base_offset
    fill(shard, 20, first=20)
    with pytest.raises(
        CorruptBatchError, match=f"t shard 0, the batch at offset {at}: .*onCorrupt=skip"
    ) as caught:
        source.rows(topic="t")
    assert caught.value.details["offset"] == at
    assert source.values(topic="t", onCorrupt="skip") == values(range(40))
    stream = source.stream(topic="t", onCorrupt="skip", **EARLIEST)
    end, found = moved(stream, stream.initialOffset())
    assert (end["t"]["0"], found) == (shard.end, values(range(40)))


def test_dead_letters(server: NativeServer, source: Source) -> None:
    (shard,) = server.create("t")
    (letters,) = server.create("letters")
    first = shard.put(bytearray(GARBAGE)).base_offset
    fill(shard, 10)
    second = shard.put(bytearray(GARBAGE)).base_offset
    how = {"topic": "t", "onCorrupt": "deadletter", "deadLetters": "letters"}
    assert source.values(**how) == values(range(10))
    found = letters_in(letters)
    assert offsets_of(found) == [b"%d" % first, b"%d" % second]
    assert {(letter.value or b"")[61:] for letter in found} == {bytes(GARBAGE[61:])}
    assert dict(found[0].headers)["antiphon.source"] == b"t"


def test_a_dead_letter_is_sent_by_the_task_in_whose_range_the_batch_begins(
    server: NativeServer, source: Source
) -> None:
    (shard,) = server.create("t")
    (letters,) = server.create("letters")
    fill(shard, 10)
    bad = shard.put(bytearray(GARBAGE)).base_offset
    fill(shard, 10, first=10)
    reader = source.batch(topic="t", onCorrupt="deadletter", deadLetters="letters", maxRecordsPerPartition=2)
    partitions = reader.partitions()
    assert len(partitions) > 5
    assert len(read(reader, partitions)) == 20
    assert offsets_of(letters_in(letters)) == [b"%d" % bad]


def test_options_that_do_not_go_together(server: NativeServer, source: Source) -> None:
    server.create("t")
    for wrong in (
        {"onCorrupt": "ignore"},
        {"onCorrupt": "deadletter"},
        {"deadLetters": "letters"},
        {"onCorrupt": "deadletter", "deadLetters": "t"},
    ):
        with pytest.raises(InvalidRequestError, match=r"onCorrupt|dead letters"):
            source.rows(topic="t", **wrong)
