"""A cluster of whole nodes in one process, with its clients, and the checks of what its nodes do."""

from typing import TYPE_CHECKING

from antiphon.simulation.cluster.evidence import Evidence
from antiphon.simulation.cluster.machine import Machine
from antiphon.simulation.cluster.metadata_watch import MetadataWatch
from antiphon.simulation.cluster.watch import Watch
from antiphon.simulation.cluster.world import World
from antiphon.simulation.runtime.loop import HostedProcess
from antiphon.simulation.violation import ViolationError

if TYPE_CHECKING:
    from antiphon.simulation.cluster.operator import Operator
    from antiphon.simulation.cluster.world_options import WorldOptions


class SimulatedCluster(World):
    """See the module's text. Make it, `start`, let it run (`loop.run_until`), `close`."""

    def __init__(self, options: "WorldOptions") -> None:
        super().__init__(options)
        self.evidence = Evidence()
        self.machines: list[Machine] = []
        self.watch = Watch(self, self.evidence, self.machines)
        self.metadata = MetadataWatch(self.evidence)
        self.loop.on_step = self._after_step
        for i in range(options.nodes):
            self.machines.append(Machine(self, self.watch, i, self.stream(f"machine {i}")))
        self._machine_of = {machine.host: machine for machine in self.machines}
        self.operator: Operator | None = None  # carries out commands, where a run has them

    def start_all(self) -> None:
        """Start all nodes."""
        for machine in self.machines:
            machine.start()

    def _after_step(self, process: HostedProcess | None) -> None:
        if self.loop.failures:
            self._judge_failures()
        if process is None:
            return
        machine = self._machine_of.get(process.host)
        if machine is not None and machine.process is process:
            server = machine.server
            if server is not None:
                self.watch.look(machine, server.node)
                self.metadata.look(machine, server.node)

    def _judge_failures(self) -> None:
        failures, self.loop.failures = self.loop.failures, []
        for context in failures:
            error = context.get("exception")
            raise ViolationError("no-crash", -1, f"{context.get('message')}: {error!r}") from error
