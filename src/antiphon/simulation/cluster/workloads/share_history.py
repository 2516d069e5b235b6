"""What members of a share group were given and confirmed, and what follows of that for whoever is given something later.

Times are the world's. A record is a member's from the moment in which its request was sent at the earliest, and so for a
part of the lock at least. That ends when the member acknowledges, closes its session or loses its connection, and with
another leader of the partition: whoever takes over has no locks. Every leader writes a row of its own before it gives
anything, so the number of those in the committed log tells whether there was another one in between.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from antiphon.records.changes import effects_of
from antiphon.simulation.cluster.timing import SHARE_DELIVERIES, SHARE_LOCK_MS
from antiphon.simulation.cluster.workloads.share_rows import StoredShare, stored_share
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.kafka_client import Connection

SURE: Final = 0.8  # of a lock: clocks differ
NOTICED_S: Final = 5.0  # a member knows by then that its connection is gone
OUTCOMES: Final = (
    "shares-joined",
    "shares-fenced",
    "shares-given",
    "shares-accepted",
    "shares-released",
    "shares-refused",
    "shares-lapsed",
    "shares-told",
)
Record = tuple[int, int]  # partition, offset


@dataclass(eq=False, slots=True)
class Held:
    """Records that a member was given by one answer. `leaders`: how many the partition had had when it asked."""

    member: str
    partition: int
    first: int
    end: int
    deliveries: int
    asked_s: float
    connection: "Connection"
    leaders: int
    is_over: bool = False

    def overlaps(self, other: "Held") -> bool:
        """Are there records in both?"""
        return self.partition == other.partition and self.first < other.end and other.first < self.end

    @property
    def until_s(self) -> float:
        """So long they are its own for certain."""
        return self.asked_s + SURE * SHARE_LOCK_MS / 1000


@dataclass(slots=True)
class Clash:
    """Two members had a record at a time, unless one of their connections was gone by then."""

    at_s: float
    one: Held
    other: Held
    offset: int


@dataclass(slots=True)
class ShareHistory:
    """See the module's text. `confirmed`: when a record's end was confirmed; `least`: deliveries that the next one has."""

    cluster: "SimulatedCluster"
    group: str
    shard_ids: dict[int, int] = field(default_factory=dict)  # of the topic
    topic_id: bytes = b""
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    confirmed: dict[Record, tuple[float, str]] = field(default_factory=dict)
    least: dict[Record, tuple[float, int]] = field(default_factory=dict)
    given: set[Record] = field(default_factory=set)
    unanswered: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # fetches, by partition
    closed_s: "dict[Connection, float]" = field(default_factory=dict)  # when a member saw that it was closed
    ends: dict[int, int] = field(default_factory=dict)  # by partition: what was committed when all was done
    _holders: dict[Record, Held] = field(default_factory=dict)
    _clashes: list[Clash] = field(default_factory=list)
    _rows: dict[int, StoredShare] = field(default_factory=dict)  # by partition: the last one
    _states: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    _owners: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    _looked: int = 0  # batches of the group's shard that were looked at
    groups_shard: int = -1
    _done: bool = False

    @property
    def now(self) -> float:
        """The world's time."""
        return self.cluster.loop.now

    # -- what is stored ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take in what was committed of the group since."""
        batches = self.cluster.evidence.truth(self.groups_shard).batches
        while self._looked < len(batches):
            data = batches[self._looked].data
            self._looked += 1
            for key, value, _ in effects_of(data):
                self._stored(key, value)

    def _stored(self, key: bytes, value: bytes | None) -> None:
        found = stored_share(key, value, self.group, self.topic_id)
        if found is None:
            return
        owners, partition = self._owners[found.partition], found.partition
        if not owners or owners[-1] != found.owner:
            require(
                found.owner not in owners,
                "share-owner",
                f"a leader of partition {partition} stores what it has, after another one did (term {found.term})",
                self.groups_shard,
            )
            owners.append(found.owner)
        before = self._rows.get(partition)
        require(
            before is None or found.start >= before.start,
            "share-start",
            f"the start offset of partition {partition} goes back from {before and before.start} to {found.start}",
            self.groups_shard,
        )
        self._rows[partition] = found
        self._states[partition].append((found.start, found.done))

    def states(self) -> dict[int, list[tuple[int, int]]]:
        """By partition: start offset and records behind it that are done, as they were committed one after the other."""
        self.look()
        return {partition: list(states) for partition, states in self._states.items()}

    def leaders(self, partition: int) -> int:
        """How many leaders have stored something of the partition by now."""
        self.look()
        return len(self._owners[partition])

    # -- what members are told --------------------------------------------------------------------------------------

    def take(self, held: Held) -> None:
        """A member is given records, now."""
        self.outcomes["shares-given"] += held.end - held.first
        require(
            1 <= held.deliveries <= SHARE_DELIVERIES,
            "share-limit",
            f"{held.member} is given {held.partition}/{held.first} for the {held.deliveries}th time",
            self.shard_ids[held.partition],
        )
        leaders = self.leaders(held.partition)
        for offset in range(held.first, held.end):
            record = (held.partition, offset)
            self.given.add(record)
            confirmed_s, what = self.confirmed.get(record, (self.now, ""))
            require(
                held.asked_s <= confirmed_s,
                "share-again",
                f"{held.member} is given {record}, and asked at {held.asked_s:.3f}; {what} at {confirmed_s:.3f}",
                self.shard_ids[held.partition],
            )
            since_s, least = self.least.get(record, (self.now, 0))
            require(
                held.asked_s <= since_s or held.deliveries >= least,
                "share-deliveries",
                f"{held.member} is given {record} for the {held.deliveries}th time, which has to be the {least}th",
                self.shard_ids[held.partition],
            )
            other = self._holders.get(record)
            if other is not None and other.leaders == leaders and not other.is_over:
                at_s = self.now
                if at_s < other.until_s and at_s < held.until_s:
                    self._clashes.append(Clash(at_s, other, held, offset))
            self._holders[record] = held

    def check_clashes(self) -> None:
        """Everything is over: was any of them one, whose connections were open?"""
        for clash in self._clashes:
            gone = [
                one
                for one in (clash.one, clash.other)
                if self.closed_s.get(one.connection, clash.at_s + 2 * NOTICED_S) <= clash.at_s + NOTICED_S
            ]
            require(
                bool(gone),
                "share-two-holders",
                f"{clash.one.member} and {clash.other.member} have {clash.one.partition}/{clash.offset} at {clash.at_s:.3f}",
                self.shard_ids[clash.one.partition],
            )

    def confirm(self, held: Held, offset: int, what: str) -> None:
        """A member is told that the end of a record is stored."""
        self.look()
        record = (held.partition, offset)
        row = self._rows.get(held.partition)
        require(
            row is not None and row.is_done(offset),
            "share-durable",
            f"{held.member} is told that {record} is {what}, and that is committed nowhere",
            self.shard_ids[held.partition],
        )
        self.confirmed[record] = (self.now, f"{held.member} was told that it is {what}")

    def released(self, held: Held, offset: int) -> None:
        """A member is told that its release of a record is stored."""
        self.least[held.partition, offset] = (self.now, held.deliveries + 1)

    # -- in the end -------------------------------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Is every record of the topic done, as it is stored? Notes how far it goes; nothing new is appended any more.

        An append whose outcome nobody knows may be committed after that, when no member is left to be given the record.
        """
        if self._done:
            return True
        self.look()
        truths = {
            partition: self.cluster.evidence.truth(shard) for partition, shard in self.shard_ids.items()
        }
        self.ends = {partition: truth.end for partition, truth in truths.items() if truth.batches}
        self._done = all(
            (row := self._rows.get(partition)) is not None and row.start >= end
            for partition, end in self.ends.items()
        )
        return self._done
