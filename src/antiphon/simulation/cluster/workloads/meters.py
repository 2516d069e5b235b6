"""What somebody gets through at a node, held against a limit that may change; and what that is told of by a workload."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from antiphon.simulation.cluster.workloads.access_history import Known
from antiphon.simulation.cluster.workloads.node_clocks import ClockedWorkload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.workloads.lines import Place

HELD_S: Final = 10.0  # of a rate, what a quota holds at once
FASTER: Final = 1.25  # than the world's, a node's clock at most
Limit = Callable[[Known], float | None]


class MeteredWorkload(ClockedWorkload):
    """A workload whose parts measure what nodes let through while quotas change.

    Attributes:
        places: where each node is asked.
        changes_are_over: its operator changes nothing any more.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str) -> None:
        super().__init__(cluster, name)
        self.places: list[Place] = []
        self.changes_are_over = asyncio.Event()

    def goes_on(self) -> bool:
        """Is it not told to stop? Somebody may tell it so while a client waits."""
        return not self.stopped


class Meter:
    """What somebody gets through at a node, held against a limit for as long as the node goes by one and the same.

    `frees`: does a change of any quota let one more request through?
    """

    def __init__(self, workload: MeteredWorkload, node: int, limit: Limit, *, frees: bool) -> None:
        self._workload = workload
        self._node = node
        self._limit = limit
        self._frees = frees
        self._begin()

    def _begin(self) -> None:
        history = self._workload.history
        self._starts = self._workload.clocks.starts(self._node)
        self._since, self._rate = history.moment(self._node), self._limit(history.now())
        self._began_s = self._workload.now
        self._used = self._largest = 0.0

    def used(self, amount: float, what: str) -> None:
        """So much got through, asked for since the last call."""
        history, since = self._workload.history, self._since
        is_another = self._starts != self._workload.clocks.starts(self._node)
        if (
            since is None
            or is_another
            or history.could(since, lambda known: self._limit(known) != self._rate)
        ):
            self._begin()
            return
        self._used += amount
        self._largest = max(self._largest, amount)
        if self._rate is None:
            return
        passed_s = self._workload.now - self._began_s
        spare = (2 + history.quota_changes(since)) * self._largest if self._frees else 0.0
        most = self._rate * (HELD_S + FASTER * passed_s)
        require(
            self._used - spare <= most,
            "quota",
            f"node {self._node} let {self._used:,.0f} {what} through in {passed_s:.1f} s from version {since.version} on; "
            f"the quota is {self._rate:,.0f} a second, which lets {most:,.0f}",
        )
