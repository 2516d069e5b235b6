"""What every engine of tables' stores promises, over RocksDB and over the store of simulated nodes; damage and crashes."""

import os
import threading
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Checkpoint

from antiphon.errors import DamagedStoreError, StorageFailedError
from antiphon.log.disk import RealDisk
from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk
from antiphon.simulation.memory_store import MemoryEngine
from antiphon.table import rocks_store
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.store import Store, StoreEngine

if TYPE_CHECKING:
    from collections.abc import Callable

Rows = dict[bytes, bytes]


class Engine:
    """An engine, and a way to its files."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.disk: Any = RealDisk() if kind == "rocks" else SimulatedDisk(Random(1))
        self.engine: StoreEngine = (
            RocksEngine() if kind == "rocks" else MemoryEngine(self.disk, Random(2), (3, 40))
        )
        self.root = str(directory) if kind == "rocks" else "/"

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def open(self, name: str = "store") -> Store:
        return self.engine.open(self.path(name))

    def flip(self, name: str, file: str, bit: int) -> None:
        path = os.path.join(self.path(name), file)
        opened = self.disk.open(path)
        byte = opened.pread(1, bit // 8)
        opened.pwritev([bytes([byte[0] ^ 1 << bit % 8])], bit // 8)


@pytest.fixture(params=["rocks", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return Engine(request.param, tmp_path)


def put(store: Store, rows: Rows, gone: tuple[bytes, ...] = ()) -> None:
    batch = store.batch()
    for key, value in rows.items():
        batch.put(key, value)
    for key in gone:
        batch.delete(key)
    store.write(batch)


def all_of(store: Store) -> Rows:
    rows = list(store.items(b""))
    assert [key for key, _ in rows] == sorted({key for key, _ in rows})
    return dict(rows)


keys = st.binary(max_size=2)
batches = st.lists(st.tuples(keys, st.none() | st.binary(max_size=3)), max_size=8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), batches),
        st.tuples(st.sampled_from(["flush", "reopen"]), st.none()),
        st.tuples(st.sampled_from(["items", "seek", "seek_for_prev"]), keys),
        st.tuples(st.just("get"), st.lists(keys, max_size=4)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", ["rocks", "memory"])
@settings(max_examples=60, deadline=None)
@given(script=steps)
def test_a_store_is_a_sorted_dictionary(
    kind: str, script: list[tuple[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine = Engine(kind, tmp_path_factory.mktemp("store"))
    store = engine.open()
    model: Rows = {}
    for step, argument in script:
        if step == "write":
            batch = store.batch()
            for key, value in argument:
                if value is None:
                    batch.delete(key)
                    model.pop(key, None)
                else:
                    batch.put(key, value)
                    model[key] = value
            store.write(batch)
        elif step == "flush":
            store.flush()
        elif step == "reopen":
            store.close()
            store = engine.open()
        elif step == "items":
            assert list(store.items(argument)) == sorted(row for row in model.items() if row[0] >= argument)
        elif step == "get":
            assert store.get_many(argument) == [model.get(key) for key in argument]
            assert [store.get(key) for key in argument] == [model.get(key) for key in argument]
        else:
            walk(store, model, step, argument)
    assert all_of(store) == model
    store.close()
    store.close()


def walk(store: Store, model: Rows, seek: str, key: bytes) -> None:
    """A few steps forth and back from where a seek leads, and off the end."""
    cursor = store.cursor()
    getattr(cursor, seek)(key)
    order = sorted(model)
    at = sum(one < key for one in order) if seek == "seek" else sum(one <= key for one in order) - 1
    for move in (1, 1, -1, -1, -1):
        if not 0 <= at < len(order):
            break
        assert cursor.valid()
        assert (cursor.key(), cursor.value()) == (order[at], model[order[at]])
        if move > 0:
            cursor.next()
        else:
            cursor.prev()
        at += move
    assert cursor.valid() == (0 <= at < len(order))


def test_who_looks_sees_the_rows_of_one_moment(engine: Engine) -> None:
    store = engine.open()
    put(store, {b"a": b"1", b"b": b"1", b"c": b"1"})
    rows = store.items(b"")
    first = next(rows)
    cursor = store.cursor()
    cursor.seek(b"b")
    put(store, {b"b": b"2", b"bb": b"2"}, (b"c",))
    assert [first, *rows] == [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
    assert cursor.value() == b"1"
    cursor.next()
    assert cursor.key() == b"c"
    del rows, cursor
    assert all_of(store) == {b"a": b"1", b"b": b"2", b"bb": b"2"}
    store.close()


def test_a_directory_is_open_once(engine: Engine) -> None:
    store = engine.open()
    with pytest.raises(StorageFailedError, match="cannot be opened"):
        engine.open()
    store.close()
    engine.open().close()


def test_a_checkpoint_is_a_store_of_plain_files(engine: Engine) -> None:
    store = engine.open()
    rows = {b"key%03d" % number: b"v" * 50 for number in range(100)}
    put(store, rows)
    store.checkpoint(engine.path("copy"))
    put(store, {b"later": b"1"}, (b"key001",))
    store.flush()
    with pytest.raises(StorageFailedError):
        store.checkpoint(engine.path("copy"))
    copy = engine.open("copy")
    assert all_of(copy) == rows
    copy.close()
    # Sent file by file, it is the same store elsewhere.
    engine.disk.makedirs(engine.path("sent"))
    for name in engine.disk.listdir(engine.path("copy")):
        file = engine.disk.open(os.path.join(engine.path("copy"), name))
        target = engine.disk.open(os.path.join(engine.path("sent"), name), create=True)
        target.pwritev([file.pread(file.size(), 0)], 0)
    sent = engine.open("sent")
    assert all_of(sent) == rows
    sent.close()
    store.close()


# -- damage ---------------------------------------------------------------------------------------------------------


def data_files(engine: Engine) -> list[str]:
    return [name for name in engine.disk.listdir(engine.path("store")) if name.endswith((".sst", ".run"))]


def filled(engine: Engine) -> Rows:
    """A closed store of many blocks in one file."""
    rows = {b"key%04d" % number: Random(number).randbytes(300) for number in range(200)}
    store = engine.open()
    put(store, rows)
    store.close()
    return rows


def test_a_damaged_block_ends_no_read_early(engine: Engine) -> None:
    rows = filled(engine)
    (file,) = data_files(engine)
    size = engine.disk.open(os.path.join(engine.path("store"), file)).size()
    engine.flip("store", file, size // 2 * 8)
    store = engine.open()
    found: list[tuple[bytes, bytes]] = []
    with pytest.raises(DamagedStoreError, match="damaged") as raised:
        found.extend(store.items(b""))
    assert 0 < len(found) < len(rows)
    assert found == sorted(rows.items())[: len(found)]
    assert raised.value.details["path"] == engine.path("store")
    after = sorted(rows)[len(found)]
    with pytest.raises(DamagedStoreError):
        store.get(after)
    with pytest.raises(DamagedStoreError):
        store.get_many([b"key0000", after])
    for seek in ("seek", "seek_for_prev"):
        cursor = store.cursor()
        getattr(cursor, seek)(after)
        with pytest.raises(DamagedStoreError):
            cursor.valid()
    cursor = store.cursor()
    cursor.seek(found[-1][0])
    assert cursor.valid()
    step = cursor.next
    step()
    with pytest.raises(DamagedStoreError):
        cursor.valid()
    # What does not touch the damage is read.
    assert store.get(b"key0000") == rows[b"key0000"]
    assert next(store.items(b"key0199")) == (b"key0199", rows[b"key0199"])
    store.close()
    engine.open().close()  # whoever kept the errors does not keep the files open


@pytest.mark.parametrize("share", range(24))
def test_wherever_a_bit_rots_a_read_is_right_or_fails(engine: Engine, share: int) -> None:
    rows = filled(engine)
    (file,) = data_files(engine)
    size = engine.disk.open(os.path.join(engine.path("store"), file)).size()
    # Half of the tries in the last bytes, which hold the index.
    place = size * share // 12 if share < 12 else size - 1 - (share - 12) * 9
    engine.flip("store", file, place * 8 + share % 8)
    try:
        store = engine.open()
    except StorageFailedError:
        return
    reads: list[Callable[[], Rows]] = [
        lambda: all_of(store),
        lambda: {key: store.get(key) or b"" for key in rows},
        lambda: dict(zip(rows, [value or b"" for value in store.get_many(list(rows))], strict=True)),
    ]
    for read in reads:
        try:
            assert read() == rows
        except StorageFailedError:
            continue
    try:
        store.close()
    except StorageFailedError:
        return


def test_missing_files_are_told_at_open(engine: Engine) -> None:
    filled(engine)
    (file,) = data_files(engine)
    engine.disk.remove(os.path.join(engine.path("store"), file))
    with pytest.raises(StorageFailedError):
        engine.open()


# -- crashes of the store in memory ---------------------------------------------------------------------------------


class Crashing:
    """Random work on a store in memory, on a disk that dies at a certain call; knows what may be found afterwards."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = SimulatedDisk(Random(seed + 1))
        self.states: list[Rows] = [{}]  # after each write
        self.flushed = 0  # the newest of them that is certainly on the disk

    def work(self, crash_after: int | None = None) -> None:
        self.disk.crash_after = crash_after
        store = MemoryEngine(self.disk, self.rng, (5, 30)).open("/store")
        rows: Rows = {}
        for _ in range(60):
            changes = {
                bytes([self.rng.randrange(40)]): self.rng.randbytes(30) for _ in range(self.rng.randint(1, 6))
            }
            gone = tuple(bytes([self.rng.randrange(40)]) for _ in range(self.rng.randint(0, 3)))
            rows = {key: value for key, value in {**rows, **changes}.items() if key not in gone}
            self.states.append(rows)
            put(store, changes, gone)
            if self.rng.random() < 0.15:
                store.flush()
                self.flushed = len(self.states) - 1
            assert all_of(store) == rows


@pytest.mark.parametrize("seed", range(6))
def test_after_a_crash_the_store_is_as_of_a_flush(seed: int) -> None:
    whole = Crashing(seed)
    whole.work()
    for call in range(0, whole.disk.calls, 3):
        crashing = Crashing(seed)
        with pytest.raises(SimulatedCrash):
            crashing.work(call)
        disk = crashing.disk.crash()
        store = MemoryEngine(disk, Random(0)).open("/store")
        assert all_of(store) in crashing.states[crashing.flushed :]
        put(store, {b"on": b"1"})
        store.close()
        again = MemoryEngine(disk, Random(0)).open("/store")
        assert again.get(b"on") == b"1"


@pytest.mark.parametrize("seed", range(4))
def test_a_disk_that_fails_a_flush_is_told_and_the_store_is_closed(seed: int) -> None:
    disk = SimulatedDisk(Random(seed))
    store = MemoryEngine(disk, Random(seed)).open("/store")
    put(store, {b"a": b"1"})
    store.flush()
    put(store, {b"a": b"2"})
    disk.fail_after = disk.calls + seed
    with pytest.raises(StorageFailedError):
        store.flush()
    disk.fail_after = None
    with pytest.raises(StorageFailedError, match="flush failed"):
        store.get(b"a")  # what is on the disk, nobody knows
    store.close()
    again = MemoryEngine(disk.crash(), Random(seed)).open("/store")
    assert again.get(b"a") in {b"1", b"2"}


def test_the_same_seed_makes_the_same_files() -> None:
    def content(seed: int) -> dict[str, bytes]:
        crashing = Crashing(seed)
        crashing.work()
        disk = crashing.disk
        return {name: disk.open(f"/store/{name}").pread(1 << 20, 0) for name in disk.listdir("/store")}

    assert content(5) == content(5)


def test_closing_waits_for_a_flush_or_a_copy_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB's binding refuses to close a store that is in use, and its files would stay open."""
    begun, may_end, order = threading.Event(), threading.Event(), list[str]()

    class Slow:
        """RocksDB, whose flushes and copies take as long as the test wants."""

        def __init__(self, db: Any) -> None:
            self.db = db

        def flush(self, wait: bool) -> None:
            self._take_time()
            self.db.flush(wait)

        def create_checkpoint(self, path: str) -> None:
            self._take_time()
            Checkpoint(self.db.db).create_checkpoint(path)

        def _take_time(self) -> None:
            begun.set()
            assert may_end.wait(10)
            order.append("done")

        def close(self) -> None:
            order.append("closed")
            self.db.close()

    monkeypatch.setattr(rocks_store, "Checkpoint", Slow)
    path, copy = str(tmp_path / "store"), str(tmp_path / "copy")
    for key in (b"1", b"2"):
        store = RocksEngine().open(path)
        put(store, {key: bytes(100)})
        long = store.flush if key == b"1" else partial(store.checkpoint, copy)
        monkeypatch.setattr(store, "_db", Slow(store._db))
        threads = [threading.Thread(target=long), threading.Thread(target=store.close)]
        for thread in threads:
            thread.start()
            assert begun.wait(10)
        threads[1].join(0.05)
        may_end.set()
        for thread in threads:
            thread.join()
        assert order == ["done", "closed"]
        order.clear()
        begun.clear()
        may_end.clear()
    for where, keys in ((path, [b"1", b"2"]), (copy, [b"1", b"2"])):
        store = RocksEngine().open(where)
        assert [key for key, _ in store.items(b"")] == keys
        store.close()
