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
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.members import Members, MembersIndex
from antiphon.replication.messages import Entry
from antiphon.replication.raft import ElectionConfig, RaftReplica
from antiphon.replication.replica import Replica
from antiphon.simulation.admin import Admin
from antiphon.simulation.agent import COORDINATOR_SHARD
from antiphon.simulation.checker import Checker
from antiphon.simulation.client_messages import CLIENTS, CommitMark, MembersData, TermStart
from antiphon.simulation.clients import SimulatedClient
from antiphon.simulation.disk import ReplicaFiles
from antiphon.simulation.faults import Fault, Faults
from antiphon.simulation.history import History
from antiphon.simulation.losses import NO_LOSSES, LossReport
from antiphon.simulation.network import Network
from antiphon.simulation.node import SimulatedNode
from antiphon.simulation.options import SimulationOptions
from antiphon.simulation.scheduler import MILLISECOND, Scheduler
from antiphon.simulation.table_clients import TableClient, check_applied, check_tables
from antiphon.simulation.topic_options import TopicOptions
from antiphon.simulation.trace import Trace
from antiphon.simulation.truth import ShardTruth
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.hosted import PureReplica
    from antiphon.simulation.plants import Plant
    from antiphon.wire.metadata import ShardMeta

STEPS_MAX = 3_000_000
ELECTION_TICKS_MIN = 10
WARM_UP_MS_MAX = 5_000
COORDINATORS = 3  # members of `__cluster`
RAFT_SHARD = 1  # the shard of the raft profile


def _marker_entry(term: int, base_offset: int, high_watermark: int) -> Entry:
    return Entry(term, base_offset, base_offset + 1, CommitMark(term, high_watermark))


def _members_entry(term: int, base_offset: int, members: Members) -> Entry:
    data = MembersData(members.voters, members.outgoing, members.learners)
    return Entry(term, base_offset, base_offset + 1, data, members)


def _replica_config(shard: int, topic: TopicOptions) -> ReplicaConfig:
    """Small windows, so that little traffic fills them."""
    is_cluster = shard == COORDINATOR_SHARD
    small = ReplicaConfig(max_in_flight_bytes=2_000, feed_bytes_max=800, term_start_on_empty=is_cluster)
    return small if is_cluster else topic.replica_config(small)


def _known_members(meta: "ShardMeta", files: ReplicaFiles) -> tuple[int, ...]:
    """A replica that has promised nothing, or knows of nothing that it has, waits for its coordinator's NewTerm."""
    return meta.everybody if files.term else ()


def _members_index(files: ReplicaFiles, founders: tuple[int, ...]) -> MembersIndex:
    base = files.members if files.members is not None else Members(founders)
    return MembersIndex(
        base,
        [(entry.next_offset, entry.members) for entry in files.log.entries if entry.members is not None],
    )


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
        self.checker.now = lambda: self.scheduler.now_ns
        self.checker.on_loss = self._committed_lost
        self.history = History()
        self.network = Network(options, self.scheduler, self._fork(), self._deliver)
        self.nodes = [SimulatedNode(self, node_id, self._fork()) for node_id in range(options.nodes)]
        self.clients: list[SimulatedClient] = []
        self.admin: Admin | None = None
        self.faults: Faults | None = None
        self.founders: dict[
            int, tuple[int, ...]
        ] = {}  # first members of shards that are there from the start
        self.topic = TopicOptions.of(options)
        self._metadata_version = -1
        self.registered_disks: dict[int, str] = {}  # by node, as the coordinator knows them
        self._schedule = schedule
        self.losses = NO_LOSSES

    def _fork(self) -> Random:
        """A random source of its own for each part, so that a change of one part leaves the others' draws alone."""
        return Random(self._random.getrandbits(64))

    # -- what nodes ask of the world -----------------------------------------------------------------------------------

    def about_to_open(self, files: ReplicaFiles) -> None:
        """A replica's files are about to be read."""
        if self.plant is not None and self.plant.on_restart is not None:
            self.plant.on_restart(files)

    def make_replica(
        self,
        node: SimulatedNode,
        shard: int,
        files: ReplicaFiles,
        meta: "ShardMeta | None",
        topic: TopicOptions,
    ) -> "PureReplica":
        """The pure replica of a shard, as it comes up from its files."""
        terms = TermIndex(files.log.start.offset, files.log.start.term)
        terms.load(files.log.term_changes(), files.log.end_offset)
        random = Random(node.random.getrandbits(64))

        def make_term_start(term: int, base_offset: int) -> Entry:
            return Entry(term, base_offset, base_offset + 1, TermStart(term, node.node_id))

        founders = self.founders.get(shard, ())
        if files.forgot and self.founders and shard != COORDINATOR_SHARD:
            founders = self.checker.shards[
                shard
            ].members.voters  # it asks those that are known to be members now
        common: dict[str, Any] = {
            "node_id": node.node_id,
            "shard": shard,
            "ensemble": founders if meta is None else _known_members(meta, files),
            "terms": terms,
            "term": files.term,
            "voted_for": files.voted_for,
            "high_watermark": files.high_watermark,
            "make_term_start": make_term_start,
            "config": _replica_config(shard, topic),
            "damaged": files.damaged,
            "make_marker": _marker_entry,
        }
        if self.is_raft(shard):
            ticks_max = ELECTION_TICKS_MIN + self.options.election_spread_ticks
            fixed = shard == COORDINATOR_SHARD  # its voters are configuration
            return RaftReplica(
                **common,
                forgot=files.forgot,
                joining=files.joining,
                members=None if fixed else _members_index(files, founders),
                make_members=None if fixed else _members_entry,
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
        return [
            shard
            for shard, truth in self.checker.shards.items()
            if shard != COORDINATOR_SHARD and not truth.deleted
        ]

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
        self.check_history()
        self.faults.stop()
        if not self.options.liveness_ms:
            return  # only the safety phase is asked for
        self.trace.tell("liveness", -1)
        self._converge()
        self.check_history()
        self.losses = self._check_losses()

    def check_history(self) -> None:
        """Judge what clients saw, except where the rule allows that they see what is lost later."""
        judged = [shard for shard, truth in self.checker.shards.items() if not truth.may_lose]
        self.history.check(judged)
        check_tables(self.history.operations, self.checker.shards, judged)
        check_applied(self.checker.shards)

    def _check_losses(self) -> LossReport:
        reports = [
            truth.losses.check(shard, truth.position_of, truth.terms_began_ns)
            for shard, truth in self.checker.shards.items()
            if not truth.deleted
        ]
        return LossReport(
            sum(one.acknowledged for one in reports),
            sum(one.lost for one in reports),
            max((one.longest_ms for one in reports), default=0),
            sum(one.unclean_entries for one in reports),
        )

    def _start(self) -> None:
        options = self.options
        self.admin = Admin(self, self._fork())
        if not options.has_coordinator:
            self._found(RAFT_SHARD, tuple(range(options.replicas)))
        else:
            self._found(COORDINATOR_SHARD, tuple(range(COORDINATORS)))
        for node in self.nodes:
            node.alive = True  # so that nobody finds the others missing, who start at the same instant
        for node in self.nodes:
            node.start()
        for address in range(CLIENTS, CLIENTS + options.clients):
            kind = TableClient if options.has_tables else SimulatedClient
            self.clients.append(kind(self, address, self._fork()))

    def _found(self, shard: int, ensemble: tuple[int, ...]) -> None:
        """A shard that is there from the start: every member has its files."""
        truth = self.add_shard(shard, ensemble)
        self.founders[shard] = ensemble
        for node_id in ensemble:
            self.nodes[node_id].files[shard] = truth.files[node_id]

    def add_shard(self, shard: int, ensemble: tuple[int, ...]) -> ShardTruth:
        """A shard comes into being; members open it when they learn of it."""
        truth = self.checker.add_shard(shard, ensemble)
        if shard != COORDINATOR_SHARD:
            truth.may_lose = self.topic.may_lose(len(ensemble))
        for node_id in ensemble:
            truth.files[node_id] = ReplicaFiles()
        return truth

    def metadata_committed(self, state: ClusterState) -> None:
        """Somebody folded a committed batch of `__cluster`: what it says is on record from now on."""
        if state.version <= self._metadata_version:
            return
        self._metadata_version = state.version
        self.registered_disks = {node.node_id: node.disk_id for node in state.nodes.values()}
        shards = self.checker.shards
        for shard_id, record in state.shards.items():
            meta = record.meta
            if shard_id not in shards:
                self.add_shard(shard_id, meta.ensemble)
                settings = state.topics[state.names[record.topic_id]].config
                shards[shard_id].min_live = int(settings.get("min.live", "1"))
            truth = shards[shard_id]
            members = Members(meta.ensemble, meta.outgoing, meta.learners)
            if members != truth.members:
                self.trace.tell_only("members", shard_id, members.voters, members.outgoing, members.learners)
            if meta.fence != "majority" and meta.live != truth.live:
                self.trace.tell_only("live", shard_id, meta.live, meta.live_version)
            truth.untrusted = record.untrusted
            self.checker.recorded(shard_id, meta)
            self._trust_again(state, record)
        for shard_id, truth in shards.items():
            if shard_id != COORDINATOR_SHARD and shard_id not in state.shards and not truth.deleted:
                self.trace.tell_only("deleted", shard_id)
                truth.deleted = True

    def _trust_again(self, state: ClusterState, record: ShardRecord) -> None:
        """Who came back with an empty disk counts again when the coordinator has said so of this very disk."""
        for node_id, files in self.checker.shards[record.meta.shard_id].files.items():
            if files.replaced and node_id not in record.untrusted:
                known = state.nodes.get(node_id)
                if known is not None and known.disk_id == self.nodes[node_id].disk_id:
                    files.replaced = False
                    self.checker.durable_shrank(record.meta.shard_id)

    def _committed_lost(self, shard: int, end: int) -> None:
        """An unclean election has lost what was committed from `end` on: what clients saw of it is no longer true."""
        self.trace.tell_only("lost", shard, end)
        self.history.forget(shard, end)

    def unclean_election(self, shard: int, term: int, leader: int) -> None:
        """The coordinator says that it appoints a leader that may lack committed entries."""
        self.trace.tell_only("unclean", shard, leader, term)
        self.checker.unclean_election(shard, term, self.options.unclean)

    def _run_until(self, time_ns: int) -> None:
        scheduler = self.scheduler
        while scheduler.now_ns < time_ns and scheduler.step():
            require(scheduler.steps < STEPS_MAX, "liveness", -1, f"{STEPS_MAX} steps and no end")

    def _run_while(self, condition: Callable[[], bool], ms_max: int) -> None:
        end_ns = self.scheduler.now_ns + ms_max * MILLISECOND
        while condition() and self.scheduler.now_ns < end_ns:
            self._run_until(self.scheduler.now_ns + 20 * MILLISECOND)

    def _has_no_leaders(self) -> bool:
        shards = self.checker.shards
        return not self.client_shards() or not all(
            truth.commit_ends or truth.deleted for truth in shards.values()
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
        missing = [shard for shard in missing if not self._is_beyond_help(self.checker.shards[shard])]
        if not self.client_shards():
            return ["no shard exists yet"]
        return [f"no client could write to shard {shard}" for shard in missing]

    def _is_beyond_help(self, truth: ShardTruth) -> bool:
        """Have more replicas lost their data than elections can do without, so that the shard is rightly offline?"""
        lost = [
            node
            for node in truth.members.voting
            if node in truth.untrusted
            or (node in truth.losses.silent and (node not in truth.files or truth.files[node].unsound))
        ]
        beyond = any(2 * sum(node not in lost for node in each) <= len(each) for each in truth.members.sets)
        if truth.fence != "majority":
            no_live = bool(truth.losses.silent) and all(node in lost for node in truth.live)
            beyond = no_live or (beyond and truth.fence == "both")
        if beyond and not truth.beyond_help:
            truth.beyond_help = True
            self.trace.tell_only("beyond-help", truth.shard)
        return beyond

    def committed_entries(self) -> int:
        """How many entries all shards have committed."""
        return sum(len(truth.committed.entries) for truth in self.checker.shards.values())
