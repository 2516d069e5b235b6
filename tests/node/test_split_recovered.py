"""A table's shard is split while a replica of it is away, and that replica is all that is left afterwards."""

import asyncio

import pytest

import antiphon.aio
from antiphon.client.aio import AsyncClient
from antiphon.errors import NotReadyError, WrongShardError
from antiphon.model.metadata import HASH_MAX, Kind, ShardMeta, key_hash
from antiphon.model.requests import Put, TableGet, TableScan, TableWrite
from antiphon.records.batch import iter_batches
from antiphon.records.split_entries import Freeze, Inherit, Release, SplitEntry, split_entry_of
from antiphon.table.ranges import OwnedRange
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time
from tests.node.test_shard_recovery import GONE, LEFT, hosts, meta, recover, some

HALF = 1 << 31
KEYS = [f"k{number}" for number in range(20)]
LOW = next(key.encode() for key in KEYS if key_hash(key.encode()) < HALF)
HIGH = next(key.encode() for key in KEYS if key_hash(key.encode()) >= HALF)
BOTH = pytest.mark.parametrize("profile", ["oxia", "raft"])


async def a_table(nodes: Nodes, db: AsyncClient, profile: str) -> int:
    """With a row for each key, which all replicas have."""
    where = ((LEFT, *GONE),)
    shard_id = await nodes.new_shard(kind=Kind.TABLE, replicas=3, placement=where, profile=profile)
    await asyncio.gather(*(db.table("t").put(key, b"first") for key in KEYS))
    await eventually(lambda: len({host.state.high_watermark for host in hosts(nodes, shard_id)}) == 1)
    return shard_id


async def split_without_it(nodes: Nodes, db: AsyncClient) -> ShardMeta:
    """Node 2 hears nothing of the split, and is all that is left then; returns the shard that was split off."""
    nodes.kill(LEFT)
    await db.split_shard("t", 0)
    parent, child = some(nodes).gateway.topic("t").shards
    for node_id in GONE:
        nodes.kill(node_id)
    await nodes.start(LEFT)
    await eventually(lambda: {parent.shard_id, child.shard_id} <= set(nodes.nodes[LEFT].hosts))
    await eventually(lambda: meta(nodes, child.shard_id).status == "Offline")
    await eventually(lambda: meta(nodes, parent.shard_id).status == "Offline")
    return child


def entries(nodes: Nodes, shard_id: int) -> dict[int, SplitEntry]:
    """What the log of the replica that is left says of splits, by offset."""
    found: dict[int, SplitEntry] = {}
    log, at = nodes.nodes[LEFT].hosts[shard_id].log, 0
    while at < log.log_end:
        for piece in log.read(at, 1 << 20, log.log_end):
            for header, batch in iter_batches(piece):
                entry = split_entry_of(batch) if header.is_control else None
                at = header.next_offset
                found |= {} if entry is None else {header.base_offset: entry}
    return found


@BOTH
@in_virtual_time
async def test_a_parent_that_lost_the_release_lets_go_of_the_keys_again(profile: str) -> None:
    """Who does not know of the split is refused from the first moment on, and asks the shard that has the keys."""
    async with cluster_of(5) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        parent = await a_table(nodes, db, profile)
        child = await split_without_it(nodes, db)
        await recover(nodes, parent)
        gateway = nodes.nodes[LEFT].gateway
        with pytest.raises(WrongShardError):
            await gateway.table_write(TableWrite(parent, (Put(HIGH, b"lost"),)))
        with pytest.raises(WrongShardError):
            await gateway.table_get(TableGet(parent, (HIGH,)))
        with pytest.raises(WrongShardError):
            await gateway.table_scan(TableScan(parent, b"", b""))
        await gateway.table_write(TableWrite(parent, (Put(LOW, b"second"),)))
        host = nodes.nodes[LEFT].hosts[parent]
        assert host.table is not None
        await eventually(lambda: host.table.state.owned.last == HALF - 1)  # type: ignore[union-attr]
        (at, freeze), (_, release) = entries(nodes, parent).items()
        assert freeze == Freeze(HALF, child.shard_id)
        assert release == Release(at, HALF, child.shard_id, child.own_start)
        rows = await gateway.table_scan(TableScan(parent, b"", b"", hashes=(0, HALF - 1)))
        assert {row.key for row in rows.rows if row} == {
            key.encode() for key in KEYS if key_hash(key.encode()) < HALF
        }


@BOTH
@in_virtual_time
async def test_a_child_that_lost_the_copy_gets_the_rows_that_the_parent_still_has(profile: str) -> None:
    async with cluster_of(5) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        parent = await a_table(nodes, db, profile)
        child = await split_without_it(nodes, db)
        await recover(nodes, parent)
        await recover(nodes, child.shard_id)
        table = db.table("t")
        await table.put(HIGH, b"second")
        rows = {row.key: row.value async for row in table.scan()}
        assert rows == {key.encode(): b"first" for key in KEYS} | {HIGH: b"second"}
        [inherit] = entries(nodes, child.shard_id).values()
        assert isinstance(inherit, Inherit)
        assert (inherit.first, inherit.last, inherit.parent) == (HALF, HASH_MAX, parent)
        await eventually(
            lambda: (
                meta(nodes, child.shard_id).own_start < nodes.nodes[LEFT].hosts[child.shard_id].log.log_end
            )
        )
        purged = nodes.nodes[LEFT].hosts[parent].table
        assert purged is not None
        await eventually(lambda: purged.state.owned == OwnedRange(0, HALF - 1))
        await db.split_shard("t", 1)
        assert {row.key: row.value async for row in table.scan()} == rows


@in_virtual_time
async def test_a_child_that_is_alone_goes_on_with_what_it_has() -> None:
    """Its parent is not recovered: the child waits for it for a while, refuses clients meanwhile, and serves then."""
    async with cluster_of(5) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await a_table(nodes, db, "oxia")
        child = await split_without_it(nodes, db)
        await recover(nodes, child.shard_id)
        gateway = nodes.nodes[LEFT].gateway
        with pytest.raises(NotReadyError):
            await gateway.table_write(TableWrite(child.shard_id, (Put(HIGH, b"early"),)))
        await db.table("t").put(HIGH, b"second", timeout_s=30)
        row = await db.table("t").get(HIGH)
        assert row is not None
        assert row.value == b"second"
