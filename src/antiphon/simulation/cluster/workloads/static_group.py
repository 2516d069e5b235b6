"""A consumer group of static members: who comes back under its instance id takes its own place, and fences who had it.

- `fenced-instance`: when the member that has an instance id by now has committed, no member that had it before commits.
- `commit-kept`, `commit-found`, `refused-commit`: as for other groups (`kafka_group`).

Two clients share an instance id now and then, as when one is started again while the other only stands still: they fence
each other. Most members end without a word.
"""

from typing import TYPE_CHECKING, Final

from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.workloads.kafka_group import AWAY_S, GroupWorkload
from antiphon.simulation.cluster.workloads.kafka_member import Membership
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

PLACES: Final = 2


@workload("static_members", 14, Drawn(seldom(0.15, 3), "seldom", 6), logs_in=False)
class StaticGroupWorkload(GroupWorkload):
    """A group of static members: who comes back under an instance id takes the place of who had it; two clients share each
    id, so they fence each other.

    Checked: commits as in `kafka_group.py`; when a member has committed, none that had its instance id before commits any
    more.
    """

    group = "standing"

    def __init__(self, cluster: "SimulatedCluster", name: str = "standing") -> None:
        super().__init__(cluster, name)

    async def _work(self, process: "Process", number: int) -> None:
        while self.heirs.get(number) is not None:
            number = self.heirs[number]  # it comes back as whoever it takes the place of
        while not self.stopped:
            await self._member(process, f"place-{number % PLACES}").live()
            await self.sleep(process, AWAY_S)
        await self._member(process, None).look()

    def _member(self, process: "Process", instance: str | None) -> Membership:
        return Membership(self, self.history, process, self.client(process), self.group, instance)

    def _check_generations(self, shard_id: int, places: dict[str, int]) -> None:
        """A member id that another one has taken the place of does not come back."""
        current: dict[str, str] = {}
        over: dict[str, str] = {}  # by member id: which one has its place
        for text in sorted(places, key=places.__getitem__):
            member = self.history.commits[text].member_id
            instance = self.history.instances[member]
            require(
                member not in over,
                "fenced-instance",
                f"the commit {text} is of {member} as {instance}, and comes after one of {over.get(member)}, "
                "which has its place",
                shard_id,
            )
            before = current.get(instance, member)
            if before != member:
                over[before] = member
            current[instance] = member
