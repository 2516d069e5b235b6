"""expected.offset.header of topics: a header of records makes an append conditional (KIP-27), whoever sends it."""

import asyncio
from typing import Any

import pytest

from antiphon.errors import InvalidRecordError, InvalidRequestError
from antiphon.kafka import error_codes as code
from antiphon.records import expected
from antiphon.records.batch import CODEC_NAMES, read_header
from antiphon.records.builder import build_batch
from antiphon.records.expected import RECORDS_MAX, expected_offset_of
from tests.kafka.raw import RawClient, listening, produce, produce_body
from tests.node.in_process import in_virtual_time

ASKS = {"expected.offset.header": "true"}
NAME = expected.NAME.decode()


def conditional(*offsets: int | bytes | None, **fields: Any) -> bytearray:
    """A batch with one record for each; None: it expects nothing."""
    records = []
    for offset in offsets:
        told = offset if isinstance(offset, bytes) else b"%d" % (offset or 0)
        headers = [("other", b"1")] if offset is None else [("other", None), (NAME, told)]
        records.append((b"k", b"value", headers, 1000))
    return build_batch(records, **fields)


async def landed(client: RawClient, records: bytes | bytearray, topic: str = "t", **how: Any) -> int | str:
    """The offset at which it was written, or what is said against it."""
    done, _ = await produce(client, topic, records, **how)
    if done.error_code == code.NONE:
        return int(done.base_offset)
    assert done.error_code == code.INVALID_RECORD, done
    return str(done.error_message)


@pytest.mark.parametrize("compression", CODEC_NAMES)
@pytest.mark.parametrize("stored", ["producer", "zstd"])
@in_virtual_time
async def test_a_batch_lands_at_the_offset_that_its_header_names_or_nowhere(
    compression: str, stored: str
) -> None:
    async with listening() as (served, connect):
        await served.create("t", config=ASKS | {"compression.type": stored})
        client = await connect()
        assert await landed(client, conditional(0, compression=compression)) == 0
        assert await landed(client, conditional(1, 2, 3, compression=compression)) == 1
        assert "land at offset 3," in str(await landed(client, conditional(3, compression=compression)))
        assert "land at offset 5," in str(await landed(client, conditional(5, compression=compression)))
        assert await landed(client, conditional(None, None, compression=compression)) == 4
        assert await landed(client, conditional(None, 7, None, compression=compression)) == 6
        assert served.end("t") == 9


@in_virtual_time
async def test_records_whose_conditions_cannot_all_be_kept_are_refused_and_named() -> None:
    async with listening() as (served, connect):
        await served.create("t", config=ASKS)
        client = await connect()
        await produce(client, "t", conditional(None, None))
        for offsets, record, reason in (
            ((2, 2), 1, "would have to begin at 1, not at 2"),
            ((2, None, 5), 2, "would have to begin at 3, not at 2"),
            ((None, 0), 1, "would have to begin at -1"),
            ((b"x",), 0, "an offset in decimal digits"),
            ((b"-1",), 0, "an offset in decimal digits"),
            ((b"",), 0, "an offset in decimal digits"),
            ((b"9" * 19,), 0, "an offset in decimal digits"),
        ):
            done, _ = await produce(client, "t", conditional(*offsets))
            assert done.error_code == code.INVALID_RECORD
            assert reason in done.error_message
            assert [one.batch_index for one in done.record_errors] == [record]
        twice = build_batch([(None, b"", [(NAME, b"2"), (NAME, b"2")], 0)])
        assert "2 times" in str(await landed(client, twice))
        assert served.end("t") == 2


@in_virtual_time
async def test_topics_that_do_not_ask_for_it_take_the_header_for_a_header() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()
        assert await landed(client, conditional(700, b"x")) == 0
        await served.create("off", config={"expected.offset.header": "false"})
        assert await landed(client, conditional(700), "off") == 0


@in_virtual_time
async def test_what_only_looks_like_the_header_is_none() -> None:
    async with listening() as (served, connect):
        await served.create("t", config=ASKS)
        client = await connect()
        values = build_batch([(expected.NAME, expected.NAME, [("x" + NAME, b"7"), (NAME + "x", b"7")], 0)])
        assert await landed(client, values) == 0


@in_virtual_time
async def test_base_offset_and_header_must_agree() -> None:
    async with listening() as (served, connect):
        await served.create("t", config=ASKS)
        client = await connect()
        assert await landed(client, conditional(0, base_offset=~0)) == 0
        assert "asks for 1" in str(await landed(client, conditional(1, base_offset=~2)))
        assert await landed(client, conditional(None, base_offset=~1)) == 1


@in_virtual_time
async def test_a_retry_is_answered_with_the_first_offset_and_a_chain_leaves_a_prefix() -> None:
    async with listening() as (served, connect):
        await served.create("t", config=ASKS)
        client = await connect()
        of = {"producer_id": 7, "producer_epoch": 0}
        first = conditional(0, base_sequence=0, **of)
        assert await landed(client, first) == 0
        assert await landed(client, conditional(1)) == 1
        assert await landed(client, first) == 0, "a retry"
        assert "land at offset 1," in str(await landed(client, conditional(1, base_sequence=1, **of)))
        done, _ = await produce(client, "t", conditional(None, base_sequence=2, **of))
        assert done.error_code == code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert served.end("t") == 2


@in_virtual_time
async def test_damage_on_the_way_is_told_as_such() -> None:
    async with listening() as (served, connect):
        await served.create("t", config=ASKS)
        client = await connect()
        for compression in ("none", "gzip"):
            damaged = conditional(0, compression=compression)
            damaged[-2] ^= 1
            done, _ = await produce(client, "t", damaged)
            assert done.error_code == code.CORRUPT_MESSAGE
        assert served.end("t") == 0


@in_virtual_time
async def test_a_part_of_a_transaction_has_no_condition() -> None:
    batch = conditional(0, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    with pytest.raises(InvalidRecordError, match="no part of a transaction"):
        expected_offset_of(read_header(batch), batch)


@in_virtual_time
async def test_large_batches_are_looked_at_in_a_thread_and_what_follows_waits() -> None:
    """The line of `RecordIntake`: an append that comes later finds the earlier one written."""
    async with listening() as (served, connect):
        await served.create("t", config=ASKS)
        client = await connect()
        large = conditional(*range(RECORDS_MAX))
        sent = [client.send(0, 10, produce_body("t", one)) for one in (large, conditional(RECORDS_MAX))]
        for one in sent:
            await client.receive(one)
        assert served.end("t") == RECORDS_MAX + 1, "both landed, as they were sent"
        assert "1000 are the most" in str(
            await landed(client, conditional(*range(1001, 1001 + RECORDS_MAX + 1)))
        )
        assert await landed(client, conditional(*[None] * (RECORDS_MAX + 1))) == RECORDS_MAX + 1


@in_virtual_time
async def test_of_several_writers_one_wins_each_offset() -> None:
    async with listening() as (served, connect):
        await served.create("t", config=ASKS)

        async def write(wins: list[int]) -> None:
            client, at = await connect(), 0
            while at < 30:
                found = await landed(client, conditional(at))
                if isinstance(found, int):
                    assert found == at
                    wins.append(at)
                at += 1

        wins: list[int] = []
        await asyncio.gather(*(write(wins) for _ in range(3)))
        assert sorted(wins) == list(range(30))


@in_virtual_time
async def test_the_setting_is_true_or_false() -> None:
    async with listening() as (served, _):
        with pytest.raises(InvalidRequestError, match=r"expected.offset.header='yes'"):
            await served.create("t", config={"expected.offset.header": "yes"})


def test_a_loop_waits_only_for_what_is_looked_at_quickly() -> None:
    looks = (
        conditional(*range(RECORDS_MAX)),
        conditional(*range(expected.AT_ONCE)),
        conditional(*[None] * RECORDS_MAX),
    )
    assert [expected.is_quick(read_header(one), one) for one in looks] == [False, True, True]
    packed = conditional(1, compression="gzip")
    assert not expected.is_quick(read_header(packed), packed)
