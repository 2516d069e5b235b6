"""Reads of some keys of a table, keys as text, and several shards in one task: without a JVM."""

from collections.abc import Iterator
from typing import Any

import pytest

import antiphon
from antiphon.errors import InvalidRequestError
from antiphon.spark.offsets import Span
from antiphon.spark.read import snapshot
from antiphon.spark.read.grouping import PartitionGroup, grouped
from antiphon.spark.read.log_reader import LogPartition
from antiphon.spark.source import AntiphonDataSource
from tests.spark.native_server import NativeServer
from tests.spark.nodes_in_thread import LiveNodes, live_nodes
from tests.spark.test_reading import Source, fill, read

KEYS = [f"{kind}/{n}" for kind in ("car", "cat", "dog") for n in range(40)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path_factory.mktemp("keys"), 1) as running:
        yield running


@pytest.fixture(scope="module")
def past(live: LiveNodes) -> dict[int, int]:
    """A table that was split, whose keys were changed since the offsets that this gives."""
    with antiphon.connect(live.servers, timeout_s=20) as db:
        table = db.create_table("animals", shards=2)
        for key in KEYS:
            table.put(key, "old")
        db.split_shard("animals", 0)
        ends = {
            shard.index: _end(live, shard.shard_id)
            for shard in live.nodes.nodes[0].gateway.topic("animals").shards
        }
        for key in KEYS:
            table.put(key, f"new {key}")
        table.delete("cat/7")
    return ends


def _end(live: LiveNodes, shard_id: int) -> int:
    async def look() -> int:
        return live.nodes.nodes[0].hosts[shard_id].state.high_watermark

    return live.run(look())


def reader(live: LiveNodes, **options: Any) -> Any:
    raw = {"servers": live.servers, "timeoutms": "10000", "table": "animals"}
    source = AntiphonDataSource(raw | {name.lower(): str(value) for name, value in options.items()})
    return source.reader(source.schema())


def rows(made: Any) -> dict[Any, Any]:
    found = [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]
    assert len({row["key"] for row in found}) == len(found), "a key is there twice"
    return {row["key"]: row["value"] for row in found}


@pytest.mark.cluster
def test_one_key_is_read_of_its_shard(live: LiveNodes, past: dict[int, int]) -> None:
    shards = set()
    for key in ("car/3", "dog/12", "cat/8"):
        made = reader(live, key=key)
        (part,) = made.partitions()
        shards.add(part.shard)
        assert rows(made) == {key.encode(): f"new {key}".encode()}
        made = reader(live, key=key, asOfOffset=_json(past))
        assert len(made.partitions()) == 1
        assert rows(made) == {key.encode(): b"old"}
    assert rows(reader(live, key="cat/7")) == {}
    assert rows(reader(live, key="cat/")) == {}
    assert rows(reader(live, key="cat/7", asOfOffset=_json(past))) == {b"cat/7": b"old"}


@pytest.mark.cluster
def test_a_prefix_is_scanned_and_no_other_row(
    live: LiveNodes, past: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    real = snapshot._scanned

    def watched(task: Any, holder: Any, found: Any, schema: Any) -> Any:
        seen.extend(row.key for row in found)
        return real(task, holder, found, schema)

    monkeypatch.setattr(snapshot, "_scanned", watched)
    cats = {key.encode(): f"new {key}".encode() for key in KEYS if key.startswith("cat/") and key != "cat/7"}
    assert rows(reader(live, keyPrefix="cat/")) == cats
    assert sorted(seen) == sorted(cats)
    assert len(rows(reader(live, keyPrefix="ca"))) == 79
    assert rows(reader(live, keyPrefix="cow")) == {}
    old = rows(reader(live, keyPrefix="cat/", asOfOffset=_json(past)))
    assert old == {**dict.fromkeys(cats, b"old"), b"cat/7": b"old"}


@pytest.mark.cluster
def test_what_changes_during_the_scan_is_of_the_keys_too(
    live: LiveNodes, past: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = snapshot._scan
    with antiphon.connect(live.servers, timeout_s=20) as db:

        def writing(task: Any, holder: Any) -> Any:
            yield from real(task, holder)
            db.table("animals").put("dog/1", "new dog/1")
            db.table("animals").put("cat/1", "newer")

        monkeypatch.setattr(snapshot, "_scan", writing)
        found = rows(reader(live, keyPrefix="cat/", keyFormat="string"))
        db.table("animals").put("cat/1", "new cat/1")
    assert len(found) == 39
    assert found["cat/1"] == b"newer"


@pytest.mark.cluster
def test_keys_that_are_no_text_are_found(live: LiveNodes) -> None:
    bare = {b"\xff\x01": b"one", b"\xff\xff": b"two", b"\xfe\xff": b"other"}
    with antiphon.connect(live.servers, timeout_s=20) as db:
        table = db.create_table("bare", shards=2)
        for key, value in bare.items():
            table.put(key, value)
    found = rows(reader(live, table="bare", key="ff01", keyEncoding="hex"))
    assert found == {b"\xff\x01": b"one"}
    found = rows(reader(live, table="bare", keyPrefix="/w==", keyEncoding="base64"))
    assert found == {b"\xff\x01": b"one", b"\xff\xff": b"two"}


@pytest.mark.cluster
def test_keys_are_text(live: LiveNodes, past: dict[int, int]) -> None:
    assert rows(reader(live, keyFormat="string"))["dog/0"] == b"new dog/0"
    assert rows(reader(live, keyFormat="string", keyPrefix="dog/0")) == {"dog/0": b"new dog/0"}
    assert rows(reader(live, keyFormat="string", asOfOffset=_json(past)))["dog/0"] == b"old"
    for format_ in ("cdf", "debezium", "raw"):
        made = reader(live, mode="changes", format=format_, keyFormat="string", columns="key,partition")
        found = {
            row["key"] for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()
        }
        assert found == set(KEYS)


def test_a_key_that_is_no_text_is_named(server: NativeServer) -> None:
    source = Source(server)
    (shard,) = server.create("t")
    fill(shard, 5)
    assert [row["key"] for row in source.rows(topic="t", keyFormat="string")] == [
        "k0",
        "k1",
        "k2",
        "k3",
        "k4",
    ]
    from antiphon.records.builder import build_batch

    shard.put(build_batch([(b"fine", b"", (), 0), (b"\xff\xfe", b"", (), 0), (None, b"", (), 0)]))
    with pytest.raises(
        InvalidRequestError, match=r"topic t, partition 0, offset 7: the key b'\\xff\\xfe' is not UTF-8"
    ):
        source.rows(topic="t", keyFormat="string")
    schema = source.made(topic="t", keyFormat="string", columns="offset,key").schema()
    assert schema.simpleString() == "struct<offset:bigint,key:string>"


# -- several shards in one task -----------------------------------------------------------------------------------


def _parts(*sizes: int) -> list[LogPartition]:
    return [LogPartition(Span("t", shard, 0, size), shard) for shard, size in enumerate(sizes)]


def test_parts_are_grouped_by_size_and_always_alike() -> None:
    sizes = [5, 90, 5, 40, 40, 5]
    for _ in range(2):
        groups = grouped(_parts(*sizes), sizes, 2)
        assert all(isinstance(group, PartitionGroup) for group in groups)
        shards = [[part.shard_id for part in group.parts] for group in groups]
        assert shards == [[0, 2, 3, 4], [1, 5]]
    assert [one.shard_id for one in grouped(_parts(1, 2), [1, 2], 2)] == [0, 1]
    (first, second) = grouped(_parts(30, 40, 70), [30, 40, 70], 2)
    assert [part.shard_id for part in first.parts] == [0, 1]
    assert [part.shard_id for part in second.parts] == [2]
    assert grouped([], [], 3) == []


def test_a_task_reads_several_shards(server: NativeServer) -> None:
    source = Source(server)
    for number, shard in enumerate(server.create("t", 5)):
        fill(shard, 10, first=100 * number)
    every = sorted(source.values(topic="t"))
    made = source.batch(topic="t", maxPartitions=2)
    assert len(made.partitions()) == 2
    found = read(made, made.partitions())
    assert sorted(row["value"] for row in found) == every
    assert len(source.batch(topic="t", maxPartitions=9).partitions()) == 5
    assert len(source.batch(topic="t", minPartitions=20, maxPartitions=21).partitions()) <= 21
    stream = source.stream(topic="t", startingOffsets="earliest", maxPartitions=1)
    start = stream.initialOffset()
    (one,) = stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))
    assert sorted(row["value"] for row in read(stream, [one])) == every
    source.close()


@pytest.mark.cluster
def test_a_task_reads_several_shards_of_a_table(live: LiveNodes, past: dict[int, int]) -> None:
    made = reader(live, maxPartitions=1)
    (group,) = made.partitions()
    assert len(group.parts) == 3
    assert len(rows(made)) == len(KEYS) - 1
    assert len(rows(reader(live, maxPartitions=2, asOfOffset=_json(past)))) == len(KEYS)


def _json(ends: dict[int, int]) -> str:
    return (
        f'{{"animals": {{{", ".join(f"{chr(34)}{shard}{chr(34)}: {end}" for shard, end in ends.items())}}}}}'
    )
