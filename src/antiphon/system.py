"""Wall clock, chance, ids, memory: what a process takes from the machine it runs on, besides its event loop and its disk.

Code of nodes and clients asks here and never asks `time`, `random`, `uuid` or `os.urandom` itself. In a real process the
answers are the operating system's. The simulator runs many processes in one: each of them runs in a `contextvars` context of
its own, in which `use` has put another `System`, whose answers come from the seed of the run.
"""

import os
import random
import resource
import time
import uuid
from contextvars import ContextVar, Token
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol

_GOES_ON: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux has the former
ANY_NUMBER: Final = 1 << 31  # of descriptors, where the machine sets no bound


class System(Protocol):
    """Where a process takes time and chance from."""

    random: random.Random
    """For jitter and drawn time-outs; never for secrets."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, as this machine believes."""

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back, from an arbitrary beginning."""

    def elapsed_us(self) -> int:
        """Microseconds of a clock that never goes back, and that goes on while the machine is suspended."""

    def new_uuid(self) -> uuid.UUID:
        """An id that nobody else has (version 4)."""

    def secret_bytes(self, count: int) -> bytes:
        """Bytes that nobody can guess."""

    def resident_bytes(self) -> int:
        """Memory that the process has, in bytes; 0 where it cannot be told."""

    def cpu_s(self) -> float:
        """Seconds of processors that all threads of the process have had since its start."""

    def open_files(self) -> int:
        """Descriptors that the process has open; 0 where it cannot be told."""

    def descriptors_max(self) -> int:
        """Descriptors that the process may have open."""

    def pid(self) -> int:
        """What the machine calls the process."""


class RealSystem:
    """The operating system."""

    def __init__(self) -> None:
        self.random = random.Random()

    def wall_ns(self) -> int:
        """See `System`."""
        return time.time_ns()

    def monotonic_s(self) -> float:
        """See `System`."""
        return time.monotonic()

    def elapsed_us(self) -> int:
        """See `System`."""
        return time.clock_gettime_ns(_GOES_ON) // 1000

    def new_uuid(self) -> uuid.UUID:
        """See `System`."""
        return uuid.uuid4()

    def secret_bytes(self, count: int) -> bytes:
        """See `System`."""
        return os.urandom(count)

    def resident_bytes(self) -> int:
        """See `System`."""
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """See `System`."""
        return time.process_time()

    def open_files(self) -> int:
        """See `System`."""
        own = "/proc/self/fd"
        try:  # from Linux 6.2 on the folder's size is their number; a list of thousands would take milliseconds
            return os.stat(own).st_size or len(os.listdir(own)) - 1
        except OSError:
            return 0

    def descriptors_max(self) -> int:
        """See `System`."""
        granted = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return ANY_NUMBER if granted == resource.RLIM_INFINITY else granted

    def pid(self) -> int:
        """See `System`."""
        return os.getpid()


_current: Final[ContextVar[System]] = ContextVar("antiphon_system", default=RealSystem())  # noqa: B039 - one is meant


def use(system: System) -> Token[System]:
    """Take time and chance from `system` in the current context from now on."""
    return _current.set(system)


def wall_ns() -> int:
    """Nanoseconds since 1970."""
    return _current.get().wall_ns()


def wall_ms() -> int:
    """Milliseconds since 1970, as records carry them."""
    return _current.get().wall_ns() // 1_000_000


def wall_s() -> float:
    """Seconds since 1970."""
    return _current.get().wall_ns() / 1e9


def elapsed_us() -> int:
    """Microseconds of a clock that never goes back, and that goes on while the machine is suspended."""
    return _current.get().elapsed_us()


def monotonic_s() -> float:
    """Seconds of a clock that never goes back."""
    return _current.get().monotonic_s()


def new_uuid() -> uuid.UUID:
    """An id that nobody else has."""
    return _current.get().new_uuid()


def secret_bytes(count: int) -> bytes:
    """Bytes that nobody can guess: for keys, nonces and salts."""
    return _current.get().secret_bytes(count)


def resident_bytes() -> int:
    """Memory that the process has, in bytes; 0 where it cannot be told."""
    return _current.get().resident_bytes()


def cpu_s() -> float:
    """Seconds of processors that all threads of the process have had since its start."""
    return _current.get().cpu_s()


def open_files() -> int:
    """Descriptors that the process has open; 0 where it cannot be told."""
    return _current.get().open_files()


def descriptors_max() -> int:
    """Descriptors that the process may have open."""
    return _current.get().descriptors_max()


def pid() -> int:
    """What the machine calls the process."""
    return _current.get().pid()


def rng() -> random.Random:
    """The process's source of chance; never for secrets."""
    return _current.get().random


@lru_cache(maxsize=1)
def installed_version() -> str:
    """The installed version of Antiphon; `0` when it runs from a tree that was never installed."""
    try:
        return metadata.version("antiphon")
    except metadata.PackageNotFoundError:
        return "0"
