"""Processes of this machine: what they have used, from /proc, and signals to them."""

import contextlib
import os
from pathlib import Path


def cpu_s(pid: int, thread: int | None = None) -> float:
    """CPU time that a process has used by now, or one thread of it."""
    place = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    fields = Path(place).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def memory_bytes(pid: int) -> int:
    """Private and shared resident memory; pages shared with other forked processes count in each."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024
