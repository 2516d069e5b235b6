"""A job's writes to a table whose shards are split between its attempts, and in the middle of one."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import antiphon.aio
from antiphon.client.blocking import Cluster
from antiphon.client.hashing import shard_of_table_key
from antiphon.records.changes import decode_changes
from antiphon.spark.job import Job
from antiphon.spark.rows import RowData
from antiphon.spark.shard_writers import TableWriters
from tests.node.real_nodes import Nodes, cluster_of, in_real_time
from tests.node.test_split import whole_log

pytestmark = pytest.mark.cluster

ROWS = [RowData(b"k%d" % number, b"%d" % number) for number in range(90)]


def connected(nodes: Nodes) -> Cluster:
    """A task's cluster; its calls block, so they are made in a thread."""
    host, _, port = nodes.members[0].native.rpartition(":")
    return Cluster([(host, int(port))], 10_000)


def begun(cluster: Cluster, epoch: int) -> TableWriters:
    """A task's writers, with the table as it is now."""
    return TableWriters(cluster, cluster.topic("t", table=True), Job("query", epoch, 0), 10_000)


def attempt(
    cluster: Cluster, epoch: int, batches: int = 3, writers: TableWriters | None = None
) -> TableWriters:
    """Write the rows of an epoch as a task does: cut by the shards that the table was made with."""
    writers = begun(cluster, epoch) if writers is None else writers
    for number in range(batches):
        for shard in range(2):
            rows = [row for row in ROWS[number::3] if shard_of_table_key(row.key or b"", 2) == shard]
            writers.write(shard, rows)
    writers.finish()
    return writers


def written(nodes: Nodes) -> Counter[tuple[bytes, int]]:
    """(key, modifications) of all changes, without the copies."""
    found: Counter[tuple[bytes, int]] = Counter()
    node = nodes.nodes[0]
    for shard in node.gateway.topic("t").shards:
        found.update(
            (change.key, change.modifications)
            for change in decode_changes(whole_log(node.hosts[shard.shard_id]))
            if change.offset >= shard.own_start
        )
    return found


def once(epochs: int) -> Counter[tuple[bytes, int]]:
    return Counter((row.key or b"", epoch) for row in ROWS for epoch in range(epochs))


@pytest.mark.parametrize("done_before", [0, 1, 3])
@in_real_time
async def test_a_repeated_epoch_is_recognised_by_the_shards_that_there_are_now(
    tmp_path: Path, done_before: int
) -> None:
    async with cluster_of(tmp_path, 1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_table("t", shards=2)
        cluster = connected(nodes)
        await asyncio.to_thread(attempt, cluster, 1, done_before)
        await db.split_shard("t", 0)
        await db.split_shard("t", 1)
        await db.split_shard("t", 2)
        again = await asyncio.to_thread(attempt, cluster, 1)
        assert (again.duplicates > 0) == (done_before > 0)
        assert written(nodes) == once(1)
        await asyncio.to_thread(attempt, cluster, 2)
        assert written(nodes) == once(2)
        cluster.close()


@in_real_time
async def test_a_split_in_the_middle_of_a_task(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_table("t", shards=2)
        cluster = connected(nodes)
        writers = await asyncio.to_thread(begun, cluster, 1)
        await db.split_shard("t", 0)
        await asyncio.to_thread(attempt, cluster, 1, 3, writers)
        assert written(nodes) == once(1)
        await asyncio.to_thread(attempt, cluster, 1)
        assert written(nodes) == once(1)
        cluster.close()
