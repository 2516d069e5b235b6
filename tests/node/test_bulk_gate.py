"""Bulk writes: the rate follows what the node sees, the line is bounded, a table's limit holds, and nothing is lost."""

import asyncio
from typing import Any

import pytest

from antiphon.errors import InvalidRequestError, NotLeaderError, OverloadedError, UnavailableError
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    PROTOCOL_VERSION,
    AlterTopic,
    CreateTopic,
    Failure,
    Hello,
    Put,
    TableGet,
    TableWrite,
    TableWritten,
)
from antiphon.node.bulk_gate import (
    LINE_S_MAX,
    PERIOD_S,
    RUNNING_MAX,
    START_BYTES_PER_S,
    Bulk,
    BulkGate,
    BulkRate,
)
from antiphon.wire.frames import FrameDecoder, decode_reply, encode_message
from tests.node.in_process import cluster_of, eventually, in_virtual_time

FLOOR, CEILING = 100_000, 40_000_000


def _rate(**changes: Any) -> BulkRate:
    return BulkRate(**{"commit_s": 0.01, "floor": FLOOR, "ceiling": CEILING, **changes})


def _period(rate: BulkRate, number: int, *took_s: float, short: bool = True) -> float:
    for took in took_s:
        rate.answered(took)
    if short:
        rate.held_back()
    rate.look(number * PERIOD_S * 1.01, None)
    return rate.bytes_per_s


def test_the_rate_rises_while_writes_are_fast_and_wanted_and_falls_when_they_are_slow() -> None:
    rate = _rate()
    assert rate.bytes_per_s == START_BYTES_PER_S
    risen = _period(rate, 1, 0.002, 0.003)
    assert risen > START_BYTES_PER_S
    assert _period(rate, 2, 0.002, short=False) == risen  # nobody wanted more
    assert _period(rate, 3, *[0.002] * 9, 0.5) > risen  # one in ten was slow: that happens
    fallen = _period(rate, 4, 0.002, 0.05, 0.05)
    assert fallen < risen
    assert _period(rate, 5) == fallen  # nothing was answered: nothing is known
    rate.look(9.0, 8.0)  # and one that is never answered is slow, too
    assert rate.bytes_per_s < fallen


def test_the_rate_stays_between_floor_and_ceiling() -> None:
    rate = _rate()
    assert [_period(rate, n, 1.0) for n in range(1, 60)][-1] == FLOOR
    assert [_period(rate, n, 0.001) for n in range(60, 200)][-1] == CEILING
    assert _rate(floor=9_000_000).bytes_per_s == 9_000_000
    assert _rate(ceiling=200_000).bytes_per_s == 200_000


class Served:
    """A gate over a node that answers when it is told to."""

    def __init__(self, rate: BulkRate, limits: dict[int, int] | None = None) -> None:
        self.underway: list[tuple[Bulk, Any]] = []
        self.limits = limits or {}
        self.answers: list[tuple[int, Any]] = []
        self.gate = BulkGate(asyncio.get_running_loop(), rate, self._write, self.limits.get)
        self.refuse: Exception | None = None

    def _write(self, request: Bulk, done: Any) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.underway.append((request, done))

    def ask(self, sequence: int, size: int = 10_000, shard: int = 7) -> None:
        request = TableWrite(shard, (Put(b"k", b"x" * size),), sequence=sequence, bulk=True)
        self.gate.take(request, lambda result: self.answers.append((sequence, result)))

    def answer(self) -> None:
        request, done = self.underway.pop(0)
        assert isinstance(request, TableWrite)
        done(TableWritten((), request.sequence))

    @property
    def sequences(self) -> list[int]:
        return [getattr(request, "sequence", -1) for request, _ in self.underway]


@in_virtual_time
async def test_requests_of_a_shard_keep_their_order_and_few_run_at_a_time() -> None:
    served = Served(_rate(floor=CEILING))
    for sequence in range(6):
        served.ask(sequence)
    served.ask(100, shard=8)
    seen: list[int] = []
    while served.underway or served.gate.waiting_bytes:
        await asyncio.sleep(0.001)
        assert len([one for one in served.sequences if one < 100]) <= RUNNING_MAX
        if served.underway:
            seen.append(served.sequences[0])
            served.answer()
    assert [one for one in seen if one < 100] == list(range(6))
    assert 100 in seen
    assert [sequence for sequence, _ in served.answers] == seen
    assert served.gate.bytes_through > 70_000


@in_virtual_time
async def test_the_line_is_bounded_by_time_and_a_refusal_reaches_its_sender() -> None:
    served = Served(_rate(ceiling=FLOOR))  # 100 kB a second
    for sequence in range(4):
        served.ask(sequence, size=int(FLOOR * LINE_S_MAX / 3))
    with pytest.raises(OverloadedError, match=r"would wait for .* MB/s"):
        served.ask(4)
    assert served.sequences == [0]  # the others' time has not come
    served.gate.close()
    assert [type(result) for _, result in served.answers] == [UnavailableError] * 3
    again = Served(_rate())
    again.refuse = NotLeaderError("not me", leader=2)
    again.ask(1)
    again.refuse = ValueError("a bug")
    again.ask(2)
    again.refuse = None
    again.ask(3)
    assert again.sequences == [3]
    assert [getattr(result, "code", "") for _, result in again.answers] == ["not_leader", "internal"]


@in_virtual_time
async def test_a_table_that_takes_none_takes_none() -> None:
    served = Served(_rate(), {7: 0, 8: 50_000})
    with pytest.raises(OverloadedError, match=r"bulk.bytes.per.second is 0"):
        served.ask(1)
    served.ask(1, size=30_000, shard=8)
    served.ask(2, size=10_000, shard=8)
    served.ask(3, shard=9)
    assert served.sequences == [1, 3]  # shard 8 has had its share; nobody else waits for it
    for _ in range(2):
        served.answer()
    started = asyncio.get_running_loop().time()
    await eventually(lambda: bool(served.underway))
    assert 0.3 < asyncio.get_running_loop().time() - started < 10
    assert served.sequences == [2]


async def _connect(address: str) -> "Client":
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    client = Client(reader, writer)
    await client.ask(Hello(PROTOCOL_VERSION, "test"))
    return client


class Client:
    """One connection to the native listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()
        self._last = 0

    async def ask(self, body: Any) -> Any:
        self._last += 1
        self._writer.write(b"".join(encode_message(self._last, body)))
        while True:
            for frame in self._decoder.feed(await self._reader.read(1 << 16)):
                request_id, answer = decode_reply(frame.header)
                assert request_id == self._last
                return answer

    def close(self) -> None:
        self._writer.close()


@in_virtual_time
async def test_a_node_lets_bulk_writes_through_as_the_table_says() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        topic = await node.gateway.create_topic(CreateTopic("t", kind=Kind.TABLE))
        shard_id = topic.shards[0].shard_id
        await nodes.leader(shard_id)
        client = await _connect(nodes.members[0].native)
        written = await client.ask(TableWrite(shard_id, (Put(b"a", b"1"),), bulk=True))
        assert isinstance(written, TableWritten)
        assert node.bulk.bytes_through > 0
        with pytest.raises(InvalidRequestError, match=r"bulk.bytes.per.second='fast'"):
            await node.gateway.alter_topic(AlterTopic("t", {"bulk.bytes.per.second": "fast"}))
        await node.gateway.alter_topic(AlterTopic("t", {"bulk.bytes.per.second": "0"}))
        refused = await client.ask(TableWrite(shard_id, (Put(b"b", b"2"),), bulk=True))
        assert isinstance(refused, Failure)
        assert refused.code == "overloaded"
        assert isinstance(await client.ask(TableWrite(shard_id, (Put(b"c", b"3"),))), TableWritten)
        await node.gateway.alter_topic(AlterTopic("t", {"bulk.bytes.per.second": None}))
        again = await client.ask(TableWrite(shard_id, (Put(b"d", b"4"),), bulk=True))
        assert isinstance(again, TableWritten)
        rows = (await node.gateway.table_get(TableGet(shard_id, (b"a", b"b", b"c", b"d")))).rows
        assert [row.value if row else None for row in rows] == [b"1", None, b"3", b"4"]
        assert b"antiphon_bulk_bytes_per_second" in node.metrics.render()
        client.close()
