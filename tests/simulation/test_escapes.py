"""Nothing asks the real machine: what does is found and named, and the sources do not say what could not be found."""

# ruff: noqa: PLW0108, DTZ011 - a name is to be looked up when it is called, and asking for the time is the point

import ast
import datetime
import importlib
import os
import random
import re
import resource
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import date as bound_date
from datetime import datetime as bound_datetime
from pathlib import Path
from time import monotonic as bound_monotonic
from typing import Any, Final

import pytest

import antiphon
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.runtime.escapes import FORBIDDEN, NOW, EscapeError, no_escapes
from antiphon.simulation.runtime.loop import VirtualLoop
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.process import Process
from tests.records.test_packed_effects import loaded_kernels
from tests.simulation.told import words


def run(work: Callable[[], Any]) -> Any:
    """Call a function in a simulated process."""
    loop = VirtualLoop(random.Random(1))
    Network(loop, random.Random(1))

    async def call() -> Any:
        return work()

    task = Process(loop, "a", "a", 1).run(call())
    loop.run_until(task.done)
    return task.result()


def _thread() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _file() -> None:
    with open(os.devnull, "rb"):
        pass


ESCAPES: Final[dict[str, tuple[Callable[[], Any], ...]]] = {
    "time.time": (lambda: time.time(),),
    "time.monotonic": (lambda: time.monotonic(), lambda: bound_monotonic()),
    "time.monotonic_ns": (lambda: time.monotonic_ns(),),
    "time.clock_gettime": (lambda: time.clock_gettime(time.CLOCK_REALTIME),),
    "time.localtime": (lambda: time.localtime(),),
    "time.strftime": (lambda: time.strftime("%Y"),),
    "time.process_time_ns": (lambda: time.process_time_ns(),),
    "time.sleep": (lambda: time.sleep(0),),
    "datetime.datetime.now": (
        lambda: datetime.datetime.now(datetime.UTC),
        lambda: bound_datetime.now(datetime.UTC),
    ),
    "datetime.date.today": (lambda: datetime.date.today(), lambda: bound_date.today()),
    "random.random": (lambda: random.random(),),
    "random.Random": (lambda: random.Random(), lambda: random.Random(None)),
    "random.SystemRandom": (lambda: random.SystemRandom().random(), lambda: random.SystemRandom().choice("ab")),
    "secrets.token_hex": (lambda: secrets.token_hex(1),),
    "secrets.randbelow": (lambda: secrets.randbelow(2),),
    "uuid.uuid4": (lambda: uuid.uuid4(),),
    "resource.getrlimit": (lambda: resource.getrlimit(resource.RLIMIT_NOFILE),),
    "os.urandom": (lambda: os.urandom(1),),
    "os.getrandom": (lambda: os.getrandom(1),),
    "os.getpid": (lambda: os.getpid(),),
    "os.stat": (
        lambda: os.stat("/"),
        lambda: os.path.exists("/nowhere"),
        lambda: Path("/nowhere").exists(),
        lambda: os.path.getsize(os.devnull),
    ),
    "os.listdir": (lambda: os.listdir("/"),),
    "open": (_file,),
    "threading.Thread.start": (_thread,),
    "socket.__new__": (lambda: socket.socket().close(),),
    "subprocess.Popen": (lambda: subprocess.run(["true"], check=True),),
}  # fmt: skip
CASES: Final = [(name, escape) for name, escapes in ESCAPES.items() for escape in escapes]


@pytest.mark.parametrize(("name", "escape"), CASES)
def test_what_escapes_is_named(name: str, escape: Callable[[], Any]) -> None:
    with no_escapes() as escaped, pytest.raises(EscapeError) as error:
        run(escape)
    assert escaped == [name]
    assert str(error.value).startswith(name)
    assert "was called by <process a " in str(error.value)
    run(escape)  # afterwards nothing is changed


def test_what_asks_nobody_is_no_escape() -> None:
    def work() -> list[Any]:
        day = bound_datetime(2026, 1, 2, tzinfo=datetime.UTC)
        return [
            random.Random(5).random(),
            isinstance(day, bound_datetime),
            bound_datetime.fromtimestamp(0, datetime.UTC).year,
            time.gmtime(0).tm_year,
            bound_date(2026, 1, 2).year,
        ]

    with no_escapes() as escaped:
        found = run(work)
    assert found[1:] == [True, 1970, 1970, 2026]
    assert not escaped


def test_what_is_first_imported_meanwhile_is_no_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation that has run nothing yet has no bytecode: the module is read, and none is written."""
    (tmp_path / "never_imported.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with no_escapes() as escaped:
        assert run(lambda: importlib.import_module("never_imported").ANSWER) == 42
    assert not escaped
    assert [path.name for path in tmp_path.iterdir()] == ["never_imported.py"]
    del sys.modules["never_imported"]


def test_outside_of_simulated_processes_everything_is_as_always() -> None:
    with no_escapes() as escaped:
        assert bound_monotonic() <= time.monotonic()
        assert bound_datetime.now(datetime.UTC).year > 2000
        random.Random()
    assert not escaped
    assert bound_datetime is datetime.datetime
    assert bound_monotonic is time.monotonic


# -- worlds ----------------------------------------------------------------------------------------------------------

EVERYTHING: Final[dict[str, Any]] = {
    "fault_ms": 1_500,
    "fault_every_ms": 300,
    "topic_shards": 1,
    "table_shards": 1,
    "clock_skew_ppm": 10_000,
    "delay_us": (100, 1_500),
    "fault_lasts_ms": 300,
    "operations_per_s": 60,
    "bulk_writers": 1,
    "scans": True,
    "transactions": True,
    "watches": True,
    "followers": True,
    "range_deletes": True,
    "ledger_keepers": 2,
    "forwarded_clients": 2,
    "kafka_producers": 1,
    "kafka_consumers": 1,
    "kafka_members": 2,
    "kafka_transactors": 2,
    "kafka_admins": 1,
    "consumer_members": 2,
    "http_clients": 1,
    "intruders": 1,
    "peer_key": True,
    "impostors": 1,
    "scrub": True,
    "topic_config": "segment.bytes=16384",
    "record_bytes": 500,
    "kill_weight": 1,
    "kill_midway_weight": 2,
    "power_midway_weight": 2,
    "operator_weight": 2,
    "trim_weight": 1,
}
"""All that one world can have; logins are in worlds of their own (`test_access.py`)."""


@pytest.mark.parametrize("profile", ["oxia", "raft", "multi"])
def test_nothing_escapes(profile: str) -> None:
    loaded_kernels()  # a node has that done in a thread, once it has seen enough rows
    with no_escapes() as escaped:
        result = run_cluster(draw_options(2, profile, **EVERYTHING, multi_tables=profile == "multi"))
    assert not escaped
    assert result.failure is None, words(result)
    assert result.operations["ok"] > 0


# -- sources ---------------------------------------------------------------------------------------------------------

SOURCES: Final = Path(antiphon.__file__).parent
NEVER_SIMULATED: Final = ("cli/", "spark/", "lake/", "tools/", "testing/", "archive/job/")
"""Commands and jobs: they run in processes of their own, against real nodes."""
SEAMS: Final = {
    "system.py": "it is the seam",
    "log/disk.py": "the real disk, which a simulated node is not given",
    "log/wal_thread.py": "the real worker of the log, which a simulated node is not given",
    "client/blocking.py": "the client with threads; the one without is simulated",
    "client/blocking_link.py": "the same",
    "client/loop_thread.py": "runs the client without threads in one, for callers outside of its loop",
    "kafka/one_thread.py": "rests between pieces of work for a real thread",
    "node/logs.py": "the real file of a node's log",
    "node/injected_faults.py": "attacks on real nodes, switched on by a variable of the environment",
    "server/process.py": "the real process of a node",
    "server/secrets.py": "looks for the file of tokens' keys; a simulated machine hands its own in",
    "security/passwords.py": "a password for people, made by a command",
    "security/tls.py": "real certificates; simulated nodes have no TLS",
    "table/rocks_manifest.py": "RocksDB opens its own files",
    "simulation/runtime/escapes.py": "it replaces them",
    "simulation/pool.py": "a worker, outside of its runs, ends with the process that began it",
    "simulation/delta.py": "how long a person waits while a failing run is made small",
    "simulation/fleet.py": "measures the processor's time",
    "simulation/rocks_on_disk.py": "has RocksDB's files in a real folder",
}
"""Modules that may ask the machine, and why."""
OF_FILES: Final = (
    "exists",
    "isfile",
    "isdir",
    "islink",
    "getsize",
    "getmtime",
    "lexists",
    "samefile",
    "realpath",
)
NAMES: Final[dict[str, frozenset[str]]] = {
    **{module: frozenset(names) for module, names in FORBIDDEN.items()},
    "random": frozenset(FORBIDDEN["random"]) | {"SystemRandom"},
    "os.path": frozenset(OF_FILES),
    "threading": frozenset({"Thread", "Timer"}),
    "datetime.datetime": NOW,
    "datetime.date": NOW,
}
"""By module or class. Files and sockets are left out where they are found when they are opened, whoever bound what."""
IMPORTS: Final = re.compile(
    rf"^\s*(?:from|import)\s+(?:{'|'.join(sorted({name.partition('.')[0] for name in NAMES}))})\b",
    re.MULTILINE,
)


def _asked(source: str) -> Iterator[tuple[int, str]]:
    """Lines of a module that name what asks the machine, called or not: a name may be bound and called later."""
    tree = ast.parse(source)
    known: dict[str, str] = {}  # names in this module, and what they were imported as
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            plain = [one.name.partition(".")[0] for one in node.names if not one.asname]
            known |= {one.asname: one.name for one in node.names if one.asname} | {
                name: name for name in plain
            }
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {(one.asname or one.name): f"{node.module}.{one.name}" for one in node.names}
            for one in node.names:
                if one.name in NAMES.get(node.module, ()):
                    yield node.lineno, f"{node.module}.{one.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            where = _dotted(node.value, known)
            if node.attr in NAMES.get(where, ()):
                yield node.lineno, f"{where}.{node.attr}"
        elif isinstance(node, ast.Call) and not node.args and _dotted(node.func, known) == "random.Random":
            yield node.lineno, "random.Random without a seed"


def _dotted(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Attribute):
        where = _dotted(node.value, known)
        return f"{where}.{node.attr}" if where else ""
    return ""


def _asking() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if not name.startswith(NEVER_SIMULATED):
            source = path.read_text()
            lines = [f"{line}: {what}" for line, what in _asked(source)] if IMPORTS.search(source) else []
            found |= {name: lines} if lines else {}
    return found


def test_only_the_seams_ask_the_machine() -> None:
    asking = _asking()
    others = {name: lines for name, lines in asking.items() if name not in SEAMS}
    assert not others, "ask `antiphon.system`, or the node's disk"
    assert not SEAMS.keys() - asking.keys(), "these ask nothing any more"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from time import monotonic", "time.monotonic"),
        ("import time as t\nclock = t.clock_gettime", "time.clock_gettime"),
        ("import time\ndef f(clock=time.monotonic): pass", "time.monotonic"),
        ("from datetime import datetime\nf = datetime.now", "datetime.datetime.now"),
        ("import datetime\ndatetime.datetime.utcnow()", "datetime.datetime.utcnow"),
        ("from random import Random\nRandom()", "random.Random without a seed"),
        ("import random\nrandom.SystemRandom()", "random.SystemRandom"),
        ("from os import path\npath.exists('a')", "os.path.exists"),
        ("import os.path\nos.path.isdir('a')", "os.path.isdir"),
        ("from threading import Thread", "threading.Thread"),
    ],
)
def test_the_sources_are_read(source: str, name: str) -> None:
    assert [what for _, what in _asked(source)] == [name]


def test_a_seed_is_no_escape() -> None:
    assert not list(_asked("from random import Random\nimport os.path\nRandom(5)\nos.path.join('a', 'b')"))
