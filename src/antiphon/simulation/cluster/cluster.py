"""A cluster of whole nodes in one process, with its clients, and the checks of what its nodes do."""

from typing import TYPE_CHECKING

from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.simulation.cluster.disk_view import DIRECTORY
from antiphon.simulation.cluster.evidence import Evidence
from antiphon.simulation.cluster.machine import Machine
from antiphon.simulation.cluster.metadata_watch import MetadataWatch
from antiphon.simulation.cluster.spans import MemoryTracer
from antiphon.simulation.cluster.watch import Watch
from antiphon.simulation.cluster.world import World
from antiphon.simulation.runtime.loop import HostedProcess
from antiphon.simulation.violation import ViolationError
from antiphon.transactions.group_offsets import shard_of_group

if TYPE_CHECKING:
    from antiphon.log.simulated_tree import Copy
    from antiphon.model.metadata import ShardMeta
    from antiphon.node.node import Node
    from antiphon.partition.partition import Partition
    from antiphon.simulation.cluster.operator import Operator
    from antiphon.simulation.cluster.world_options import WorldOptions


class SimulatedCluster(World):
    """See the module's text. Make it, `start`, let it run (`loop.run_until`), `close`."""

    def __init__(self, options: "WorldOptions") -> None:
        super().__init__(options)
        self.evidence = Evidence()
        self.machines: list[Machine] = []
        self._watch("machine")
        self.loop.on_step = self._after_step
        self.operator: Operator | None = None  # carries out commands, where a run has them
        self.tracer = MemoryTracer(self) if options.traced else None

    def _watch(self, streams: str) -> None:
        """New machines, and new watchers, who know what the evidence says and nothing else."""
        self.watch = Watch(self, self.evidence, self.machines)
        self.metadata = MetadataWatch(self.evidence)
        for i in range(self.options.nodes):
            self.machines.append(Machine(self, self.watch, i, self.stream(f"{streams} {i}")))
        self._machine_of = {machine.host: machine for machine in self.machines}

    def replace_by(self, cluster_id: str, directories: "list[Copy]", evidence: Evidence) -> None:
        """Another cluster in the place of this one, on new machines with these directories.

        `evidence`: what they hold, but for `__cluster`, of which that is known which the first of them holds.
        The machines of this one end, and their names go to the others. `start_all` starts those.
        """
        for machine in self.machines:
            machine.retire()
        self.cluster_id, self.evidence, self.machines = cluster_id, evidence, []
        self._watch("machine of another cluster")
        for machine, directory in zip(self.machines, directories, strict=True):
            machine.disk.restore(DIRECTORY, directory)
            machine.founding = False
        evidence.learn_from(self.machines[0], CLUSTER_SHARD_ID)

    @property
    def nodes(self) -> "list[Node]":
        """Those that run."""
        return [machine.node for machine in self.machines if machine.node is not None]

    def replicas_of(self, shard_id: int) -> "list[tuple[Machine, Partition]]":
        """Those that are open."""
        return [(machine, machine.hosts[shard_id]) for machine in self.machines if shard_id in machine.hosts]

    def shards_of(self, table: str) -> "tuple[ShardMeta, ...]":
        """Of a topic or table, as some node that runs knows it; none where it does not."""
        topics = self.nodes[0].gateway.metadata.topics
        return next((topic.shards for topic in topics if topic.name == table), ())

    def shard_of_group(self, group: str) -> int:
        """The shard of a consumer group's rows."""
        return shard_of_group(self.nodes[0].gateway, group).shard_id

    def start_all(self) -> None:
        """Start all nodes."""
        for machine in self.machines:
            machine.start()

    def _after_step(self, process: HostedProcess | None) -> None:
        if self.loop.failures:
            self._judge_failures()
        if self.tracer is not None and self.tracer.broken is not None:
            raise self.tracer.broken
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
            if isinstance(error, ViolationError):
                raise error
            raise ViolationError("no-crash", f"{context.get('message')}: {error!r}") from error
