"""What server processes cost the machine, from /proc."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_FLUSHES: Final = 17  # of a line's fields after the device's name
_DROP: Final = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Usage:
    """Counters at one moment; `flushes` are those of the whole disk, -1 where the kernel does not count them."""

    cpu_s: float
    written_bytes: int
    flushes: int

    @classmethod
    def of(cls, pids: Sequence[int], where: Path) -> Self:
        """What these processes have used so far; `where` lies on the disk they write to."""
        return cls(
            sum(_cpu_s(pid) for pid in pids), sum(_written_bytes(pid) for pid in pids), _flushes(where)
        )

    def __sub__(self, before: "Usage") -> "Usage":
        known = self.flushes >= 0 and before.flushes >= 0
        return Usage(
            self.cpu_s - before.cpu_s,
            self.written_bytes - before.written_bytes,
            self.flushes - before.flushes if known else -1,
        )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in use."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024


def _written_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("write_bytes")).split()[1])


def _flushes(where: Path) -> int:
    device = where.stat().st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        major, minor, _, *figures = line.split()
        if (int(major), int(minor)) == (os.major(device), os.minor(device)) and len(figures) >= _FLUSHES:
            return int(figures[_FLUSHES - 2])
    return -1


def may_drop_page_cache() -> bool:
    """Whether this user may empty the page cache."""
    return os.access(_DROP, os.W_OK)


def drop_page_cache() -> None:
    """Write all dirty pages, and forget all clean ones, of the whole machine."""
    os.sync()
    _DROP.write_text("1")
