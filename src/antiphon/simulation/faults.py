"""What goes wrong, when: faults drawn from the seed until the safety phase ends."""

from random import Random
from typing import TYPE_CHECKING

from antiphon.replication.replica_state import Role
from antiphon.simulation.options import MILLION
from antiphon.simulation.scheduler import MILLISECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.simulation.node import SimulatedNode
    from antiphon.simulation.world import World


class Faults:
    """Draws faults one after the other and ends them again."""

    def __init__(self, world: "World", random: Random) -> None:
        self._world = world
        self._random = random
        self._stopped = False
        options = world.options
        self._menu: list[tuple[int, Callable[[], None]]] = [
            (options.crash_weight, self._crash),
            (options.crash_all_weight, self._crash_all),
            (options.partition_weight, self._partition),
            (options.one_way_weight, self._cut_one_way),
            (options.clog_weight, self._clog),
            (options.pause_weight, self._pause),
            (options.disk_failure_weight, self._fail_disk),
            (options.trim_weight, self._trim),
        ]
        if options.fault_every_ms and any(weight for weight, _ in self._menu):
            self._plan()

    def _plan(self) -> None:
        wait_ms = 1 + int(self._random.expovariate(1.0 / self._world.options.fault_every_ms))
        self._world.scheduler.after(wait_ms * MILLISECOND, self._strike)

    def _strike(self) -> None:
        if self._stopped:
            return
        weights = [weight for weight, _ in self._menu]
        _, fault = self._random.choices(self._menu, weights)[0]
        fault()
        self._plan()

    def stop(self) -> None:
        """No more faults; what is broken is mended: every node runs, every link works."""
        self._stopped = True
        world = self._world
        healed = world.network.become_perfect()
        self._reconnect(healed)
        for node in world.nodes:
            if not node.alive or node.disk.failed:
                if node.alive:
                    node.crash()
                self._restart(node.node_id)
            else:
                node.wake()

    def _duration_ns(self) -> int:
        """Mostly short, now and then long enough for several elections."""
        return (1 + int(self._random.expovariate(1.0 / self._random.choice((20, 100, 400))))) * MILLISECOND

    def _victim(self) -> "SimulatedNode":
        """Any node; often one that leads, because that is where it hurts."""
        if self._random.random() < 0.4:
            leading = [
                self._world.nodes[hosted.node]
                for truth in self._world.checker.shards.values()
                for hosted in truth.hosted.values()
                if hosted.role is Role.LEADER
            ]
            if leading:
                return self._random.choice(leading)
        return self._random.choice(self._world.nodes)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _crash(self) -> None:
        node = self._victim()
        if node.alive:
            self._take_down(node.node_id)

    def _crash_all(self) -> None:
        for node in self._world.nodes:
            if node.alive:
                self._take_down(node.node_id)

    def _take_down(self, node_id: int) -> None:
        world = self._world
        world.nodes[node_id].crash()
        if self._random.random() < 0.7:
            delay_ns = self._random.randrange(1, 20) * MILLISECOND
            for peer in world.nodes:
                if peer.node_id != node_id:
                    world.scheduler.after(delay_ns, self._notice_loss, peer.node_id, node_id)
        world.scheduler.after(self._duration_ns(), self._restart, node_id)

    def _notice_loss(self, node_id: int, lost: int) -> None:
        if not self._world.nodes[lost].alive:
            self._world.nodes[node_id].peer_changed(lost, connected=False)

    def _restart(self, node_id: int) -> None:
        world = self._world
        if world.nodes[node_id].alive:
            return
        if not self._stopped and self._random.randrange(MILLION) < world.options.damage_ppm:
            world.nodes[node_id].damage()
        world.nodes[node_id].start()
        for peer in world.nodes:
            if peer.node_id != node_id:
                delay_ns = self._random.randrange(1, 10) * MILLISECOND
                world.scheduler.after(delay_ns, peer.peer_changed, node_id, True)

    def _pause(self) -> None:
        node = self._victim()
        if node.alive and not node.paused:
            node.pause(self._world.scheduler.now_ns + self._duration_ns())

    def _fail_disk(self) -> None:
        node = self._random.choice(self._world.nodes)
        if node.alive and not node.disk.failed:
            node.fail_disk()
            self._world.scheduler.after(self._duration_ns(), self._end_failed, node.node_id, node.life)

    def _end_failed(self, node_id: int, life: int) -> None:
        if self._world.nodes[node_id].life == life:
            self._take_down(node_id)

    def _trim(self) -> None:
        node = self._random.choice(self._world.nodes)
        if node.alive and not node.paused:
            node.trim()

    # -- links ----------------------------------------------------------------------------------------------------

    def _partition(self) -> None:
        """Two sides that do not hear each other; clients reach both. A new partition replaces the old one."""
        world, random = self._world, self._random
        self._heal()
        side = [self._victim().node_id]
        rest = [node.node_id for node in world.nodes if node.node_id not in side]
        side += random.sample(rest, random.randint(0, len(world.nodes) // 2 - 1))
        others = [node.node_id for node in world.nodes if node.node_id not in side]
        world.trace.note("partition", -1, tuple(sorted(side)), tuple(others))
        self._cut([(a, b) for a in side for b in others] + [(b, a) for a in side for b in others])

    def _cut_one_way(self) -> None:
        """One node hears nobody, or is heard by nobody, or one link works in one direction only."""
        world, random = self._world, self._random
        self._heal()
        node = self._victim().node_id
        others = [other.node_id for other in world.nodes if other.node_id != node]
        if random.random() < 0.3:
            others = [random.choice(others)]
        links = [(node, other) for other in others]
        if random.random() < 0.5:
            links = [(other, node) for other in others]
        world.trace.note("one-way", -1, tuple(links))
        self._cut(links)

    def _cut(self, links: list[tuple[int, int]]) -> None:
        world = self._world
        for source, target in links:
            world.network.cut(source, target)
            if self._random.random() < 0.5:  # the connection breaks, or it only falls silent
                delay_ns = self._random.randrange(1, 200) * MILLISECOND
                world.scheduler.after(delay_ns, self._break, source, target)
        world.scheduler.after(self._random.choice((1, 1, 4)) * self._duration_ns(), self._heal)

    def _break(self, source: int, target: int) -> None:
        if self._world.network.is_cut(source, target):
            self._world.nodes[source].peer_changed(target, connected=False)

    def _heal(self) -> None:
        healed = self._world.network.heal()
        if healed:
            self._world.trace.note("heal", -1)
        self._reconnect(healed)

    def _reconnect(self, healed: list[tuple[int, int]]) -> None:
        for source, target in healed:
            if self._world.nodes[target].alive:
                self._world.nodes[source].peer_changed(target, connected=True)

    def _clog(self) -> None:
        world, random = self._world, self._random
        source = self._victim().node_id
        others = [node.node_id for node in world.nodes if node.node_id != source]
        until_ns = world.scheduler.now_ns + self._duration_ns()
        for target in random.sample(others, random.randint(1, len(others))):
            world.trace.note("clog", -1, source, target, until_ns)
            world.network.clog(source, target, until_ns)
