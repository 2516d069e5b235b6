"""What server processes cost the machine, from /proc."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")
# Of a line's fields after the device's name.
_FLUSHES: Final = 17
_BUSY_MS: Final = 10
_DROP: Final = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True)
class Usage:
    """Counters at one moment. `flushes` and `disk_s` are those of the whole disk, -1 where the kernel does not count them.

    `user_s` and `kernel_s` are of the processes; `idle_s` and `whole_s` of all cores together.
    """

    user_s: float
    kernel_s: float
    written_bytes: int
    flushes: int
    disk_s: float = -1.0
    idle_s: float = 0.0
    whole_s: float = 0.0

    @classmethod
    def of(cls, pids: Sequence[int], where: Path) -> Self:
        """What these processes have used so far; `where` lies on the disk they write to."""
        used = [_cpu_s(pid) for pid in pids]
        return cls(
            sum(user for user, _ in used),
            sum(kernel for _, kernel in used),
            sum(_written_bytes(pid) for pid in pids),
            *_disk(where),
            *_cores(),
        )

    @property
    def cpu_s(self) -> float:
        """CPU time of the processes."""
        return self.user_s + self.kernel_s

    def __sub__(self, before: "Usage") -> "Usage":
        known = self.flushes >= 0 and before.flushes >= 0
        return Usage(
            self.user_s - before.user_s,
            self.kernel_s - before.kernel_s,
            self.written_bytes - before.written_bytes,
            self.flushes - before.flushes if known else -1,
            self.disk_s - before.disk_s if known else -1.0,
            self.idle_s - before.idle_s,
            self.whole_s - before.whole_s,
        )


def shares(servers: Usage, clients: Usage) -> dict[str, float]:
    """What the cores did meanwhile, as shares of their time: the servers' programs, the kernel for them, clients, others'
    work, nothing. `disk`: for how much of the time it had something to do, where that is known.
    """
    whole_s = servers.whole_s
    if whole_s <= 0:
        return {}
    known = {
        "servers_program": servers.user_s / whole_s,
        "servers_kernel": servers.kernel_s / whole_s,
        "clients": clients.cpu_s / whole_s,
        "idle": servers.idle_s / whole_s,
    }
    found = known | {"others": max(0.0, 1 - sum(known.values()))}
    if servers.disk_s >= 0:
        found["disk"] = servers.disk_s * (os.cpu_count() or 1) / whole_s
    return {name: round(share, 3) for name, share in found.items()}


def _cpu_s(pid: int) -> tuple[float, float]:
    """In the program, and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def _cores() -> tuple[float, float]:
    """Seconds that the cores did nothing, or waited for a disk, and all there were."""
    _, *ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    counted = [int(one) / _TICKS for one in ticks[:8]]  # time of guests is in these already
    return counted[3] + counted[4], sum(counted)


def _written_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("write_bytes")).split()[1])


def _disk(where: Path) -> tuple[int, float]:
    """Flushes, and seconds in which there was something to do."""
    device = where.stat().st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        major, minor, _, *figures = line.split()
        if (int(major), int(minor)) == (os.major(device), os.minor(device)) and len(figures) >= _FLUSHES:
            return int(figures[_FLUSHES - 2]), int(figures[_BUSY_MS - 1]) / 1000
    return -1, -1.0


def may_drop_page_cache() -> bool:
    """Whether this user may empty the page cache."""
    return os.access(_DROP, os.W_OK)


def drop_page_cache() -> None:
    """Write all dirty pages, and forget all clean ones, of the whole machine."""
    os.sync()
    _DROP.write_text("1")
