"""Tables that are split, read as of moments before, between and after the splits, and while they are split."""

import asyncio
import json
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import antiphon.aio
from antiphon.errors import InvalidRequestError, KeyNotFoundError
from antiphon.spark.read import snapshot
from antiphon.spark.source import AntiphonDataSource
from tests.node.real_nodes import Nodes, cluster_of, in_real_time

pytestmark = pytest.mark.cluster

KEYS = [f"k{n}" for n in range(60)]


class Moment(NamedTuple):
    """The table at one time: how far its logs were, and what it held."""

    time_ms: int
    ends: dict[int, int]
    state: dict[str, str]


class Story:
    """A table, what it should hold, and the moments that it will be asked for."""

    def __init__(self, nodes: Nodes, db: antiphon.aio.AsyncClient) -> None:
        self.nodes = nodes
        self.db = db
        self.table = db.table("t")
        self.random = Random(5)
        self.state: dict[str, str] = {}
        self.moments: list[Moment] = []

    async def write(self, count: int) -> None:
        for _ in range(count):
            key = self.random.choice(KEYS)
            if self.random.random() < 0.25:
                try:
                    await self.table.delete(key)
                except KeyNotFoundError:
                    continue
                self.state.pop(key, None)
            else:
                self.state[key] = f"{self.random.randrange(1 << 30)}"
                await self.table.put(key, self.state[key])

    async def remember(self) -> None:
        await asyncio.sleep(0.003)  # so that what comes next is later by the clock that counts in ms
        time_ms = time.time_ns() // 1_000_000
        ends = {
            shard.index: self.nodes.nodes[0].hosts[shard.shard_id].state.high_watermark
            for shard in self.nodes.nodes[0].gateway.topic("t").shards
        }
        self.moments.append(Moment(time_ms, ends, dict(self.state)))
        await asyncio.sleep(0.003)

    def read(self, **options: Any) -> dict[str, str]:
        """The state by Spark's reader; blocks, so it is called in a thread."""
        reader = self.reader(**options)
        return self.rows(reader, reader.partitions())

    def reader(self, **options: Any) -> Any:
        raw = {"servers": self.nodes.members[0].native, "table": "t", "timeoutms": "10000"}
        raw |= {name.lower(): str(value) for name, value in options.items()}
        source = AntiphonDataSource(raw)
        return source.reader(source.schema())

    @staticmethod
    def rows(reader: Any, partitions: list[Any]) -> dict[str, str]:
        rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
        found = {row["key"].decode(): row["value"].decode() for row in rows}
        assert len(found) == len(rows), "a key is there twice"
        return found

    def rows_of_changes(self) -> int:
        reader = self.reader(mode="changes")
        return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))

    async def state_at(self, **options: Any) -> dict[str, str]:
        return await asyncio.to_thread(self.read, **options)


def by_shard(ends: dict[int, int]) -> str:
    return json.dumps({"t": {str(shard): end for shard, end in ends.items()}})


async def told(story: Story) -> None:
    """Writes, splits, writes, splits of what was split, and so on."""
    await story.write(80)
    await story.remember()
    for shard in (0, 1, 2, 0):
        await story.db.split_shard("t", shard)
        await story.remember()
        await story.write(40)
        await story.remember()


@in_real_time
async def test_the_past_of_a_table_that_was_split(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_table("t", shards=2)
        story = Story(nodes, db)
        await told(story)
        assert len(story.moments[-1].ends) == 6
        for moment in story.moments:
            assert await story.state_at(asOfTimestamp=moment.time_ms) == moment.state
            assert await story.state_at(asOfOffset=by_shard(moment.ends)) == moment.state
        assert await story.state_at() == story.state
        # Parent and child do not fit together: the parent had handed keys over, the child did not have them yet.
        last = story.moments[-1].ends
        with pytest.raises(InvalidRequestError, match="had handed keys over to another shard"):
            await story.state_at(asOfOffset=by_shard({**last, 2: 0}))
        with pytest.raises(InvalidRequestError, match="6 shards, each with offsets of its own"):
            await story.state_at(asOfOffset=7)


@in_real_time
async def test_a_shard_is_split_while_it_is_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SCAN_ROWS", 5)
    monkeypatch.setattr(snapshot, "FOLD_BYTES_MAX", -1)
    async with cluster_of(tmp_path, 1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_table("t", shards=2)
        story = Story(nodes, db)
        await story.write(150)
        loop = asyncio.get_running_loop()
        splits = [0, 2]
        made = snapshot._scanned

        def splitting(*arguments: Any) -> Any:
            if splits:
                shard = splits.pop(0)
                asyncio.run_coroutine_threadsafe(db.split_shard("t", shard), loop).result(20)
            return made(*arguments)

        monkeypatch.setattr(snapshot, "_scanned", splitting)
        assert await story.state_at() == story.state
        assert not splits


@pytest.mark.parametrize("fold_bytes_max", [-1, 1 << 30])
@in_real_time
async def test_a_shard_is_written_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold_bytes_max: int
) -> None:
    monkeypatch.setattr(snapshot, "SCAN_ROWS", 5)
    monkeypatch.setattr(snapshot, "FOLD_BYTES_MAX", fold_bytes_max)
    async with cluster_of(tmp_path, 1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_table("t", shards=1)
        story = Story(nodes, db)
        await story.write(100)
        states = [dict(story.state)]
        lock = asyncio.Lock()

        async def writing() -> None:
            while True:
                async with lock:
                    await story.write(1)
                    states.append(dict(story.state))
                await asyncio.sleep(0)

        writer = asyncio.create_task(writing())
        for _ in range(5):
            found = await story.state_at()
            async with lock:
                # One of the states that there were, whole: never some keys of one and some of another.
                assert found in states
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        assert len(states) > 5


@in_real_time
async def test_a_log_that_is_trimmed_before_it_is_folded(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_table("t", shards=1)
        story = Story(nodes, db)
        await story.write(100)
        reader = await asyncio.to_thread(story.reader)
        (part,) = await asyncio.to_thread(reader.partitions)
        shard_id = nodes.nodes[0].gateway.topic("t").shards[0].shard_id
        await nodes.nodes[0].gateway.trim(shard_id, 50, 10.0)
        assert await asyncio.to_thread(story.rows, reader, [part]) == story.state
        assert await story.state_at() == story.state


@in_real_time
async def test_changes_before_and_after_a_split_are_there_once(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_table("t", shards=1)
        story = Story(nodes, db)
        await story.write(60)
        await db.split_shard("t", 0)
        await story.write(60)
        raw = {"servers": nodes.members[0].native, "table": "t", "mode": "changes"}

        def changes() -> list[dict[str, Any]]:
            source = AntiphonDataSource(raw)
            reader = source.reader(source.schema())
            return [r for p in reader.partitions() for b in reader.read(p) for r in b.to_pylist()]

        rows = await asyncio.to_thread(changes)
        versions = [(row["key"], row["version"]) for row in rows if row["kind"] != "deleted"]
        assert len(set(versions)) == len(versions)
        found: dict[str, str] = {}
        for row in sorted(rows, key=lambda row: (row["version"], row["kind"] == "deleted")):
            found[row["key"].decode()] = row["value"].decode() if row["value"] is not None else ""
        assert {key: value for key, value in found.items() if value} == story.state


@pytest.mark.parametrize("limit", ["3", "1000"])
@in_real_time
async def test_a_stream_gives_the_changes_of_a_key_in_order(tmp_path: Path, limit: str) -> None:
    async with cluster_of(tmp_path, 1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_table("t", shards=1)
        story = Story(nodes, db)
        raw = {
            "servers": nodes.members[0].native,
            "table": "t",
            "startingoffsets": "earliest",
            "maxoffsetspertrigger": limit,
        }
        source = AntiphonDataSource(raw)
        stream = source.streamReader(source.schema())

        def batch(start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            stream.planner.refresh(at_once=True)
            end = stream.latestOffset(start, stream.getDefaultReadLimit())
            parts = stream.partitions(start, end) if end != start else []
            return end, [row for part in parts for rows in stream.read(part) for row in rows.to_pylist()]

        await story.write(30)
        start = await asyncio.to_thread(stream.initialOffset)
        batches = []
        for shard in (0, 1, None):
            for _ in range(3):
                start, rows = await asyncio.to_thread(batch, start)
                batches.append(rows)
            if shard is not None:
                await db.split_shard("t", shard)
                await story.write(30)
        while True:
            end, rows = await asyncio.to_thread(batch, start)
            if end == start:
                break
            batches.append(rows)
            start = end
        stream.stop()
        seen: dict[bytes, int] = {}
        for rows in batches:
            for row in rows:
                assert row["version"] >= seen.get(row["key"], -1), "a change after a later one of its key"
            for row in rows:
                seen[row["key"]] = max(seen.get(row["key"], -1), row["version"])
        log = await asyncio.to_thread(story.rows_of_changes)
        assert sum(map(len, batches)) == log
