"""Produce over a raw socket: what is refused and how, and conditional appends (KIP-27)."""

import struct

import pytest

from antiphon.kafka import error_codes as code
from antiphon.records.batch import stamp
from antiphon.records.builder import build_batch
from tests.kafka.raw import batch, fetch, listening, produce, produce_body
from tests.node.in_process import in_virtual_time


@in_virtual_time
async def test_old_message_formats_are_refused_politely() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        body = struct.pack(">hiih", 1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, 3) + b"old"
        answer = await client.receive(client.send(0, 2, body))
        assert struct.unpack_from(">ih", answer, 11) == (0, code.UNSUPPORTED_VERSION)


def with_base(records: bytearray, base_offset: int) -> bytearray:
    stamp(records, base_offset, 0)
    return records


@in_virtual_time
async def test_conditional_appends() -> None:
    """KIP-27 through the base offset (S2.9, S2.12-S2.15): `~expected` lands exactly there or has no effect."""
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        done, _ = await produce(client, "t", with_base(batch(b"a", b"b"), ~0))
        assert (int(done.error_code), done.base_offset) == (0, 0)
        done, _ = await produce(client, "t", with_base(batch(b"c"), ~2))
        assert (int(done.error_code), done.base_offset) == (0, 2)
        refused, _ = await produce(client, "t", with_base(batch(b"d"), ~2))
        assert (int(refused.error_code), refused.base_offset) == (code.INVALID_RECORD, -1)
        assert "2" in refused.error_message
        assert "3" in refused.error_message
        assert served.end("t") == 3
        refused, _ = await produce(client, "t", with_base(batch(b"d"), ~3), acks=1)
        assert int(refused.error_code) == code.INVALID_RECORD
        refused, _ = await produce(client, "t", with_base(batch(b"d"), 3))
        assert int(refused.error_code) == code.INVALID_RECORD


@in_virtual_time
async def test_a_retried_conditional_append_gets_its_first_answer() -> None:
    """S2.14: the duplicate check comes before the comparison."""
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        for _ in range(2):
            done, _ = await produce(client, "t", with_base(batch(b"a", **fields), ~0))
            assert (int(done.error_code), done.base_offset) == (0, 0)
        assert served.end("t") == 1


def two_batches() -> bytearray:
    return batch(b"a") + batch(b"b")


def damaged() -> bytearray:
    records = batch(b"abc")
    records[-2] ^= 1
    return records


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, code.INVALID_RECORD),
        (b"", code.INVALID_RECORD),
        (bytes(70), code.INVALID_RECORD),
        (two_batches(), code.INVALID_RECORD),
        (damaged(), code.CORRUPT_MESSAGE),
        (batch(b"x", producer_id=1 << 61, producer_epoch=0, base_sequence=0), code.INVALID_RECORD),
    ],
)
@in_virtual_time
async def test_batches_that_no_log_takes(records: bytearray | None, error: int) -> None:
    async with listening() as (served, connect):
        await served.create("t")
        done, _ = await produce(await connect(), "t", records)
        assert int(done.error_code) == error
        assert served.end("t") == 0


@in_virtual_time
async def test_zstd_needs_a_client_that_can_read_it() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        records = build_batch([(None, b"x" * 100, (), 1)], compression="zstd")
        client = await connect()
        body = (
            struct.pack(">hhiih", -1, -1, 1000, 1, 1)
            + b"t"
            + struct.pack(">iii", 1, 0, len(records))
            + records
        )
        answer = await client.receive(client.send(0, 6, body))
        assert struct.unpack_from(">ih", answer, 11) == (0, code.UNSUPPORTED_COMPRESSION_TYPE)


@in_virtual_time
async def test_unknown_topics_partitions_and_acks() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        for topic, partition, acks, error in (
            ("nothing", 0, -1, code.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", 7, -1, code.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", -1, -1, code.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", 0, 2, code.INVALID_REQUIRED_ACKS),
        ):
            done, _ = await produce(client, topic, batch(b"a"), partition=partition, acks=acks)
            assert int(done.error_code) == error
        assert int((await fetch(client, "nothing", 0)).error_code) == code.UNKNOWN_TOPIC_OR_PARTITION


@in_virtual_time
async def test_without_acks_there_is_no_answer_and_an_error_closes() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        client.send(0, 10, produce_body("t", batch(b"a"), acks=0))
        await client.receive(client.send(18, 0, b""))
        assert served.end("t") == 1
        client.send(0, 10, produce_body("nothing", batch(b"a"), acks=0))
        assert await client.is_closed()


@in_virtual_time
async def test_what_lies_behind_a_refused_batch_waits_for_it() -> None:
    """A producer that is not in the log could begin with any sequence."""
    async with listening() as (served, connect):
        client = await connect()

        async def send(sequence: int) -> tuple[int, int]:
            data = build_batch(
                [(None, b"%d" % sequence, (), 1)], producer_id=7, producer_epoch=0, base_sequence=sequence
            )
            done, _ = await produce(client, "t", data)
            return int(done.error_code), done.base_offset

        assert await send(0) == (code.UNKNOWN_TOPIC_OR_PARTITION, -1)
        await served.create("t")
        assert await send(1) == (code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert await send(0) == (0, 0)
        assert await send(1) == (0, 1)
