"""The shard's part of transactions, on whole nodes: what is appended, and where a transaction ends."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import antiphon.aio
from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    WrongKindError,
)
from antiphon.model.cluster import EndTransaction
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic, Put, TableGet
from antiphon.model.table_transactions import PrepareWrite
from antiphon.node.node import Node
from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, read_header
from antiphon.records.builder import build_batch, build_end_marker, end_marker_of, seal
from tests.node.in_process import cluster_of, eventually, in_virtual_time

PRODUCER = 7


def batch_of(
    sequence: int, *, epoch: int = 0, count: int = 1, transactional: bool = True, producer: int = PRODUCER
) -> bytearray:
    records: list[Any] = [(None, b"x%d" % (sequence + at), [], 1) for at in range(count)]
    batch = build_batch(records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    if transactional:
        batch[22] |= TRANSACTIONAL_BIT
        seal(batch)
    return batch


def end_of(
    shard_id: int, number: int, *, commit: bool = True, epoch: int = 0, producer: int = PRODUCER
) -> EndTransaction:
    return EndTransaction(shard_id, producer, epoch, number, commit)


async def log_of(node: Node, shard_id: int) -> list[Any]:
    found = await node.gateway.fetch(shard_id, 0, 1 << 20)
    return [read_header(batch) for batch in found.batches]


def offsets(headers: Sequence[Any]) -> list[int]:
    """Of the batches of the producer."""
    return [header.base_offset for header in headers if header.producer_id == PRODUCER]


async def _a_shard(nodes: Any, **options: Any) -> tuple[Node, int]:
    shard_id = await nodes.new_shard(**options)
    await nodes.leader(shard_id)
    return next(
        node for node in nodes.nodes.values() if node.gateway.term_led(shard_id) is not None
    ), shard_id


@in_virtual_time
async def test_a_transaction_is_appended_and_ended_once_from_any_node() -> None:
    async with cluster_of(3) as nodes:
        leader, shard_id = await _a_shard(nodes, replicas=3)
        gateway = leader.gateway
        with pytest.raises(InvalidTxnStateError, match="nobody was asked"):
            await gateway.append(shard_id, batch_of(0))
        first = await gateway.append(shard_id, batch_of(0), transaction_number=1)
        assert gateway.transactions.has_open(shard_id, PRODUCER, 0)
        assert not gateway.transactions.has_open(shard_id, PRODUCER, 1)
        await gateway.append(shard_id, batch_of(1))
        with pytest.raises(InvalidTxnStateError, match="not part of it"):
            await gateway.append(shard_id, batch_of(2, transactional=False))
        other = next(node for node in nodes.nodes.values() if node is not leader)
        at = await other.gateway.transactions.end(end_of(shard_id, 1, epoch=1))
        assert at == first.base_offset + 2
        for node in (leader, other):  # the same again, and one that is later still
            assert await node.gateway.transactions.end(end_of(shard_id, 1, commit=False)) == at
            assert await node.gateway.transactions.end(end_of(shard_id, 0)) == at
        assert not gateway.transactions.has_open(shard_id, PRODUCER, 0)
        assert offsets(await log_of(leader, shard_id)) == [at - 2, at - 1, at]
        found = (await gateway.fetch(shard_id, at, 1 << 20)).batches[0]
        marker = read_header(found)
        assert marker.attributes == TRANSACTIONAL_BIT | CONTROL_BIT
        assert (marker.producer_epoch, marker.base_sequence, end_marker_of(found)) == (1, -1, (True, 1))
        # What was sent before the end, and comes after it.
        with pytest.raises(ProducerFencedError):
            await gateway.append(shard_id, batch_of(2), transaction_number=2)
        with pytest.raises(InvalidTxnStateError, match="it would be number 1, number 1 has ended"):
            await gateway.append(shard_id, batch_of(0, epoch=1), transaction_number=1)
        await gateway.append(shard_id, batch_of(0, epoch=1), transaction_number=2)
        with pytest.raises(InvalidTxnStateError, match="this batch has epoch 2"):
            await gateway.append(shard_id, batch_of(0, epoch=2), transaction_number=3)


@in_virtual_time
async def test_a_repeated_batch_of_a_transaction_that_ended_is_recognised() -> None:
    async with cluster_of(1) as nodes:
        leader, shard_id = await _a_shard(nodes, replicas=1)
        gateway = leader.gateway
        first = await gateway.append(shard_id, batch_of(0), transaction_number=1)
        await gateway.transactions.end(end_of(shard_id, 1))
        again = await gateway.append(shard_id, batch_of(0))
        assert (again.base_offset, again.duplicate) == (first.base_offset, True)


@pytest.mark.parametrize(
    "options",
    [{"config": {"commit": "local"}}, {"config": {"writers": "multi"}}, {"kind": Kind.TABLE}],
    ids=["commit", "writers", "table"],
)
@in_virtual_time
async def test_shards_that_take_no_transactions_say_so(options: dict[str, Any]) -> None:
    async with cluster_of(1) as nodes:
        leader, shard_id = await _a_shard(nodes, replicas=1, **options)
        with pytest.raises(WrongKindError):
            await leader.gateway.append(shard_id, batch_of(0), transaction_number=1)
        with pytest.raises(WrongKindError, match="takes no transactions"):
            leader.gateway.transactions.check_taken(shard_id)
        if "writers" in options.get("config", {}):
            with pytest.raises(WrongKindError):
                await leader.gateway.transactions.end(end_of(shard_id, 1))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, ""),
        ({"writers": "multi"}, "writers=multi"),
        ({"commit": "live", "unclean.leader.election.enable": "true"}, "unclean elections"),
    ],
)
@in_virtual_time
async def test_tables_take_what_is_prepared_unless_it_could_be_lost(
    config: dict[str, str], reason: str
) -> None:
    async with cluster_of(1) as nodes:
        leader, shard_id = await _a_shard(nodes, replicas=1, kind=Kind.TABLE, config=config)
        transactions = leader.gateway.transactions
        body = PrepareWrite(shard_id, "x", PRODUCER, 0, 0, (Put(b"k", b"v"),))
        if reason:
            with pytest.raises(WrongKindError, match=reason):
                transactions.check_taken(shard_id, tables=True)
            with pytest.raises(WrongKindError, match=reason):
                transactions.prepare(body, 1, print)
            return
        transactions.check_taken(shard_id, tables=True)
        with pytest.raises(InvalidTxnStateError, match="nobody was asked"):
            transactions.prepare(body, None, print)
        answers: list[Any] = []
        transactions.prepare(body, 1, answers.append)
        with pytest.raises(InvalidTxnStateError, match="prepared in shard"):
            transactions.prepare(msgspec.structs.replace(body, sequence=1), 1, print)
        assert await transactions.end(end_of(shard_id, 1)) == 1
        assert answers[0].offset == 0
        transactions.prepare(body, 1, answers.append)  # a repeat, after its end
        await asyncio.sleep(0.1)
        assert answers[1] == answers[0]
        with pytest.raises(InvalidTxnStateError, match="number 1 has ended"):
            transactions.prepare(msgspec.structs.replace(body, sequence=1), 1, print)
        (row,) = (await leader.gateway.table_get(TableGet(shard_id, (b"k",)))).rows
        assert row is not None
        assert row.value == b"v"
        large = (Put(b"k", bytes(2_000_000)),)
        with pytest.raises(BatchTooLargeError):
            transactions.prepare(msgspec.structs.replace(body, sequence=1, ops=large), 2, print)


@in_virtual_time
async def test_the_clusters_own_tables_take_no_markers() -> None:
    async with cluster_of(1) as nodes:
        gateway = nodes.nodes[0].gateway
        made = CreateTopic("__groups", Kind.TABLE, replicas=1, internal=True)
        shard_id = (await gateway.create_topic(made)).shards[0].shard_id
        await nodes.leader(shard_id)
        with pytest.raises(WrongKindError, match="so none can be ended"):
            await gateway.transactions.end(end_of(shard_id, 1))
        with pytest.raises(WrongKindError, match="belongs to the cluster"):
            gateway.transactions.check_taken(shard_id, tables=True)


@in_virtual_time
async def test_what_makes_no_sense_is_refused() -> None:
    async with cluster_of(1) as nodes:
        leader, shard_id = await _a_shard(nodes, replicas=1)
        gateway = leader.gateway
        gateway.transactions.check_taken(shard_id)
        marker = build_end_marker(
            commit=True, number=1, producer=(PRODUCER, 0), term=1, base_offset=0, timestamp_ms=1
        )
        refused: list[Any] = []
        for bad in (marker, batch_of(0, producer=1 << 61), batch_of(-1, epoch=-1, producer=-1)):
            try:
                await gateway.append(shard_id, bad, transaction_number=1)
            except AntiphonError as error:
                refused.append(error)
        assert len(refused) == 3
        for one in (
            end_of(shard_id, -1),
            end_of(shard_id, 1, epoch=-1),
            end_of(shard_id, 1, producer=-1),
        ):
            with pytest.raises(InvalidRequestError):
                await gateway.transactions.end(one)


async def _write(node: Node, shard_id: int, number: int, sequence: int, *, producer: int = PRODUCER) -> int:
    """Begin a transaction; returns its first offset."""
    batch = batch_of(sequence, count=2, producer=producer)
    return (await node.gateway.append(shard_id, batch, transaction_number=number)).base_offset


@in_virtual_time
async def test_committed_reads_end_at_the_last_stable_offset_and_name_what_was_aborted() -> None:
    async with cluster_of(3) as nodes:
        leader, shard_id = await _a_shard(nodes, replicas=3)
        gateway = leader.gateway
        first = await _write(leader, shard_id, 1, 0)
        second = await _write(leader, shard_id, 1, 0, producer=8)
        await gateway.append(shard_id, batch_of(0, producer=-1, epoch=-1, transactional=False))

        async def look(offset: int = first) -> tuple[int, int, list[int], Any]:
            found = await gateway.fetch(shard_id, offset, 1 << 20)
            bases = [read_header(batch).base_offset for batch in found.batches]
            return found.high_watermark, found.stable_end, bases, found.aborted

        hw = (await look())[0]
        assert (await look())[1:] == (first, [], ())
        uncommitted = await gateway.fetch(shard_id, first, 1 << 20, "read_uncommitted")
        assert len(uncommitted.batches) == 3
        assert uncommitted.aborted == ()
        arrived: list[int] = []
        gateway.follow(1, shard_id, first, "committed", lambda: arrived.append(1))
        aborted = await gateway.transactions.end(end_of(shard_id, 1, commit=False))
        assert arrived == [1], "who waits is woken when the last stable offset moves"
        assert aborted == hw
        assert (await look())[1:] == (second, [first], ((PRODUCER, first, aborted),))
        gateway.follow(2, shard_id, second, "committed", lambda: arrived.append(2))
        await gateway.append(shard_id, batch_of(0, producer=-1, epoch=-1, transactional=False))
        assert arrived == [1], "more was committed, and nothing of it is stable"
        ended = await gateway.transactions.end(end_of(shard_id, 1, producer=8))
        assert arrived == [1, 2]
        assert (await look())[1] == ended + 1
        assert (await look(second))[3] == ((PRODUCER, first, aborted),), "its marker is in that range"
        assert (await look(aborted + 1))[3] == ()
        offsets_now = gateway.list_offset(shard_id, -1, "committed")
        assert offsets_now.offset == offsets_now.stable_end == ended + 1
        last = await _write(leader, shard_id, 2, 2)
        assert gateway.list_offset(shard_id, -1, "committed").offset == last
        assert gateway.list_offset(shard_id, -1).offset == last + 2


@in_virtual_time
async def test_what_is_known_of_transactions_outlives_stops_and_a_new_leader() -> None:
    async with cluster_of(3) as nodes:
        leader, shard_id = await _a_shard(nodes, replicas=3)
        first = await _write(leader, shard_id, 1, 0)
        aborted = await leader.gateway.transactions.end(end_of(shard_id, 1, commit=False, epoch=3))
        opened = await _write(leader, shard_id, 5, 0, producer=8)
        for node_id in list(nodes.nodes):
            await nodes.stop(node_id)
        for node_id in list(nodes.disks):
            await nodes.start(node_id)
        await nodes.leader(shard_id)
        leader = next(n for n in nodes.nodes.values() if n.gateway.term_led(shard_id) is not None)
        gateway = leader.gateway
        found = await gateway.fetch(shard_id, 0, 1 << 20)
        assert found.stable_end == opened
        assert found.aborted == ((PRODUCER, first, aborted),)
        with pytest.raises(ProducerFencedError):
            await gateway.append(shard_id, batch_of(2), transaction_number=2)
        assert gateway.transactions.has_open(shard_id, 8, 0)
        ended = await gateway.transactions.end(end_of(shard_id, 5, producer=8))
        assert (await gateway.fetch(shard_id, 0, 1 << 20)).stable_end == ended + 1


@in_virtual_time
async def test_the_python_client_reads_what_was_committed() -> None:
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        leader, shard_id = await _a_shard(nodes, replicas=3)
        gateway, log = leader.gateway, db.topic("t")
        await _write(leader, shard_id, 1, 10)
        await _write(leader, shard_id, 1, 20, producer=8)
        await db.topic("t").append(b"plain")
        await gateway.transactions.end(end_of(shard_id, 1, commit=False))
        await gateway.transactions.end(end_of(shard_id, 1, producer=8))
        await _write(leader, shard_id, 2, 30, producer=9)
        at = await db.topic("t").append(b"behind")

        async def values(**how: Any) -> list[bytes | None]:
            return [record.value async for record in log.read(0, 0, **how)]

        assert await values() == await values(isolation="committed") == [b"x20", b"x21", b"plain"]
        everything = [b"x10", b"x11", b"x20", b"x21", b"plain", b"x30", b"x31", b"behind"]
        assert await values(isolation="read_uncommitted") == everything
        assert await log.offsets() == (0, at.offset - 2)
        arrived: list[bytes | None] = []

        async def follow() -> None:
            async for record in log.read(0, at.offset - 2, follow=True):
                arrived.append(record.value)  # noqa: PERF401 - one by one, as they come

        following = asyncio.create_task(follow())
        await asyncio.sleep(1)
        assert arrived == []
        await gateway.transactions.end(end_of(shard_id, 2, commit=False, producer=9))
        await eventually(lambda: arrived == [b"behind"])
        following.cancel()
