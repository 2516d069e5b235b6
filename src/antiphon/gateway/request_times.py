"""How long requests take, by listener and kind of request, as the listeners note it and `/metrics` shows it."""

from bisect import bisect_left
from collections.abc import Iterator

from antiphon.model.counters import LATENCY_BOUNDS_S


class Histogram:
    """Counts of durations in seconds in fixed buckets."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self._sum += seconds

    @property
    def counts(self) -> tuple[int, ...]:
        """How many durations there were up to each bound and above the one before it; the last: above all."""
        return tuple(self._counts)

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets as Prometheus wants them, and the sum."""
        total = 0
        out: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out, self._sum


class RequestTimes(dict[str, Histogram]):
    """The durations of one listener's requests by their names, from when a request was read until it was answered.

    The names are those of the listener's own tables, never words of a client, so their number is bounded.
    """

    def __missing__(self, name: str) -> Histogram:
        """The first request of its kind."""
        made = self[name] = Histogram()
        return made


class Listeners:
    """The durations of all listeners, each under its name."""

    def __init__(self) -> None:
        self.kafka = RequestTimes()
        self.native = RequestTimes()
        self.oxia = RequestTimes()

    def __iter__(self) -> Iterator[tuple[str, str, Histogram]]:
        """Listener, request, durations; in order."""
        for listener, times in (
            ("kafka", self.kafka),
            ("native", self.native),
            ("oxia", self.oxia),
        ):
            for name in sorted(times):
                yield listener, name, times[name]
