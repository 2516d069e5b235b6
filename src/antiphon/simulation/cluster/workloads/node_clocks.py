"""For how long the process of each node has run, not counting while it stood still, and when it heard of which metadata.

A promise of the kind "within two seconds" is one of a process that runs: one that was stopped does late what was due.
"""

import asyncio
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from antiphon.simulation.cluster.workloads.access_history import AccessHistory
from antiphon.simulation.cluster.workloads.workload import Workload
from antiphon.simulation.runtime.process import State

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process, Shield

LOOK_S: Final = 0.05


class NodeClocks:
    """See the module's text. `run` in a process of the workload, until it is told to stop."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self._cluster = cluster
        self._of = [_NodeClock() for _ in cluster.machines]
        self._looked_s = cluster.loop.now
        self.stopped = False

    async def run(self, process: "Process") -> None:  # noqa: ARG002 - what runs in a process is given it
        """Look at the nodes again and again."""
        while not self.stopped:
            now_s = self._cluster.loop.now
            passed_s, self._looked_s = now_s - self._looked_s, now_s
            for clock, machine in zip(self._of, self._cluster.machines, strict=True):
                running = machine.process
                clock.look(running, passed_s, -1 if machine.node is None else machine.node.view.version)
            await asyncio.sleep(LOOK_S)

    def starts(self, node: int) -> int:
        """Which of the node's processes runs."""
        return self._cluster.machines[node].starts

    def ran_s(self, node: int) -> float:
        """How long the node's process has run, at least."""
        return self._of[node].ran_s

    def knows_for_s(self, node: int, version: int) -> float:
        """For how long, at least, it has run and known of this version of the metadata; 0.0: it may not know of it."""
        clock = self._of[node]
        if clock.process is not self._cluster.machines[node].process:
            return 0.0
        at = bisect_left(clock.versions, version)
        return clock.ran_s - clock.heard_s[at] if at < len(clock.versions) else 0.0


class _NodeClock:
    """Of one node."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self.ran_s = 0.0
        self.versions: list[int] = []  # ascending, as they were seen, and when
        self.heard_s: list[float] = []

    def look(self, process: "Process | None", passed_s: float, version: int) -> None:
        if process is not self.process:
            self.process, self.ran_s, self.versions, self.heard_s = process, 0.0, [], []
        elif process is not None and process.state in {None, State.BUSY}:
            self.ran_s += passed_s
        if not self.versions or version > self.versions[-1]:
            self.versions.append(version)
            self.heard_s.append(self.ran_s)


class ClockedWorkload(Workload):
    """A workload that holds nodes to what they know of users and quotas, and to the time for which they have known it.

    Attributes:
        history: what `__cluster` said.
        begun_at: version of the metadata when all that is needed had been set up.
        outcomes: how often what happened.
    """

    may_pause = False
    outcomes: dict[str, int]

    def __init__(self, cluster: "SimulatedCluster", name: str) -> None:
        super().__init__(cluster, name)
        self.history = AccessHistory(cluster)
        self.clocks = NodeClocks(cluster)
        self.begun_at = -1
        self._at_work = 0  # clients that are not through

    def begin(self) -> None:
        """See `Workload`; the clients are begun by `start`."""
        self.begun_at = self.history.now().version
        self.spawn("clocks", self.clocks.run)

    def start(
        self,
        name: str,
        work: "Callable[[Process], Coroutine[Any, Any, None]]",
        shield: "Shield | None" = None,
        address: str = "",
    ) -> None:
        """Run a client; the nodes' clocks are looked at until the last one is through."""

        async def until_through(process: "Process") -> None:
            await work(process)
            self._at_work -= 1
            self.clocks.stopped = not self._at_work

        self._at_work += 1
        self.spawn(name, until_through, shield=shield, address=address)

    def check(self) -> None:
        """See `Workload`: all is checked when it is told."""
