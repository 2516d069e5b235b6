"""compression.type of topics: what is stored has the topic's codec, whoever sent it, and all else is as it was."""

import asyncio
from functools import partial
from typing import Any

import pytest

from antiphon.errors import BatchTooLargeError, InvalidRequestError, OffsetMismatchError
from antiphon.kafka import error_codes as code
from antiphon.kafka.schema import encode
from antiphon.log.producer_state import JOB_ID_MIN
from antiphon.model.metadata import Kind
from antiphon.model.requests import AlterTopic, AppendBatch
from antiphon.partition.state import PartitionState
from antiphon.records.batch import CODEC_NAMES, iter_batches, validate_batch
from antiphon.records.builder import recompress
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster import kafka_messages as m
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.oracles import kio_class
from tests.kafka.raw import RawClient, batch, fetch, listening, produce
from tests.kafka.test_record_validation import BOMB, GARBAGE, landed, send
from tests.kafka.transactional import Transactional, begun
from tests.node.in_process import NATIVE_PORT, ask, eventually, in_virtual_time

SETTING = "compression.type"
LONG = [b"%d" % n * 3_000 for n in range(10)]  # more than an event loop packs anew


async def stored(client: RawClient, topic: str = "t") -> list[tuple[int, list[bytes]]]:
    """Codec and values of each batch; all of them are as their CRC says."""
    found = []
    for _, data in iter_batches((await fetch(client, topic, 0)).records):
        header = validate_batch(data)
        if not header.is_control:
            found.append((header.codec, [bytes(one.value or b"") for one in decode_records(data)]))
    return found


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("validation", ["shallow", "uncompressed", "full"])
@in_virtual_time
async def test_whatever_codec_a_batch_comes_with_it_is_stored_with_the_topics(
    wanted: str, validation: str
) -> None:
    async with listening() as (served, connect):
        await served.create("t", config={SETTING: wanted, "record.validation": validation})
        client = await connect()
        for sent in CODEC_NAMES:
            for values in ([b"a", b"b"], LONG):
                done, _ = await produce(client, "t", batch(*values, compression=sent))
                assert int(done.error_code) == code.NONE
        number = CODEC_NAMES.index(wanted) if wanted in CODEC_NAMES else 0
        assert await stored(client) == [(number, [b"a", b"b"]), (number, LONG)] * 5
        assert served.end("t") == 60


@in_virtual_time
async def test_who_cannot_read_zstd_is_told_so() -> None:
    from kio.serial import entity_reader

    async with listening() as (served, connect):
        client = await connect()
        for wanted in ("zstd", "lz4", "producer"):
            await served.create(wanted, config={SETTING: wanted})
            await produce(client, wanted, batch(b"a", compression="zstd"))
            for version in (9, 10):
                fetched = await client.receive(client.send(1, version, _fetch_body(version, wanted)))
                answer, _ = entity_reader(kio_class("Fetch", version, "response"))(fetched, 0)
                (found,) = answer.responses[0].partitions
                refused = wanted == "zstd" and version == 9
                assert found.error_code == (code.UNSUPPORTED_COMPRESSION_TYPE if refused else code.NONE)
                assert bool(found.records) != refused


def _fetch_body(version: int, topic: str) -> bytearray:
    wanted = m.FetchTopic(name=topic, partitions=[m.FetchPartition(index=0, offset=0, max_bytes=1 << 20)])
    request = m.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[wanted])
    return bytearray(encode(request, version, flexible=False))


def _intake_codec(state: PartitionState, wanted: int) -> bool:
    return state.settings is not None and state.settings.intake.codec == wanted


@in_virtual_time
async def test_the_setting_can_change_and_what_is_stored_stays() -> None:
    async with listening() as (served, connect):
        topic = await served.create("t")
        state = served.first.replicas.host(topic.shards[0].shard_id).state
        client = await connect()
        for value, number in (("zstd", 4), ("producer", -1), ("uncompressed", 0)):
            await produce(client, "t", batch(b"x", compression="gzip"))
            await served.first.gateway.alter_topic(AlterTopic("t", {SETTING: value}))
            await eventually(partial(_intake_codec, state, number))
        await produce(client, "t", batch(b"x", compression="gzip"))
        assert [codec for codec, _ in await stored(client)] == [1, 4, 1, 0]


@in_virtual_time
async def test_batches_keep_their_order_while_one_is_packed_anew() -> None:
    """And a producer's sequences hold: what comes again lands nowhere, whichever way it went the first time."""
    fields: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}
    async with listening() as (served, connect):
        await served.create("t", config={SETTING: "zstd"})
        client = await connect()
        sent = [
            batch(*LONG, compression="gzip", base_sequence=0, **fields),
            batch(b"1", base_sequence=10, **fields),
            batch(b"1", compression="zstd", base_sequence=11, **fields),
            batch(*LONG, base_sequence=12, **fields),
            batch(b"2", compression="lz4", base_sequence=22, **fields),
        ]
        waiting = [send(client, records) for records in [*sent, sent[0], sent[1], sent[4]]]
        offsets = [0, 10, 11, 12, 22, 0, 10, 22]
        assert [await landed(client, one) for one in waiting] == [(0, at) for at in offsets]
        assert served.end("t") == 23
        assert {codec for codec, _ in await stored(client)} == {4}


@pytest.mark.parametrize("values", [[b"a"], LONG])
@in_virtual_time
async def test_the_log_gives_its_time_too(values: list[bytes]) -> None:
    async with listening() as (served, connect):
        await served.create("t", config={SETTING: "gzip", "message.timestamp.type": "LogAppendTime"})
        client = await connect()
        done, _ = await produce(client, "t", batch(*values))
        header = validate_batch((await fetch(client, "t", 0)).records)
        assert (header.codec, header.is_log_append_time) == (1, True)
        assert header.max_timestamp == round(done.log_append_time.timestamp() * 1000)


@pytest.mark.parametrize("values", [[b"a"], LONG])
@in_virtual_time
async def test_native_appends_and_their_conditions(values: list[bytes]) -> None:
    async with listening() as (served, connect):
        topic = await served.create("t", config={SETTING: "lz4"})
        shard, address = topic.shards[0].shard_id, f"node-0:{NATIVE_PORT}"
        records = bytes(batch(*values))
        first = await ask(address, AppendBatch(shard, 0, 5000), records)
        assert first.base_offset == 0
        with pytest.raises(OffsetMismatchError):
            await ask(address, AppendBatch(shard, 0, 5000), records)
        assert await stored(await connect()) == [(3, values)]


@pytest.mark.parametrize("values", [[b"a"], LONG])
@in_virtual_time
async def test_every_replica_that_takes_writes_keeps_the_rule(values: list[bytes]) -> None:
    async with listening(3) as (served, connect):
        await served.create("t", replicas=3, config={SETTING: "gzip", "writers": "multi"})
        for node in range(3):
            done, _ = await produce(await connect(node), "t", batch(*values))
            assert int(done.error_code) == code.NONE
        for node in range(3):
            client = await connect(node)
            for _ in range(50):
                if len(await stored(client)) == 3:
                    break
                await asyncio.sleep(0.1)
            assert await stored(client) == [(1, values)] * 3


@in_virtual_time
async def test_parts_of_transactions_are_packed_anew_and_their_markers_are_not() -> None:
    async with listening() as (served, connect):
        await served.create("t", config={SETTING: "gzip"})
        client = await connect()
        writer = await begun(Transactional(await connect()))
        assert await writer.add(("t", 0)) == [code.NONE]
        assert await writer.write("t", b"x") == code.NONE
        assert await writer.end(commit=True) == code.NONE
        headers = [header for header, _ in iter_batches((await fetch(client, "t", 0)).records)]
        assert [(one.codec, one.is_transactional, one.is_control) for one in headers] == [
            (1, True, False),
            (0, True, True),
        ]


@in_virtual_time
async def test_batches_of_jobs_stay_as_they_are() -> None:
    """A job's batch is known by its CRC when it comes again."""
    async with listening() as (served, connect):
        topic = await served.create("t", config={SETTING: "gzip"})
        gateway, shard = served.first.gateway, topic.shards[0].shard_id
        job = batch(b"a", producer_id=JOB_ID_MIN, producer_epoch=0, base_sequence=0)
        first, second = await gateway.append(shard, job), await gateway.append(shard, job)
        assert (first.base_offset, second.base_offset, second.duplicate) == (0, 0, True)
        assert await stored(await connect()) == [(0, [b"a"])]


@in_virtual_time
async def test_a_batch_has_to_fit_before_and_after() -> None:
    async with listening() as (served, connect):
        config = {SETTING: "uncompressed", "max.message.bytes": "10000"}
        topic = await served.create("t", config=config)
        client = await connect()
        for values in ([b"x" * 9_940], [b"y" * 90_000]):
            done, _ = await produce(client, "t", batch(*values, compression="gzip"))
            assert int(done.error_code) == code.MESSAGE_TOO_LARGE
            assert "max.message.bytes" in done.error_message
        done, _ = await produce(client, "t", batch(b"x" * 9_900, compression="gzip"))
        assert int(done.error_code) == code.NONE
        with pytest.raises(BatchTooLargeError):
            await served.first.gateway.append(topic.shards[0].shard_id, batch(b"x" * 9_990))
        assert served.end("t") == 1


@in_virtual_time
async def test_what_cannot_be_read_is_refused_and_what_was_damaged_is_sent_again() -> None:
    async with listening() as (served, connect):
        await served.create("t", config={SETTING: "zstd"})
        client = await connect()
        damaged = batch(*LONG, compression="gzip")
        damaged[-9] ^= 0x40
        small = batch(b"a" * 100, compression="lz4")
        small[70] ^= 0x40
        for records, error in (
            (recompress(bytearray(GARBAGE), 1), code.INVALID_RECORD),
            (BOMB, code.MESSAGE_TOO_LARGE),
            (damaged, code.CORRUPT_MESSAGE),
            (small, code.CORRUPT_MESSAGE),
        ):
            done, _ = await produce(client, "t", records)
            assert int(done.error_code) == error
        assert served.end("t") == 0


@in_virtual_time
async def test_what_waits_for_a_thread_counts_as_in_flight() -> None:
    async with listening() as (served, connect):
        await served.create("t", config={SETTING: "gzip"})
        client = await connect()
        in_flight = served.first.metrics.gauges["antiphon_in_flight_bytes"][1]
        done, _ = await produce(client, "t", batch(*LONG))
        assert int(done.error_code) == code.NONE
        await asyncio.sleep(1)
        assert in_flight() == 0, "what was added is taken away again, though the batch has another size now"


@in_virtual_time
async def test_no_batch_is_looked_at_twice_where_the_topic_wants_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise AssertionError("it is nobody's business")

    for name in ("is_other", "recompressed", "recompressed_now"):
        monkeypatch.setattr(f"antiphon.node.record_intake.{name}", fails)
    async with listening() as (served, connect):
        await served.create("t", config={SETTING: "producer", "compression.zstd.level": "5"})
        client = await connect()
        done, _ = await produce(client, "t", batch(b"a", compression="gzip"))
        assert int(done.error_code) == code.NONE
        assert await stored(client) == [(1, [b"a"])]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({SETTING: "none"}, "uncompressed or gzip or snappy or lz4 or zstd"),
        ({SETTING: "brotli"}, "is not served"),
        ({"compression.gzip.level": "0"}, "outside 1..9, or -1"),
        ({"compression.gzip.level": "10"}, "outside"),
        ({"compression.lz4.level": "18"}, r"outside 1\.\.17"),
        ({"compression.lz4.level": "-1"}, "outside"),
        ({"compression.zstd.level": "23"}, "outside"),
        ({"compression.zstd.level": "fast"}, "not a whole number"),
        ({"compression.snappy.level": "1"}, "unknown setting"),
    ],
)
@in_virtual_time
async def test_other_values_are_refused_by_name(config: dict[str, str], words: str) -> None:
    async with listening() as (served, _):
        with pytest.raises(InvalidRequestError, match=words):
            await served.create("t", config=config)


@in_virtual_time
async def test_tables_do_not_take_the_setting() -> None:
    async with listening() as (served, _):
        with pytest.raises(InvalidRequestError, match="a setting of topics"):
            await served.create("t", kind=Kind.TABLE, config={SETTING: "zstd"})
        await served.create("plain", kind=Kind.TABLE, config={SETTING: "producer"})


async def level_of(served: KafkaNodes, **config: str) -> tuple[int, int | None, bool]:
    name = "t" + "-".join(config.values()).replace("_", "")
    topic = await served.create(name, config={key.replace("_", "."): value for key, value in config.items()})
    settings = served.first.replicas.host(topic.shards[0].shard_id).state.settings
    assert settings is not None
    return settings.intake.codec, settings.intake.level, settings.intake.packs_quickly


@in_virtual_time
async def test_levels_have_kafkas_defaults_and_the_costly_ones_are_for_threads() -> None:
    async with listening() as (served, _):
        assert await level_of(served) == (-1, None, True)
        for codec, wanted in (
            ("uncompressed", (0, None)), ("gzip", (1, -1)), ("snappy", (2, None)), ("lz4", (3, 9)), ("zstd", (4, 3))
        ):  # fmt: skip
            assert await level_of(served, compression_type=codec) == (*wanted, True)
        assert await level_of(served, compression_type="zstd", compression_zstd_level="9") == (4, 9, False)
        assert await level_of(served, compression_type="zstd", compression_gzip_level="8") == (4, 3, True)
        assert await level_of(served, compression_type="gzip", compression_gzip_level="9") == (1, 9, False)
        assert await level_of(served, compression_type="lz4", compression_lz4_level="12") == (3, 12, False)
