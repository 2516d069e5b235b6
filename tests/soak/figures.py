"""The soak's samples: what each node's process holds, and how long clients waited. And whether any of it grows."""

import contextlib
import os
import statistics
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

MIB: Final = 1024 * 1024
SAMPLE_S: Final = 1.0
WINDOWS: Final = 120  # of a whole run: what the picture shows and the slopes are taken from
JUDGED_FROM: Final = 1 / 3  # of the run: what comes before is warming up
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Bound:
    """What may be gained over the judged part: a share of the median, or `least` where that is more."""

    share: float
    least: float

    def allows(self, growth: float, median: float) -> bool:
        """Is that much growth still none?"""
        return growth <= max(self.share * median, self.least)


BOUNDS: Final = {
    "resident_mib": Bound(0.10, 8.0),
    "descriptors": Bound(0.05, 10.0),
    "threads": Bound(0.0, 2.0),
    "p50_ms": Bound(0.50, 10.0),  # what else the machine does is in latencies too
    "p99_ms": Bound(1.00, 100.0),
}


@dataclass
class ProcessSeries:
    """One process, sampled: seconds since the start, MiB, counts, and cores in use."""

    at_s: list[float] = field(default_factory=list)
    resident_mib: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class Latencies:
    """How long clients waited, by kind of request."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.at_s: defaultdict[str, array[float]] = defaultdict(lambda: array("f"))
        self.took_s: defaultdict[str, array[float]] = defaultdict(lambda: array("f"))

    def note(self, kind: str, took_s: float) -> None:
        """A request of this kind ended well just now."""
        self.at_s[kind].append(time.monotonic() - self._began_s)
        self.took_s[kind].append(took_s)

    def windows(self, kind: str, window_s: float) -> list[tuple[float, int, float, float]]:
        """(middle of the window in s, requests, p50 in ms, p99 in ms) for each window that has any."""
        by_window: defaultdict[int, list[float]] = defaultdict(list)
        for at_s, took_s in list(zip(self.at_s[kind], self.took_s[kind], strict=False)):
            by_window[int(at_s / window_s)].append(took_s * 1000)
        rows = []
        for number in sorted(by_window):
            took = sorted(by_window[number])
            half, most = took[len(took) // 2], took[len(took) * 99 // 100]
            rows.append(((number + 0.5) * window_s, len(took), round(half, 3), round(most, 3)))
        return rows


class Sampler(threading.Thread):
    """Looks at processes once a second, until `stop()`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        super().__init__(daemon=True, name="sampler")
        self._pids = dict(pids)
        self._stopping = threading.Event()
        self._began_s = time.monotonic()
        self._cpu: dict[str, tuple[float, float]] = {}
        self.series = {name: ProcessSeries() for name in pids}
        self.load: list[float] = []  # of the whole machine, one minute's average

    def run(self) -> None:
        """Thread body."""
        number = 0
        while not self._stopping.wait(max(0.0, self._began_s + number * SAMPLE_S - time.monotonic())):
            number += 1
            self.load.append(round(os.getloadavg()[0], 2))
            for name, pid in self._pids.items():
                with contextlib.suppress(OSError):
                    self._look(name, pid)

    def stop(self) -> None:
        """Sample no more."""
        self._stopping.set()
        self.join()

    def _look(self, name: str, pid: int) -> None:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        now_s = time.monotonic()
        cpu_s = (int(times[11]) + int(times[12])) / TICKS_PER_S
        before = self._cpu.get(name, (now_s - SAMPLE_S, cpu_s))
        self._cpu[name] = (now_s, cpu_s)
        series = self.series[name]
        series.at_s.append(round(now_s - self._began_s, 2))
        series.resident_mib.append(round(int(status["VmRSS"].split()[0]) / 1024, 2))
        series.descriptors.append(descriptors)
        series.threads.append(int(status["Threads"]))
        series.cpu.append(round((cpu_s - before[1]) / max(0.01, now_s - before[0]), 3))


@dataclass(frozen=True)
class Trend:
    """One figure over the judged part of the run. `growth`: what the slope gives over that part."""

    what: str
    figure: str
    median: float
    growth: float
    per_hour: float
    fine: bool


def slope(at: Sequence[float], values: Sequence[float]) -> float:
    """Theil and Sen's: the median of the slopes between all pairs, which a few odd values do not move."""
    pairs = [
        (values[j] - values[i]) / (at[j] - at[i])
        for i in range(len(at))
        for j in range(i + 1, len(at))
        if at[j] > at[i]
    ]
    return statistics.median(pairs) if pairs else 0.0


def trend(what: str, figure: str, at_s: Sequence[float], values: Sequence[float], seconds: float) -> Trend:
    """The slope over the last two thirds of a run of so many seconds, against the bound of the figure."""
    judged = [(at, value) for at, value in zip(at_s, values, strict=True) if at >= seconds * JUDGED_FROM] or [
        (0.0, 0.0)
    ]
    times, kept = [at for at, _ in judged], [value for _, value in judged]
    median = statistics.median(kept)
    per_s = slope(times, kept)
    growth = per_s * seconds * (1 - JUDGED_FROM)
    fine = BOUNDS[figure].allows(growth, median)
    return Trend(what, figure, round(median, 3), round(growth, 3), round(per_s * 3600, 3), fine)


def medians(
    at_s: Sequence[float], values: Sequence[float], window_s: float
) -> tuple[list[float], list[float]]:
    """Middles of windows, and the median of each."""
    by_window: defaultdict[int, list[float]] = defaultdict(list)
    for at, value in zip(at_s, values, strict=False):
        by_window[int(at / window_s)].append(value)
    order = sorted(by_window)
    return [(number + 0.5) * window_s for number in order], [
        statistics.median(by_window[number]) for number in order
    ]


def window_of(seconds: float) -> float:
    """How long one window of a run is, in s."""
    return max(SAMPLE_S, seconds / WINDOWS)


def trends(
    series: Mapping[str, ProcessSeries], latencies: Latencies, kinds: Sequence[str], seconds: float
) -> list[Trend]:
    """Every figure that must not grow, of every node and every kind of request."""
    window_s = window_of(seconds)
    found = []
    for name, one in series.items():
        for figure in ("resident_mib", "descriptors", "threads"):
            at_s, values = medians(one.at_s, getattr(one, figure), window_s)
            found.append(trend(name, figure, at_s, values, seconds))
    for kind in kinds:
        rows = latencies.windows(kind, window_s)
        at_s = [row[0] for row in rows]
        found.append(trend(kind, "p50_ms", at_s, [row[2] for row in rows], seconds))
        found.append(trend(kind, "p99_ms", at_s, [row[3] for row in rows], seconds))
    return found


def as_rows(found: Sequence[Trend]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(one) for one in found]
