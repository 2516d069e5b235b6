"""The shard's part of transactions, on whole nodes: what is appended, and where a transaction ends."""

from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    WrongKindError,
)
from antiphon.model.cluster import EndTransaction
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic
from antiphon.node.node import Node
from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, read_header
from antiphon.records.builder import build_batch, build_end_marker, end_marker_of, seal
from tests.node.in_process import cluster_of, run

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
    topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", **options))
    shard_id = topic.shards[0].shard_id
    await nodes.leader(shard_id)
    return next(
        node for node in nodes.nodes.values() if node.gateway.term_led(shard_id) is not None
    ), shard_id


def test_a_transaction_is_appended_and_ended_once_from_any_node() -> None:
    async def test() -> None:
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

    run(test())


def test_a_repeated_batch_of_a_transaction_that_ended_is_recognised() -> None:
    async def test() -> None:
        async with cluster_of(1) as nodes:
            leader, shard_id = await _a_shard(nodes, replicas=1)
            gateway = leader.gateway
            first = await gateway.append(shard_id, batch_of(0), transaction_number=1)
            await gateway.transactions.end(end_of(shard_id, 1))
            again = await gateway.append(shard_id, batch_of(0))
            assert (again.base_offset, again.duplicate) == (first.base_offset, True)

    run(test())


@pytest.mark.parametrize(
    "options",
    [{"config": {"commit": "local"}}, {"config": {"writers": "multi"}}, {"kind": Kind.TABLE}],
    ids=["commit", "writers", "table"],
)
def test_shards_that_take_no_transactions_say_so(options: dict[str, Any]) -> None:
    async def test() -> None:
        async with cluster_of(1) as nodes:
            leader, shard_id = await _a_shard(nodes, replicas=1, **options)
            with pytest.raises(WrongKindError):
                await leader.gateway.append(shard_id, batch_of(0), transaction_number=1)
            with pytest.raises(WrongKindError, match="takes no transactions"):
                leader.gateway.transactions.check_taken(shard_id)
            if "commit" not in options.get("config", {}):
                with pytest.raises(WrongKindError):
                    await leader.gateway.transactions.end(end_of(shard_id, 1))

    run(test())


def test_what_makes_no_sense_is_refused() -> None:
    async def test() -> None:
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

    run(test())
