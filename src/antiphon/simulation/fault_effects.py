"""How a fault of the list is carried out, and how it ends."""

from random import Random
from typing import TYPE_CHECKING

from antiphon.simulation.scheduler import MILLISECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.simulation.faults import Fault
    from antiphon.simulation.world import World


class FaultEffects:
    """Carries out faults on a world, whoever thought of them. A fault that cannot happen just now does nothing."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._stopped = False
        self._kinds: dict[str, Callable[[Fault, Random], None]] = {
            "crash": self._crash,
            "crash-all": self._crash,
            "pause": self._pause,
            "disk-failure": self._fail_disk,
            "disk-full": self._fill_disk,
            "bit-flip": self._flip,
            "trim": self._trim,
            "partition": self._cut,
            "one-way": self._cut,
            "clog": self._clog,
        }

    def carry_out(self, fault: "Fault") -> None:
        """Let it happen."""
        effect = self._kinds.get(fault.kind)
        if effect is not None:
            effect(fault, Random(fault.seed))
        elif self._world.admin is not None:
            self._world.admin.carry_out(fault)

    def mend_everything(self) -> None:
        """Every node runs, every link works, every disk has room; nothing more goes wrong."""
        self._stopped = True
        world = self._world
        self._reconnect(world.network.become_perfect())
        for node in world.nodes:
            node.disk.room_again()
            if (
                not node.alive
                or node.disk.failed
                or any(hosted.replica.failed for hosted in node.hosted.values())
            ):
                if node.alive:
                    node.crash()
                self._restart(node.node_id, "", Random(node.node_id))
            else:
                node.wake()

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _crash(self, fault: "Fault", random: Random) -> None:
        for node_id in fault.nodes:
            if self._world.nodes[node_id].alive:
                lasts_ms = (
                    fault.lasts_ms if len(fault.nodes) == 1 else 1 + random.randrange(2 * fault.lasts_ms)
                )
                self._take_down(node_id, lasts_ms, fault.what, random)

    def _take_down(self, node_id: int, lasts_ms: int, what: str, random: Random) -> None:
        world = self._world
        world.nodes[node_id].crash()
        if random.random() < 0.7:
            delay_ns = random.randrange(1, 20) * MILLISECOND
            for peer in world.nodes:
                if peer.node_id != node_id:
                    world.scheduler.after(delay_ns, self._notice_loss, peer.node_id, node_id)
        world.scheduler.after(lasts_ms * MILLISECOND, self._restart, node_id, what, random)

    def _notice_loss(self, node_id: int, lost: int) -> None:
        if not self._world.nodes[lost].alive:
            self._world.nodes[node_id].peer_changed(lost, connected=False)

    def _restart(self, node_id: int, what: str, random: Random) -> None:
        world = self._world
        node = world.nodes[node_id]
        if node.alive:
            return
        if not self._stopped and what == "damaged":
            node.damage(random)
        elif not self._stopped and what == "wiped":
            node.wipe()
        node.start()
        for peer in world.nodes:
            if peer.node_id != node_id:
                delay_ns = random.randrange(1, 10) * MILLISECOND
                world.scheduler.after(delay_ns, peer.peer_changed, node_id, True)

    def _pause(self, fault: "Fault", _random: Random) -> None:
        for node_id in fault.nodes:
            node = self._world.nodes[node_id]
            if node.alive and not node.paused:
                node.pause(self._world.scheduler.now_ns + fault.lasts_ms * MILLISECOND)

    def _trim(self, fault: "Fault", random: Random) -> None:
        for node_id in fault.nodes:
            node = self._world.nodes[node_id]
            if node.alive and not node.paused:
                node.trim(random)

    # -- disks -----------------------------------------------------------------------------------------------------

    def _fail_disk(self, fault: "Fault", random: Random) -> None:
        for node_id in fault.nodes:
            node = self._world.nodes[node_id]
            if node.alive and not node.disk.failed:
                node.fail_disk()
                self._take_down_later(node_id, fault, random)

    def _take_down_later(self, node_id: int, fault: "Fault", random: Random) -> None:
        """A node that serves no longer is restarted by somebody, after a while."""
        life = self._world.nodes[node_id].life
        self._world.scheduler.after(
            fault.lasts_ms * MILLISECOND, self._end_failed, node_id, life, fault.then_ms, random
        )

    def _end_failed(self, node_id: int, life: int, then_ms: int, random: Random) -> None:
        if self._world.nodes[node_id].life == life:
            self._take_down(node_id, then_ms, "", random)

    def _fill_disk(self, fault: "Fault", _random: Random) -> None:
        for node_id in fault.nodes:
            node = self._world.nodes[node_id]
            if node.alive and not node.disk.full:
                self._world.trace.tell("disk-full", -1, node_id, fault.lasts_ms)
                node.disk.full = True
                self._world.scheduler.after(fault.lasts_ms * MILLISECOND, self._make_room, node_id)

    def _make_room(self, node_id: int) -> None:
        node = self._world.nodes[node_id]
        if node.disk.full:
            self._world.trace.tell("disk-room", -1, node_id)
            node.disk.room_again()

    def _flip(self, fault: "Fault", random: Random) -> None:
        for node_id in fault.nodes:
            self._world.nodes[node_id].flip_bit(fault.shard, random, self._found_flip)

    def _found_flip(self, node_id: int, random: Random) -> None:
        """A read found the flipped bit: the replica has stopped, and the node is restarted some time."""
        life = self._world.nodes[node_id].life
        delay_ns = random.randrange(20, 400) * MILLISECOND
        self._world.scheduler.after(
            delay_ns, self._end_failed, node_id, life, random.randrange(5, 50), random
        )

    # -- links -----------------------------------------------------------------------------------------------------

    def _cut(self, fault: "Fault", random: Random) -> None:
        """A new cut replaces the old one."""
        world = self._world
        self._heal()
        if fault.kind == "partition":
            others = [node.node_id for node in world.nodes if node.node_id not in fault.nodes]
            world.trace.tell("partition", -1, fault.nodes, tuple(others), fault.lasts_ms)
        else:
            world.trace.tell("one-way", -1, fault.links, fault.lasts_ms)
        for source, target in fault.links:
            world.network.cut(source, target)
            if random.random() < 0.5:  # the connection breaks, or it only falls silent
                delay_ns = random.randrange(1, 200) * MILLISECOND
                world.scheduler.after(delay_ns, self._break, source, target)
        world.scheduler.after(fault.lasts_ms * MILLISECOND, self._heal)

    def _break(self, source: int, target: int) -> None:
        if self._world.network.is_cut(source, target):
            self._world.nodes[source].peer_changed(target, connected=False)

    def _heal(self) -> None:
        healed = self._world.network.heal()
        if healed:
            self._world.trace.tell("heal", -1)
        self._reconnect(healed)

    def _reconnect(self, healed: list[tuple[int, int]]) -> None:
        for source, target in healed:
            if self._world.nodes[target].alive:
                self._world.nodes[source].peer_changed(target, connected=True)

    def _clog(self, fault: "Fault", _random: Random) -> None:
        until_ns = self._world.scheduler.now_ns + fault.lasts_ms * MILLISECOND
        for source, target in fault.links:
            self._world.trace.tell("clog", -1, source, target, fault.lasts_ms)
            self._world.network.clog(source, target, until_ns)
