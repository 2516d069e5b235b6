"""What happened, on a time axis: marks for fail-overs, elections and changes of members, as a picture that pages draw.

Places are percent of the axis, so that the picture is as wide as its page. Marks that would stand on each other are one, so
there are never more than a few hundred, whatever happened.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from antiphon.model.events import Event, EventKind

SPANS: Final = {"10m": 600, "1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800}  # seconds
USUAL: Final = "1h"
STEPS: Final = 150  # of the axis: marks in the same one are drawn as one
TOLD: Final = 6  # of the events of one mark
TICKS: Final = 4
DAY_MS: Final = 86_400_000
# What is told of each lane, the gravest first.
LANES: Final[tuple[tuple[str, dict[EventKind, str]], ...]] = (
    (
        "Nodes",
        {
            EventKind.NODE_DOWN: "bad",
            EventKind.NODE_GONE: "warn",
            EventKind.NODE_DRAINS: "warn",
            EventKind.NODE_UP: "ok",
        },
    ),
    ("Coordinator", {EventKind.COORDINATOR: "accent"}),
    ("Leaders", {EventKind.RECOVERED: "bad", EventKind.NO_LEADER: "bad", EventKind.LEADER: "accent"}),
    ("Members", {EventKind.MEMBERS: "second"}),
)


class Mark(NamedTuple):
    """One or more events at about the same time: where on the axis, how it looks, and what it says."""

    place: str
    looks: str
    total: int
    at_ms: int
    says: str


class Lane(NamedTuple):
    """Events of one sort."""

    name: str
    marks: list[Mark]


class TimeLine(NamedTuple):
    """The picture. `ticks`: places with times; `last`: the newest event of all, which may be before the axis begins."""

    span: str
    lanes: list[Lane]
    ticks: list[tuple[str, str]]
    total: int
    last: Event | None


def drawn(events: Iterable[Event], span: str, now_ms: int) -> TimeLine:
    """The last `span` (one of SPANS, or the usual one) up to now."""
    span = span if span in SPANS else USUAL
    length_ms = SPANS[span] * 1000
    start_ms = now_ms - length_ms
    sorts = {kind: name for name, kinds in LANES for kind in kinds}
    found: dict[tuple[str, int], list[Event]] = {}
    last: Event | None = None
    count = 0
    for one in events:
        name = sorts.get(one.kind)
        if name is None:
            continue
        last = one if last is None or one.at_ms >= last.at_ms else last
        if one.at_ms > start_ms:
            count += 1
            step = min(STEPS - 1, (one.at_ms - start_ms) * STEPS // length_ms)
            found.setdefault((name, step), []).append(one)
    lanes = [
        Lane(
            name,
            [
                _mark(some, kinds, start_ms, length_ms)
                for (of, _), some in sorted(found.items(), key=lambda one: one[0])
                if of == name
            ],
        )
        for name, kinds in LANES
    ]
    return TimeLine(span, lanes, _ticks(start_ms, length_ms), count, last)


def _mark(some: list[Event], kinds: dict[EventKind, str], start_ms: int, length_ms: int) -> Mark:
    gravest = next(kind for kind in kinds if any(one.kind is kind for one in some))
    at_ms = next(one.at_ms for one in some if one.kind is gravest)
    says = [f"{_clock(one.at_ms, seconds=True)} {one.subject} {one.what}" for one in some[:TOLD]]
    if len(some) > TOLD:
        says.append(f"and {len(some) - TOLD} more")
    return Mark(_place(at_ms - start_ms, length_ms), kinds[gravest], len(some), at_ms, "\n".join(says))


def _ticks(start_ms: int, length_ms: int) -> list[tuple[str, str]]:
    found = []
    for number in range(TICKS + 1):
        after_ms = length_ms * number // TICKS
        found.append((_place(after_ms, length_ms), _clock(start_ms + after_ms, days=length_ms >= DAY_MS)))
    return found


def _place(after_ms: int, length_ms: int) -> str:
    return f"{min(100.0, max(0.0, 100 * after_ms / length_ms)):.2f}%"


def _clock(at_ms: int, *, days: bool = False, seconds: bool = False) -> str:
    when = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{when:%m-%d %H:%M}" if days else f"{when:%H:%M:%S}" if seconds else f"{when:%H:%M}"
