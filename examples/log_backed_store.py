"""Seats of a flight, sold by two agencies at the same time: a state machine whose log is a topic, with no server of its own.

antiphon up --nodes 3          # in another terminal
python examples/log_backed_store.py 127.0.0.1:7400
"""

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import antiphon

TOPIC = "example-seats"
Seats = Mapping[str, str]
NOBODY: Seats = {}


class TakenError(Exception):
    """Somebody else sits there."""


def validate(seats: Seats, operation: bytes) -> None:
    """May it happen in this state? Raises if not; the caller of `submit` gets the exception."""
    seat, _ = json.loads(operation)
    if seat in seats:
        raise TakenError(f"{seat} is {seats[seat]}'s")


def apply(seats: Seats, operation: bytes) -> Seats:
    """The state after it: a new one, the old one stays as it is."""
    seat, passenger = json.loads(operation)
    return {**seats, seat: passenger}


def sell(agency: str, servers: str) -> list[str]:
    """Try to sell twenty seats; returns those that were sold here."""
    sold = []
    with (
        antiphon.connect(servers) as db,
        antiphon.LogBackedStore(db, TOPIC, initial=NOBODY, apply=apply, validate=validate) as store,
    ):
        for row in range(1, 21):
            request = json.dumps([f"{row}A", agency]).encode()
            try:
                # Lands only if nobody wrote since this store last read. If somebody did, it is judged again.
                store.submit(request, reevaluate=True)
            except TakenError:
                continue
            sold.append(f"{row}A")
    return sold


def main(servers: str) -> None:
    with antiphon.connect(servers) as db:
        db.create_topic(TOPIC)
        with ThreadPoolExecutor() as pool:
            one, two = pool.map(lambda agency: sell(agency, servers), ["Berlin", "Newark"])
        with antiphon.LogBackedStore(db, TOPIC, initial=NOBODY, apply=apply) as store:
            seats = store.catch_up()
            print(f"Berlin sold {len(one)}, Newark {len(two)}; {len(seats)} seats are taken")
            if set(one) & set(two) or len(seats) != len(one) + len(two):
                raise SystemExit("a seat was sold twice")
        db.delete_topic(TOPIC)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
