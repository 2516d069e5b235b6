"""What must hold in the multi-writer world, after every step and at the end.

* `lsn-order`: every replica has each origin's entries one after the other, none missing, none twice (S4.21, S4.23).
* `identity`: an origin and an LSN name one entry, for everybody, for ever (S4.24).
* `durability`: what a client was told is committed is on that node's disk, as long as the disk lives (S4.18).
* `trim`: nothing is trimmed that a member never had.
* `no-split-brain`: nobody finds another history at a peer.
* `convergence`: when faults have stopped, all vector clocks, logs and tables are the same, and nothing that was
  acknowledged is missing, but for what stood on a single disk that was lost (S4.28).
"""

from collections.abc import Iterable, Sequence

from antiphon.replication.origin_history import Mark, OriginEntry
from antiphon.replication.vclock import Vclock, component, join
from antiphon.simulation.violation import require

SHARD = 1
ELSEWHERE = -1
Identity = tuple[int, int]


class MultiChecker:
    """The truth about one shard."""

    def __init__(self) -> None:
        self.known: dict[Identity, object] = {}  # every entry that is on a disk, or was ever passed on
        # By node: what its clients were told, and is on its disk.
        self.acknowledged: dict[int, dict[Identity, object]] = {}
        self.had: dict[int, set[Identity]] = {}  # by node: what was ever on a disk of it
        self.skipped: dict[int, Vclock] = {}  # by node: what it took for trimmed, or trimmed itself
        self.retired: Vclock = ()  # what somebody trimmed

    def staged(self, node: int, before: Sequence[int], entries: Iterable[OriginEntry], own: int) -> None:
        """A replica appends entries to a log that ends with the LSNs `before`; those of its origin `own` are new."""
        lsns = list(before)
        for entry in entries:
            require(
                entry.lsn == lsns[entry.origin] + 1,
                "lsn-order",
                SHARD,
                f"node {node} appends entry {entry.lsn} of origin {entry.origin} after {lsns[entry.origin]}",
            )
            lsns[entry.origin] = entry.lsn
            if entry.origin != own:
                self._name(entry, node)

    def durable(self, node: int, entries: Iterable[OriginEntry]) -> None:
        """Entries are on a disk."""
        had = self.had.setdefault(node, set())
        for entry in entries:
            self._name(entry, node)
            had.add((entry.origin, entry.lsn))

    def begins(self, node: int, base: Mark) -> None:
        """A log begins at `base` for whoever asks."""
        self.skipped[node] = join(self.skipped.get(node, ()), base.clock)

    def trimmed(self, node: int, entries: Iterable[OriginEntry], base: Mark, members: Iterable[int]) -> None:
        """A node removes the oldest entries of its log."""
        gone = list(entries)
        for member in members:
            had, skipped = self.had.get(member, set()), self.skipped.get(member, ())
            for entry in gone:
                name = (entry.origin, entry.lsn)
                require(
                    name in had or entry.lsn <= component(skipped, entry.origin),
                    "trim",
                    SHARD,
                    f"node {node} trims entry {name}, which node {member} never had",
                )
        self.retired = join(self.retired, base.clock)
        self.begins(node, base)

    def _name(self, entry: OriginEntry, node: int) -> None:
        known = self.known.setdefault((entry.origin, entry.lsn), entry.data)
        require(
            known == entry.data,
            "identity",
            SHARD,
            f"entry {entry.lsn} of origin {entry.origin} is {entry.data} at node {node}, and {known} elsewhere",
        )

    def told(self, node: int, entry: OriginEntry) -> None:
        """A client hears that its write is committed."""
        self.acknowledged.setdefault(node, {})[entry.origin, entry.lsn] = entry.data

    def restarts(self, node: int, base: Mark, entries: Iterable[OriginEntry]) -> None:
        """A node comes up with this on its disk."""
        have = {(entry.origin, entry.lsn): entry.data for entry in entries}
        for (origin, lsn), data in self.acknowledged.get(node, {}).items():
            trimmed = origin < len(base.clock) and lsn <= base.clock[origin]
            require(
                trimmed or have.get((origin, lsn)) == data,
                "durability",
                SHARD,
                f"node {node} told a client that {data} is committed, and has lost it in a crash",
            )

    def lost(self, node: int, gone: Iterable[OriginEntry], elsewhere: Iterable[OriginEntry]) -> None:
        """A disk has lost entries; those that are on no other disk may be gone for ever, and their names free again."""
        safe = {(entry.origin, entry.lsn) for entry in elsewhere}
        told = self.acknowledged.get(node, {})
        kept = self.acknowledged.setdefault(ELSEWHERE, {})
        for entry in gone:
            name = (entry.origin, entry.lsn)
            if name not in safe:
                self.known.pop(name, None)
                for others in self.acknowledged.values():
                    others.pop(name, None)
            elif name in told:
                kept[name] = told.pop(name)

    def replaced(self, node: int) -> None:
        """The whole disk is gone; what was told and is not among its entries, everybody had and it was trimmed."""
        self.acknowledged.pop(node, None)

    def everything_told(self) -> dict[Identity, object]:
        """All acknowledged entries that must still be everywhere in the end."""
        return {
            name: data
            for told in self.acknowledged.values()
            for name, data in told.items()
            if name[1] > component(self.retired, name[0])
        }
