"""What is kept of groups of the classic protocol, held against what their members were told and did.

The rows in the log are read as they are written, without the code that writes them.

- `told-unkept`: what a member is given in a generation is in the log, in a row of that generation.
- `one-owner`: no row gives a partition to two members.
- `generations-go-on`: of two rows one after the other, the later one has a later generation, or is about the same one.
- `stale-commit`: a commit in that log is of a member that the last row before it has, in the generation of that row.
- `member-forgotten`: a member whose heartbeat was answered within its session, and within the time that it has to join
  again, is known in its generation, whoever coordinates by now.
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from antiphon.errors import AntiphonError
from antiphon.simulation.cluster.workloads.kafka_history import Commit, Given
from antiphon.simulation.violation import require
from antiphon.transactions.group_offsets import shard_of_group

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster

GENERATION, MEMBERS, WHOLE = 0, 5, 6  # where they are in a row
MEMBER_ID, ASSIGNMENT = 0, 7
LEASE: Final = 0.7  # of a member's times: clocks differ

_Owned = dict[str, bytes]  # assignments by member id


class Coordinator(NamedTuple):
    """The node that coordinates a group, and the term in which it does."""

    term: int
    host: str


def coordinator_of(cluster: "SimulatedCluster", group: str) -> Coordinator | None:
    """Of all nodes that take themselves for it, the one in the latest term: others are deposed and have not heard of it."""
    found = []
    for machine in cluster.machines:
        if machine.node is None:
            continue
        gateway = machine.node.gateway
        try:
            term = gateway.term_led(shard_of_group(gateway, group).shard_id)
        except AntiphonError:
            continue  # it knows of no such table yet
        if term is not None:
            found.append(Coordinator(term, machine.host))
    return max(found, default=None)


class KeptGroup:
    """One group, followed through the log of its shard. `shard_id`: for what is told of a mistake."""

    def __init__(self, shard_id: int) -> None:
        self._shard_id = shard_id
        self._generation = -1
        self._owned: _Owned = {}
        self._every: dict[int, list[_Owned]] = {}  # by generation

    def take(self, value: bytes | None) -> None:
        """The next row of the group; None: it was removed, and whoever comes begins anew."""
        if value is None:
            self._generation, self._owned = -1, {}
            return
        row: list[Any] = msgspec.msgpack.decode(value)
        owned = {member[MEMBER_ID]: member[ASSIGNMENT] for member in row[MEMBERS]}
        generation = row[GENERATION]
        same = generation == self._generation and sorted(owned.values()) == sorted(self._owned.values())
        require(
            generation > self._generation or same,
            "generations-go-on",
            f"a row of generation {generation} with {owned} comes after one of {self._generation} with {self._owned}",
            self._shard_id,
        )
        partitions = [partition for assignment in owned.values() for partition in assignment]
        require(
            len(partitions) == len(set(partitions)) and row[WHOLE],
            "one-owner",
            f"the row of generation {generation} gives {owned}",
            self._shard_id,
        )
        self._generation, self._owned = generation, owned
        self._every.setdefault(generation, []).append(owned)

    def check_commit(self, text: str, asked: Commit) -> None:
        """The next commit of the group, in the log."""
        require(
            asked.round[0] == self._generation and asked.member_id in self._owned,
            "stale-commit",
            f"the commit {text} is of {asked.member_id} in generation {asked.round[0]}; the group is kept in generation "
            f"{self._generation} with {sorted(self._owned)}",
            self._shard_id,
        )

    def check_given(self, given: Given) -> None:
        """What a member was given is kept."""
        rows = self._every.get(given.round[0], [])
        require(
            any(owned.get(given.member_id) == bytes(given.owned) for owned in rows),
            "told-unkept",
            f"{given.member_id} was given {given.owned} in {given.round}, which no row says: {rows}",
            self._shard_id,
        )
