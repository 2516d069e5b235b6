"""What goes wrong, when: faults drawn from the seed until the safety phase ends, or taken from a list.

Every fault that happens is written down as a `Fault` that says all about it: which nodes, which links, for how long. So the
faults of a run are a list that can be replayed, also with entries taken out: that is how a failing seed is shrunk. What a
fault draws while it is carried out (when a peer notices, say) comes from a random source of its own, so that taking one
fault out leaves the others what they were.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import msgspec

from antiphon.replication.replica_state import Role
from antiphon.simulation.fault_effects import FaultEffects
from antiphon.simulation.options import MILLION
from antiphon.simulation.scheduler import MILLISECOND

if TYPE_CHECKING:
    from antiphon.simulation.options import SimulationOptions
    from antiphon.simulation.world import World


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that goes wrong, or one command of an operator.

    Attributes:
        at_ms: when, after the safety phase began.
        kind: one of `KINDS`.
        nodes: whom it concerns.
        others: more nodes, such as those that only listen.
        links: directed links that it concerns.
        shard: the shard that it concerns; -1: none, or all of the node's.
        lasts_ms: until it is over (a node is back, a link works, a disk has room).
        then_ms: of a failed disk: how long the node is down afterwards.
        what: more about it, such as what a disk has lost when its node is back.
        seed: of what is drawn while it is carried out.
    """

    at_ms: int
    kind: str
    nodes: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    shard: int = -1
    lasts_ms: int = 0
    then_ms: int = 0
    what: str = ""
    seed: int = 0


class Faults:
    """Draws faults one after the other, or takes them from `schedule`, and has them carried out.

    `happened` is what was drawn, or carried out, so far.
    """

    def __init__(self, world: "World", random: Random, schedule: tuple[Fault, ...] | None = None) -> None:
        self._world = world
        self._random = random
        self._stopped = False
        self._began_ns = world.scheduler.now_ns
        self.effects = FaultEffects(world)
        self.happened: list[Fault] = []
        self._menu: list[tuple[int, Callable[[], Fault | None]]] = _menu(self, world.options)
        if schedule is not None:
            for fault in schedule:
                world.scheduler.exactly(self._began_ns + fault.at_ms * MILLISECOND, self._replay, fault)
        elif world.options.fault_every_ms and any(weight for weight, _ in self._menu):
            self._plan()

    def _plan(self) -> None:
        wait_ms = 1 + int(self._random.expovariate(1.0 / self._world.options.fault_every_ms))
        scheduler = self._world.scheduler
        scheduler.exactly(scheduler.now_ns + wait_ms * MILLISECOND, self._strike)

    def _strike(self) -> None:
        if self._stopped:
            return
        weights = [weight for weight, _ in self._menu]
        _, draw = self._random.choices(self._menu, weights)[0]
        fault = draw()
        if fault is not None:
            self._carry_out(fault)
        self._plan()

    def _replay(self, fault: Fault) -> None:
        if not self._stopped:
            self._carry_out(fault)

    def _carry_out(self, fault: Fault) -> None:
        self.happened.append(fault)
        self.effects.carry_out(fault)

    def stop(self) -> None:
        """No more faults; what is broken is mended: every node runs, every link works, every disk has room."""
        self._stopped = True
        self.effects.mend_everything()

    # -- drawing ---------------------------------------------------------------------------------------------------

    def _fault(self, kind: str, **facts: object) -> Fault:
        at_ms = (self._world.scheduler.now_ns - self._began_ns) // MILLISECOND
        return msgspec.structs.replace(
            Fault(at_ms, kind, seed=self._random.getrandbits(32)),
            **facts,
        )

    def _lasts_ms(self) -> int:
        """Mostly short, now and then long enough for several elections."""
        longest = self._world.options.fault_lasts_ms
        return 1 + int(
            self._random.expovariate(1.0 / self._random.choice((longest // 20, longest // 4, longest)))
        )

    def _victim(self) -> int:
        """Any node; often one that leads, because that is where it hurts."""
        if self._random.random() < 0.4:
            leading = [
                hosted.node
                for truth in self._world.checker.shards.values()
                for hosted in truth.hosted.values()
                if hosted.role is Role.LEADER
            ]
            if leading:
                return self._random.choice(leading)
        return self._random.choice(self._world.nodes).node_id

    def _disk_after(self) -> str:
        """What has become of the disk of a node that crashes, when the node is back."""
        options = self._world.options
        drawn = self._random.randrange(MILLION)
        if drawn < options.damage_ppm:
            return "damaged"
        return "wiped" if drawn < options.damage_ppm + options.wipe_ppm else ""

    def crash(self) -> Fault | None:
        """One node loses power."""
        node = self._victim()
        if not self._world.nodes[node].alive:
            return None
        return self._fault("crash", nodes=(node,), lasts_ms=self._lasts_ms(), what=self._disk_after())

    def crash_all(self) -> Fault:
        """All nodes lose power at once; they come back one by one."""
        nodes = tuple(node.node_id for node in self._world.nodes if node.alive)
        return self._fault("crash-all", nodes=nodes, lasts_ms=self._lasts_ms())

    def pause(self) -> Fault | None:
        """A process stops for a while and goes on."""
        node = self._world.nodes[self._victim()]
        if not node.alive or node.paused:
            return None
        return self._fault("pause", nodes=(node.node_id,), lasts_ms=self._lasts_ms())

    def disk_failure(self) -> Fault | None:
        """A sync fails; the process ends a little later."""
        node = self._random.choice(self._world.nodes)
        if not node.alive or node.disk.failed:
            return None
        return self._fault(
            "disk-failure", nodes=(node.node_id,), lasts_ms=self._lasts_ms(), then_ms=self._lasts_ms()
        )

    def disk_full(self) -> Fault | None:
        """A disk has no room for a while."""
        node = self._world.nodes[self._victim()]
        if not node.alive or node.disk.full:
            return None
        return self._fault("disk-full", nodes=(node.node_id,), lasts_ms=2 * self._lasts_ms())

    def bit_flip(self) -> Fault | None:
        """A bit of a stored entry flips; it is found when the entry is read, or at the next start."""
        node = self._random.choice(self._world.nodes)
        shards = [shard for shard, files in node.files.items() if files.log.entries]
        if not shards:
            return None
        shard = self._random.choice(shards)
        return self._fault("bit-flip", nodes=(node.node_id,), shard=shard, lasts_ms=self._lasts_ms())

    def trim(self) -> Fault:
        """Retention runs on a node."""
        return self._fault("trim", nodes=(self._random.choice(self._world.nodes).node_id,))

    def partition(self) -> Fault:
        """Two sides that do not hear each other; clients reach both. A new partition replaces the old one."""
        random, nodes = self._random, [node.node_id for node in self._world.nodes]
        side = [self._victim()]
        side += random.sample(
            [node for node in nodes if node not in side], random.randint(0, len(nodes) // 2 - 1)
        )
        others = [node for node in nodes if node not in side]
        links = [(a, b) for a in side for b in others] + [(b, a) for a in side for b in others]
        return self._fault(
            "partition", nodes=tuple(sorted(side)), links=tuple(links), lasts_ms=self._cut_lasts_ms()
        )

    def one_way(self) -> Fault:
        """One node hears nobody, or is heard by nobody, or one link works in one direction only."""
        random = self._random
        node = self._victim()
        others = [other.node_id for other in self._world.nodes if other.node_id != node]
        if random.random() < 0.3:
            others = [random.choice(others)]
        links = [(node, other) for other in others]
        if random.random() < 0.5:
            links = [(other, node) for other in others]
        return self._fault("one-way", links=tuple(links), lasts_ms=self._cut_lasts_ms())

    def _cut_lasts_ms(self) -> int:
        return self._random.choice((1, 1, 4)) * self._lasts_ms()

    def clog(self) -> Fault:
        """Messages on some links of a node wait."""
        random, source = self._random, self._victim()
        others = [node.node_id for node in self._world.nodes if node.node_id != source]
        targets = random.sample(others, random.randint(1, len(others)))
        return self._fault(
            "clog", links=tuple((source, target) for target in targets), lasts_ms=self._lasts_ms()
        )

    def operator(self) -> Fault | None:
        """A command of an operator."""
        if self._world.admin is None:
            return None
        found = self._world.admin.draw(self._random)
        return None if found is None else self._fault(**found)


def _menu(faults: Faults, options: "SimulationOptions") -> list[tuple[int, Callable[[], Fault | None]]]:
    return [
        (options.crash_weight, faults.crash),
        (options.crash_all_weight, faults.crash_all),
        (options.partition_weight, faults.partition),
        (options.one_way_weight, faults.one_way),
        (options.clog_weight, faults.clog),
        (options.pause_weight, faults.pause),
        (options.disk_failure_weight, faults.disk_failure),
        (options.disk_full_weight, faults.disk_full),
        (options.bit_flip_weight, faults.bit_flip),
        (options.trim_weight, faults.trim),
        (options.operator_weight, faults.operator),
    ]
