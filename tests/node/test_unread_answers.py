"""Large answers that many connections ask for and nobody takes: the node keeps to its memory for clients.

Each connection holds next to nothing before its answer is read, so none of them is over a bound of its own.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.errors import AccessDeniedError
from antiphon.gateway.budget import FLOOR_BYTES, PATIENCE_S
from antiphon.model.access import Operation, Resource
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    AlterAcls,
    Failure,
    Fetch,
    Put,
    TableGet,
    TableScan,
    TableWrite,
)
from antiphon.model.table_transactions import ReadKeys
from antiphon.records.builder import build_batch
from tests.memory import allocated_at_most
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time
from tests.node.test_access import EVE, connected, eves, give, secured
from tests.node.test_client_memory import MIB, Client, connect, large_log, large_row, pool_of

LIMIT_BYTES = 8 * MIB
CONNECTIONS = 40
LARGEST_BYTES = 8 * MIB  # of one answer: it may be larger than the room
READS: dict[str, Callable[[int], Any]] = {
    "gets": lambda shard_id: TableGet(shard_id, (b"k",)),
    "gets without a round": lambda shard_id: TableGet(shard_id, (b"k",), consistency="leader"),
    "gets of many keys": lambda shard_id: TableGet(shard_id, (b"k",) * 8),
    "gets next to a key": lambda shard_id: TableGet(shard_id, (b"a",), comparison=2),
    "scans": lambda shard_id: TableScan(shard_id, b"", b"", 10),
    "reads of a transaction": lambda shard_id: ReadKeys(shard_id, (b"k",) * 3),
}


async def crowd(nodes: Nodes, read: Any) -> list[Client]:
    """Clients that ask for one answer each, and take none; the node's memory is small."""
    pool = pool_of(nodes)
    pool.limit_bytes = pool.budget.limit_bytes = LIMIT_BYTES
    clients = [await connect(nodes) for _ in range(CONNECTIONS)]
    for client in clients:
        client.send(1, read)
    return clients


async def all_answered(clients: list[Client]) -> None:
    for answers in await asyncio.gather(*(client.answered(2) for client in clients)):
        assert not isinstance(answers[1], Failure)


async def highest_of(nodes: Nodes) -> int:
    pool, highest = pool_of(nodes), 0
    for _ in range(60):
        await asyncio.sleep(0.05)
        highest = max(highest, pool.held_bytes)
    return highest


async def stays_within_bounds(nodes: Nodes, read: Any) -> None:
    """What is counted, and what is allocated; and all are answered once they take their answers."""
    with allocated_at_most(LIMIT_BYTES + 3 * LARGEST_BYTES):
        clients = await crowd(nodes, read)
        highest = await highest_of(nodes)
    assert LIMIT_BYTES // 4 < highest < LIMIT_BYTES + LARGEST_BYTES + CONNECTIONS * FLOOR_BYTES
    async with asyncio.timeout(PATIENCE_S - 5):
        await all_answered(clients)
    await eventually(lambda: pool_of(nodes).held_bytes == 0)
    assert pool_of(nodes).budget.large is None
    for client in clients:
        client.writer.close()


@pytest.mark.parametrize("name", READS)
@in_virtual_time
async def test_rows_that_many_connections_do_not_take(name: str) -> None:
    async with cluster_of(1) as nodes:
        shard_id = await large_row(nodes)
        await stays_within_bounds(nodes, READS[name](shard_id))


@pytest.mark.parametrize("cold", [False, True])
@in_virtual_time
async def test_batches_that_many_connections_do_not_take(cold: bool) -> None:
    async with cluster_of(1) as nodes:
        shard_id = await large_log(nodes, 2)
        if cold:
            nodes.nodes[0].hosts[shard_id].log.release_memory()
        await stays_within_bounds(nodes, Fetch(shard_id, 0, 1 << 24))


@in_virtual_time
async def test_batches_that_many_connections_wait_for_and_do_not_take() -> None:
    async with cluster_of(1) as nodes:
        shard_id, pool = await large_log(nodes, 1), pool_of(nodes)
        clients = await crowd(nodes, Fetch(shard_id, 1, 1 << 24, 50_000))
        await asyncio.sleep(0.2)
        await nodes.nodes[0].gateway.append(shard_id, build_batch([(None, bytes(900_000), [], 1)]))
        highest = await highest_of(nodes)
        assert LIMIT_BYTES // 4 < highest < LIMIT_BYTES + LARGEST_BYTES + CONNECTIONS * FLOOR_BYTES
        await all_answered(clients)
        await eventually(lambda: pool.held_bytes == 0)
        for client in clients:
            client.writer.close()


@pytest.mark.parametrize("cold", [False, True])
@in_virtual_time
async def test_who_may_not_read_any_more_gets_nothing_that_waited_for_room(cold: bool) -> None:
    async with secured() as nodes:
        shard_id, pool, node = await large_log(nodes, 1), pool_of(nodes), nodes.nodes[0]
        may_read = eves(Resource.TOPIC, "t", Operation.READ)
        await give(nodes, may_read)
        await eventually(lambda: may_read.key in node.view.access.acls)
        if cold:
            node.hosts[shard_id].log.release_memory()
        full = pool.open()
        full.add(pool.limit_bytes)
        assert full.is_large  # so nobody else may have more than there is room for
        async with connected(EVE) as connection:
            asked = asyncio.ensure_future(connection.request(Fetch(shard_id, 0, 1 << 24)))
            await asyncio.sleep(0.5)
            assert not asked.done()
            await node.gateway.administer(AlterAcls(remove=(may_read,)))
            await eventually(lambda: may_read.key not in node.view.access.acls)
            full.close()
            with pytest.raises(AccessDeniedError):
                await asked


@in_virtual_time
async def test_small_rows_are_read_while_others_fill_the_node() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await large_row(nodes)
        await nodes.nodes[0].gateway.table_write(TableWrite(shard_id, (Put(b"small", b"v"),)))
        log_id = await nodes.new_shard("small", Kind.TOPIC)
        await nodes.leader(log_id)
        await nodes.nodes[0].gateway.append(log_id, build_batch([(None, b"v", [], 1)]))
        clients = await crowd(nodes, TableGet(shard_id, (b"k",) * 8))
        await asyncio.sleep(0.5)
        for cold in (False, True):
            if cold:
                nodes.nodes[0].hosts[log_id].log.release_memory()
            good = await connect(nodes)
            async with asyncio.timeout(0.5):
                good.send(
                    1,
                    TableGet(shard_id, (b"small",)),
                    Fetch(log_id, 0, 1 << 20),
                    TableScan(shard_id, b"l", b"", 5),
                )
                answers = await good.answered(4)
            assert answers[1].rows[0].value == b"v"
            assert answers[2][1] > 0
            assert len(answers[3].rows) == 1
            good.writer.close()
        for client in clients:
            client.writer.transport.abort()
