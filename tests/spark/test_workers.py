"""What Spark's Python workers have imported, and what the garbage collector looks at after each of their tasks."""

import gc
import os
import socket
import struct
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.spark import daemon, worker


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that takes one task after the other."""
    monkeypatch.setenv(worker.REUSED, "1")
    monkeypatch.setattr(worker, "_modules", 0)
    gc.unfreeze()
    yield
    gc.unfreeze()


def looked_at(one: object) -> bool:
    """Whether the collector still looks at the object; other threads make and free objects, so counts would not tell."""
    return any(found is one for found in gc.get_objects())


@pytest.mark.usefixtures("reused")
def test_what_is_imported_is_passed_over_by_the_collector() -> None:
    assert gc.get_freeze_count() == 0
    worker.spare_imports()
    assert gc.get_freeze_count() > 10_000
    kept: list[list[int]] = [[] for _ in range(100)]
    worker.spare_imports()
    assert looked_at(kept), "what tasks made without an import is collected as before"


@pytest.mark.usefixtures("reused")
def test_more_imports_are_passed_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    worker.spare_imports()
    new = types.ModuleType("new")
    monkeypatch.setitem(sys.modules, "new", new)
    assert looked_at(new)
    worker.spare_imports()
    assert not looked_at(new)


@pytest.mark.usefixtures("reused")
def test_garbage_is_collected_first() -> None:
    gc.disable()
    try:
        cycle = types.ModuleType("cycle")
        cycle.itself = cycle  # type: ignore[attr-defined]
        gone: list[bool] = []
        weakref.finalize(cycle, gone.append, True)
        del cycle
        worker.spare_imports()
    finally:
        gc.enable()
    assert gone == [True]


def test_other_processes_go_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(worker.REUSED, raising=False)
    monkeypatch.setattr(worker, "_modules", 0)
    before = gc.get_freeze_count()
    worker.spare_imports()
    assert gc.get_freeze_count() == before


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes."""
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        assert piece, "the daemon hung up"
        found += piece
    return found


@pytest.mark.parametrize(("words", "loaded"), [((daemon.TASKS,), True), (("pyspark.sql.worker.x",), False)])
def test_the_daemon_forks_workers_that_have_pyarrow_and_kernels(words: tuple[str, ...], loaded: bool) -> None:
    started = subprocess.Popen(
        (sys.executable, "-m", "antiphon.spark.daemon", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret", "OPENBLAS_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,  # the worker's, which nobody gives work
    )
    assert started.stdin is not None
    assert started.stdout is not None
    with started, started.stdin, started.stdout:
        (port,) = struct.unpack(">i", started.stdout.read(4))
        threads = [path.read_text().strip() for path in Path(f"/proc/{started.pid}/task").glob("*/comm")]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            (forked,) = struct.unpack(">i", read_exactly(connection, 4))
            maps = Path(f"/proc/{forked}/maps").read_text()
            assert ("libarrow" in maps) is loaded
            assert ("llvmlite" in maps) is loaded
        # A fork has only the thread that forked. jemalloc, which Arrow brings, starts its own one anew.
        assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1


def test_what_cannot_be_imported_is_left_to_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "IMPORTED", ("antiphon.no_such_module", "json"))
    monkeypatch.setattr(daemon, "KERNELS", "antiphon.neither_this")
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    daemon.prepare()
    assert frozen == [True]
