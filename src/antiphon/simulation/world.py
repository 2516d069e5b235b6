"""One simulated cluster with its clients and its faults, from start to convergence.

A run has two phases. In the safety phase faults happen and every promise is checked after every step. Then all faults
stop, and in the liveness phase the cluster must come to rest within a bounded time: a leader serves, a new write
succeeds, and every replica has the same log and knows all of it to be committed.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from antiphon.coordination.state import ClusterState, ShardRecord
from antiphon.records.entry_id import TermIndex
from antiphon.replication.messages import Entry
from antiphon.replication.raft import ElectionConfig, RaftReplica
from antiphon.replication.replica import Replica, ReplicaConfig
from antiphon.simulation.admin import Admin
from antiphon.simulation.agent import COORDINATOR_SHARD
from antiphon.simulation.checker import Checker, ShardTruth
from antiphon.simulation.client_messages import CLIENTS, TermStart
from antiphon.simulation.clients import SimulatedClient
from antiphon.simulation.disk import ReplicaFiles
from antiphon.simulation.faults import Fault, Faults
from antiphon.simulation.history import History
from antiphon.simulation.network import Network
from antiphon.simulation.node import SimulatedNode
from antiphon.simulation.options import SimulationOptions
from antiphon.simulation.scheduler import MILLISECOND, Scheduler
from antiphon.simulation.trace import Trace
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.hosted import PureReplica
    from antiphon.simulation.plants import Plant

STEPS_MAX = 3_000_000
ELECTION_TICKS_MIN = 10
WARM_UP_MS_MAX = 5_000
COORDINATORS = 3  # members of `__cluster`
RAFT_SHARD = 1  # the shard of the raft profile


class World:
    """Everything in one run."""

    def __init__(
        self,
        options: SimulationOptions,
        plant: "Plant | None" = None,
        schedule: tuple[Fault, ...] | None = None,
    ) -> None:
        self.options = options
        self.plant = plant
        self._random = Random(f"antiphon world {options.profile} {options.seed}")
        self.scheduler = Scheduler(self._fork())
        self.trace = Trace(self.scheduler)
        self.checker = Checker()
        self.history = History()
        self.network = Network(options, self.scheduler, self._fork(), self._deliver)
        self.nodes = [SimulatedNode(self, node_id, self._fork()) for node_id in range(options.nodes)]
        self.clients: list[SimulatedClient] = []
        self.admin: Admin | None = None
        self.faults: Faults | None = None
        self._schedule = schedule

    def _fork(self) -> Random:
        """A random source of its own for each part, so that a change of one part leaves the others' draws alone."""
        return Random(self._random.getrandbits(64))

    # -- what nodes ask of the world -----------------------------------------------------------------------------------

    def about_to_open(self, files: ReplicaFiles) -> None:
        """A replica's files are about to be read."""
        if self.plant is not None and self.plant.on_restart is not None:
            self.plant.on_restart(files)

    def make_replica(self, node: SimulatedNode, shard: int, files: ReplicaFiles) -> "PureReplica":
        """The pure replica of a shard, as it comes up from its files."""
        terms = TermIndex(files.log.start.offset, files.log.start.term)
        terms.load(files.log.term_changes(), files.log.end_offset)
        random = Random(node.random.getrandbits(64))

        def make_term_start(term: int, base_offset: int) -> Entry:
            return Entry(term, base_offset, base_offset + 1, TermStart(term, node.node_id))

        common: dict[str, Any] = {
            "node_id": node.node_id,
            "shard": shard,
            "ensemble": self.checker.shards[shard].ensemble,
            "terms": terms,
            "term": files.term,
            "voted_for": files.voted_for,
            "high_watermark": files.high_watermark,
            "make_term_start": make_term_start,
            "config": ReplicaConfig(
                max_in_flight_bytes=2_000, feed_bytes_max=800, term_start_on_empty=shard == COORDINATOR_SHARD
            ),
            "damaged": files.damaged,
        }
        if self.is_raft(shard):
            ticks_max = ELECTION_TICKS_MIN + self.options.election_spread_ticks
            return RaftReplica(
                **common,
                forgot=files.forgot,
                election_timeout_ticks=lambda: random.randint(ELECTION_TICKS_MIN, ticks_max),
                election=ElectionConfig(
                    election_ticks_min=ELECTION_TICKS_MIN, pre_vote=self.options.pre_vote
                ),
            )
        return Replica(**common)

    def is_raft(self, shard: int) -> bool:
        """Do the replicas of this shard elect their leader themselves?"""
        return not self.options.has_coordinator or shard == COORDINATOR_SHARD

    def client_shards(self) -> list[int]:
        """Shards that clients use."""
        return [shard for shard in self.checker.shards if shard != COORDINATOR_SHARD]

    def _deliver(self, source: int, target: int, message: Any) -> None:
        if target >= CLIENTS:
            self.clients[target - CLIENTS].deliver(message)
        else:
            self.nodes[target].deliver(source, message)

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Both phases; raises `ViolationError` at the first broken promise."""
        self._start()
        if self.options.warm_up:
            self._run_while(self._has_no_leaders, WARM_UP_MS_MAX)
        self.faults = Faults(self, self._fork(), self._schedule)
        self._run_until(self.scheduler.now_ns + self.options.safety_ms * MILLISECOND)
        self.history.check()
        self.faults.stop()
        if not self.options.liveness_ms:
            return  # only the safety phase is asked for
        self.trace.tell("liveness", -1)
        self._converge()
        self.history.check()

    def _start(self) -> None:
        options = self.options
        self.admin = Admin(self, self._fork())
        if not options.has_coordinator:
            self._found(RAFT_SHARD, tuple(range(options.nodes)))
        else:
            self._found(COORDINATOR_SHARD, tuple(range(COORDINATORS)))
        for node in self.nodes:
            node.start()
        for address in range(CLIENTS, CLIENTS + options.clients):
            self.clients.append(SimulatedClient(self, address, self._fork()))

    def _found(self, shard: int, ensemble: tuple[int, ...]) -> None:
        """A shard that is there from the start: every member has its files."""
        truth = self.add_shard(shard, ensemble)
        for node_id in ensemble:
            self.nodes[node_id].files[shard] = truth.files[node_id]

    def add_shard(self, shard: int, ensemble: tuple[int, ...]) -> ShardTruth:
        """A shard comes into being; members open it when they learn of it."""
        truth = self.checker.add_shard(shard, ensemble)
        for node_id in ensemble:
            truth.files[node_id] = ReplicaFiles()
        return truth

    def metadata_committed(self, state: ClusterState) -> None:
        """Somebody folded a committed batch of `__cluster`: shards that were unknown begin to exist."""
        for shard_id, record in state.shards.items():
            if shard_id not in self.checker.shards:
                self.add_shard(shard_id, record.meta.ensemble)
            self._trust_again(state, record)

    def _trust_again(self, state: ClusterState, record: ShardRecord) -> None:
        """Who came back with an empty disk counts again when the coordinator has said so of this very disk."""
        for node_id, files in self.checker.shards[record.meta.shard_id].files.items():
            if files.replaced and node_id not in record.untrusted:
                known = state.nodes.get(node_id)
                if known is not None and known.disk_id == self.nodes[node_id].disk_id:
                    files.replaced = False

    def _run_until(self, time_ns: int) -> None:
        scheduler = self.scheduler
        while scheduler.now_ns < time_ns and scheduler.step():
            require(scheduler.steps < STEPS_MAX, "liveness", -1, f"{STEPS_MAX} steps and no end")

    def _run_while(self, condition: Callable[[], bool], ms_max: int) -> None:
        end_ns = self.scheduler.now_ns + ms_max * MILLISECOND
        while condition() and self.scheduler.now_ns < end_ns:
            self._run_until(self.scheduler.now_ns + 20 * MILLISECOND)

    def _has_no_leaders(self) -> bool:
        return not self.client_shards() or not all(
            truth.commit_ends for truth in self.checker.shards.values()
        )

    def _converge(self) -> None:
        """Wait for new writes in every shard, then stop the clients and wait until all replicas agree."""
        began_ns = self.scheduler.now_ns
        deadline_ns = began_ns + self.options.liveness_ms * MILLISECOND
        waiting = True
        while True:
            self._run_until(self.scheduler.now_ns + 20 * MILLISECOND)
            if waiting:
                problems = self._unserved(began_ns)
                if not problems:
                    waiting = False
                    for client in self.clients:
                        client.stopped = True
            if not waiting:
                problems = self.checker.converged(self.checker.shards.values())
                if not problems:
                    return
            if self.scheduler.now_ns >= deadline_ns:
                late_ms = self.options.liveness_ms
                require(False, "liveness", -1, f"{late_ms} ms after the last fault: {'; '.join(problems)}")

    def _unserved(self, began_ns: int) -> list[str]:
        served = {
            one.shard: None
            for one in reversed(self.history.operations)
            if one.invoked_ns >= began_ns and one.outcome == "ok" and one.kind == "append"
        }
        missing = [shard for shard in self.client_shards() if shard not in served]
        if not self.client_shards():
            return ["no shard exists yet"]
        return [f"no client could write to shard {shard}" for shard in missing]

    def committed_entries(self) -> int:
        """How many entries all shards have committed."""
        return sum(len(truth.committed.entries) for truth in self.checker.shards.values())
