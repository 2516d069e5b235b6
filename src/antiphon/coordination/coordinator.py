"""The coordinator: which nodes are alive, who leads which shard, which topics exist. Pure: events in, actions out.

It runs on the leader of `__cluster`, from the moment that leader is ready until it leads no more, and is then
discarded. Its successor starts from the committed state. Two rules make this safe at any moment:

* decide, commit, then speak: a term, a candidate, a leader or an answer leaves this object only after the record that
  says so is committed;
* a successor never continues an election: it begins one in a higher term.

Every method returns the actions to carry out, in order. Times are milliseconds of a monotonic clock.
"""

from dataclasses import dataclass, field

from antiphon.coordination import access, deletions, producer_ids, topics
from antiphon.coordination.actions import Action, MetadataChanged
from antiphon.coordination.balance import Goal
from antiphon.coordination.capacity import DEFAULT, Capacity
from antiphon.coordination.checkpoints import DEFAULT_RULE, CheckpointRule, Checkpoints
from antiphon.coordination.cluster_records import ClusterRecord
from antiphon.coordination.elections import Elections
from antiphon.coordination.fences import Fence
from antiphon.coordination.ledger import Batch, Ledger
from antiphon.coordination.membership import Arrival, Membership, Silence, arrived, as_dead, classify
from antiphon.coordination.reconfiguration import MOVES_PER_NODE, Reconfigurations
from antiphon.coordination.reconfiguration_commands import MemberCommands, MemberRequest
from antiphon.coordination.shard_recovery import ShardRecoveries
from antiphon.coordination.splits import Splits
from antiphon.coordination.state import ClusterState, has_leader
from antiphon.coordination.voters import VoterChanges
from antiphon.coordination.waiting import WaitingCommands, nobody_leads
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    NotReadyError,
    UnavailableError,
    UnknownTopicError,
)
from antiphon.invariants import invariant
from antiphon.model.cluster import (
    DeleteBefore,
    Heartbeat,
    LiveSet,
    Register,
    ReserveProducerIds,
    SplitReport,
)
from antiphon.model.metadata import ShardMeta, ShardStatus, TopicMeta
from antiphon.model.placement import RecoverShard
from antiphon.model.requests import (
    AdminRequest,
    AlterAcls,
    AlterQuota,
    AlterTopic,
    AlterUser,
    CreateTopic,
    DeleteTopic,
    ElectLeader,
    SplitShard,
)
from antiphon.replication.messages import (
    AnyMessage,
    BecomeLeaderReply,
    MembersSettled,
    NewTermReply,
    NodeId,
    StaleTerm,
    TransferLeadership,
)

CommandRequest = AdminRequest | ReserveProducerIds | DeleteBefore


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """What the coordinator is told at its start.

    Attributes:
        cluster_id: the cluster that nodes must name when they register.
        initial_nodes: a fresh cluster gets its first table when this many nodes are alive.
        silence: when a node is taken for dead.
        assembly_ms: how long a fresh cluster waits for those nodes before topics may be made without them.
        voters: the nodes that hold `__cluster`, as long as no record says otherwise.
        moves_per_node: shards of a node whose members change at a time; the others wait for their turn.
        default_profile: of a fresh cluster's first table.
        capacity: how many topics, partitions and replicas there may be.
        checkpoints: when the metadata is written again as a whole.
    """

    cluster_id: str
    initial_nodes: int = 1
    silence: Silence = field(default_factory=Silence)
    assembly_ms: int = 0
    voters: tuple[NodeId, ...] = ()
    moves_per_node: int = MOVES_PER_NODE
    default_profile: str = "oxia"
    capacity: Capacity = field(default_factory=Capacity)
    checkpoints: CheckpointRule = DEFAULT_RULE


class Coordinator:
    """One leadership of `__cluster`; see the module docstring.

    Attributes:
        model: the newest decided state; it may not be committed yet.
        elections: those that are open, and how many began since this coordinator did, by reason.
        changes: of members, that are under way.
        voters: who votes on `__cluster`, and changes of that.
    """

    def __init__(self, config: CoordinatorConfig, state: ClusterState) -> None:
        self._config = config
        self._ledger = Ledger(state)
        self.model = self._ledger.model
        self._members = Membership(config.silence)
        self.elections = Elections(self._ledger)
        self._splits = Splits(
            self._ledger,
            lambda shard_id, node: self.elections.begin(shard_id, "created", wanted=node),
            self.elections.deleted,
            config.capacity,
        )
        self.changes = Reconfigurations(
            self._ledger, self.elections, self._splits.is_splitting, config.moves_per_node
        )
        self._recoveries = ShardRecoveries(self._ledger, self.elections, self.changes)
        self.voters = VoterChanges(self._ledger, config.voters)
        self._member_commands = MemberCommands(self._ledger, self.changes, self.voters, config.capacity)
        self._checkpoints = Checkpoints(self._ledger, lambda: self.voters.everybody, config.checkpoints)
        self._waiting = WaitingCommands(self._ledger)
        self._now_ms = 0
        # None: the cluster is assembled, or is not waited for any more
        self._assembly_ends_ms: int | None = None

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, now_ms: int, lost: tuple[NodeId, ...] = ()) -> list[Action]:
        """Take over: elect leaders for shards without one. `lost` are nodes that cannot be reached right now."""
        self._now_ms = now_ms
        if self.model.cluster is None:
            self._ledger.put_cluster(ClusterRecord(self._config.cluster_id))
        found = self.model.cluster
        invariant(
            found is not None and found.cluster_id == self._config.cluster_id,
            "__cluster is of another cluster",
        )
        if found is not None and not found.bootstrapped and self._config.assembly_ms:
            self._assembly_ends_ms = now_ms + self._config.assembly_ms
        self._members.start(self.model, now_ms)
        for node in lost:
            self._mark_dead(node)
        self.elections.resume(now_ms)
        self.changes.resume(now_ms)
        self._recoveries.resume(now_ms)
        self._ledger.act(MetadataChanged(self.model.version))
        return self._ledger.flush()

    def tick(
        self, now_ms: int, has_room: bool = True, own: tuple[NodeId, LiveSet] | None = None
    ) -> list[Action]:
        """Time has passed; call it about every 50 ms. Its cost depends on what has changed.

        `has_room`: is there room on the disk for more than what has to be written? A checkpoint can wait. `own`: this node,
        and what its replica of `__cluster`, which leads, reports of members and followers.
        """
        self._now_ms = now_ms
        if self._assembly_ends_ms is not None and now_ms >= self._assembly_ends_ms:
            self._assembly_ends_ms = None
        for node in self._members.silent(now_ms):
            self._lose(node, now_ms)
        self.elections.tick(now_ms)
        self._splits.tick(now_ms)
        self.changes.tick(now_ms)
        self._recoveries.tick(now_ms)
        self._waiting.tick(now_ms)
        if own is not None:
            self.voters.reported(*own, now_ms)
        if has_room:
            self._checkpoints.tick()
        return self._ledger.flush()

    def committed(self, token: int, version: int, now_ms: int) -> list[Action]:
        """The proposal with this token is committed and the log's high watermark is `version`: send what depends on it."""
        self.model.version = max(self.model.version, version)
        self._ledger.act(MetadataChanged(version))
        batch = self._ledger.committed(token, version)
        self._speak(batch, version, now_ms)
        return self._ledger.flush()

    def _speak(self, batch: Batch, version: int, now_ms: int) -> None:
        if batch.is_of_checkpoint:
            self._checkpoints.committed(version)
        if batch.voters is not None:
            self.voters.committed(batch.voters)
        for node in batch.nodes:
            self.elections.node_joined(node, now_ms)
            self.changes.node_joined(node, now_ms)
        for shard in batch.shards.values():
            self.elections.committed(shard, now_ms)
            self._splits.committed(shard)
            self.changes.committed(shard, now_ms)
            self._recoveries.committed(shard, now_ms)
            newest = self.model.shards.get(shard.meta.shard_id)
            if newest is None or (newest.meta.term, newest.meta.status) != (
                shard.meta.term,
                shard.meta.status,
            ):
                continue  # something else has been decided since
            if has_leader(shard.meta):
                self._waiting.leader_found(shard, version)
            elif shard.meta.status is ShardStatus.OFFLINE:
                self._waiting.no_leader(shard.meta)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def register(self, token: int, request: Register, now_ms: int) -> list[Action]:
        """A process registers; it is answered with CommandDone when that is committed."""
        node = request.node
        try:
            arrival = classify(self.model, self._config.cluster_id, request)
        except AntiphonError as error:
            self._ledger.answer(token, error)
            return self._ledger.flush()
        self._members.heard(node.node_id, now_ms)
        after = arrived(self.model, node)
        if arrival is not Arrival.SAME or self.model.nodes[node.node_id] != after:
            self._ledger.put_node(after, joined=arrival is not Arrival.SAME)
        if arrival not in {Arrival.NEW, Arrival.SAME}:
            self.elections.node_returned(
                node.node_id,
                restarted=arrival is not Arrival.BACK,
                disk_replaced=arrival is Arrival.REPLACED,
            )
            self.changes.node_gone(node.node_id, now_ms)
        self._bootstrap()
        self._ledger.answer_when_committed(token)
        return self._ledger.flush()

    def heartbeat(self, request: Heartbeat, now_ms: int) -> tuple[bool, list[Action]]:
        """A node is alive. False: this process does not count as alive and must register."""
        known = self.model.nodes.get(request.node_id)
        if known is None or not known.alive or known.incarnation != request.incarnation:
            return False, []
        self._members.heard(request.node_id, now_ms)
        return True, self.live_sets(request.node_id, request.live, now_ms)

    def live_sets(self, sender: NodeId, reports: tuple[LiveSet, ...], now_ms: int) -> list[Action]:
        """A leader's node reports the followers of its shards."""
        for report in reports:
            self.elections.live_set(sender, report, now_ms)
            self.changes.live_set(sender, report, now_ms)
        return self._ledger.flush()

    def split_report(self, sender: NodeId, report: SplitReport) -> list[Action]:
        """A leader's node reports on the split of its shard."""
        self._splits.report(sender, report)
        return self._ledger.flush()

    def node_lost(self, node: NodeId, now_ms: int) -> list[Action]:
        """The node's connection was refused or reset: the node is down at this moment."""
        self._lose(node, now_ms)
        return self._ledger.flush()

    def _lose(self, node: NodeId, now_ms: int) -> None:
        if self._mark_dead(node):
            self.elections.node_lost(node, now_ms)
            self.changes.node_gone(node, now_ms)

    def _mark_dead(self, node: NodeId) -> bool:
        self._members.lost(node)
        known = self.model.nodes.get(node)
        if known is None or not known.alive:
            return False
        self._ledger.put_node(as_dead(known))
        return True

    def _bootstrap(self) -> None:
        cluster = self.model.cluster
        alive = sum(1 for node in self.model.nodes.values() if node.alive)
        if cluster is None or cluster.bootstrapped or alive < self._config.initial_nodes:
            return
        self._assembly_ends_ms = None
        self._ledger.put_cluster(ClusterRecord(cluster.cluster_id, bootstrapped=True))
        request = topics.first_table(self.model, alive, self._config.default_profile)
        _, shard_ids = topics.create(self._ledger, cluster.cluster_id, request, DEFAULT)
        for shard_id in shard_ids:
            self.elections.begin(shard_id, "created")

    # -- replicas' answers ----------------------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: AnyMessage, now_ms: int) -> list[Action]:
        """A replica's answer. Messages that are not for the coordinator break an invariant."""
        match message:
            case NewTermReply():
                self.elections.promise(sender, message, now_ms)
            case BecomeLeaderReply():
                before = self.model.shards.get(message.shard)
                self.elections.leads(sender, message)
                if self.model.shards.get(message.shard) is not before:
                    self.changes.led(message.shard, now_ms)
            case MembersSettled(shard=0):
                self.voters.settled(message)
            case MembersSettled():
                self.changes.settled(sender, message, now_ms)
            case StaleTerm():
                self.elections.stale(sender, message.shard, message.term)
            case _:
                invariant(False, f"{type(message).__name__} is not for the coordinator")
        return self._ledger.flush()

    # -- commands -------------------------------------------------------------------------------------------------

    def command(self, token: int, request: CommandRequest) -> list[Action]:
        """A client's request. It is answered when it is committed and, if shards need leaders, when those lead."""
        try:
            self._waiting.check_room()
            self._carry_out(token, request)
        except AntiphonError as error:
            self._ledger.answer(token, error)
        return self._ledger.flush()

    def _carry_out(self, token: int, request: CommandRequest) -> None:
        match request:
            case CreateTopic(validate_only=True):
                self._check_assembled()
                topics.check_create(self.model, request, self._config.capacity)
                self._ledger.answer_when_committed(token)
            case CreateTopic():
                self._check_assembled()
                capacity = self._config.capacity
                topic, shard_ids = topics.create(self._ledger, self._config.cluster_id, request, capacity)
                self._begin_new(token, topic.topic_id, shard_ids)
            case AlterTopic(validate_only=True):
                self._check_alter(request)
                self._ledger.answer_when_committed(token)
            case AlterTopic():
                before = self.model.topics.get(request.name)
                topic, shard_ids = self._alter(request)
                if topic != before:
                    self.elections.options_changed(topic)
                self._begin_new(token, topic.topic_id, shard_ids)
            case DeleteTopic():
                self._delete(token, request.name)
            case ElectLeader() | SplitShard() | RecoverShard():
                self._carry_out_in_shard(token, request)
            case _ if isinstance(request, MemberRequest):
                self._member_commands.carry_out(request)
                self._ledger.answer_when_committed(token)
            case AlterUser() | AlterAcls() | AlterQuota():
                access.carry_out(self._ledger, request)
                self._ledger.answer_when_committed(token)
            case ReserveProducerIds() | DeleteBefore():
                self._carry_out_of_node(token, request)
            case _:
                raise InvalidRequestError(f"{type(request).__name__} is not offered")

    def _carry_out_in_shard(self, token: int, request: ElectLeader | SplitShard | RecoverShard) -> None:
        if isinstance(request, ElectLeader):
            self._elect(token, request)
        elif isinstance(request, SplitShard):
            self._splits.split(token, request)
        elif self._recoveries.recover(request):
            self._waiting.for_election(token, request.shard_id, -1)
        else:
            self._ledger.answer_when_committed(token)

    def _carry_out_of_node(self, token: int, request: ReserveProducerIds | DeleteBefore) -> None:
        if isinstance(request, ReserveProducerIds):
            producer_ids.reserve(self._ledger, token, request.count)
        else:
            deletions.delete_before(self._ledger, request, self.elections.options_of)
            self._ledger.answer_when_committed(token)

    def _check_alter(self, request: AlterTopic) -> dict[int, Goal]:
        """Raise what keeps a topic from being altered; returns its shards' goals where their members change."""
        capacity = self._config.capacity
        if request.replicas is None:
            topics.check_alter(self.model, request, capacity)
            return {}
        topic = topics.find(self.model, request.name)
        if request.shards is not None:
            raise InvalidRequestError("change the shards and the replicas of a topic one after the other")
        goals = self._member_commands.plan_replicas(topic, request.replicas)
        capacity.check_goals(self.model, goals)
        topics.check_alter(self.model, request, capacity)
        return goals

    def _alter(self, request: AlterTopic) -> tuple[TopicMeta, list[int]]:
        goals = self._check_alter(request)
        topic, shard_ids = topics.alter(self._ledger, request, self._config.capacity)
        if request.replicas is None:
            return topic, shard_ids
        return self._member_commands.set_replicas(topic, request.replicas, goals), []

    def _check_assembled(self) -> None:
        """Refuse: a topic created while the first nodes are still registering would keep fewer replicas than intended."""
        if self._assembly_ends_ms is not None:
            here = sum(1 for node in self.model.nodes.values() if node.alive)
            raise NotReadyError(
                f"the cluster is being assembled: {here} of its {self._config.initial_nodes} nodes are here; retry"
            )

    def _begin_new(self, token: int, topic_id: bytes, shard_ids: list[int]) -> None:
        for shard_id in shard_ids:
            self.elections.begin(shard_id, "created")
        if not shard_ids:
            self._ledger.answer_when_committed(token)
            return
        self._waiting.for_shards(token, topic_id, shard_ids)

    def _delete(self, token: int, name: str) -> None:
        topic = topics.check_delete(self.model, name)
        gone = UnknownTopicError(f"{topic.kind.value} {name!r} was deleted meanwhile", name=name)
        for shard_id in self.model.shards_of[topic.topic_id]:
            self.elections.deleted(shard_id)
            self.changes.deleted(shard_id)
            self._recoveries.deleted(shard_id)
            self._splits.deleted(shard_id, gone)
            self._waiting.deleted(shard_id, gone)
        self._waiting.topic_deleted(topic.topic_id, gone)
        self._ledger.drop_topic(name)
        self._ledger.answer_when_committed(token)

    def _elect(self, token: int, request: ElectLeader) -> None:
        record = self.model.shard(request.shard_id)
        options = self.elections.options_of(record)
        if options.is_multi:
            raise InvalidRequestError(
                f"shard {request.shard_id} has no leader: each of its replicas writes (writers=multi)"
            )
        meta = record.meta
        wanted = request.node
        if wanted >= 0:
            self._check_wanted(meta, wanted)
            if has_leader(meta) and meta.leader == wanted:
                self._ledger.answer_when_committed(token)
                return
        if options.election == "raft":
            self._transfer(token, meta, wanted)
            return
        if wanted >= 0 and meta.fence == Fence.LIVE and wanted not in meta.live and not options.unclean:
            raise UnavailableError(
                f"node {wanted} is not in the live replica set {list(meta.live)} of shard {meta.shard_id}: "
                "it may lack committed entries"
            )
        self.elections.begin(meta.shard_id, "ordered", wanted=wanted if wanted >= 0 else None, ordered=True)
        meta = self.model.shards[meta.shard_id].meta
        if meta.status is ShardStatus.OFFLINE:
            raise nobody_leads(self.model, meta)
        self._waiting.for_election(token, meta.shard_id, wanted)

    def _check_wanted(self, meta: ShardMeta, wanted: NodeId) -> None:
        if wanted not in meta.ensemble:
            raise InvalidRequestError(
                f"node {wanted} has no replica of shard {meta.shard_id}; its ensemble is {list(meta.ensemble)}",
                unknown="replica",
            )
        if not self.model.is_alive(wanted):
            raise UnavailableError(f"node {wanted} is not alive")

    def _transfer(self, token: int, meta: ShardMeta, wanted: NodeId) -> None:
        """Ask the leader of a shard whose replicas vote to transfer leadership; answered when `wanted` reports that it
        leads.
        """
        if not has_leader(meta):
            raise UnavailableError(
                f"shard {meta.shard_id} has no leader that could hand over: its replicas vote"
            )
        if wanted < 0:
            others = [node for node in meta.live if node != meta.leader and node in meta.ensemble]
            if not others:
                raise UnavailableError(
                    f"no replica keeps up with node {meta.leader}, which leads shard {meta.shard_id}"
                )
            wanted = min(others, key=lambda node: (self.model.led_by.get(node, 0), node))
        self._ledger.send(meta.leader, TransferLeadership(meta.shard_id, meta.term, wanted))
        self._waiting.for_transfer(token, meta.shard_id, wanted, self._now_ms)
