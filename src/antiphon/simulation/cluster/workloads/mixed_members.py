"""A group that members of both of Kafka's protocols come to and leave: it goes over from one to the other and back.

- `one-owner`, `member-forgotten`, `two-holders`, `stale-commit`, `refused-commit`, `commit-kept`, `commit-found`: as for
  groups of the consumer protocol (`consumer_group`), across both protocols.
- `one-kind`: in the log of the group's shard, the group has rows of one protocol at a time.

The rows in the log are read as they are written, without the code that writes them.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.workloads.classic_life import MIXED, ClassicLife, read_assignment
from antiphon.simulation.cluster.workloads.consumer_group import ConsumerGroupWorkload
from antiphon.simulation.cluster.workloads.consumer_member import ConsumerMember
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

GENERATION, MEMBERS = 0, 5  # where they are in a row of a classic group
MEMBER_ID, ASSIGNMENT = 0, 7


class MixedConsumer(ConsumerMember):
    """One life of a member of the consumer protocol in this group."""

    group = MIXED


@workload("mixed_members", 52, Drawn(seldom(0.15, 3)), logs_in=False)
class MixedMembersWorkload(ConsumerGroupWorkload):
    """Members of both of Kafka's protocols come to one group and go, so that it goes over from one to the other and back.

    Checked: no partition is given to a member while another one of either protocol has it or may think so; in the log the
    group is of one protocol at a time, no two members hold a partition, and each commit is of a member in its epoch or
    generation of then; committed offsets stay, whatever the group becomes; in the end everything is owned.
    """

    group = MIXED

    def __init__(self, cluster: "SimulatedCluster", name: str = "mixed-group") -> None:
        super().__init__(cluster, name)
        self.outcomes.update({"classics-joined": 0, "became-consumer": 0, "became-classic": 0})
        self._consumers: set[str] = set()  # by the log: members of the consumer group
        self._classic: dict[str, tuple[int, ...]] = {}  # and what members of the classic group have
        self._generation = -1
        self._was = ""

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(self.cluster.options.mixed_members, self._come_and_go)
        self.spawn("last", self._come_last)

    def _member(self, process: "Process") -> ConsumerMember:
        self._lives += 1
        kind = ClassicLife if process.random.random() < 0.5 else MixedConsumer
        return kind(self, self.history, process, self.client(process), self._lives)

    # -- judges ---------------------------------------------------------------------------------------------------

    def _look_at(self, shard_id: int, effects: list[tuple[bytes, bytes | None]]) -> None:
        looked = False
        for key, value in effects:
            kind, group, *rest = key.decode().split("/")
            if group != self.group:
                continue
            if kind == "classic":
                looked = True
                self._take_classic(value)
            elif kind == "consumer" and rest[0] == "member":
                looked = True
                name = "/".join(rest[1:])
                (self._consumers.discard if value is None else self._consumers.add)(name)
        if looked:
            self._judge_kind(shard_id)

    def _take_classic(self, value: bytes | None) -> None:
        row: list[Any] = [-1, None, None, None, 0, []] if value is None else msgspec.msgpack.decode(value)
        self._generation = row[GENERATION]
        self._classic = {each[MEMBER_ID]: read_assignment(each[ASSIGNMENT]) for each in row[MEMBERS]}

    def _judge_kind(self, shard_id: int) -> None:
        require(
            not self._consumers or not self._classic,
            "one-kind",
            f"members {sorted(self._consumers)} of the consumer protocol, and a classic row of {sorted(self._classic)}",
            shard_id,
        )
        owned = [partition for partitions in self._classic.values() for partition in partitions]
        require(
            len(owned) == len(set(owned)),
            "two-holders",
            f"the row of generation {self._generation} gives {self._classic}",
            shard_id,
        )
        now = "consumer" if self._consumers else "classic" if self._classic else self._was
        if self._was and now != self._was:
            self.outcomes[f"became-{now}"] += 1
        self._was = now

    def _may_commit(self, member: str, epoch: int, epochs: dict[str, int]) -> bool:
        return super()._may_commit(member, epoch, epochs) or (
            member in self._classic and epoch == self._generation
        )
