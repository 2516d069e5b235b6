"""An operator: creates the topic, and now and then gives a command, as an entry of the list of faults."""

from random import Random
from typing import TYPE_CHECKING, Any, Final

from antiphon.simulation.scheduler import MILLISECOND
from antiphon.wire.requests import AlterTopic, CreateTopic, ElectLeader

if TYPE_CHECKING:
    from antiphon.coordination.coordinator import CommandRequest
    from antiphon.simulation.coordinator_host import CoordinatorHost, Outcome
    from antiphon.simulation.faults import Fault
    from antiphon.simulation.world import World

TOPIC: Final = "flights"
EVERY_MS: Final = 100


class Admin:
    """Gives commands to whichever node coordinates."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        if world.options.has_coordinator:
            self._again()

    # -- founding ---------------------------------------------------------------------------------------------------

    def _again(self) -> None:
        self._world.scheduler.after(self._random.randrange(1, 2 * EVERY_MS) * MILLISECOND, self._found)

    def _found(self) -> None:
        """Create the topic, then its other shards, one after the other."""
        shards = len(self._world.client_shards())
        options = self._world.options
        if shards >= options.shards:
            return
        if shards == 0:
            self._command(CreateTopic(TOPIC, shards=1, replicas=options.replicas))
        else:
            self._command(AlterTopic(TOPIC, shards=shards + 1))
        self._again()

    # -- commands ---------------------------------------------------------------------------------------------------

    def draw(self, random: Random) -> dict[str, Any] | None:
        """A command as the facts of a `Fault`; None when there is nothing to command yet."""
        shards = self._world.client_shards()
        if not shards or not self._world.options.has_coordinator:
            return None
        shard = random.choice(shards)
        wanted = random.choice((-1, *self._world.checker.shards[shard].ensemble))
        return {"kind": "elect", "shard": shard, "nodes": (wanted,)}

    def carry_out(self, fault: "Fault") -> None:
        """Give the command."""
        if fault.kind == "elect":
            self._world.trace.tell("elect", fault.shard, *fault.nodes)
            self._command(ElectLeader(fault.shard, fault.nodes[0]))

    def _command(self, request: "CommandRequest") -> None:
        host = self._coordinator()
        if host is not None:
            host.command(request, self._answered)

    def _coordinator(self) -> "CoordinatorHost | None":
        hosts = [
            node.agent.coordinator for node in self._world.nodes if node.agent is not None and not node.paused
        ]
        active = [host for host in hosts if host is not None and host.coordinator is not None]
        return active[-1] if active else None

    def _answered(self, outcome: "Outcome") -> None:
        self._world.trace.note("command", -1, type(outcome).__name__, str(outcome))
