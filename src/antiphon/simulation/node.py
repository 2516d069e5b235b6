"""A simulated node: replicas, one disk, a clock of its own; it crashes, restarts and pauses."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from antiphon.replication.actions import ResetLog, TruncateLog
from antiphon.replication.messages import (
    Append,
    BecomeLeaderReply,
    MembersSettled,
    Message,
    NewTermReply,
    NodeId,
    StaleTerm,
)
from antiphon.simulation.agent import COORDINATOR_SHARD, Agent
from antiphon.simulation.client_messages import Answer, AppendRequest, ReadRequest
from antiphon.simulation.disk import NodeDisk, ReplicaFiles, Write
from antiphon.simulation.hosted import Hosted
from antiphon.simulation.options import MILLION
from antiphon.simulation.scheduler import MILLISECOND
from antiphon.simulation.table_host import TableHosted

if TYPE_CHECKING:
    from antiphon.simulation.topic_options import TopicOptions
    from antiphon.simulation.world import World
    from antiphon.wire.metadata import ShardMeta

BACKLOG_MAX = 20_000  # messages that wait for a paused node; what comes on top is lost


class SimulatedNode:
    """What one process would be."""

    def __init__(self, world: "World", node_id: NodeId, random: Random) -> None:
        self.world = world
        self.node_id = node_id
        self.random = random
        self.alive = False
        self.life = 0
        self.hosted: dict[int, Hosted] = {}
        self.files: dict[int, ReplicaFiles] = {}
        self.agent: Agent | None = None
        self.disk = NodeDisk(world.options, world.scheduler, random, self._synced)
        skew_ppm = world.options.clock_skew_ppm
        self._tick_ns = world.options.tick_ms * MILLISECOND
        self._tick_ns = self._tick_ns * MILLION // (MILLION + random.randint(-skew_ppm, skew_ppm))
        self._clock_offset_ns = random.randrange(10**9)
        self._paused_until_ns = 0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.disks = 1  # how many disks this node has had
        self.found_flip: Callable[[int, Random], None] | None = None
        self._flip_random: Random | None = None

    @property
    def disk_id(self) -> str:
        """What the node's disk is called; another one after it was replaced."""
        return f"disk-{self.node_id}-{self.disks}"

    def clock_ms(self) -> int:
        """The node's own clock: it runs at its own speed, from its own start."""
        tick_ns = self.world.options.tick_ms * MILLISECOND
        return (self._clock_offset_ns + self.world.scheduler.now_ns * tick_ns // self._tick_ns) // MILLISECOND

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process: every replica is opened from its files."""
        self.alive = True
        self.life += 1
        self.world.trace.tell("start", -1, self.node_id)
        if self.world.options.has_coordinator:
            self.agent = Agent(self.world, self)
        for shard, files in self.files.items():
            if self.world.is_raft(shard):  # the others are opened as soon as the node knows the metadata
                self.open_replica(shard, files)
        self.world.scheduler.after(self.random.randrange(1, self._tick_ns), self._tick, self.life)

    def open_replica(
        self,
        shard: int,
        files: ReplicaFiles,
        meta: "ShardMeta | None" = None,
        topic: "TopicOptions | None" = None,
    ) -> Hosted:
        """Make the replica of a shard from what is on disk; `meta` and `topic` are what the node knows of it."""
        self.world.about_to_open(files)
        files.recover()
        replica = self.world.make_replica(self, shard, files, meta, topic or self.world.topic)
        is_table = self.world.options.has_tables and shard != COORDINATOR_SHARD
        hosted = (TableHosted if is_table else Hosted)(self, shard, files, replica)
        self.hosted[shard] = hosted
        hosted.truth.hosted[self.node_id] = hosted
        self.world.checker.replica(hosted)
        if files.acknowledged:
            replica.recall_acknowledged(files.acknowledged)
        for peer in self.world.nodes:
            if peer is not self and not peer.alive:
                replica.peer_lost(peer.node_id)
        return hosted

    def join(self, shard: int) -> None:
        """The node is to hold a replica of a shard whose replicas vote: it begins empty, if there is none yet."""
        truth = self.world.checker.shards[shard]
        if shard in self.files:
            return
        files = self.files[shard] = truth.files[self.node_id] = ReplicaFiles()
        files.joining = files.damaged = True
        if self.alive:
            self.open_replica(shard, files)

    def close_replica(self, shard: int) -> None:
        """The shard has no replica here any more: its files are removed."""
        hosted = self.hosted.pop(shard, None)
        self.files.pop(shard, None)
        self.disk.drop(shard)
        truth = self.world.checker.shards[shard]
        truth.files.pop(self.node_id, None)
        if hosted is not None:
            truth.hosted.pop(self.node_id, None)
            self.world.trace.tell_only("removed", shard, self.node_id)
            hosted.closed()

    def crash(self) -> None:
        """Power off, now."""
        self.alive = False
        self.life += 1
        self._paused_until_ns = 0
        self._backlog.clear()
        for hosted in self.hosted.values():
            hosted.truth.hosted.pop(self.node_id, None)
        self.hosted.clear()
        lost, torn = self.disk.crash()
        self.world.trace.tell("crash", -1, self.node_id, lost, torn)
        for shard in self.files:
            self.world.checker.durable_shrank(shard)
        self.agent = None

    def fail_disk(self) -> None:
        """The disk refuses to sync: replicas stop, the process ends a little later."""
        self.world.trace.tell("disk-failure", -1, self.node_id)
        self.disk.fail()
        for hosted in list(self.hosted.values()):
            hosted.run(hosted.replica.storage_failed())

    def pause(self, until_ns: int) -> None:
        """The process is stopped (as by SIGSTOP) until `until_ns`: messages and syncs wait."""
        self.world.trace.tell("pause", -1, self.node_id, until_ns)
        self._paused_until_ns = until_ns
        self.world.scheduler.at(until_ns, self._resume, self.life)

    def trim(self, random: Random) -> None:
        """Retention runs over all logs of the node."""
        for hosted in list(self.hosted.values()):
            if hosted.shard != COORDINATOR_SHARD:  # whose log is never cut
                hosted.trim(random)

    def _others_are_sound(self, shard: int) -> bool:
        """No more than one of three replicas or more loses something at a time: more is not to be survived."""
        truth = self.world.checker.shards[shard]
        known = [truth.members, *(hosted.replica.members for hosted in truth.hosted.values())]
        logs = [files.log.entries for files in truth.files.values()]
        known += [entry.members for entries in logs for entry in entries if entry.members is not None]
        enough = all(len(each) >= 3 or self.node_id not in each for members in known for each in members.sets)
        disks = self.world.registered_disks
        new = [
            node.node_id
            for node in self.world.nodes
            if node.disks > 1 and disks.get(node.node_id) != node.disk_id
        ]
        if any(node != self.node_id for node in (*truth.untrusted, *(new if disks else ()))):
            return False
        return enough and not any(one.unsound for node, one in truth.files.items() if node != self.node_id)

    def damage(self, random: Random) -> None:
        """While the node was down a bit flipped in the middle of a log: recovery will find it and keep what is before."""
        for shard, files in self.files.items():
            if files.log.entries and self._others_are_sound(shard):
                at = files.log.entries[random.randrange(len(files.log.entries))].base_offset
                self.world.trace.tell("damage", shard, self.node_id, at)
                self.world.checker.shards[shard].losses.silent[self.node_id] = None
                files.spoil(at)

    def wipe(self) -> None:
        """The node comes back with an empty disk."""
        places = self.world.checker.places(self.node_id)
        if all(self._others_are_sound(shard) for shard in places):
            self.disks += 1
            self.world.trace.tell("wipe", -1, self.node_id)
            for shard, files in places.items():
                self.world.checker.memory_lost(shard, self.node_id)
                files.lose_everything(self.world.is_raft(shard))
                self.world.checker.durable_shrank(shard)
            self.files = {shard: files for shard, files in self.files.items() if self.world.is_raft(shard)}
            self.world.network.forget(self.node_id)

    def flip_bit(self, shard: int, random: Random, found: Callable[[int, Random], None]) -> None:
        """A bit of a stored entry flips, unnoticed; `found` is called when a read of a living node meets it."""
        files = self.files.get(shard)
        if files is None or files.unsound or not files.log.entries or not self._others_are_sound(shard):
            return
        files.rotten = random.choice(files.log.entries).base_offset
        self.world.checker.shards[shard].losses.silent[self.node_id] = None
        self.found_flip, self._flip_random = found, random
        self.world.trace.tell("bit-flip", shard, self.node_id, files.rotten)

    def read_is_sound(self, hosted: Hosted, from_offset: int, to_offset: int) -> bool:
        """A read of stored entries; one that meets a flipped bit ends the replica, as a failed disk does."""
        rotten = hosted.files.rotten
        if rotten is None or not from_offset <= rotten < to_offset:
            return True
        self.world.trace.tell("rotten", hosted.shard, self.node_id, rotten)
        if self.found_flip is not None and self._flip_random is not None:
            self.found_flip(self.node_id, self._flip_random)
        self.world.scheduler.after(0, self._stop_replica, hosted)
        return False

    def _stop_replica(self, hosted: Hosted) -> None:
        if self.lives(hosted) and not hosted.replica.failed:
            hosted.run(hosted.replica.storage_failed())

    def wake(self) -> None:
        """End a pause at once."""
        if self._paused_until_ns:
            self._paused_until_ns = self.world.scheduler.now_ns
            self._resume(self.life)

    def _resume(self, life: int) -> None:
        if life != self.life or self.world.scheduler.now_ns < self._paused_until_ns:
            return
        self._paused_until_ns = 0
        backlog, self._backlog = self._backlog, []
        for call, arguments in backlog:
            if life == self.life:
                call(*arguments)

    @property
    def paused(self) -> bool:
        """Is the process stopped just now?"""
        return self._paused_until_ns > self.world.scheduler.now_ns

    def lives(self, hosted: Hosted) -> bool:
        """Is this replica the living one (no crash since)?"""
        return self.hosted.get(hosted.shard) is hosted

    def when_awake(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call now, or when the process is resumed."""
        if not self.paused:
            call(*arguments)
        elif len(self._backlog) < BACKLOG_MAX:
            self._backlog.append((call, arguments))

    def _tick(self, life: int) -> None:
        if life != self.life:
            return
        self.world.scheduler.after(self._tick_ns, self._tick, life)
        if self.paused:
            return
        for hosted in list(self.hosted.values()):
            if hosted.replica.needs_tick:
                hosted.run(hosted.replica.tick())
        if self.agent is not None:
            self.agent.tick()

    # -- disk ------------------------------------------------------------------------------------------------------

    def _synced(self, group: list[Write]) -> None:
        latest: dict[int, int] = {}
        for write in group:
            if self.files.get(write.shard) is not write.files:
                continue  # of a replica that was removed, and perhaps opened anew, while the disk was at it
            latest[write.shard] = write.action.write_id
            if isinstance(write.action, TruncateLog | ResetLog):
                self.world.checker.durable_shrank(write.shard)
        self.world.trace.note("synced", -1, self.node_id, tuple(latest.items()))
        self.when_awake(self._report_synced, latest, self.life)

    def _report_synced(self, latest: dict[int, int], life: int) -> None:
        for shard, write_id in latest.items():
            if life == self.life and shard in self.hosted:
                self.hosted[shard].persisted(write_id)

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, to: NodeId, message: Any) -> None:
        """Send to another node, or to the coordinator on this one."""
        if to == self.node_id:
            self.world.scheduler.after(0, self.deliver, to, message)
        else:
            self.world.network.send(self.node_id, to, message)

    def deliver(self, source: int, message: Any) -> None:
        """Something arrived from a node or a client."""
        if self.alive:
            self.when_awake(self._receive, source, message)

    def _receive(self, source: int, message: Any) -> None:
        if isinstance(message, AppendRequest | ReadRequest):
            self._client_request(message)
            return
        shard = message.shard if isinstance(message, Message) else -1
        self.world.trace.note("deliver", shard, source, self.node_id, message)
        for_coordinator = isinstance(message, NewTermReply | BecomeLeaderReply | MembersSettled | StaleTerm)
        if self.agent is not None and (for_coordinator or not isinstance(message, Message)):
            self.agent.receive(source, message)
        if isinstance(message, Message):
            self.to_replica(source, message)

    def to_replica(self, source: int, message: Any) -> None:
        """Give a message to the replica of its shard; a full disk has no room for entries, so they are not taken."""
        hosted = self.hosted.get(message.shard)
        if hosted is not None and not (self.disk.full and isinstance(message, Append) and message.entries):
            hosted.run(hosted.replica.receive(source, message))

    def _client_request(self, request: AppendRequest | ReadRequest) -> None:
        self.world.trace.note("request", request.shard, self.node_id, request)
        hosted = self.hosted.get(request.shard)
        if hosted is None:
            hint = -1 if self.agent is None else self.agent.leader_of(request.shard)
            self.answer(Answer(request.client, request.sequence, "not_leader", leader=hint))
        elif isinstance(request, AppendRequest):
            hosted.client_append(request)
        else:
            hosted.client_read(request)

    def answer(self, answer: Answer) -> None:
        """Answer a client."""
        self.world.network.send(self.node_id, answer.client, answer)

    def peer_changed(self, peer: NodeId, connected: bool) -> None:
        """The connection to a peer came up or broke."""
        if self.alive:
            self.world.trace.note("peer", -1, self.node_id, peer, connected)
            self.when_awake(self._peer_changed, peer, connected)

    def _peer_changed(self, peer: NodeId, connected: bool) -> None:
        for hosted in list(self.hosted.values()):
            replica = hosted.replica
            hosted.run(replica.peer_connected(peer) if connected else replica.peer_lost(peer))
        if self.agent is not None and self.agent.coordinator is not None and not connected:
            self.agent.coordinator.peer_lost(peer)

    def live_proposed(self) -> None:
        """A replica of this node wants another live set recorded: the coordinator is told at once."""
        if self.agent is not None:
            self.agent.report_soon()

    # -- what the replica of `__cluster` reports ---------------------------------------------------------------------

    def leader_ready(self, hosted: Hosted) -> None:
        """A replica of this node leads and may serve."""
        if (
            hosted.shard == COORDINATOR_SHARD
            and self.agent is not None
            and self.agent.coordinator is not None
        ):
            self.agent.coordinator.leader_ready(hosted)

    def leadership_lost(self, hosted: Hosted) -> None:
        """A replica of this node does not lead."""
        if (
            hosted.shard == COORDINATOR_SHARD
            and self.agent is not None
            and self.agent.coordinator is not None
        ):
            self.agent.coordinator.leadership_lost()

    def committed(self, hosted: Hosted, high_watermark: int) -> None:
        """A replica of this node raised its high watermark."""
        if (
            hosted.shard == COORDINATOR_SHARD
            and self.agent is not None
            and self.agent.coordinator is not None
        ):
            self.agent.coordinator.committed(hosted, high_watermark)
