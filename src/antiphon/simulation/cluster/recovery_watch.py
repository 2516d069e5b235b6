"""What has to hold of a shard that lost most replicas, and went on from one of them by an operator's command.

- `recovery-needed`: no majority of its voters was alive, with their disks, when that was recorded.
- `old-history-refused`: a replica of before says nothing in a term of the new history. It is removed, and one that is made
  in its place begins empty.

What was committed, and is not on the disk of the replica that was named, is lost from then on. All else that is committed
stays so, and is judged as before.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from antiphon.records.decode import decode_records
from antiphon.replication.messages import Ack, BecomeLeaderReply, NewTermReply, RequestVote, VoteReply
from antiphon.replication.quorum import majority
from antiphon.simulation.cluster.evidence import Evidence
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.model.metadata import ShardMeta, ShardRecovery
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.cluster.truth import Batch

ACTS: Final = (Ack, NewTermReply, BecomeLeaderReply, RequestVote, VoteReply)
"""What a replica says that others may count."""

IsAlive = Callable[[int], bool]
Sets = tuple[tuple[int, ...], ...]
Expected = dict[tuple[int, int], int]  # by node and shard


class RecoveryWatch:
    """See the module's text.

    Args:
        evidence: what is known to be committed.
        has: does a node's disk hold a batch of a shard?
        is_empty: is a node's replica of a shard open, without an entry?
        expected: by replica, what later starts of it are held to.
    """

    def __init__(
        self,
        evidence: Evidence,
        has: "Callable[[int, int, Batch], bool]",
        is_empty: "Callable[[int, int], bool]",
        expected: tuple[Expected, ...],
    ) -> None:
        self._evidence = evidence
        self._has = has
        self._is_empty = is_empty
        self._expected = expected
        self._numbers: dict[int, int] = {}  # by shard, of the recovery that was seen last
        self._led: dict[int, int] = {}  # the same of those after which the shard was led
        self._alive: set[int] = set()  # nodes, by the metadata before
        self.old: dict[
            tuple[int, int], int
        ] = {}  # (node, shard) of the old history -> term that begins the new one
        self.begins: dict[int, int] = {}  # by shard: where the new history's own entries begin
        self.lost: dict[int, set[bytes]] = {}  # by shard: values that were committed and are lost

    def look(self, shard: "ShardMeta", before: Sets, is_alive: IsAlive) -> None:
        """The coordinator has recorded this; `before`: who voted until then."""
        known = shard.recovery
        if known is not None and known.done:
            self._led[shard.shard_id] = known.number
        if known is None or self._numbers.get(shard.shard_id, 0) >= known.number:
            return
        self._numbers[shard.shard_id] = known.number
        self._check_needed(shard, before, is_alive)
        self._lose(shard.shard_id, known)
        for node in known.members:
            if node != known.node:
                if not self._is_empty(node, shard.shard_id):  # as on a new disk: then it has no history
                    self.old[node, shard.shard_id] = known.term
                for known_of in self._expected:
                    known_of.pop((node, shard.shard_id), None)
        self.old.pop((known.node, shard.shard_id), None)

    def led(self, shard_id: int) -> int | None:
        """The number of the last recovery; None while the shard is not led again, 0 where there was none."""
        number = self._numbers.get(shard_id, 0)
        return number if self._led.get(shard_id, 0) == number else None

    def number(self, shard_id: int) -> int:
        """Of the last recovery that was decided; 0 where there was none."""
        return self._numbers.get(shard_id, 0)

    def note_alive(self, alive: set[int]) -> None:
        """Nodes as the newest metadata has them."""
        self._alive = alive

    def _check_needed(self, shard: "ShardMeta", before: Sets, is_alive: IsAlive) -> None:
        """A node that comes back at this very moment is not held against anybody."""
        hurt = self._evidence.hurt
        there = [[n for n in each if n in self._alive and is_alive(n) and n not in hurt] for each in before]
        require(
            not before
            or any(len(found) < majority(len(each)) for found, each in zip(there, before, strict=True)),
            "recovery-needed",
            f"it goes on from node {shard.recovery and shard.recovery.node} alone, and of its voters {before} {there} are "
            "alive",
            shard.shard_id,
        )

    def _lose(self, shard_id: int, known: "ShardRecovery") -> None:
        """What the disk of the one that was named does not hold is committed no more."""
        truth, held = self._evidence.truth(shard_id), 0
        for batch in truth.batches:
            if not self._has(known.node, shard_id, batch):
                break
            held = batch.next_offset
        gone = [batch for batch in truth.batches if batch.next_offset > held]
        self.lost.setdefault(shard_id, set()).update(value for batch in gone for value in _values(batch))
        truth.cut(held)
        self.begins[shard_id] = held

    def opened(self, machine: "Machine", host: "Partition") -> None:
        """A replica was opened. One that is empty was made anew."""
        if host.log.log_end == 0:
            self.old.pop((machine.node_id, host.shard_id), None)

    def is_old(self, node_id: int, shard_id: int) -> bool:
        """Has this replica the old history, so that nothing that it holds is committed?"""
        return (node_id, shard_id) in self.old

    def check_spoken(self, node_id: int, message: object) -> None:
        """A node says this to another."""
        if not isinstance(message, ACTS):
            return
        mark = self.old.get((node_id, message.shard))
        require(
            mark is None or message.term < mark,
            "old-history-refused",
            f"node {node_id} says {message!r}; its replica is of the history that ended before term {mark}",
            message.shard,
        )


def _values(batch: "Batch") -> list[bytes]:
    return [bytes(record.value or b"") for record in decode_records(batch.data)]
