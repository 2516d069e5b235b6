"""DescribeProducers: what a partition's leader knows of its producers."""

import asyncio
from typing import Any

import pytest

from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.apis import APIS
from antiphon.kafka.bodies import encoded
from antiphon.kafka.framing import RequestHeader
from antiphon.kafka.handlers import producers
from antiphon.kafka.messages import transactions as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.kafka.schema import decode, encode
from antiphon.log.producer_state import ProducerState
from antiphon.log.transactions import LastMarker
from antiphon.model.metadata import Kind
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from tests.coroutines import on_a_loop
from tests.kafka.raw import RawClient, batch, listening, produce
from tests.kafka.transactional import Transactional, begun
from tests.node.in_process import eventually, in_virtual_time

DESCRIBE_PRODUCERS = 61


async def described(client: RawClient, *wanted: tuple[str, list[int]]) -> list[Any]:
    """What is said of each partition."""
    topics = [PartitionsOfTopic(name=name, partitions=indexes) for name, indexes in wanted]
    told = await client.ask(m.DescribeProducersRequest(topics=topics), DESCRIBE_PRODUCERS, 0)
    return [one for topic in told.topics for one in topic.partitions]


@in_virtual_time
async def test_a_producer_is_described_before_in_and_after_its_transaction() -> None:
    async with listening() as (nodes, connect):
        await nodes.create("t")
        client = await connect()
        plain = batch(b"x", b"y", producer_id=900, producer_epoch=3, base_sequence=0)
        at = read_header(plain).max_timestamp
        (none,) = await described(client, ("t", [0]))
        assert (none.error_code, none.error_message, none.active_producers) == (code.NONE, None, [])
        await produce(client, "t", plain)
        tx = await begun(Transactional(client))
        await tx.add(("t", 0))
        assert await tx.write("t", b"a") == await tx.write("t", b"b") == code.NONE

        async def of(producer_id: int) -> tuple[int, ...]:
            (told,) = await described(client, ("t", [0]))
            (one,) = [one for one in told.active_producers if one.producer_id == producer_id]
            return (
                one.producer_epoch,
                one.last_sequence,
                one.last_timestamp,
                one.coordinator_epoch,
                one.current_txn_start_offset,
            )

        assert await of(900) == (3, 1, at, -1, -1)
        epoch, sequence, _, number, since = await of(tx.producer_id)
        assert (epoch, sequence, number, since) == (tx.epoch, 1, -1, 2)
        assert await tx.end(commit=True) == code.NONE
        await eventually(lambda: nodes.end("t") == 5)
        epoch, sequence, _, first_number, since = await of(tx.producer_id)
        assert (epoch, sequence, since) == (tx.epoch, 1, -1)
        assert first_number >= 1
        assert await tx.add(("t", 0)) == [code.NONE]
        assert await tx.write("t", b"c") == code.NONE
        assert (await of(tx.producer_id))[3:] == (first_number, 5)


@in_virtual_time
async def test_what_is_not_there_is_said_of_each_partition_once() -> None:
    async with listening() as (nodes, connect):
        await nodes.create("t", 2)
        await nodes.create("k", kind=Kind.TABLE)
        client = await connect()
        told = await described(client, ("t", [0, 7, 0] * 1000), ("absent", [0]), ("k", [0]), ("t", [1]))
        assert [(one.partition_index, one.error_code) for one in told] == [
            (0, code.NONE),
            (7, code.UNKNOWN_TOPIC_OR_PARTITION),
            (1, code.NONE),
            (0, code.UNKNOWN_TOPIC_OR_PARTITION),
            (0, code.NONE),
        ]


class Leader:
    """A gateway whose shards have so many producers."""

    def __init__(self, count: int) -> None:
        self.state = ProducerState()
        self.transactions = self
        for producer_id in range(count):
            one = build_batch(
                [(None, b"x", [], 7)], producer_id=producer_id, producer_epoch=1, base_sequence=5
            )
            self.state.update(read_header(one))

    def producers(self, _: int) -> Any:
        return self.state.known()

    def topic(self, name: str) -> str:
        return name

    def shard_at(self, _: str, index: int) -> Any:
        self.shard_id = index
        return self


@on_a_loop
async def test_many_producers_are_described_in_pieces_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 30_000)
    leader: Any = Leader(20_000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            if turns == 5:  # while its turn is not there, the last one is forgotten
                leader.state._producers.pop(19_999, None)
            await asyncio.sleep(0)

    other = asyncio.ensure_future(others())
    topics = [PartitionsOfTopic(name="t", partitions=[0, 1, 2])]
    context = RequestContext(0, True, "", "")
    body = await producers.ProducersHandler(leader, leader).describe(
        m.DescribeProducersRequest(topics=topics), context
    )
    other.cancel()
    assert turns >= 40
    told = decode(m.DescribeProducersResponse, memoryview(body), 0, flexible=True)
    assert bytes(encode(told, 0, flexible=True)) == body
    whole, again, refused = told.topics[0].partitions
    assert len(whole.active_producers) == len(again.active_producers) == 19_999
    one = whole.active_producers[4]
    assert (one.producer_epoch, one.last_sequence, one.last_timestamp) == (1, 5, 7)
    assert (refused.error_code, refused.active_producers) == (code.POLICY_VIOLATION, [])
    assert "39998 producers already: ask for fewer partitions" in (refused.error_message or "")


def test_who_is_to_wait_is_told_so_in_an_answer_that_comes_encoded() -> None:
    header = RequestHeader(APIS[DESCRIBE_PRODUCERS], 0, 1, "", supported=True)
    frame = encoded(header, bytes(4) + b"\x01\x00", 1234)
    assert frame[-6:] == (1234).to_bytes(4, "big") + b"\x01\x00"


def test_an_epoch_that_a_marker_raised_has_no_last_sequence() -> None:
    state = ProducerState()
    one = build_batch([(None, b"x", [], 7)], producer_id=1, producer_epoch=1, base_sequence=5)
    state.update(read_header(one))
    state.transactions.markers |= {1: LastMarker(2, 4, 9, 0), 2: LastMarker(0, 3, 8, -1)}
    assert sorted(state.known()) == [(1, 2, -1, -1, 4, -1), (2, 0, -1, -1, 3, -1)]
