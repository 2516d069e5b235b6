"""Faults that a test brings about in a node of its own: nodes that cannot be reached, a disk that is full or broken.

Only a process that is started with `ANTIPHON_FAULTS=1` in its environment has any of this. It then reads `faults.json` in
its directory whenever it gets SIGUSR1, and does what that says until told otherwise:

    {"cut": [0, 2], "disk": "ok"}       disk: ok, full (nothing can be written) or broken (a sync fails)

A cut holds everything on its way to and from those nodes, as a network does that lost a link: what was sent before comes
through when it is back. `antiphon verify --faults partition,disk` uses it.

The file also names faults of a listener (`listener`), which this module hands on, and has a mark (`serial`), which the
node writes into `faults.taken` when it has taken everything over, with the reason if it refuses: whoever told it knows
then. A node that starts has a sound disk and reaches everybody; its listener does what the file says from the first
request on.
"""

import errno
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from antiphon.errors import AntiphonError
from antiphon.log.disk import File, RealDisk
from antiphon.records.batch import Buffer

FAULTS_FILE: Final = "faults.json"
TAKEN_FILE: Final = "faults.taken"
FAULTS_VARIABLE: Final = "ANTIPHON_FAULTS"
DISK_STATES: Final = ("ok", "full", "broken")


class InjectedFaults:
    """What is wrong right now.

    Attributes:
        cut: nodes that are not reached.
        disk: one of DISK_STATES.
        listener: what the Kafka listener is to do wrong, as the file says it.
        followers: called after each change. One may raise AntiphonError or ValueError to refuse it.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FAULTS_FILE
        self._taken = directory / TAKEN_FILE
        self.cut: frozenset[int] = frozenset()
        self.disk = "ok"
        self.listener: Mapping[str, Any] = {}
        self.followers: list[Callable[[], None]] = []

    def take(self, *, at_start: bool = False) -> None:
        """Do as the file says now, and say so in `faults.taken`; at the start of a node that is its listener's part only."""
        import structlog  # a third of what a command imports, if it were above; and who only tells a node logs nothing

        serial = refusal = ""
        try:
            found = self._read()
            serial = str(found.get("serial", ""))
            if not at_start:
                self._take_node(found)
            self.listener = found.get("listener", {})
            for follow in self.followers:
                follow()
            structlog.get_logger().warning(
                "faults_injected", cut=sorted(self.cut), disk=self.disk, listener=self.listener
            )
        except (AntiphonError, ValueError, OSError) as error:
            refusal = str(error)
            structlog.get_logger().error("faults_not_read", error=refusal)
        _replace(self._taken, {"serial": serial, "refusal": refusal})

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        if not isinstance(found, dict):
            raise ValueError(f"{self._path}: expected an object, not {found!r}")
        return found

    def _take_node(self, found: Mapping[str, Any]) -> None:
        disk = found.get("disk", "ok")
        if disk not in DISK_STATES:
            raise ValueError(f"{self._path}: disk is one of {', '.join(DISK_STATES)}, not {disk!r}")
        self.cut = frozenset(int(node) for node in found.get("cut", ()))
        self.disk = disk


def wanted() -> bool:
    """Was this process started to be hurt?"""
    return os.environ.get(FAULTS_VARIABLE) == "1"


def inject(
    directory: Path, *, cut: Sequence[int] = (), disk: str = "ok", listener: Mapping[str, Any] | None = None
) -> str:
    """Write which faults a node has; it looks when it gets SIGUSR1. Returns the mark that `taken` then knows."""
    serial = secrets.token_hex(8)
    told = {"serial": serial, "cut": list(cut), "disk": disk, "listener": dict(listener or {})}
    _replace(directory / FAULTS_FILE, told)
    return serial


def taken(directory: Path) -> tuple[str, str]:
    """The mark of what a node has taken over last, and why it refused that; both are empty where there is nothing."""
    try:
        found = json.loads((directory / TAKEN_FILE).read_text())
    except FileNotFoundError:
        return "", ""
    return found["serial"], found["refusal"]


def forget(directory: Path) -> None:
    """Remove what was told a node of an earlier test."""
    for name in (FAULTS_FILE, TAKEN_FILE):
        (directory / name).unlink(missing_ok=True)


def _replace(path: Path, what: Mapping[str, Any]) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(what))
    new.replace(path)


class FaultyFile:
    """A file on a disk that may be full or broken."""

    def __init__(self, faults: InjectedFaults, file: File) -> None:
        self._faults = faults
        self._file = file
        self.pread, self.truncate, self.size = file.pread, file.truncate, file.size

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """See File."""
        if self._faults.disk == "full":
            raise OSError(errno.ENOSPC, "no space left on device")
        self._file.pwritev(buffers, at)

    def fdatasync(self) -> None:
        """See File."""
        if self._faults.disk == "broken":
            raise OSError(errno.EIO, "input/output error")
        self._file.fdatasync()


class FaultyDisk(RealDisk):
    """The real disk, full or broken when a test says so."""

    def __init__(self, faults: InjectedFaults) -> None:
        super().__init__()
        self._faults = faults

    def open(self, path: str, *, create: bool = False) -> File:
        """See Disk."""
        return FaultyFile(self._faults, super().open(path, create=create))

    def free_bytes(self, path: str) -> int:
        """See Disk."""
        return 0 if self._faults.disk == "full" else super().free_bytes(path)
