"""A world in which every replica writes: real replicas, a bad network, crashes, lost disks; all invariants all the time.

A phase with faults, then all faults stop and everything has to come together. What the coordinator does for such shards is
small (members and origin ids are records of its own log), so the world plays its part: it gives a new disk a new origin id
before the node that has it starts, and the others hear of it late.
"""

import traceback
from collections import Counter
from dataclasses import replace
from random import Random

from antiphon.invariants import InvariantError
from antiphon.replication.multi_writer_config import MultiWriterConfig
from antiphon.replication.origin_history import OriginEntry
from antiphon.replication.origins import OriginTable, assign
from antiphon.simulation import multi_node
from antiphon.simulation.multi_checker import SHARD, MultiChecker
from antiphon.simulation.multi_node import MultiNode
from antiphon.simulation.multi_plants import MULTI_PLANTS, PROFILE
from antiphon.simulation.network import Network
from antiphon.simulation.options import SimulationOptions, derive
from antiphon.simulation.plants import Plant, planted
from antiphon.simulation.runner import TRACE_LINES, Failure, RunResult
from antiphon.simulation.scheduler import MILLISECOND, Scheduler
from antiphon.simulation.trace import Trace
from antiphon.simulation.violation import ViolationError, require

STEPS_MAX = 2_000_000


def derive_multi(seed: int) -> SimulationOptions:
    """The world of a seed: network, disks and faults as in the other profiles, nodes of its own."""
    draw = Random(f"antiphon multi {seed}")
    return replace(
        derive(seed, "raft"),
        profile=PROFILE,
        nodes=draw.choice((2, 3, 3, 4, 5)),
        safety_ms=draw.choice((1_500, 3_000)),
        liveness_ms=20_000,
        fault_every_ms=draw.choice((40, 100, 250)),
        crash_weight=draw.choice((2, 6)),
        damage_ppm=draw.choice((0, 100_000)),
        trim_weight=draw.choice((0, 3)),
    )


class MultiWorld:
    """One run."""

    def __init__(self, options: SimulationOptions, spared: frozenset[int] = frozenset()) -> None:
        self.options = options
        self.strikes = 0
        self._spared = spared  # numbers of the faults that do not happen
        self._random = Random(f"antiphon multi world {options.seed}")
        self.scheduler = Scheduler(self._fork())
        self.trace = Trace(self.scheduler)
        self.checker = MultiChecker()
        self.counts: Counter[str] = Counter()
        self.config = MultiWriterConfig(
            window_bytes=400,
            feed_bytes_max=150,
            resend_ticks=3,
            stall_ticks=8,
            first_hand=self._random.random() < 0.5,
        )
        self.network = Network(options, self.scheduler, self._fork(), self._deliver)
        self.nodes: dict[int, MultiNode] = {}
        for node_id in range(1, options.nodes + 1):
            self.nodes[node_id] = MultiNode(self, node_id, self._fork())
        late = options.nodes > 2 and self._random.random() < 0.4
        self.members = tuple(range(1, options.nodes if late else options.nodes + 1))
        self.origin_table: OriginTable = ()
        self.stopped = False
        self._serial = 0
        self._faults = self._fork()
        self._keeps_tables = options.trim_weight == 0
        self._give_origins()

    def _fork(self) -> Random:
        return Random(self._random.getrandbits(64))

    def next_serial(self) -> int:
        """A number that no other write has."""
        self._serial += 1
        return self._serial

    def _deliver(self, source: int, target: int, message: object) -> None:
        self.nodes[target].deliver(source, message)  # type: ignore[arg-type]  # nothing else is sent here

    # -- what the coordinator says ------------------------------------------------------------------------------

    def _give_origins(self) -> None:
        disks = {node: self.nodes[node].files.disk_id for node in self.members}
        self.origin_table = assign(self.origin_table, self.members, disks)

    def origins(self) -> dict[int, int]:
        """Members with their origins."""
        return multi_node.origins_now(self)

    def origin_of(self, node: int) -> int:
        """The origin of a member."""
        return self.origins().get(node, 0)

    def _tell_members(self) -> None:
        for node in self.nodes.values():
            if node.node_id in self.members:
                self.scheduler.after(self._faults.randrange(1, 50) * MILLISECOND, self._tell, node.node_id)

    def _tell(self, node_id: int) -> None:
        self.nodes[node_id].event("set_members", self.origins())

    def _join(self) -> None:
        """The last node becomes a member."""
        joined = max(self.nodes)
        if joined not in self.members:
            self.members = (*self.members, joined)
            self._give_origins()
            self.trace.note("join", SHARD, joined)
            self._restart(joined)
            self._tell_members()

    # -- clients and faults -------------------------------------------------------------------------------------

    def _write_some(self) -> None:
        if self.stopped:
            return
        self.nodes[self._random.choice(self.members)].write()
        self.scheduler.after(1 + int(self._random.expovariate(1 / (8 * MILLISECOND))), self._write_some)

    def _strike_later(self) -> None:
        wait_ms = 1 + int(self._faults.expovariate(1.0 / self.options.fault_every_ms))
        self.scheduler.after(wait_ms * MILLISECOND, self._strike)

    def _strike(self) -> None:
        if self.stopped:
            return
        options = self.options
        menu = [
            (options.crash_weight, self._crash),
            (options.partition_weight, self._partition),
            (options.one_way_weight, self._cut_one_way),
            (options.pause_weight, self._pause),
            (options.trim_weight, self._trim),
            (1, self._replace_disk),
        ]
        fault = self._faults.choices([fault for _, fault in menu], [weight for weight, _ in menu])[0]
        if self.strikes not in self._spared:
            fault()
        self.strikes += 1
        self._strike_later()

    def _duration_ns(self) -> int:
        return (1 + int(self._faults.expovariate(1 / self._faults.choice((20, 100, 400))))) * MILLISECOND

    def _victim(self) -> MultiNode:
        return self.nodes[self._faults.choice(self.members)]

    def _crash(self) -> None:
        node = self._victim()
        if node.alive:
            self.trace.tell("crash", SHARD, node.node_id)
            node.crash()
            if self._faults.random() < 0.7:
                for peer in self._others(node.node_id):
                    self.scheduler.after(
                        self._faults.randrange(1, 20) * MILLISECOND, self._notice, peer, node.node_id
                    )
            self.scheduler.after(self._duration_ns(), self._restart, node.node_id)

    def _replace_disk(self) -> None:
        """A node dies and comes back empty, as far as the shard has origin ids for that."""
        node = self._victim()
        if not node.alive or len(self.origin_table) >= 12:
            return
        self.trace.tell("replace-disk", SHARD, node.node_id)
        node.crash()
        node.replace_disk()
        self._give_origins()
        self._tell_members()
        self.scheduler.after(self._duration_ns(), self._restart, node.node_id)

    def _others(self, node_id: int) -> list[int]:
        return [peer for peer in self.members if peer != node_id]

    def _notice(self, node_id: int, lost: int) -> None:
        if not self.nodes[lost].alive:
            self.nodes[node_id].event("peer_lost", lost)

    def _restart(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if node.alive or node_id not in self.members:
            return
        if not self.stopped and self._faults.randrange(1_000_000) < self.options.damage_ppm:
            self.trace.tell("damage", SHARD, node_id)
            node.damage()
        self.trace.tell("start", SHARD, node_id)
        node.start()
        for peer in self._others(node_id):
            self.scheduler.after(self._faults.randrange(1, 10) * MILLISECOND, self._connect, peer, node_id)

    def _connect(self, node_id: int, peer: int) -> None:
        self.nodes[node_id].event("peer_connected", peer)

    def _partition(self) -> None:
        group = [node for node in self.members if self._faults.random() < 0.5]
        pairs = [(one, other) for one in group for other in self.members if other not in group]
        self._cut([*pairs, *((other, one) for one, other in pairs)])

    def _cut_one_way(self) -> None:
        one, other = self._faults.choice(self.members), self._faults.choice(self.members)
        if one != other:
            self._cut([(one, other)])

    def _cut(self, pairs: list[tuple[int, int]]) -> None:
        self.trace.tell("cut", SHARD, tuple(pairs))
        for source, target in pairs:
            self.network.cut(source, target)
        self.scheduler.after(self._duration_ns(), self._heal)

    def _heal(self) -> None:
        self.trace.tell("heal", SHARD, len(self.network.heal()))

    def _pause(self) -> None:
        node = self._victim()
        if node.alive and not node.paused:
            node.pause(self.scheduler.now_ns + self._duration_ns())

    def _trim(self) -> None:
        self._victim().trim()

    def lost(self, node_id: int, gone: list[OriginEntry]) -> None:
        """A disk has lost entries."""
        elsewhere = [e for node in self.nodes.values() if node.node_id != node_id for e in node.files.entries]
        self.checker.lost(node_id, gone, elsewhere)

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Both phases; raises `ViolationError` at the first broken promise."""
        for node_id in self.members:
            self.nodes[node_id].start()
        self._write_some()
        self._strike_later()
        self.scheduler.after(self._faults.randrange(100, 1000) * MILLISECOND, self._join)
        self._run_until(self.scheduler.now_ns + self.options.safety_ms * MILLISECOND)
        self.stopped = True
        self.network.become_perfect()
        self._join()
        for node_id in self.members:
            self.nodes[node_id].wake()
            self._restart(node_id)
        self._tell_members()
        self.trace.tell("liveness", SHARD)
        self._converge()

    def _run_until(self, time_ns: int) -> None:
        while self.scheduler.now_ns < time_ns and self.scheduler.step():
            require(self.scheduler.steps < STEPS_MAX, "liveness", SHARD, f"{STEPS_MAX} steps and no end")

    def _converge(self) -> None:
        deadline_ns = self.scheduler.now_ns + self.options.liveness_ms * MILLISECOND
        while True:
            self._run_until(self.scheduler.now_ns + 100 * MILLISECOND)
            problem = self._problem()
            if not problem:
                return
            require(self.scheduler.now_ns < deadline_ns, "convergence", SHARD, problem)

    def _problem(self) -> str:
        """What is not as it must be in the end; nothing if all is well."""
        nodes = [self.nodes[node_id] for node_id in self.members]
        clocks = {node.node_id: node.replica.vclock for node in nodes}
        if len(set(clocks.values())) > 1:
            return f"vector clocks differ: {clocks}"
        busy = [node.node_id for node in nodes if node.replica.needs_tick or node.replica.damaged]
        if busy:
            return f"nodes {busy} are not done"
        logs = {node.node_id: {(e.origin, e.lsn): e.data for e in node.log} for node in nodes}
        for node in nodes:
            for name, data in {**self.checker.everything_told(), **logs[nodes[0].node_id]}.items():
                base = node.files.base.clock
                before = name[0] < len(base) and name[1] <= base[name[0]]
                if not before and logs[node.node_id].get(name) != data:
                    return f"node {node.node_id} lacks entry {name}: {data}"
        tables = [node.table for node in nodes]
        if self._keeps_tables and any(table != tables[0] for table in tables):
            return f"tables differ: {tables}"
        return ""


def run_multi(
    seed: int,
    plant: Plant | str | None = None,
    trace_lines: int = TRACE_LINES,
    *,
    options: SimulationOptions | None = None,
    spared: frozenset[int] = frozenset(),
) -> RunResult:
    """Run the world of a seed to its end or to the first broken promise; `plant` is one of `MULTI_PLANTS`.

    `options` replace those of the seed; faults whose numbers are `spared` do not happen.
    """
    if isinstance(plant, str):
        plant = MULTI_PLANTS[plant]
    given, options = options, derive_multi(seed) if options is None else options
    if plant is not None and given is None:
        options = replace(options, **plant.options)  # the commit rule that `adapt` chooses plays no part here
    failure = None
    with planted(plant):
        world = MultiWorld(options, spared)
        try:
            world.run()
        except ViolationError as error:
            failure = _failure(world, error.invariant, str(error), trace_lines)
        except InvariantError as error:
            failure = _failure(world, "no-crash", f"no-crash: {error}", trace_lines)
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is a finding, with its trace
            text = "no-crash: " + "".join(traceback.format_exception(error)).rstrip()
            failure = _failure(world, "no-crash", text, trace_lines)
    return RunResult(
        options=options,
        digest=world.trace.digest(),
        steps=world.scheduler.steps,
        simulated_ns=world.scheduler.now_ns,
        entries=len(world.checker.known),
        operations={"ok": world.counts["ok"], "refused": world.counts["refused"], "unknown": 0},
        events={**world.trace.counts, "trims": world.counts["trims"], "strikes": world.strikes},
        told=() if failure is None else tuple(world.trace.told),
        failure=failure,
    )


def _failure(world: MultiWorld, name: str, text: str, lines: int) -> Failure:
    trace = tuple(world.trace.tail(lines))
    return Failure(name, text, world.scheduler.steps, world.scheduler.now_ns, trace)
