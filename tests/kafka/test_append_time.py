"""message.timestamp.type=LogAppendTime: the leader gives records the time at which it appends them."""

from functools import partial
from typing import Any

import pytest

from antiphon import system
from antiphon.errors import InvalidRequestError
from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import offsets
from antiphon.log.producer_state import JOB_ID_MIN
from antiphon.model.metadata import Kind
from antiphon.model.requests import AlterTopic
from antiphon.partition.state import PartitionState
from antiphon.records.batch import validate_batch
from antiphon.records.decode import decode_records
from tests.kafka.raw import RawClient, batch, fetch, listening, produce
from tests.node.in_process import eventually, in_virtual_time

SETTING = "message.timestamp.type"
LOG_TIME = {SETTING: "LogAppendTime"}


async def offset_at(client: RawClient, timestamp: int) -> tuple[int, int]:
    partition = offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = offsets.ListOffsetsTopic(name="t", partitions=[partition])
    answer: Any = await client.ask(offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]), 2, 7)
    found = answer.topics[0].partitions[0]
    return found.offset, found.timestamp


@in_virtual_time
async def test_records_get_the_time_of_their_append() -> None:
    async with listening() as (served, connect):
        await served.create("t", config=LOG_TIME)
        client = await connect()
        sent = batch(b"a", b"b")  # their producer says 1000 ms
        before = system.wall_ms()
        done, _ = await produce(client, "t", sent)
        after = system.wall_ms()
        assert int(done.error_code) == code.NONE
        told_ms = round(done.log_append_time.timestamp() * 1000)
        assert before <= told_ms <= after
        stored = (await fetch(client, "t", 0)).records
        header = validate_batch(stored)
        assert header.is_log_append_time
        assert header.max_timestamp == told_ms
        assert [record.timestamp_ms for record in decode_records(stored)] == [told_ms] * 2
        assert await offset_at(client, before) == (0, told_ms)
        assert await offset_at(client, after + 1) == (-1, -1)
        assert stored[61:] == sent[61:], "the records themselves stay as they were sent"


@in_virtual_time
async def test_a_batch_that_comes_again_has_the_time_that_it_got() -> None:
    async with listening() as (served, connect):
        await served.create("t", config=LOG_TIME)
        client = await connect()
        again = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
        first, _ = await produce(client, "t", batch(b"a", **again))
        second, _ = await produce(client, "t", batch(b"a", **again))
        assert (second.base_offset, served.end("t")) == (0, 1)
        assert second.log_append_time == first.log_append_time is not None


def _is_set(state: PartitionState, wanted: bool) -> bool:
    return state.settings is not None and state.settings.append_time == wanted


@in_virtual_time
async def test_the_setting_can_change_and_each_batch_keeps_its_time() -> None:
    async with listening() as (served, connect):
        topic = await served.create("t")
        client = await connect()
        for value in ("LogAppendTime", "CreateTime"):
            done, _ = await produce(client, "t", batch(b"x"))
            assert int(done.error_code) == code.NONE
            await served.first.gateway.alter_topic(AlterTopic("t", {SETTING: value}))
            state = served.first.replicas.host(topic.shards[0].shard_id).state
            await eventually(partial(_is_set, state, value == "LogAppendTime"))
        done, _ = await produce(client, "t", batch(b"x"))
        stored = (await fetch(client, "t", 0)).records
        times = [record.timestamp_ms == 1000 for record in decode_records(stored)]
        assert times == [True, False, True]


@in_virtual_time
async def test_batches_of_jobs_stay_as_they_are() -> None:
    """A job's batch is known by its CRC when it comes again."""
    async with listening() as (served, connect):
        topic = await served.create("t", config=LOG_TIME)
        gateway, shard = served.first.gateway, topic.shards[0].shard_id
        sent = batch(b"a", producer_id=JOB_ID_MIN, producer_epoch=0, base_sequence=0)
        first = await gateway.append(shard, sent)
        second = await gateway.append(shard, sent)
        assert (first.base_offset, second.base_offset, second.duplicate) == (0, 0, True)
        stored = (await fetch(await connect(), "t", 0)).records
        assert not validate_batch(stored).is_log_append_time


@in_virtual_time
async def test_tables_do_not_take_the_setting() -> None:
    async with listening() as (served, _):
        with pytest.raises(InvalidRequestError, match="a setting of topics"):
            await served.create("t", kind=Kind.TABLE, config=LOG_TIME)
