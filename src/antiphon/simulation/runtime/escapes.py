"""Finds what escapes the simulation: code that asks the real machine for time, chance, threads, files or sockets.

While `no_escapes` lasts, such a call made by simulated code raises `EscapeError` with the name of what was called. It
replaces functions of the standard library's modules, also where a module bound one as it was imported (`from time import
monotonic`), and listens to Python's audit events for what is called past them. What was bound elsewhere, say as a default
of an argument, is not seen; the names are in `FORBIDDEN`, and a test of the sources forbids them outside of the seam.
Files of `allowed_folders` may be read and written.
"""

import datetime
import os
import random
import resource
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn

from antiphon.simulation.runtime.loop import current_process

_CLOCKS: Final = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")
_DRAWS: Final = (
    "random", "uniform", "randint", "randrange", "choice", "choices", "shuffle", "sample", "getrandbits", "expovariate",
    "gauss", "normalvariate", "triangular", "betavariate", "randbytes", "seed",
)  # fmt: skip
FORBIDDEN: Final[dict[str, tuple[str, ...]]] = {
    "time": (
        *_CLOCKS,
        *(f"{name}_ns" for name in _CLOCKS),
        "sleep",
        "localtime",
        "gmtime",
        "ctime",
        "strftime",
    ),
    "random": _DRAWS,
    "secrets": ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice", "randbits"),
    "os": (
        *("urandom", "getrandom", "getpid", "getppid", "times", "getloadavg", "cpu_count"),
        *("stat", "lstat", "access", "statvfs"),
    ),
    "uuid": ("uuid1", "uuid4"),
    "resource": ("getrlimit",),
}
"""By module: functions that ask the real machine."""
_MODULES: Final = {one.__name__: one for one in (time, random, secrets, os, uuid, resource)}
_WITH_A_TIME: Final = {"localtime": 1, "gmtime": 1, "ctime": 1, "strftime": 2}
"""These are told which time to convert by the last of so many arguments; without it they ask for the time."""
_OF_PATHS: Final = frozenset({"stat", "lstat", "access"})
NOW: Final = frozenset({"now", "utcnow", "today"})
_EVENTS: Final = ("open", "os.", "socket.", "subprocess.", "_thread.", "shutil.", "tempfile.")
_SOURCES: Final = (".py", ".pyc", ".so")  # imports that are made late read these
_PACKAGE: Final = (
    str(Path(__file__).parents[2]) + os.sep
)  # where pages are made, their templates and files are loaded
_IN_FOLDERS: Final = ("open", "os.listdir", "os.mkdir")
allowed_folders: Final[set[str]] = set()
"""Real folders that belong to a simulation: RocksDB's (`simulation.rocks_on_disk`)."""
_active = False
_hooked = False


class EscapeError(BaseException):
    """Simulated code asked the real machine for something."""


@contextmanager
def no_escapes() -> Iterator[list[str]]:
    """Let every escape fail, and list the names of what was called: for those that somebody caught on the way."""
    global _active, _hooked  # noqa: PLW0603 - audit hooks are the process's, and stay
    found: list[str] = []
    if not _hooked:
        _hooked = True
        sys.addaudithook(_heard)
    refusing = _refusals(found)
    places = [*refusing, *_bound_elsewhere(refusing)]
    originals = [(where, name, getattr(where, name)) for where, name, _ in places]
    for where, name, refuses in places:
        setattr(where, name, refuses)
    _names.append(found)
    no_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = (
        True  # a module first imported meanwhile would write its own, a file like any other
    )
    _active = True
    try:
        yield found
    finally:
        _active = False
        sys.dont_write_bytecode = no_bytecode
        _names.pop()
        for where, name, original in originals:
            setattr(where, name, original)


_names: list[list[str]] = []
_Place = tuple[Any, str, Any]  # a module or class, a name in it, what is there instead


def _refusals(found: list[str]) -> list[_Place]:
    """What stands in the place of the standard library's own."""
    functions: list[tuple[Any, str, str]] = [
        (_MODULES[module], name, f"{module}.{name}") for module, names in FORBIDDEN.items() for name in names
    ]
    functions.append((random, "_urandom", "random.SystemRandom"))  # as that module calls it
    functions.append((threading.Thread, "start", "threading.Thread.start"))
    places: list[_Place] = [
        (where, name, _refusing(label, getattr(where, name), found)) for where, name, label in functions
    ]
    seed = random.Random.seed

    def seed_is_given(self: random.Random, a: Any = None, *args: Any, **options: Any) -> None:
        if a is None and _is_simulated():
            _escapes("random.Random", found)
        seed(self, a, *args, **options)

    places.append((random.Random, "seed", seed_is_given))
    places += [
        (datetime, name, _Clockless(name, getattr(datetime, name), found)) for name in ("datetime", "date")
    ]
    return places


def _bound_elsewhere(refusing: list[_Place]) -> list[_Place]:
    """Names of modules outside of the standard library that stand for the same functions."""
    instead = {
        id(getattr(where, name)): refuses
        for where, name, refuses in refusing
        if isinstance(where, ModuleType)
    }
    return [
        (module, name, instead[id(value)])
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] not in sys.stdlib_module_names and path != __name__
        for name, value in list(getattr(module, "__dict__", {}).items())  # not all of them are modules
        if id(value) in instead
    ]


class _Clockless:
    """`datetime.datetime`, or `date`, for simulated code: it is the class itself except for what asks for the time."""

    def __init__(self, name: str, original: Any, found: list[str]) -> None:
        self._name, self._original, self._found = name, original, found

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._original(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name in NOW and _is_simulated():
            _escapes(f"datetime.{self._name}.{name}", self._found)
        return getattr(self._original, name)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self._original)

    def __subclasscheck__(self, kind: Any) -> bool:
        return issubclass(kind, self._original)

    def __mro_entries__(self, bases: Any) -> tuple[Any]:
        return (self._original,)

    def __or__(self, other: Any) -> Any:
        return self._original | other

    def __ror__(self, other: Any) -> Any:
        return other | self._original


def _is_simulated() -> bool:
    """Does a simulated process ask? Modules that are imported meanwhile keep what refuses, so it looks at that too."""
    return _active and current_process.get() is not None


def _escapes(name: str, found: list[str]) -> NoReturn:
    found.append(name)
    raise EscapeError(f"{name} was called by {current_process.get()!r}")


def _refusing(label: str, original: Callable[..., Any], found: list[str]) -> Callable[..., Any]:
    name = label.rpartition(".")[2]
    needed = _WITH_A_TIME.get(name)

    def refuse(*args: Any, **options: Any) -> Any:
        if not _is_simulated() or (needed is not None and len(args) >= needed and args[-1] is not None):
            return original(*args, **options)
        if name in _OF_PATHS and (_is_import(args) or _is_allowed(str(args[0]))):
            return original(*args, **options)
        _escapes(label, found)

    return refuse


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if not event.startswith(_EVENTS) or not _is_simulated():
        return
    if event in {"open", "os.listdir", "os.scandir"} and _is_import(args):
        return
    if event in _IN_FOLDERS and _is_allowed(str(args[0])):
        return
    _names[-1].append(event)
    raise EscapeError(f"{event} {args!r} was called by {current_process.get()!r}")


def _is_allowed(path: str) -> bool:
    return any(path.startswith(folder + os.sep) for folder in allowed_folders)


def _is_import(args: tuple[Any, ...]) -> bool:
    """Modules are imported where they are needed, also while a simulation runs."""
    path = str(args[0]) if args else ""
    return (
        path.endswith(_SOURCES)
        or path.startswith((sys.prefix, sys.base_prefix, _PACKAGE))
        or "site-packages" in path
        or path in sys.path
    )
