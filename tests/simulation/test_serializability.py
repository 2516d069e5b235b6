"""The judge of histories: known anomalies are found, and every history that some order explains is accepted."""

from itertools import permutations
from random import Random

import pytest

from antiphon.simulation.serializability import Transaction, cycle_in, places_of


def txn(
    name: str, reads: str = "", writes: str = "", began: float | None = None, ended: float | None = None
) -> Transaction:
    """Reads and writes as `x0 y2`: key and place."""
    found = Transaction(name, began, ended)
    found.reads = {one[0]: int(one[1:]) for one in reads.split()}
    for one in writes.split():
        found.writes.setdefault(one[0], []).append(int(one[1:]))
    return found


ANOMALIES = {
    "lost update": [txn("a", "x0", "x1"), txn("b", "x0", "x2")],
    "write skew": [txn("a", "x0 y0", "x1"), txn("b", "x0 y0", "y1")],
    "fractured read": [txn("a", "", "x1 y1"), txn("b", "x1 y0")],
    "long fork": [txn("a", "", "x1"), txn("b", "", "y1"), txn("c", "x1 y0"), txn("d", "x0 y1")],
    "dirty order": [txn("a", "", "x1 y2"), txn("b", "", "x2 y1")],
    "stale read": [txn("a", "", "x1", 1, 2), txn("b", "x0", "", 3, 4)],
    "stale read, by way of others": [
        txn("a", "", "x1", 1, 2),
        txn("c", "", "z1", 3, 4),
        txn("d", "", "z2", 5, 6),
        txn("b", "x0", "", 7, 8),
    ],
}
FINE = {
    "one after the other": [txn("a", "x0", "x1", 1, 2), txn("b", "x1", "x2", 3, 4)],
    "beside each other": [txn("a", "x0", "y1", 1, 5), txn("b", "y1", "z1", 2, 3)],
    "an old read that overlaps": [txn("a", "", "x1", 1, 3), txn("b", "x0", "", 2, 4)],
    "unknown ends": [txn("a", "", "x1", 1), txn("b", "x0", "", 3, 4)],
    "two writes of one": [txn("a", "x0", "x1 x2"), txn("b", "x2", "x3")],
}


@pytest.mark.parametrize("name", ANOMALIES)
def test_anomalies_are_found(name: str) -> None:
    found = cycle_in(ANOMALIES[name])
    assert found
    assert found[-1].endswith(found[0].partition(" ")[0]), "it comes back to where it began"


@pytest.mark.parametrize("name", FINE)
def test_histories_that_are_serializable_are_accepted(name: str) -> None:
    assert cycle_in(FINE[name]) == []


def explained(history: list[Transaction]) -> bool:
    """Is there an order in which each reads what it read, and versions come in their order?"""
    for order in permutations(history):
        state: dict[object, int] = {}
        for at, one in enumerate(order):
            if any(
                later.ended is not None and one.began is not None and later.ended < one.began
                for later in order[at + 1 :]
            ):
                break
            if any(state.get(key, 0) != place for key, place in one.reads.items()):
                break
            if any(places[0] != state.get(key, 0) + 1 for key, places in one.writes.items()):
                break
            state.update({key: places[-1] for key, places in one.writes.items()})
        else:
            return True
    return False


def test_the_judge_agrees_with_a_search_over_all_orders() -> None:
    draw, verdicts = Random(7), set()
    for _ in range(600):
        history = [txn(str(number)) for number in range(4)]
        for key in "xy":
            count = 0
            for one in draw.sample(history, draw.randint(0, 3)):
                count += 1
                one.writes[key] = [count]
            for one in history:
                if draw.random() < 0.5:
                    others = [place for place in range(count + 1) if place not in one.writes.get(key, ())]
                    one.reads[key] = draw.choice(others)  # nobody reads what he writes himself
        for one in history:
            if draw.random() < 0.6:
                one.began = draw.random()
                one.ended = one.began + draw.random() / 2
        wanted = explained(history)
        verdicts.add(wanted)
        assert (cycle_in(history) == []) == wanted, history
    assert verdicts == {True, False}


def test_places() -> None:
    assert places_of([5, 7, 30]) == {5: 1, 7: 2, 30: 3}
