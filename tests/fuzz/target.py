"""What the fuzzers ask of a target, and how one input is watched."""

import hashlib
import signal
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

MIB: Final = 1024 * 1024
HANG_S: Final = 20.0  # of CPU time: what runs so long is stopped
CORPUS: Final = Path(__file__).parent / "corpus"


class FindingError(AssertionError):
    """The product did what it must not do: the text says what."""


class HungError(BaseException):
    """An input took `HANG_S` of CPU time. Not an Exception: nobody in between may take it for an error of a request."""


class Target:
    """A piece of the product that takes bytes from outside.

    `run(data)` raises for a finding, whatever the type; refusals that the product documents are no findings, and end in
    there. `slow_s`: CPU time that an input may take; `memory_bytes`: what it may allocate at any moment.
    """

    slow_s: float = 1.0
    memory_bytes: int = 64 * MIB

    def seeds(self) -> list[bytes]:
        """Inputs to begin with, made by the code itself. The first ones should be good."""
        return []

    def run(self, data: bytes) -> None:
        """Give the input to the product."""
        raise NotImplementedError  # each target does

    def close(self) -> None:
        """The target is not needed any more."""


class FolderTarget(Target):
    """A target with files, which are in a folder of its own."""

    def __init__(self) -> None:
        self._made = tempfile.TemporaryDirectory()
        self.folder = Path(self._made.name)

    def close(self) -> None:
        self._made.cleanup()


class Finding(NamedTuple):
    """An input that a target does not bear, and the error that shows it. `place` tells one finding from another."""

    data: bytes
    error: BaseException
    place: str

    def text(self) -> str:
        """The error with its traceback."""
        return "".join(traceback.format_exception(self.error))


def check(holds: bool, what: str) -> None:
    """Raise FindingError unless it holds."""
    if not holds:
        raise FindingError(what)


def place_of(error: BaseException) -> str:
    """Type of the error, and the innermost place in our own code."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "antiphon" in frame.filename or "/fuzz/targets/" in frame.filename]
    last = (ours or list(frames))[-1] if frames else None
    where = "" if last is None else f"{Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__} {where}"


def _cpu_s(target: Target, data: bytes) -> float:
    began_s = time.process_time()
    with quiet(), _stopped_after(HANG_S):
        target.run(data)
    return time.process_time() - began_s


def watched(target: Target, data: bytes, *, memory: bool = False) -> Finding | None:
    """Run one input; what it raised, or that it took too long or (with `memory`, which takes time) too much.

    What took too long is run once more: loading a library, or another thread's work, is not the input's.
    """
    slow_s = target.slow_s * (4 if memory else 1)
    if memory:
        tracemalloc.start()
    try:
        took_s = _cpu_s(target, data)
        if took_s > slow_s:
            took_s = min(took_s, _cpu_s(target, data))
        check(took_s <= slow_s, f"it took {took_s:.2f} s of CPU time")
        if memory:
            peak = tracemalloc.get_traced_memory()[1]
            check(peak <= target.memory_bytes, f"it allocated {peak / MIB:.0f} MiB")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what we are looking for
        return Finding(data, error, place_of(error))
    finally:
        if memory:
            tracemalloc.stop()
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """What the product logs goes nowhere."""

    def drop(_logger: Any, _method: str, _line: Any) -> Any:
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[drop], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    """Raise HungError in what takes more CPU time than that."""

    def ring(_number: int, _frame: Any) -> None:
        raise HungError(f"it took more than {seconds:.0f} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def name_of(data: bytes) -> str:
    """The file name of an input."""
    return hashlib.sha256(data).hexdigest()[:12]


def corpus_of(name: str) -> list[bytes]:
    """The kept inputs of a target, by name, in a fixed order."""
    folder = CORPUS / name
    return [file.read_bytes() for file in sorted(folder.iterdir())] if folder.is_dir() else []
