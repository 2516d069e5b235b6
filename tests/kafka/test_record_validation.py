"""What Produce and Append refuse of a batch's records, and that batches keep their order meanwhile."""

import struct

import pytest

from antiphon.errors import CorruptBatchError, InvalidRecordError
from antiphon.kafka import error_codes as code
from antiphon.model.requests import AlterTopic, AppendBatch
from antiphon.records.builder import build_batch, recompress
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.oracles import kio_class
from tests.kafka.raw import RawClient, batch, listening, produce, produce_body
from tests.node.in_process import NATIVE_PORT, ask, in_virtual_time
from tests.records.test_intake import INSIDE, field, with_records

GARBAGE = INSIDE[0][1]
MANY = field(field(batch(b"a"), 57, ">i", 2**31 - 1), 23, ">i", 2**31 - 2)
BOMB = with_records(bytes(90_000_000), 3, 1)


async def with_full(served: KafkaNodes, name: str) -> None:
    """A topic whose compressed batches are looked into."""
    await served.create(name, config={"record.validation": "full"})


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (GARBAGE, code.INVALID_RECORD),
        (MANY, code.INVALID_RECORD),
        (BOMB, code.MESSAGE_TOO_LARGE),
        (field(batch(b"a"), 21, ">h", 8), code.INVALID_TIMESTAMP),
        (field(batch(b"a"), 21, ">h", 6), code.UNSUPPORTED_COMPRESSION_TYPE),
        (field(batch(b"a"), 21, ">h", 1), code.INVALID_RECORD),
        (field(batch(b"a"), 23, ">i", 4), code.INVALID_RECORD),
    ],
    ids=["garbage", "2^31-1 records", "bomb", "timestamp type", "codec", "not gzip", "offsets"],
)
@in_virtual_time
async def test_batches_that_nobody_could_read_are_refused(records: bytearray, error: int) -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        for version in (9, 10):
            done, _ = await produce(client, "t", records, version)
            assert int(done.error_code) == error
            assert done.error_message
        assert served.end("t") == 0
        done, _ = await produce(client, "t", batch(b"good"))
        assert (int(done.error_code), done.base_offset) == (0, 0)


@in_virtual_time
async def test_a_refusal_says_which_record_and_why() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        done, _ = await produce(await connect(), "t", INSIDE[2][1])
        assert int(done.error_code) == code.INVALID_RECORD
        found = [(e.batch_index, e.batch_index_error_message) for e in done.record_errors]
        assert found == [(1, "its offset is not the next one")]
        assert "record 1" in done.error_message


@in_virtual_time
async def test_compressed_records_are_looked_at_where_the_topic_says_so() -> None:
    """And only there: to unpack what clients send costs more than all else that a node does with it."""
    packed = recompress(bytearray(GARBAGE), 1)
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        done, _ = await produce(client, "t", packed)
        assert int(done.error_code) == 0
        await served.first.gateway.alter_topic(AlterTopic(name="t", config={"record.validation": "full"}))
        done, _ = await produce(client, "t", packed)
        assert int(done.error_code) == code.INVALID_RECORD
        lied = with_records(bytes(90_000_000), 3, 1)
        struct.pack_into("<I", lied, len(lied) - 4, 5)
        done, _ = await produce(client, "t", field(lied, 8, ">i", len(lied) - 12))
        assert int(done.error_code) == code.MESSAGE_TOO_LARGE
        assert served.end("t") == 3
        await served.first.gateway.alter_topic(AlterTopic(name="t", config={"record.validation": "shallow"}))
        done, _ = await produce(client, "t", GARBAGE)
        assert int(done.error_code) == 0


@in_virtual_time
async def test_batches_keep_their_order_while_one_is_unpacked() -> None:
    """What comes behind a batch that a thread looks at waits for it, whatever it is itself; a refused one does not land."""
    async with listening() as (served, connect):
        await with_full(served, "t")
        client = await connect()
        sent = [
            batch(b"0" * 50, compression="gzip"),
            batch(b"1"),
            recompress(bytearray(GARBAGE), 1),
            batch(b"2" * 50, compression="gzip"),
            batch(b"3"),
        ]
        waiting = [send(client, records) for records in sent]
        errors = [await landed(client, one) for one in waiting]
        assert errors == [(0, 0), (0, 1), (code.INVALID_RECORD, -1), (0, 2), (0, 3)]


def send(client: RawClient, records: bytearray) -> int:
    return client.send(0, 10, produce_body("t", records))


async def landed(client: RawClient, correlation: int) -> tuple[int, int]:
    from kio.serial import entity_reader

    body = await client.receive(correlation)
    answer, _ = entity_reader(kio_class("Produce", 10, "response"))(body, 1)
    done = answer.responses[0].partition_responses[0]
    return int(done.error_code), done.base_offset


@in_virtual_time
async def test_an_idempotent_producer_goes_on_behind_a_batch_that_was_unpacked() -> None:
    fields = {"producer_id": 5, "producer_epoch": 0}
    async with listening() as (served, connect):
        await with_full(served, "t")
        client = await connect()
        sent = [
            batch(b"0" * 50, compression="gzip", base_sequence=0, **fields),
            batch(b"1", base_sequence=1, **fields),
            batch(b"1", base_sequence=1, **fields),
        ]
        waiting = [send(client, records) for records in sent]
        assert [await landed(client, one) for one in waiting] == [(0, 0), (0, 1), (0, 1)]
        assert served.end("t") == 2


@in_virtual_time
async def test_a_native_client_is_told_the_same() -> None:
    async with listening() as (served, _):
        await served.create("t")
        shard = served.first.gateway.topic("t").shards[0].shard_id
        for records, error in ((GARBAGE, InvalidRecordError), (MANY, InvalidRecordError)):
            with pytest.raises(error):
                await ask(f"node-0:{NATIVE_PORT}", AppendBatch(shard, None, 5000), bytes(records))
        with pytest.raises(CorruptBatchError):
            await ask(f"node-0:{NATIVE_PORT}", AppendBatch(shard, None, 5000), bytes(GARBAGE[:70]))


@in_virtual_time
async def test_a_refusal_names_every_record_without_a_key() -> None:
    """By it clients tell the records that are wrong from those that only were sent with them."""
    records = [(None if number % 10 == 0 else b"k", b"value", (), 1000) for number in range(100)]
    async with listening() as (served, connect):
        await served.create("t", config={"cleanup.policy": "compact"})
        client = await connect()
        for packed in ("none", "gzip"):
            done, _ = await produce(client, "t", build_batch(records, compression=packed))
            assert int(done.error_code) == code.INVALID_RECORD
            assert [error.batch_index for error in done.record_errors] == list(range(0, 100, 10))
            assert "10 records" in done.error_message
        assert served.end("t") == 0
