"""The server-side assignors: two of the consumer protocol, one of share groups. All keep what members have, as far as they
can.

Each takes who reads which topics, how many partitions these have, the assignment so far, and where members and replicas
stand, and returns an assignment in which every partition of a topic that anybody reads has exactly one reader; in share
groups one or more. The same input gives the same output.
"""

import heapq
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from antiphon.coordination.consumer_terms import NO_PLACES, Place, Places, Readers
from antiphon.coordination.nearness import NO_RACKS, Nearer, Racks

UNIFORM: Final = "uniform"
RANGE: Final = "range"
PASSES_MAX: Final = 8  # over the topics, until no move makes it more even

Sizes = Mapping[bytes, int]  # partitions of each topic
Assignment = dict[str, Places]


class Assignor(Protocol):
    """See the module's text."""

    def __call__(
        self, readers: Readers, sizes: Sizes, before: Mapping[str, Places], racks: Racks = NO_RACKS, /
    ) -> Assignment:
        """The places of each reader."""


def uniform(
    readers: Readers, sizes: Sizes, before: Mapping[str, Places], racks: Racks = NO_RACKS
) -> Assignment:
    """Members get equal numbers of partitions, until no single move makes them more even; then near ones."""
    shares = _Shares(readers, sizes, racks)
    shares.keep(before)
    shares.fill()
    shares.even_out()
    shares.bring_near()
    return shares.result()


def ranged(
    readers: Readers, sizes: Sizes, before: Mapping[str, Places], racks: Racks = NO_RACKS
) -> Assignment:
    """Each topic is cut into ranges of neighbours. Members who read the same topics get the same numbers of each.

    Members stand in the order of what they had, new ones last, so that ranges move little. Racks do not count: a range of
    neighbours has replicas in all of them.
    """
    del racks
    order = sorted(readers, key=lambda member: (_first(before.get(member, NO_PLACES)), member))
    found: dict[str, set[Place]] = {member: set() for member in readers}
    for topic in sorted(sizes):
        members = [member for member in order if topic in readers[member]]
        if not members:
            continue
        least, more = divmod(sizes[topic], len(members))
        at = 0
        for number, member in enumerate(members):
            end = at + least + (number < more)
            found[member].update((topic, partition) for partition in range(at, end))
            at = end
    return {member: frozenset(places) for member, places in found.items()}


def _first(places: Places) -> tuple[int, int]:
    """Where a member stood before: by its lowest partition of any topic."""
    return (0, min(partition for _, partition in places)) if places else (1, 0)


def shared(
    readers: Readers, sizes: Sizes, before: Mapping[str, Places], racks: Racks = NO_RACKS
) -> Assignment:
    """For share groups: each partition has a reader at least, each member a partition at least of every topic it reads.

    Where a topic has no more members than partitions, these are spread evenly, one reader each. Where it has more members,
    each of them reads one partition, and partitions have equal numbers of readers, give or take one. Members keep what they
    had, as far as that leaves room. Where they have one reader each, members get near ones.
    """
    few: dict[str, set[bytes]] = {member: set() for member in readers}
    found: dict[str, set[Place]] = {member: set() for member in readers}
    for topic in sorted(sizes):
        members = sorted(member for member in readers if topic in readers[member])
        if len(members) <= sizes[topic]:
            for member in members:
                few[member].add(topic)
        elif sizes[topic]:
            for member, partition in _crowded(topic, members, sizes[topic], before).items():
                found[member].add((topic, partition))
    spread = uniform({member: frozenset(topics) for member, topics in few.items()}, sizes, before, racks)
    return {member: spread[member] | found[member] for member in readers}


def _crowded(
    topic: bytes, members: list[str], partitions: int, before: Mapping[str, Places]
) -> dict[str, int]:
    """One partition for each of more members than there are partitions."""
    least, more = divmod(len(members), partitions)
    loads = [0] * partitions
    found: dict[str, int] = {}
    for member in members:
        had = min((at for kept, at in before.get(member, NO_PLACES) if kept == topic), default=partitions)
        room = least + (more > 0)
        if had < partitions and loads[had] < room:
            more -= loads[had] == least
            loads[had] += 1
            found[member] = had
    for member in members:
        if member not in found:
            found[member] = loads.index(min(loads))
            loads[found[member]] += 1
    return found


SIMPLE: Final = "simple"
ASSIGNORS: Final[dict[str, Assignor]] = {UNIFORM: uniform, RANGE: ranged, SIMPLE: shared}
"""By the names that members ask for them by; `simple` is for share groups only."""


class _Shares:
    """The work of `uniform`. Topics with the same readers are looked at together: most groups have one such set."""

    def __init__(self, readers: Readers, sizes: Sizes, racks: Racks) -> None:
        self._readers = readers
        self._racks = racks
        self._sizes = sizes
        self._of: dict[Place, str] = {}
        self._load = dict.fromkeys(readers, 0)
        by_topic: dict[bytes, list[str]] = {}
        for member in sorted(readers):
            for topic in readers[member]:
                if topic in sizes:
                    by_topic.setdefault(topic, []).append(member)
        self._topics_of: dict[tuple[str, ...], list[bytes]] = {}
        for topic in sorted(by_topic):
            self._topics_of.setdefault(tuple(by_topic[topic]), []).append(topic)

    def keep(self, before: Mapping[str, Places]) -> None:
        """Let members have what they had, where they still read it."""
        for member in sorted(self._readers):
            topics = self._readers[member]
            for place in sorted(before.get(member, NO_PLACES)):
                topic, partition = place
                if topic in topics and partition < self._sizes.get(topic, 0) and place not in self._of:
                    self._give(place, member)

    def fill(self) -> None:
        """Give what nobody has to whom it is least; first what few can read."""
        for members, topics in sorted(self._topics_of.items(), key=lambda each: (len(each[0]), each[1])):
            heap = [(self._load[member], member) for member in members]
            heapq.heapify(heap)
            for topic in topics:
                for partition in range(self._sizes[topic]):
                    if (topic, partition) not in self._of:
                        member = self._top(heap, 1)
                        self._give((topic, partition), member)
                        heapq.heapreplace(heap, (self._load[member], member))

    def even_out(self) -> None:
        """Move places from whom has most to whom has least, while that makes them more even."""
        for _ in range(PASSES_MAX):
            moved = False
            for members, topics in self._topics_of.items():
                moved = self._even_out(members, frozenset(topics)) or moved
            if not moved or len(self._topics_of) == 1:
                return

    def bring_near(self) -> None:
        """Exchange places that are not near their members, if there are racks."""
        if self._racks.members and self._racks.replicas:
            Nearer(self._readers, self._racks, self._of, self._load).improve()

    def _even_out(self, members: Iterable[str], topics: frozenset[bytes]) -> bool:
        has: dict[str, list[Place]] = {member: [] for member in members}
        for place, member in self._of.items():
            if place[0] in topics:
                has[member].append(place)
        for member, places in has.items():
            has[member] = sorted(  # those that are not near go first
                places, key=partial(self._racks.is_near, member), reverse=True
            )
        rich = [(-self._load[member], member) for member, places in has.items() if places]
        poor = [(self._load[member], member) for member in has]
        heapq.heapify(rich)
        heapq.heapify(poor)
        moved = False
        while rich:
            giver, taker = self._top(rich, -1), self._top(poor, 1)
            if self._load[giver] - self._load[taker] <= 1:
                break
            place = has[giver].pop()
            has[taker].append(place)
            self._load[giver] -= 1
            self._give(place, taker)
            moved = True
            heapq.heappush(poor, (self._load[giver], giver))
            heapq.heappush(rich, (-self._load[taker], taker))
            if has[giver]:
                heapq.heapreplace(rich, (-self._load[giver], giver))
            else:
                heapq.heappop(rich)
        return moved

    def _top(self, heap: list[tuple[int, str]], sign: int) -> str:
        """The member at the top, by what it has now."""
        while True:
            load, member = heap[0]
            if load == sign * self._load[member]:
                return member
            heapq.heapreplace(heap, (sign * self._load[member], member))

    def _give(self, place: Place, member: str) -> None:
        self._of[place] = member
        self._load[member] += 1

    def result(self) -> Assignment:
        """The places of each member."""
        found: dict[str, list[Place]] = {member: [] for member in self._readers}
        for place, member in self._of.items():
            found[member].append(place)
        return {member: frozenset(places) for member, places in found.items()}
