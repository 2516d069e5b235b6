"""Faults that a test brings about in a node of its own: nodes that cannot be reached, a disk that is full or broken.

Only a process that is started with `ANTIPHON_FAULTS=1` in its environment has any of this. It then reads `faults.json` in
its directory whenever it gets SIGUSR1, and does what that says until told otherwise:

    {"cut": [0, 2], "disk": "ok"}       disk: ok, full (nothing can be written) or broken (a sync fails)

A cut holds everything on its way to and from those nodes, as a network does that lost a link: what was sent before comes
through when it is back. `antiphon verify --faults partition,disk` uses it.
"""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from antiphon.log.disk import File, RealDisk
from antiphon.records.batch import Buffer

FAULTS_FILE: Final = "faults.json"
FAULTS_VARIABLE: Final = "ANTIPHON_FAULTS"
DISK_STATES: Final = ("ok", "full", "broken")


class InjectedFaults:
    """What is wrong right now."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FAULTS_FILE
        self.cut: frozenset[int] = frozenset()
        self.disk = "ok"

    def read(self) -> None:
        """Take over what the file says; no file: nothing is wrong. Raises ValueError for what makes no sense."""
        try:
            found = json.loads(self._path.read_text())
        except FileNotFoundError:
            found = {}
        disk = found.get("disk", "ok")
        if disk not in DISK_STATES:
            raise ValueError(f"{self._path}: disk is one of {', '.join(DISK_STATES)}, not {disk!r}")
        self.cut = frozenset(int(node) for node in found.get("cut", ()))
        self.disk = disk


def wanted() -> bool:
    """Was this process started to be hurt?"""
    return os.environ.get(FAULTS_VARIABLE) == "1"


def tell(directory: Path, *, cut: Sequence[int] = (), disk: str = "ok") -> None:
    """Write what a node is to suffer from; it looks when it gets SIGUSR1."""
    path = directory / FAULTS_FILE
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"cut": list(cut), "disk": disk}))
    new.replace(path)


class HurtFile:
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


class HurtDisk(RealDisk):
    """The real disk, full or broken when a test says so."""

    def __init__(self, faults: InjectedFaults) -> None:
        super().__init__()
        self._faults = faults

    def open(self, path: str, *, create: bool = False) -> File:
        """See Disk."""
        return HurtFile(self._faults, super().open(path, create=create))

    def free_bytes(self, path: str) -> int:
        """See Disk."""
        return 0 if self._faults.disk == "full" else super().free_bytes(path)
