"""Members that are given partitions with a replica in their own rack, where that leaves the loads as even as they are.

A member is *near* a partition that has a replica in its rack. Each step makes one partition near: it moves to a near member
that has less, or two members exchange one partition each, so that more are near than before. Members that say no rack are
near nothing. Such steps find no best of all assignments: longer chains of exchanges are not looked for.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from antiphon.coordination.consumer_terms import Place, Readers

LOOKS_MAX: Final = 32  # partitions that one is compared with for an exchange, of each kind
PASSES_MAX: Final = 8
_ANY: Final = ""  # in place of a rack: a partition that is not near its own member


class Racks(NamedTuple):
    """Where members stand, and replicas of each partition, by topic. What nobody said is left out."""

    members: Mapping[str, str]
    replicas: Mapping[bytes, tuple[frozenset[str], ...]]

    def of(self, place: Place) -> frozenset[str]:
        """The racks in which a partition has a replica; none where that is not known."""
        topic, partition = place
        racks = self.replicas.get(topic, ())
        return racks[partition] if partition < len(racks) else frozenset()

    def is_near(self, member: str, place: Place) -> bool:
        """Does the member stand in a rack with a replica of this partition?"""
        return self.members.get(member) in self.of(place)


NO_RACKS: Final = Racks({}, {})


class Nearer:
    """Changes `owners` (the member of each partition) and `loads` (how many each member has)."""

    def __init__(
        self, readers: Readers, racks: Racks, owners: dict[Place, str], loads: dict[str, int]
    ) -> None:
        self._readers, self._racks, self._owners, self._loads = readers, racks, owners, loads
        self._in_rack: dict[str, list[str]] = {}
        for member in sorted(readers):
            if member in racks.members:
                self._in_rack.setdefault(racks.members[member], []).append(member)
        # By the rack of the member: partitions that are not near it (_ANY), and those that are, by each of their racks.
        self._offers: dict[tuple[str, str], dict[Place, None]] = {}

    def improve(self) -> None:
        """Make near what can be. Each step leaves more places near than before it, so there is an end."""
        for place in sorted(self._owners):
            self._offer(place)
        for _ in range(PASSES_MAX):
            steps = [self._moved(place) or self._exchanged(place) for place in self._not_near()]
            if not any(steps):
                return

    def _not_near(self) -> Iterator[Place]:
        return (place for place in sorted(self._owners) if not self._is_near(place))

    def _is_near(self, place: Place) -> bool:
        return self._racks.is_near(self._owners[place], place)

    def _moved(self, place: Place) -> bool:
        """To the near member that has least, if that is less than its own member has."""
        near = [
            (self._loads[member], member)
            for rack in sorted(self._racks.of(place))
            for member in self._in_rack.get(rack, ())
            if place[0] in self._readers[member]
        ]
        load, member = min(near, default=(0, ""))
        if not member or load >= self._loads[self._owners[place]]:
            return False
        self._loads[self._owners[place]] -= 1
        self._loads[member] += 1
        self._give(place, member)
        return True

    def _exchanged(self, place: Place) -> bool:
        """For another partition that is not near where it is, or near here as well."""
        owner = self._owners[place]
        own_rack = self._racks.members.get(owner)
        for rack in sorted(self._racks.of(place)):
            for other_rack in (_ANY,) if own_rack is None else (_ANY, own_rack):
                for other in list(self._offers.get((rack, other_rack), ()))[:LOOKS_MAX]:
                    member = self._owners[other]
                    if place[0] in self._readers[member] and other[0] in self._readers[owner]:
                        self._give(place, member)
                        self._give(other, owner)
                        return True
        return False

    def _give(self, place: Place, member: str) -> None:
        for key in self._keys(place):
            self._offers[key].pop(place, None)
        self._owners[place] = member
        self._offer(place)

    def _offer(self, place: Place) -> None:
        for key in self._keys(place):
            self._offers.setdefault(key, {})[place] = None

    def _keys(self, place: Place) -> list[tuple[str, str]]:
        rack = self._racks.members.get(self._owners[place])
        if rack is None:
            return []
        return [(rack, other) for other in self._racks.of(place)] if self._is_near(place) else [(rack, _ANY)]
