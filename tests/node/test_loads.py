"""Loads: the same log as the puts, each one once whatever is sent again, and refusals before anything is written."""

from typing import Any

import pytest

from antiphon.errors import (
    BatchTooLargeError,
    InvalidRequestError,
    ProducerFencedError,
    ReplayConflictError,
    WrongKindError,
)
from antiphon.gateway.answers import awaited
from antiphon.model.loads import Load, LoadRows
from antiphon.model.metadata import Kind
from antiphon.model.requests import Appended, SplitShard, TableGet
from antiphon.records.packed_rows import PackedRow, packed
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

JOB = 3 << 61 | 5
ROWS: list[PackedRow] = [(b"key%03d" % number, b"v%d" % number) for number in range(80)]


async def load(
    nodes: Nodes, shard_id: int, rows: list[PackedRow], sequence: int = -1, **changes: Any
) -> Appended:
    producer: dict[str, Any] = (
        {"producer_id": JOB, "producer_epoch": 6, "sequence": sequence} if sequence >= 0 else {}
    )
    request = LoadRows(shard_id, len(rows), **{**producer, **changes})
    return await sent(nodes, Load(request, packed(rows)))


async def sent(nodes: Nodes, one: Load) -> Appended:
    leader = await nodes.leader(one.shard_id)
    future, done = awaited()
    nodes.nodes[leader.services.node_id].gateway.submit_table_write(one, done)
    answer: Appended = await future
    return answer


def compiled(nodes: Nodes) -> None:
    for node in nodes.nodes.values():
        node.kernels.load()
        node.kernels.at_least = 2


async def rows_of(nodes: Nodes, shard_id: int) -> dict[bytes, bytes]:
    leader = await nodes.leader(shard_id)
    found = await nodes.nodes[leader.services.node_id].gateway.table_get(
        TableGet(shard_id, tuple(key for key, _ in ROWS))
    )
    return {row.key: row.value or b"" for row in found.rows if row is not None}


@pytest.mark.parametrize("kernels", [False, True], ids=["one by one", "together"])
@in_virtual_time
async def test_a_load_is_carried_out_once_also_by_the_next_leader(kernels: bool) -> None:
    async with cluster_of(3) as nodes:
        if kernels:
            compiled(nodes)
        shard_id = await nodes.new_shard(kind=Kind.TABLE)
        first = await load(nodes, shard_id, ROWS, 1 << 16 | 7)
        assert first.next_offset - first.base_offset == len(ROWS)
        assert not first.duplicate
        removal = await load(nodes, shard_id, [(b"key000", None), (b"none", None), *ROWS[1:3]], 2 << 16 | 7)
        assert removal.next_offset - removal.base_offset == 3
        nothing = await load(nodes, shard_id, [(b"none", None)] * 3, 3 << 16 | 7)
        assert (nothing.base_offset, nothing.next_offset) == (-1, -1)
        for _ in range(2):
            leader = await nodes.leader(shard_id)
            end = leader.log.log_end
            again = await load(nodes, shard_id, ROWS, 1 << 16 | 7)
            assert (again.base_offset, again.next_offset) == (first.base_offset, first.next_offset)
            assert again.duplicate is kernels
            with pytest.raises(ReplayConflictError):
                await load(nodes, shard_id, ROWS, 2 << 16 | 8)
            with pytest.raises(ProducerFencedError):
                await load(nodes, shard_id, ROWS, 4 << 16 | 7, producer_epoch=5)
            assert leader.log.log_end == end
            node_id = leader.services.node_id
            await nodes.nodes[node_id].gateway.elect_leader(shard_id, (node_id + 1) % 3)
        assert await rows_of(nodes, shard_id) == dict(ROWS[1:])
        hosts = [node.hosts[shard_id] for node in nodes.nodes.values()]
        await eventually(lambda: len({host.state.high_watermark for host in hosts}) == 1)
        scans = [host.state.require_table().state.scan(b"", b"", 1_000) for host in hosts]
        assert scans[0] == scans[1] == scans[2]


@in_virtual_time
async def test_refusals() -> None:
    async with cluster_of(1) as nodes:
        compiled(nodes)
        shard_id, topic = await nodes.new_shard(kind=Kind.TABLE), await nodes.new_shard("topic")
        end = (await nodes.leader(shard_id)).log.log_end
        with pytest.raises(InvalidRequestError, match="says 3 rows"):
            await sent(nodes, Load(LoadRows(shard_id, 3), packed(ROWS)))
        with pytest.raises(BatchTooLargeError):
            await load(nodes, shard_id, [(b"a", bytes(2_000_000)), (b"b", b"")])
        with pytest.raises(InvalidRequestError, match="epoch and a sequence"):
            await load(nodes, shard_id, ROWS, producer_id=7)
        with pytest.raises(WrongKindError):
            await load(nodes, topic, ROWS)
        assert (await nodes.leader(shard_id)).log.log_end == end


@in_virtual_time
async def test_a_load_without_the_gate_and_one_to_a_shard_that_was_split() -> None:
    async with cluster_of(1) as nodes:
        compiled(nodes)
        shard_id = await nodes.new_shard(kind=Kind.TABLE)
        await load(nodes, shard_id, ROWS, bulk=False)
        assert await rows_of(nodes, shard_id) == dict(ROWS)
        await nodes.nodes[0].gateway.administer(SplitShard(shard_id))
        await eventually(lambda: len(nodes.nodes[0].hosts) > 2)
        host = await nodes.leader(shard_id)
        await eventually(lambda: not host.state.require_table().state.owned.is_whole)
        with pytest.raises(Exception, match="it was split"):
            await load(nodes, shard_id, ROWS)
