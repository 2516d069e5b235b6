"""An operator: creates the topic, and now and then asks for a new leader."""

from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.simulation.scheduler import MILLISECOND
from antiphon.wire.requests import AlterTopic, CreateTopic, ElectLeader

if TYPE_CHECKING:
    from antiphon.simulation.coordinator_host import CoordinatorHost, Outcome
    from antiphon.simulation.world import World

TOPIC: Final = "flights"
EVERY_MS: Final = 100


class Admin:
    """Gives commands to whichever node coordinates."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self.stopped = False
        self._again()

    def _again(self) -> None:
        self._world.scheduler.after(self._random.randrange(1, 2 * EVERY_MS) * MILLISECOND, self._act)

    def _act(self) -> None:
        hosts = [
            node.agent.coordinator for node in self._world.nodes if node.agent is not None and not node.paused
        ]
        active = [host for host in hosts if host is not None and host.coordinator is not None]
        if active:
            self._command(active[-1])
        self._again()

    def _command(self, host: "CoordinatorHost") -> None:
        options, shards = self._world.options, self._world.client_shards()
        if not shards:
            host.command(CreateTopic(TOPIC, shards=1, replicas=options.replicas), self._answered)
        elif self.stopped:
            return
        elif len(shards) < options.shards:
            host.command(AlterTopic(TOPIC, shards=len(shards) + 1), self._answered)
        elif self._random.random() < 0.1:
            shard = self._random.choice(shards)
            wanted = self._random.choice((-1, *self._world.checker.shards[shard].ensemble))
            host.command(ElectLeader(shard, wanted), self._answered)

    def _answered(self, outcome: "Outcome") -> None:
        self._world.trace.note("command", -1, type(outcome).__name__, str(outcome))
