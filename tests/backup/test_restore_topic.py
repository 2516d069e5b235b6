"""A single topic comes back into a cluster of nodes in this process: transactions, compaction, times, offsets."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from antiphon.backup import restore_topic as restoring
from antiphon.backup.create import create_backup
from antiphon.backup.place import Place
from antiphon.backup.restore_topic import TopicRestored, restore_topic
from antiphon.backup.restored_rows import committed_producers
from antiphon.backup.verify import log_of
from antiphon.client.aio import AsyncClient
from antiphon.coordination.transactions import Row, State
from antiphon.errors import BackupError, TopicExistsError, UnknownTopicError
from antiphon.model.attributes import IndexScan, PutAttributed
from antiphon.model.internal import TRANSACTIONS_TABLE
from antiphon.model.metadata import ClusterMeta, KeyRanges, ShardMeta
from antiphon.model.requests import Put, TableScan, TableWrite
from antiphon.node.node import Node
from antiphon.records.attributes import Attributes, unpack
from antiphon.records.batch import HEADER_BYTES, read_header
from antiphon.records.builder import build_batch
from antiphon.records.compacted import filler, with_records
from tests.node.in_process import cluster_of, in_virtual_time


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[Node, AsyncClient]]:
    async with cluster_of(1) as nodes, AsyncClient("node-0:7400") as db:
        yield nodes.nodes[0], db


async def there_and_back(db: AsyncClient, place: Place, name: str, to: str = "back") -> TopicRestored:
    return await restore_topic(db, place, await create_backup(db, place), name, to)


async def records_of(db: AsyncClient, name: str) -> list[tuple[Any, ...]]:
    return [tuple(record) async for record in db.topic(name).read(0, 0)]


@in_virtual_time
async def test_records_keep_everything_and_their_offsets(place: Place) -> None:
    async with running() as (_, db):
        topic = await db.create_topic("t", config={"retention.ms": "-1", "max.message.bytes": "100000"})
        await topic.append(b"1", key=b"k", headers=[("h", b"v"), ("h", None)], timestamp_ms=5)
        await topic.append_batch([b"2", b"3"], shard=0)
        await db.topic("t", compression="zstd").append_batch([b"x" * 500] * 3, shard=0)
        done = await there_and_back(db, place, "t")
        assert done.shards == [restoring.ShardRestored(0, 6, 0, True)]
        assert await records_of(db, "back") == await records_of(db, "t")
        config = {one.name: one.config for one in (await db.metadata()).topics}
        assert config["back"] == config["t"]
        with pytest.raises(TopicExistsError, match="--as"):
            await there_and_back(db, place, "t", "")
        with pytest.raises(BackupError, match="belongs to the cluster"):
            await there_and_back(db, place, "t", "__mine")


@in_virtual_time
async def test_only_committed_transactions_come_back(place: Place) -> None:
    """What was aborted is left out, and what was open at the cut; a decision without a marker counts."""
    async with running() as (_, db):
        await db.create_topic("t")
        await db.topic("t").append(b"plain", shard=0)
        for name, outcome in (("a", "commit"), ("b", "abort"), ("c", "open"), ("d", "decided")):
            producer = db.producer(name)
            await producer.start()
            transaction = producer.begin()
            await transaction.append("t", name.encode(), shard=0)
            await transaction.flush()
            if outcome == "commit":
                await transaction.commit()
            elif outcome == "abort":
                await transaction.abort()
        backup = await create_backup(db, place)
        open_ = {
            (header.producer_id, shard.shard_id)
            for shard in backup.topic("t").shards
            for header, batch in log_of(place, shard)
            if header.is_transactional and not header.is_control and batch.endswith(b"d\0")
        }
        assert len(open_) == 1
        with patch.object(restoring, "committed_producers", lambda *_: open_):
            done = await restore_topic(db, place, backup, "t", "back")
        values = [record[3] for record in await records_of(db, "back")]
        assert values == [b"plain", b"a", b"d"]
        assert done.shards == [restoring.ShardRestored(0, 3, 2, False)]
        assert committed_producers(place, backup) == set(), "none was decided"


@in_virtual_time
async def test_rows_of_transactions_that_were_decided_come_back(place: Place) -> None:
    """What was prepared is rows if the decision is in the backup, though no marker is; otherwise it is nothing."""
    async with running() as (node, db):
        await db.create_table("t", shards=2)
        await db.table("t").put(b"k0", b"before")
        prepared = []
        for name in ("a", "b"):
            producer = db.producer(name)
            await producer.start()
            transaction = producer.begin()
            for number in range(4):
                await transaction.put("t", b"%s%d" % (name.encode(), number), name.encode())
            await transaction._prepare_tables()
            prepared.append(transaction)
        backup = await create_backup(db, place)
        shards = [shard.shard_id for shard in node.gateway.topic("t").shards]
        states = [node.hosts[shard].state.require_table().state for shard in shards]
        producers = {one for state in states for one in state.transactions.by_producer}
        first = min(producers)
        with patch.object(restoring, "committed_producers", lambda *_: {(first, shard) for shard in shards}):
            await restore_topic(db, place, backup, "t", "back")
        found = {row.key: row.value async for row in db.table("back").scan()}
        assert found == {b"k0": b"before"} | {b"a%d" % number: b"a" for number in range(4)}


@in_virtual_time
async def test_rows_come_back_with_their_attributes_where_these_place_them(place: Place) -> None:
    def attributes(n: int) -> Attributes:
        return Attributes(f"client-{n % 3}", b"p" if n % 2 else None, n << 27, (("by", b"s%02d" % n),))

    async with running() as (_, db):
        await db.create_table("t", shards=2)
        ranges = KeyRanges(_shards(await db.metadata(), "t"))
        await db.table("t").put(b"plain", b"row")
        for n in range(30):
            op = PutAttributed(b"k%02d" % n, bytes([n]) * 9_000, attributes(n))
            await db.write_raw(TableWrite(ranges.shard_of_hash(n << 27).shard_id, (op,)))
        done = await there_and_back(db, place, "t")
        assert sum(shard.records for shard in done.shards) == 31

        async def rows_of(name: str) -> list[tuple[Any, ...]]:
            shards = _shards(await db.metadata(), name)
            requests = [TableScan(shard.shard_id, b"", b"", 1000) for shard in shards]
            replies: list[Any] = [
                (await db._cluster.call_shard(one.shard_id, one, timeout_s=5))[0] for one in requests
            ]
            return [
                (at, row.key, row.value, row.attributes)
                for at, reply in enumerate(replies)
                for row in reply.rows
            ]

        rows = await rows_of("back")
        assert rows == await rows_of("t")
        assert {unpack(packed) for *_, packed in rows if packed} == {attributes(n) for n in range(30)}
        found = []
        for shard in _shards(await db.metadata(), "back"):
            reply: Any = (
                await db._cluster.call_shard(
                    shard.shard_id, IndexScan(shard.shard_id, "by", b"", b""), timeout_s=5
                )
            )[0]
            found += [one.secondary for one in reply.rows]
        assert sorted(found) == [b"s%02d" % n for n in range(30)]


def _shards(cluster: ClusterMeta, name: str) -> tuple[ShardMeta, ...]:
    return next(topic.shards for topic in cluster.topics if topic.name == name)


@in_virtual_time
async def test_decisions_are_read_from_the_rows_of_transactions(place: Place) -> None:
    async with running() as (node, db):
        producer = db.producer("a")
        await producer.start()
        shard = node.gateway.topic(TRANSACTIONS_TABLE).shards[0].shard_id
        rows = {
            b"id/x": Row(77, 0, 1, 1, State.PREPARE_COMMIT, 1, shards=(5, 6)),
            b"id/y": Row(78, 0, 1, 1, State.ONGOING),
        }
        puts = (
            *(Put(key, msgspec.msgpack.encode(row)) for key, row in rows.items()),
            Put(b"id/z", b"no row"),
        )
        await node.gateway.table_write(TableWrite(shard, puts))
        backup = await create_backup(db, place)
        assert committed_producers(place, backup) == {(77, 5), (77, 6)}


@in_virtual_time
async def test_times_that_the_node_set_stay(place: Place) -> None:
    async with running() as (_, db):
        topic = await db.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
        await topic.append_batch([b"1", b"2"], shard=0)
        await db.alter_topic("t", config={"message.timestamp.type": None})
        await there_and_back(db, place, "t")
        assert await records_of(db, "back") == await records_of(db, "t")


@in_virtual_time
async def test_batches_that_compaction_made_smaller_are_built_anew(place: Place) -> None:
    async with running() as (_, db):
        await db.create_topic("t")
        topic = db.topic("t")
        await topic.append_batch([b"1", b"2"], shard=0)
        backup = await create_backup(db, place)
        whole = build_batch([(b"k%d" % n, b"left", [("h", b"v")], 7) for n in range(3)], base_offset=0)
        plain, keeps = memoryview(whole)[HEADER_BYTES:], (False, True, False)
        smaller = with_records(read_header(whole), plain, keeps, 7)
        log = [(read_header(one), one) for one in (smaller, filler(3, 5, 1))]
        with patch.object(restoring, "log_of", lambda *_: iter(log)):
            done = await restore_topic(db, place, backup, "t", "back")
        assert done.shards == [restoring.ShardRestored(0, 1, 0, False)]
        ((_, at, key, value, headers, shard),) = await records_of(db, "back")
        assert (at, key, value, headers, shard) == (7, b"k1", b"left", (("h", b"v"),), 0)


@in_virtual_time
async def test_nothing_is_created_for_a_damaged_backup(place: Place) -> None:
    async with running() as (_, db):
        await (await db.create_topic("t")).append(b"1", shard=0)
        backup = await create_backup(db, place)
        (piece,) = backup.topic("t").shards[0].pieces
        (Path(place.uri) / piece.path).write_bytes(b"")
        with pytest.raises(BackupError, match="nothing was changed"):
            await restore_topic(db, place, backup, "t", "back")
        with pytest.raises(UnknownTopicError):
            await db.topic("back")
