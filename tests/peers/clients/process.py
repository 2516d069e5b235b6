"""What the clients written in Python have in common."""

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from hdrh.histogram import HdrHistogram

LONGEST_US: Final = 600_000_000
DIGITS: Final = 3

Job = dict[str, Any]
Result = dict[str, Any]


class Work(Protocol):
    """One kind of work; it is connected when it is made."""

    def run(self, seconds: float) -> Result:
        """Work for so long, then wait for what is under way."""


def histogram(took_us: Iterable[float] = ()) -> Any:
    """An HDR histogram of latencies."""
    made = HdrHistogram(1, LONGEST_US, DIGITS)
    for one in took_us:
        made.record_value(min(LONGEST_US, max(1, round(one))))
    return made


def result(count: int, seconds: float, took_us: Iterable[float] = (), failed: int = 0) -> Result:
    """What a client prints at its end."""
    found: Result = {"count": count, "seconds": seconds, "failed": failed}
    made = histogram(took_us)
    if made.get_total_count():
        found["hdr"] = made.encode().decode()
    return found


def serve(kinds: dict[str, Callable[[Job], Work]]) -> None:
    """The life of a client process."""
    job = json.loads(sys.argv[1])
    work = kinds[job["work"]](job)
    if job["warm_s"]:
        work.run(job["warm_s"])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(work.run(job["seconds"])), flush=True)


class Due:
    """When the operations of an open loop are due; a late one keeps the time at which it was due."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._began = time.perf_counter()
        self._given = 0

    def take(self) -> list[float]:
        """Due times, in seconds of `perf_counter`, of all that became due since the last call."""
        until = int((time.perf_counter() - self._began) * self._rate)
        due = [self._began + number / self._rate for number in range(self._given, until)]
        self._given = until
        return due
