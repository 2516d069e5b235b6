"""Finds what escapes the simulation: code that asks the real machine for time, chance, threads, files or sockets.

While `no_escapes` lasts, such a call made by simulated code raises `EscapeError` with the name of what was called. It
replaces functions of the standard library's modules, and listens to Python's audit events for what is called past them.
Files of `allowed_folders` may be read and written.
"""

import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from antiphon.simulation.runtime.loop import current_process

_FUNCTIONS: Final[tuple[tuple[Any, str], ...]] = (
    *((time, name) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "sleep")),
    *((time, name) for name in ("perf_counter", "perf_counter_ns", "process_time", "thread_time")),
    *(
        (random, name)
        for name in ("random", "uniform", "randint", "randrange", "choice", "choices", "shuffle", "sample")
    ),
    *((random, name) for name in ("getrandbits", "expovariate", "gauss", "randbytes")),
    *((secrets, name) for name in ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice")),
    (os, "urandom"),
    (uuid, "uuid1"),
    (uuid, "uuid4"),
    (threading.Thread, "start"),
)
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
    originals = [(where, name, getattr(where, name)) for where, name in _FUNCTIONS]
    for where, name, original in originals:
        setattr(where, name, _refusing(f"{where.__name__}.{name}", original, found))
    _names.append(found)
    _active = True
    try:
        yield found
    finally:
        _active = False
        _names.pop()
        for where, name, original in originals:
            setattr(where, name, original)


_names: list[list[str]] = []


def _refusing(name: str, original: Callable[..., Any], found: list[str]) -> Callable[..., Any]:
    def refuse(*args: Any, **options: Any) -> Any:
        if current_process.get() is None:
            return original(*args, **options)
        found.append(name)
        raise EscapeError(f"{name} was called by {current_process.get()!r}")

    return refuse


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if not _active or not event.startswith(_EVENTS) or current_process.get() is None:
        return
    if event in {"open", "os.listdir", "os.scandir"} and _is_import(args):
        return
    if event in _IN_FOLDERS and _is_allowed(str(args[0])):
        return
    _names[-1].append(event)
    raise EscapeError(f"{event} {args!r} by {current_process.get()!r}")


def _is_allowed(path: str) -> bool:
    return any(path.startswith(folder + os.sep) for folder in allowed_folders)


def _is_import(args: tuple[Any, ...]) -> bool:
    """Modules are imported where they are needed, also while a simulation runs."""
    path = str(args[0]) if args else ""
    return (
        path.endswith(_SOURCES)
        or path.startswith((sys.prefix, sys.base_prefix, _PACKAGE))
        or "site-packages" in path
    )
