"""Who has which partition of a group, as its members are told, and what must never be so."""

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

Place = tuple[str, int]  # topic, partition
Places = frozenset[Place]

GIVEN: Final = "given"
TAKEN: Final = "taken"


class Change(NamedTuple):
    """What a member was told."""

    member: str
    what: str
    places: Places


class Ownership:
    """Told of by all members of a group, from their own threads.

    Attributes:
        wrong: what must not be: a member was given what another one had not given up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[Place, str] = {}
        self._read: Counter[bytes] = Counter()  # values of records; what nobody committed may come twice
        self._changes: list[Change] = []
        self.wrong: list[str] = []

    def given(self, member: str, places: Iterable[Place]) -> None:
        """A member may read these from now on."""
        with self._lock:
            told = frozenset(places)
            self._changes.append(Change(member, GIVEN, told))
            for place in sorted(told):
                owner = self._owners.setdefault(place, member)
                if owner != member:
                    self.wrong.append(f"{member} was given {place}, which {owner} had")

    def taken(self, member: str, places: Iterable[Place]) -> None:
        """A member reads these no more."""
        with self._lock:
            told = frozenset(places)
            self._changes.append(Change(member, TAKEN, told))
            for place in told:
                if self._owners.get(place) == member:
                    del self._owners[place]

    def read(self, value: bytes) -> None:
        """A member was given this record."""
        with self._lock:
            self._read[value] += 1

    def ended(self, member: str) -> None:
        """The member is gone, whatever it was told last."""
        with self._lock:
            self._owners = {place: owner for place, owner in self._owners.items() if owner != member}

    @property
    def changes(self) -> list[Change]:
        """All that members were told until now."""
        with self._lock:
            return list(self._changes)

    @property
    def values(self) -> set[bytes]:
        """Records that were read until now."""
        with self._lock:
            return set(self._read)

    def times(self, value: bytes) -> int:
        """How often this record was read."""
        with self._lock:
            return self._read[value]

    def of(self, member: str) -> Places:
        """What a member has."""
        with self._lock:
            return frozenset(place for place, owner in self._owners.items() if owner == member)

    @property
    def owned(self) -> Places:
        """What anybody has."""
        with self._lock:
            return frozenset(self._owners)
