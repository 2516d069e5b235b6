"""Is a history of transactions serializable, in an order that real time agrees with?

The order of the versions of each key is known (a log says it), and so is which version a transaction has read. What follows
is a graph of dependencies (Adya):

- *write-write*: who wrote a version comes before who wrote the next one of the key;
- *write-read*: who wrote a version comes before who read it;
- *read-write*: who read a version comes before who wrote the next one;
- *time*: who was answered before another one began comes before that one.

The history is serializable, strictly, if and only if the graph has no cycle. A single read or write is a transaction, too.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Transaction:
    """One that took effect. `began`, `ended`: when it was asked for and answered; None where that is not known.

    Attributes:
        reads: by key, the place of the version that it read among the versions of the key; 0: the key as it was at first.
        writes: by key, the places of the versions that it wrote, from 1 on.
    """

    name: Hashable
    began: float | None = None
    ended: float | None = None
    reads: dict[Hashable, int] = field(default_factory=dict)
    writes: dict[Hashable, list[int]] = field(default_factory=dict)


Edges = dict[int, dict[int, str]]


def cycle_in(transactions: Sequence[Transaction]) -> list[str]:
    """A cycle of dependencies, as text; empty where there is none."""
    edges = _edges(transactions)
    found = _cycle(len(transactions), edges)
    if not found:
        return []
    return [
        f"{transactions[one].name} --{edges[one][other]}--> {transactions[other].name}"
        for one, other in zip(found, [*found[1:], found[0]], strict=True)
    ]


def _edges(transactions: Sequence[Transaction]) -> Edges:
    edges: Edges = defaultdict(dict)
    writers: dict[Hashable, dict[int, int]] = defaultdict(dict)
    for at, one in enumerate(transactions):
        for key, places in one.writes.items():
            for place in places:
                writers[key][place] = at

    def add(before: int | None, after: int | None, why: str) -> None:
        if before is not None and after is not None and before != after:
            edges[before].setdefault(after, why)

    for key, by_place in writers.items():
        for place in sorted(by_place):
            add(by_place[place], by_place.get(place + 1), f"ww {key!r}")
    for at, one in enumerate(transactions):
        for key, place in one.reads.items():
            known: Mapping[int, int] = writers.get(key, {})
            add(known.get(place), at, f"wr {key!r}")
            add(at, known.get(place + 1), f"rw {key!r}")
    _add_times(transactions, add)
    return edges


def _add_times(transactions: Sequence[Transaction], add: Callable[[int, int, str], None]) -> None:
    """Who was answered before another one began; what follows by way of a third one is left out."""
    order = sorted(
        (at for at, one in enumerate(transactions) if one.began is not None),
        key=lambda at: transactions[at].began or 0.0,
    )
    starts = [transactions[at].began or 0.0 for at in order]
    # From an answer to each that began after it, up to the first answer among those: the others follow that one.
    soonest: list[float] = [float("inf")] * (len(order) + 1)
    for place in range(len(order) - 1, -1, -1):
        ended = transactions[order[place]].ended
        soonest[place] = min(soonest[place + 1], float("inf") if ended is None else ended)
    for at, one in enumerate(transactions):
        if one.ended is None:
            continue
        first = bisect_right(starts, one.ended)
        bound = soonest[first]
        for place in range(first, len(order)):
            if starts[place] > bound:
                break
            add(at, order[place], "time")


def _cycle(count: int, edges: Edges) -> list[int]:
    """The shortest cycle through some node that is on one."""
    left = _on_cycles(count, edges)
    for start in sorted(left):
        came: dict[int, int] = {}
        waiting = deque([start])
        while waiting:
            one = waiting.popleft()
            for other in edges.get(one, ()):
                if other == start:
                    return _path(came, start, one)
                if other in left and other not in came:
                    came[other] = one
                    waiting.append(other)
    return []


def _on_cycles(count: int, edges: Edges) -> set[int]:
    """What is left when all that nothing comes before was taken away, again and again."""
    incoming = [0] * count
    for targets in edges.values():
        for other in targets:
            incoming[other] += 1
    free = deque(at for at in range(count) if not incoming[at])
    left = set(range(count))
    while free:
        one = free.popleft()
        left.discard(one)
        for other in edges.get(one, ()):
            incoming[other] -= 1
            if not incoming[other]:
                free.append(other)
    return left


def _path(came: Mapping[int, int], start: int, end: int) -> list[int]:
    path = [end]
    while path[-1] != start:
        path.append(came[path[-1]])
    return path[::-1]


def places_of(versions: Iterable[int]) -> dict[int, int]:
    """Versions of a key in their order -> their places, from 1 on."""
    return {version: place for place, version in enumerate(versions, 1)}
