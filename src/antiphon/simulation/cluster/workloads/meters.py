"""What somebody gets through at a node, held against a limit that may change; and what that is told of by a workload."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from antiphon.simulation.cluster.workloads.access_history import AccessHistory, Known
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from random import Random

    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.workloads.lines import Place
    from antiphon.simulation.cluster.workloads.node_clocks import NodeClocks
    from antiphon.simulation.runtime.process import Process, Shield

HELD_S: Final = 10.0  # of a rate, what a quota holds at once
FASTER: Final = 1.25  # than the world's, a node's clock at most
Limit = Callable[[Known], float | None]


class Owner(Protocol):
    """A workload, as its parts see it.

    Attributes:
        places: where each node is asked.
        changes_are_over: its operator changes nothing any more.
    """

    cluster: "SimulatedCluster"
    history: AccessHistory
    clocks: "NodeClocks"
    places: "list[Place]"
    changes_are_over: asyncio.Event
    outcomes: dict[str, int]

    @property
    def now(self) -> float:
        """The world's time."""
        ...

    def goes_on(self) -> bool:
        """Is it not told to stop?"""
        ...

    def host(self, node: int) -> str:
        """Of a node."""
        ...

    def any_node(self, draw: "Random") -> int:
        """One of them."""
        ...

    async def connected(self) -> "AsyncClient":
        """A client that has reached the cluster."""
        ...

    def start(
        self,
        name: str,
        work: "Callable[[Process], Coroutine[Any, Any, None]]",
        shield: "Shield | None" = None,
        address: str = "",
    ) -> None:
        """Run a client."""
        ...


class Meter:
    """What somebody gets through at a node, held against a limit for as long as the node goes by one and the same.

    `frees`: does a change of any quota let one more request through?
    """

    def __init__(self, workload: Owner, node: int, limit: Limit, *, frees: bool) -> None:
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
            -1,
            f"node {self._node} let {self._used:,.0f} {what} through in {passed_s:.1f} s from version {since.version} on; "
            f"the quota is {self._rate:,.0f} a second, which lets {most:,.0f}",
        )
