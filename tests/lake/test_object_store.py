"""Lake tables in an object store that speaks S3: tasks write with s3fs, commits are made by each kind's own library."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.kinds import KINDS
from antiphon.lake.targets.s3_options import DELTA, ICEBERG, s3_options
from antiphon.lake.targets.staged import DataFile, FilesWriter
from antiphon.lake.targets.target import MarkStep, Target, open_target
from antiphon.spark import jobs
from tests.backup.object_store import BUCKET, MISSING, ObjectStore
from tests.lake.test_targets import SCHEMA, changes, numbered, stage
from tests.spark.native_server import NativeServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

needed = pytest.mark.skipif(bool(MISSING), reason=f"not installed, as requirements.lock has it: {MISSING}")
slow = pytest.mark.slow
ODD = "a [b]*"  # a pattern, where somebody takes it for one; and what `deltalake` encodes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("store")) as store:
        yield store


def options_in(store: ObjectStore, kind: str, catalog: Path, place: str) -> dict[str, Any]:
    """A target: how the store is reached is said once, as fsspec takes it."""
    options: dict[str, Any] = {"kind": kind, "path": place, "storage": store.options}
    if KINDS[kind].has_tables:
        options |= {
            "table": "db.flights",
            "catalog": {"type": "sql", "uri": f"sqlite:///{catalog}/catalog.db"},
        }
    return options


Opener = Callable[[], Target]


@pytest.fixture(params=KINDS)
def opener(request: pytest.FixtureRequest, store: ObjectStore, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same table anew, as another process would."""
    place = f"s3://{BUCKET}/{ODD}/{request.node.name}"
    options = options_in(store, request.param, tmp_path, place)
    made: list[Target] = []

    def again() -> Target:
        made.append(open_target(options))
        return made[-1]

    yield again
    for target in made:
        target.close()


def keys(target: Target) -> list[bytes]:
    found: list[bytes] = []
    for url in target.files():
        where, _, name = url.rpartition("/")
        with Folder(where, target.folder.options).open_read(name) as stream:
            found += pq.read_table(stream).column("_key").to_pylist()
    return sorted(found)


@needed
@slow
def test_a_table_in_an_object_store(opener: Opener, store: ObjectStore) -> None:
    target = opener()
    assert target.schema() is None
    target.create(SCHEMA)
    for n in range(3):
        assert target.append(stage(target, numbered(n, 1)), {"q/0": MarkStep(n or None, n + 1)})
    again = opener()
    assert not again.append(stage(again, numbered(2, 1)), {"q/0": MarkStep(2, 3)}), "it had been done"
    stage(again, numbered(90, 1))  # nobody commits it
    with pytest.raises(TargetConflictError, match="another writer has moved q/0 to 3"):
        again.append(stage(again, numbered(5, 1)), {"q/0": MarkStep(1, 4)})
    assert keys(opener()) == [b"k0", b"k1", b"k2"]
    assert again.compact(1 << 20) == (3, 1)
    # Of the six files that are no longer, or never were, the table's.
    assert again.expire(time.time_ns() // 1_000_000 + 60_000).files == 6
    fresh = opener()
    assert (keys(fresh), fresh.mark("q/0")) == ([b"k0", b"k1", b"k2"], 3)
    assert {key.split("/")[0] for key in sorted(store.keys()) if "test_a_table" in key} == {ODD}


@needed
@slow
def test_rows_change_in_an_object_store(opener: Opener) -> None:
    target = opener()
    target.create(SCHEMA)
    if KINDS[target.kind].refusal is not None:
        with pytest.raises(InvalidRequestError, match="cannot be changed in place"):
            target.merge(changes((b"a", 1, "x")), {})
        return
    assert target.merge(changes((b"a", 1, "a1"), (b"b", 2, "b2")), {"q/0": MarkStep(None, 1)})
    assert opener().merge(changes((b"a", 3, None), (b"c", 4, "c4")), {"q/0": MarkStep(1, 2)})
    assert keys(opener()) == [b"b", b"c"]


@needed
@slow
@pytest.mark.parametrize("kind", KINDS)
def test_partitions_in_an_object_store(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    options = options_in(store, kind, tmp_path, f"s3://{BUCKET}/{ODD}/partitions-{kind}") | {
        "partition_by": ["name"]
    }
    values = ["a b/ä%=#?", "c", None, "c"]

    def stage_all(target: Target) -> list[DataFile]:
        with FilesWriter(target.data, SCHEMA, target.spread()) as parts:
            parts.write(
                pa.table(
                    {"_key": [b"%d" % n for n in range(4)], "_version": [1] * 4, "name": values},
                    schema=SCHEMA,
                )
            )
        return parts.files

    def found(target: Target) -> list[tuple[bytes, str | None]]:
        rows = []
        for url, partition in target.parts():
            where, _, name = url.rpartition("/")
            with Folder(where, target.folder.options).open_read(name) as stream:
                rows += [
                    (row["_key"], partition.get("name", row.get("name")))
                    for row in pq.read_table(stream).to_pylist()
                ]
        return sorted(rows)

    expected = [(b"%d" % n, value) for n, value in enumerate(values)]
    target = open_target(options)
    target.prepare(SCHEMA)
    assert target.append(stage_all(target), {"q": MarkStep(None, 1)})
    assert not open_target(options).append(stage_all(target), {"q": MarkStep(None, 1)})
    assert found(open_target(options)) == expected
    if KINDS[kind].refusal is None:
        assert target.merge(
            changes((b"1", 2, "a b/ä%=#?"), (b"0", 1, None), (b"5", 1, "n/%w")), {"q": MarkStep(1, 2)}
        )
        expected = sorted([*expected[2:], (b"1", "a b/ä%=#?"), (b"5", "n/%w")])
        assert found(open_target(options)) == expected
    target.append(stage_all(target), {})
    assert target.compact(1 << 20).removed >= 2
    assert len(found(open_target(options))) == len(expected) + 4
    target.close()


@needed
@slow
def test_two_writers_in_an_object_store(opener: Opener) -> None:
    one, other = opener(), opener()
    one.create(SCHEMA)
    assert other.schema() == SCHEMA
    files = stage(other, numbered(50, 1))
    assert one.append(stage(one, numbered(0, 1)), {"q/0": MarkStep(None, 1)})
    assert other.append(files, {"other/0": MarkStep(None, 1)})
    assert keys(one) == [b"k0", b"k50"]


@needed
@slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_that_is_not_there_is_refused_and_not_made(
    store: ObjectStore, tmp_path: Path, kind: str
) -> None:
    place = f"s3://mistyped-{kind}/lake"
    target = open_target(options_in(store, kind, tmp_path, place))
    with pytest.raises(
        InvalidRequestError, match=f"^{place} cannot be used: [^\x1b\n]*bucket does not exist"
    ):
        target.prepare(SCHEMA)
    assert f"mistyped-{kind}" not in store.ask("GET", "/").decode()
    target.close()


@needed
@slow
@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS)
def test_a_mirror_into_an_object_store(
    spark: "SparkSession", server: NativeServer, store: ObjectStore, tmp_path: Path, kind: str
) -> None:
    from tests.lake.test_jobs import flights, put

    (one,) = server.create("flights")
    (dead,) = server.create("dead")
    put(one, *flights(0, 10), b"poison")
    where = options_in(store, kind, tmp_path, f"s3://{BUCKET}/mirrored-{kind}")
    made: dict[str, Any] = {"format": "json", "dead_letters": "dead", "timeout_ms": 10_000}
    first = jobs.mirror_topic(spark, server.address, "flights", where, **made).progress
    assert (first.rows, first.dead_letters) == (10, 1)
    put(one, b'{"id": 10, "gate": "A"}')
    assert jobs.mirror_topic(spark, server.address, "flights", where, **made).progress.rows == 1
    target = open_target(where)
    rows = target.read(spark)
    assert Counter(row["id"] for row in rows.collect()) == Counter(range(11))
    assert [row["id"] for row in rows.where("gate = 'A'").collect()] == [10]
    ((_, batch),) = [pair for pair in dead.batches if not pair[0].is_control]
    assert b"poison" in batch
    target.close()


# -- without a store ------------------------------------------------------------------------------------------------


class RefusedError(OSError):
    """As s3fs raises it: the answer of the store is its cause."""

    def __init__(self, code: str) -> None:
        super().__init__(22, code)
        self.__cause__ = AnswerError(code)


class AnswerError(Exception):
    """As botocore has it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


@pytest.mark.parametrize(
    ("codes", "won"),
    [
        (["ConditionalRequestConflict"], True),
        (["ConditionalRequestConflict", "412"], False),
        (["412"], False),
    ],
)
def test_who_has_a_name_is_asked_until_the_store_knows(
    monkeypatch: pytest.MonkeyPatch, codes: list[str], won: bool
) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    pipe_file, left = memory.pipe_file, list(codes)

    def refusing(path: str, data: bytes, mode: str = "overwrite") -> None:
        if left:
            raise RefusedError(left.pop(0))
        pipe_file(path, data, mode=mode)

    monkeypatch.setattr(memory, "pipe_file", refusing)
    folder = Folder.at(f"memory://asked-{'-'.join(codes)}")
    assert folder.create("x", b"1") is won
    assert (folder.read("x") == b"1") is won


def test_a_store_that_never_decides_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def refusing(*_: Any, **__: Any) -> None:
        raise RefusedError("ConditionalRequestConflict")

    monkeypatch.setattr(fsspec.filesystem("memory"), "pipe_file", refusing)
    monkeypatch.setattr("antiphon.lake.targets.folder.PAUSE_S", 0)
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        Folder.at("memory://undecided").create("x", b"1")


def test_a_name_is_moved_as_it_is() -> None:
    folder = Folder.at("memory://odd [1-9]*/x")
    folder.create("from/a", b"1")
    folder.move("from/a", "to/a")
    folder.move("from/a", "to/a")
    assert (folder.read("to/a"), folder.read("from/a")) == (b"1", None)


def test_a_store_is_described_once() -> None:
    told = {
        "key": "K",
        "secret": "S",
        "token": "T",
        "endpoint_url": "http://store:9000",
        "client_kwargs": {"region_name": "r"},
    }
    folder = Folder("s3://b/x", told)
    assert s3_options(folder, DELTA) == {
        "AWS_ACCESS_KEY_ID": "K",
        "AWS_SECRET_ACCESS_KEY": "S",
        "AWS_SESSION_TOKEN": "T",
        "AWS_ENDPOINT_URL": "http://store:9000",
        "AWS_REGION": "r",
        "AWS_ALLOW_HTTP": "true",
    }
    assert s3_options(folder, ICEBERG)["s3.endpoint"] == "http://store:9000"
    assert s3_options(Folder("s3://b/x", {"anon": True}), ICEBERG) == {"s3.anonymous": "true"}
    assert s3_options(Folder("gs://b/x", told), DELTA) == {}


@needed
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "iceberg", "table": "a.b", "path": "s3://b/x"}, "needs a catalog"),
        ({"kind": "delta", "path": "s3://b/x%41"}, "disagree about '%' in a URL"),
        (
            {"kind": "iceberg", "table": "a.b", "path": "s3://b/x?y", "catalog": {"uri": "http://c"}},
            "up to '.' only",
        ),
    ],
)
def test_what_cannot_be_in_an_object_store(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        open_target(options)
