"""A consumer group whose members come and go: what it committed is kept, and only the members of now commit.

- `commit-kept`: an offset whose commit was acknowledged is in the log of the group's shard.
- `commit-found`: a fetch of offsets finds the last commit that was acknowledged when it began, or a later one; and nothing
  that is not committed. So no owner of a partition begins before what the owner before it was told to be committed.
- `old-generation`: when members of one generation have committed, members of an earlier one commit nothing any more.
- `refused-commit`: a commit that was refused because of its generation or member leaves nothing in the log.
- `one-owner`: in one generation a partition has one owner, and every member gets what the leader meant for it.
- What is kept of the group is what members are told, and successors go by it (`kept_groups`).

The order in the shard's log decides what is earlier and later: every commit carries a text of its own, by which it is found
there.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from antiphon.simulation.cluster.drawing import Drawn, with_listeners
from antiphon.simulation.cluster.workloads.kafka_history import History, Round
from antiphon.simulation.cluster.workloads.kafka_member import GROUP, Membership
from antiphon.simulation.cluster.workloads.kafka_workload import TOPIC, KafkaWorkload
from antiphon.simulation.cluster.workloads.kept_groups import KeptGroup
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.runtime.process import calling_process
from antiphon.simulation.violation import require
from antiphon.transactions.group_offsets import Committed

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

AWAY_S: Final = 0.5


@workload("kafka_members", 12, Drawn(with_listeners(0, 2, 3), "doors", 3), logs_in=False)
class GroupWorkload(KafkaWorkload):
    """Members of a consumer group join and leave, commit, and sometimes commit under an old generation.

    Checked: acknowledged commits are kept and found by later fetches of offsets; old generations commit nothing; a
    partition has one owner in a generation; members are given what is kept in the log, and the next coordinator knows
    them in their generation.
    """

    group = GROUP

    def __init__(self, cluster: "SimulatedCluster", name: str = "group") -> None:
        super().__init__(cluster, name)
        self.history = History()
        self.outcomes = self.history.outcomes

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`: the table of groups is made when somebody looks for a coordinator."""
        await super().set_up(db)
        client = self.client(calling_process())
        while await client.coordinator(self.group) is None:
            await client.back_off()
        client.close()

    async def _work(self, process: "Process", _number: int) -> None:
        while not self.stopped:
            member = Membership(self, self.history, process, self.client(process))
            await member.live()
            await self.sleep(process, AWAY_S)
        last = Membership(self, self.history, process, self.client(process))
        await last.look()

    def check(self) -> None:
        """See `Workload`."""
        shard_id = self.cluster.shard_of_group(self.group)
        places = self._places(shard_id)
        self._check_generations(shard_id, places)
        self.history.check(shard_id, places)

    def _places(self, shard_id: int) -> dict[str, int]:
        """Where in the log the group's commits are, by their texts; each is of the group as it is kept there."""
        places: dict[str, int] = {}
        kept = KeptGroup(shard_id)
        for key, value, _ in self.cluster.evidence.truth(shard_id).effects():
            kind, group, *rest = key.decode().split("/")
            if (kind, group) == ("classic", self.group):
                kept.take(value)
            if (kind, group) != ("offset", self.group) or rest[0] != TOPIC or value is None:
                continue
            partition = rest[1]
            row = msgspec.msgpack.decode(value, type=Committed)
            asked = self.history.commits.get(row.metadata)
            require(
                asked is not None and (asked.partition, asked.offset) == (int(partition), row.offset),
                "nobodys-commit",
                f"nobody asked for the commit {row} of partition {partition}",
                shard_id,
            )
            if asked is not None:
                kept.check_commit(row.metadata, asked)
            places[row.metadata] = len(places)
        for given in self.history.given:
            kept.check_given(given)
        return places

    def _check_generations(self, shard_id: int, places: dict[str, int]) -> None:
        over: dict[Round, None] = {}
        current: Round | None = None
        for text in sorted(places, key=places.__getitem__):
            who = self.history.commits[text].round
            if who == current:
                continue
            require(
                who not in over,
                "old-generation",
                f"the commit {text} is of generation {who}, and comes after one of generation {current}, which is newer",
                shard_id,
            )
            if current is not None:
                over[current] = None
            current = who
