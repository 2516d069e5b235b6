"""A node: one event loop, one WAL thread, and everything between the sockets and the disk.

What runs where: all decisions on the event loop; writes and syncs on the WAL thread; opening, copying and removing of
directories on threads of the loop's executor. There are no timers per shard: one timer ticks those replicas that have
something outstanding, one beats for the whole node.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

import structlog

from antiphon import system
from antiphon.errors import AntiphonError, NotLeaderError, UnavailableError
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import Disk, RealDisk
from antiphon.log.wal import Wal
from antiphon.log.wal_thread import WalThread
from antiphon.model.cluster import MetadataDelta
from antiphon.model.metadata import CLUSTER_SHARD_ID, NodeMeta
from antiphon.model.requests import PROTOCOL_VERSION, Hello, StatusReply
from antiphon.node import memory
from antiphon.node.agent import ClusterAgent
from antiphon.node.bulk_gate import gate_of
from antiphon.node.config import NodeConfig, check_config
from antiphon.node.coordinator_shell import CoordinatorShell
from antiphon.node.doors import start_http_door, start_kafka_door
from antiphon.node.forwarding import Forwarder
from antiphon.node.gateway_calls import GatewayCalls
from antiphon.node.injected_faults import InjectedFaults
from antiphon.node.memory import LongLived
from antiphon.node.metrics import NodeMetrics
from antiphon.node.native_door import NativeSession
from antiphon.node.peers import ON_ACCEPTED, PeerLink
from antiphon.node.raft_shards import hand_over
from antiphon.node.shards import Shards
from antiphon.node.snapshots import Snapshots
from antiphon.node.splits import Splits
from antiphon.node.transport import Connection, bound_address, listen
from antiphon.node.trimming import trim_everywhere
from antiphon.node.turn import Turn
from antiphon.partition.partition import Partition
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.replication.messages import (
    AnyMessage,
    Append,
    BecomeLeaderReply,
    MembersSettled,
    NewTermReply,
    StaleTerm,
)
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.store import StoreEngine

EXPIRE_EVERY_S: Final = 0.25
NOT_AT_ONCE: Final = ("retention", "collection")

Sockets = dict[str, socket.socket]


class Node(GatewayCalls):
    """See the module's text. `start()`, then `stop()`; both once, on the node's event loop."""

    def __init__(
        self,
        config: NodeConfig,
        sockets: Sockets | None = None,
        disk: Disk | None = None,
        faults: InjectedFaults | None = None,
        make_wal: Callable[..., Wal] = WalThread,
        stores: StoreEngine | None = None,
    ) -> None:
        super().__init__()
        self.faults = faults
        self.config = check_config(config)
        self.node_id = config.node_id
        self.cluster_id = config.cluster_id
        self.limits = config.limits
        self.default_profile = config.profile
        self.incarnation = system.new_uuid().hex
        self.random = system.rng()
        self.loop = asyncio.get_running_loop()
        self.metrics = NodeMetrics()
        self.turn = Turn(self.loop, self._broken)
        self.hosts: dict[int, Partition] = {}
        self.sessions: dict[int, NativeSession] = {}
        self.stopping = False
        self._sockets = dict(sockets or {})
        self._log = structlog.get_logger()
        # Every file of this node is read and written there.
        self.disk: Disk = RealDisk() if disk is None else disk
        self._directory = NodeDirectory.open(
            str(config.dir), config.cluster_id, config.node_id, disk=self.disk, bootstrap=config.bootstrap
        )
        self.wal = make_wal(self.disk, backlog_bytes_max=self.limits.wal_backlog)
        self.stores: StoreEngine = RocksEngine() if stores is None else stores
        self.agent = ClusterAgent(self, config.cluster_id)
        self.forwarder = Forwarder(self)
        self.shards = Shards(self, self.disk, self._directory)
        self.snapshots = Snapshots(self, os.path.join(config.dir, "snapshots"))
        self.splits = Splits(self)
        self.bulk = gate_of(self)
        self.coordinator: CoordinatorShell | None = None
        self._long_lived = LongLived()
        self._links: dict[int, PeerLink] = {}
        self._peer_sessions: dict[int, NativeSession] = {}  # by node: the newest connection that it made
        self._on_accepted = ON_ACCEPTED[config.dial]
        self._lost: set[int] = set()
        self._alive: set[int] = set()  # as the metadata last said
        self._tasks: set[asyncio.Task[Any]] = set()
        self._servers: list[asyncio.Server] = []
        self._doors: list[Any] = []
        self._addresses: dict[str, str] = {}
        self._started_s = self.loop.time()
        self._in_flight_bytes = 0
        self._holding = False
        self._holding_peers = False
        self._tick_timer: asyncio.TimerHandle | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._next: dict[str, float] = {}

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind, recover, join. Returns when the node serves, which may be before it is part of the cluster.

        Raises PortInUseError, ForeignDirectoryError, DirectoryInUseError, NewerFormatError.
        """
        config = self.config
        self.wal.start(self.loop)
        self._add_gauges()
        server = await listen(
            self._accept, config.listen_host, config.ports.native, self._sockets.get("native"), "native"
        )
        self._servers.append(server)
        self._addresses["native"] = bound_address(server, config.host_told)
        await self._start_doors()
        for member in config.nodes:
            if member.id != self.node_id:
                self._add_link(member.id, member.native)
        if self.node_id in config.voters:
            host = self.shards.open_cluster_shard()
            self.coordinator = CoordinatorShell(self, host)
        self.shards.remember()
        for link in self._links.values():
            link.start()
        self._beat()
        self._log.info(
            "started", node=self.node_id, cluster=self.cluster_id, addresses=self._addresses, pid=os.getpid()
        )

    async def _start_doors(self) -> None:
        ports = self.config.ports
        if ports.kafka >= 0:
            kafka, self._addresses["kafka"] = await start_kafka_door(self, self._sockets.get("kafka"))
            self._doors.append(kafka)
        if ports.http >= 0:
            http, self._addresses["http"] = await start_http_door(self, self._sockets.get("http"))
            self._doors.append(http)

    async def joined(self, timeout_s: float) -> bool:
        """Wait until the coordinator counts on this node; False when that takes longer than `timeout_s`."""
        try:
            await asyncio.wait_for(self.agent.registered.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Stop serving, bring everything to disk, let go of the directory."""
        if self.stopping:
            return
        self.stopping = True
        self._log.info("stopping", node=self.node_id)
        await hand_over(self)
        for timer in (self._tick_timer, self._beat_timer):
            if timer is not None:
                timer.cancel()
        for server in self._servers:
            server.close()
        for door in self._doors:
            await door.stop()
        self.bulk.close()
        if self.coordinator is not None:
            self.coordinator.stop()
        self.shards.close_all()
        for session in list(self.sessions.values()):
            session.close()
        for link in self._links.values():
            await link.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.wal.stop()
        self.shards.close_tables()
        self._directory.close()
        self._log.info("stopped", node=self.node_id)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a rare piece of work in a task that ends with the node."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _broken(self, error: Exception) -> None:
        self._log.error("unexpected", error=str(error), exc_info=error)

    def _accept(self) -> Connection:
        return Connection(NativeSession(self), self.turn, self.limits.connection_write)

    # -- who this is --------------------------------------------------------------------------------------------

    def meta(self) -> NodeMeta:
        """This node as others should know it."""
        addresses = self._addresses
        return NodeMeta(
            self.node_id,
            addresses.get("native", ""),
            addresses.get("kafka", ""),
            addresses.get("oxia", ""),
            addresses.get("http", ""),
            alive=True,
            incarnation=self.incarnation,
            disk_id=self._directory.identity.disk_id,
        )

    def status(self, version: str) -> StatusReply:
        """State of this node and its replicas."""
        uptime_ms = int((self.loop.time() - self._started_s) * 1000)
        return StatusReply(
            self.meta(),
            version,
            uptime_ms,
            system.resident_bytes(),
            self.replica_statuses(),
            self.metrics.metadata_unreadable,
        )

    def broken_shards(self) -> Sequence[int]:
        """See GatewayCalls."""
        return tuple(self.shards.broken)

    def _add_gauges(self) -> None:
        gauges = self.metrics.gauges
        gauges["antiphon_replicas"] = ("Replicas on this node", lambda: len(self.hosts))
        gauges["antiphon_leaders"] = (
            "Shards that this node leads",
            lambda: sum(host.is_serving for host in self.hosts.values()),
        )
        gauges["antiphon_live_shards"] = (
            "Shards led here whose commits go by the live replica set",
            lambda: sum(bool(live) for live in self._live_sets()),
        )
        gauges["antiphon_live_replicas"] = (
            "Replicas in the live replica sets of those shards",
            lambda: sum(len(live) for live in self._live_sets()),
        )
        gauges["antiphon_wal_backlog_bytes"] = (
            "Bytes that wait for the disk",
            lambda: self.wal.backlog_bytes,
        )
        gauges["antiphon_in_flight_bytes"] = ("Appended and not committed", lambda: self._in_flight_bytes)
        gauges["antiphon_disk_full"] = ("1 while the disk has no room", lambda: float(self.wal.disk_full))
        gauges["antiphon_resident_bytes"] = ("Resident memory", system.resident_bytes)
        gauges["antiphon_connections"] = ("Native connections", lambda: len(self.sessions))

    def _live_sets(self) -> list[tuple[int, ...]]:
        return [host.live for host in self.hosts.values()]

    # -- time ---------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """See PartitionServices."""
        return self.loop.time()

    def needs_ticks(self, host: Partition) -> None:
        """See PartitionServices."""
        self.shards.needs_ticks(host)
        self._arm_tick()

    def _arm_tick(self) -> None:
        if self.shards.ticking and self._tick_timer is None and not self.stopping:
            self._tick_timer = self.loop.call_later(self.config.timings.tick / 1000, self._tick)

    def someone_waits(self, host: Partition) -> None:
        """See PartitionServices."""
        self.shards.someone_waits(host)

    def _tick(self) -> None:
        self._tick_timer = None
        self.shards.tick()
        self._arm_tick()

    def _beat(self) -> None:
        timings = self.config.timings
        self._beat_timer = self.loop.call_later(timings.heartbeat / 1000, self._beat)
        try:
            self.agent.beat()
            self.splits.beat()
            now = self.loop.time()
            if self._due("expire", now, EXPIRE_EVERY_S):
                self.shards.expire(now)
            if self._due("checkpoint", now, timings.checkpoint / 1000):
                self.shards.note_watermarks()
                self.shards.mend_damaged()
            if self._due("collection", now, memory.COLLECT_EVERY_S):
                memory.collect()
            if self._due("retention", now, timings.retention_check / 1000):
                self.shards.apply_retention()
        except AntiphonError as error:
            self._broken(error)

    def _due(self, what: str, now: float, every_s: float) -> bool:
        if now < self._next.get(what, now + every_s if what in NOT_AT_ONCE else 0.0):
            self._next.setdefault(what, now + every_s)
            return False
        self._next[what] = now + every_s
        return True

    # -- other nodes --------------------------------------------------------------------------------------------

    def _add_link(self, node_id: int, address: str) -> PeerLink:
        hello = Hello(
            PROTOCOL_VERSION, f"antiphon-node/{self.node_id}", self.cluster_id, self.node_id, self.incarnation
        )
        link = PeerLink(node_id, address, hello, self.turn, self, self.limits.peer_write)
        link.reconnect_max_s = self.config.timings.reconnect_max / 1000
        link.cut(self.faults is not None and node_id in self.faults.cut)
        self._links[node_id] = link
        self._lost.add(node_id)
        return link

    async def trim(self, shard_id: int, before: int, timeout_s: float = 30.0) -> int:
        """See Gateway."""
        return await trim_everywhere(self, shard_id, before, timeout_s)

    def link(self, node_id: int) -> PeerLink:
        """The connection to a node; UnavailableError for one that is not known."""
        found = self._links.get(node_id)
        if found is None:
            raise UnavailableError(f"node {node_id} is not known to node {self.node_id}")
        return found

    def lost_peers(self) -> list[int]:
        """Nodes that are not reached now."""
        return sorted(self._lost)

    def suffer(self) -> None:
        """Do as the faults say now that a test has told them anew."""
        faults = self.faults
        if faults is None:
            return
        try:
            faults.read()
        except (ValueError, OSError) as error:
            self._log.error("faults_not_read", error=str(error))
            return
        self._log.warning("faults_injected", cut=sorted(faults.cut), disk=faults.disk)
        for link in self._links.values():
            link.cut(link.node_id in faults.cut)
        for session in self.sessions.values():
            session.cut(faults)

    def heard_of(self, node_id: int, session: NativeSession) -> None:
        """A node has just connected: it can be reached again."""
        self._peer_sessions[node_id] = session
        link = self._links.get(node_id)
        if link is not None:
            link.dial_now()
            if link.up and self._on_accepted:
                self.peer_up(node_id)  # what was said before this connection stood is lost

    def hung_up(self, node_id: int, session: NativeSession) -> None:
        """A connection that a node had made is gone."""
        if self._peer_sessions.get(node_id) is session:
            del self._peer_sessions[node_id]

    def peer_up(self, node_id: int) -> None:
        """See PeerEvents."""
        self._lost.discard(node_id)
        for host in list(self.hosts.values()):
            host.call(host.replica.peer_connected, node_id)
        if self.coordinator is not None:
            self.coordinator.peer_up(node_id)
        if not self.agent.registered.is_set():
            self.agent.beat()

    def peer_lost(self, node_id: int, *, refused: bool) -> None:
        """See PeerEvents."""
        if node_id not in self._lost:
            self._lost.add(node_id)
            for host in list(self.hosts.values()):
                host.call(host.replica.peer_lost, node_id)
        self.agent.peer_gone(node_id)
        if refused and self.coordinator is not None:
            self.coordinator.node_lost(node_id)

    def peer_drained(self, node_id: int) -> None:
        """See PeerEvents."""
        for host in self.hosts.values():
            host.peer_drained(node_id)

    def send(self, _host: Partition, to: int, message: AnyMessage) -> None:
        """See PartitionServices."""
        self.send_message(to, message)

    def send_message(self, to: int, message: AnyMessage) -> None:
        """Send a replica message to a node, this one included; lost when there is no connection."""
        self.metrics.messages_out += 1
        if to == self.node_id:
            self.turn.for_shard(partial(self.deliver, to, message))
            return
        if type(message) in self._on_accepted:
            session = self._peer_sessions.get(to)
            if session is not None:
                session.send_replica_message(message)
            return
        link = self._links.get(to)
        if link is not None:
            link.send_replica_message(message)

    def is_congested(self, to: int) -> bool:
        """See PartitionServices."""
        if Append in self._on_accepted:
            session = self._peer_sessions.get(to)
            return session is not None and session.congested
        link = self._links.get(to)
        return link is not None and link.congested

    def deliver(self, sender: int, message: AnyMessage) -> None:
        """A replica message arrived."""
        self.metrics.messages_in += 1
        kind = type(message)
        if kind is NewTermReply or kind is BecomeLeaderReply or kind is MembersSettled or kind is StaleTerm:
            if self.coordinator is not None:
                self.coordinator.receive(sender, message)
            if kind is not StaleTerm:
                return
        host = self.hosts.get(message.shard)
        if host is None:
            self.shards.early(sender, message)
            return
        if kind is Append and self.wal.disk_full and message.entries:  # type: ignore[union-attr]  # an Append
            return  # the leader asks again; there is no room to keep it until then
        host.receive(sender, message)
        if self.wal.overloaded and not self._holding_peers:
            self._holding_peers = True
            for session in self.sessions.values():
                session.hold_disk()
            if (
                Append in self._on_accepted
            ):  # then entries come over the connections that were made from here, too
                for link in self._links.values():
                    link.hold_disk()

    def send_snapshot(self, host: SingleWriterPartition, to: int) -> None:
        """See PartitionServices."""
        self.snapshots.send(host, to)

    # -- coordinator --------------------------------------------------------------------------------------------

    def ask_coordinator(self, node_id: int, body: Any, answered: Callable[[Any], None]) -> None:
        """Send a request to the node that is believed to coordinate."""
        if node_id == self.node_id:
            self.coordinator_request(self.node_id, body, answered)
            return
        link = self._links.get(node_id)
        if link is None:
            answered(UnavailableError(f"node {node_id} is not known to node {self.node_id}"))
        else:
            link.request(body, answered)

    def coordinator_request(self, sender: int, body: Any, answered: Callable[[Any], None]) -> None:
        """A node asks this one as the coordinator."""
        if self.coordinator is not None:
            self.coordinator.request(sender, body, answered)
            return
        known = self.agent.coordinator()
        leader = None if known == self.node_id else known
        answered(NotLeaderError(f"node {self.node_id} does not coordinate", leader=leader))

    def metadata_pushed(self, delta: MetadataDelta) -> None:
        """The coordinator sent a change of the metadata."""
        self.agent.apply(delta)

    def metadata_changed(self) -> None:
        """The metadata moved on: follow it."""
        nodes = self.view.nodes
        for node in nodes.values():
            if node.node_id == self.node_id:
                continue
            link = self._links.get(node.node_id)
            if link is None:
                self._add_link(node.node_id, node.native).start()
            else:
                link.move(node.native)
        initial = {member.id for member in self.config.nodes}
        for node_id in [known for known in self._links if known not in nodes and known not in initial]:
            self._lost.add(node_id)
            self.spawn(self._links.pop(node_id).close())
        self.shards.reconcile()
        self._ask_returned({node.node_id for node in nodes.values() if node.alive})
        self.splits.look()
        self._long_lived.are(self.view.shard_count)

    def _ask_returned(self, alive: set[int]) -> None:
        """Nodes that were silent and are alive again, on connections that never broke: leaders ask them where they are."""
        returned = sorted(alive - self._alive - self._lost)
        self._alive = alive
        for node_id in returned:
            for host in list(self.hosts.values()):
                if host.is_leader:
                    host.call(host.replica.peer_connected, node_id)

    # -- budgets and failures -----------------------------------------------------------------------------------

    def in_flight(self, change_bytes: int) -> None:
        """See PartitionServices."""
        self._in_flight_bytes += change_bytes
        limit = self.limits.append_in_flight
        if not self._holding and self._in_flight_bytes > limit:
            self._holding = True
            for session in self.sessions.values():
                session.hold()
        elif self._holding and self._in_flight_bytes < limit // 2:
            self._holding = False
            for session in self.sessions.values():
                session.release()

    def disk_progressed(self) -> None:
        """See PartitionServices."""
        if self._holding_peers and self.wal.backlog_bytes < self.limits.wal_backlog // 2:
            self._holding_peers = False
            for session in self.sessions.values():
                session.release_disk()
            for link in self._links.values():
                link.release_disk()

    @property
    def is_overloaded(self) -> bool:
        """See PartitionServices. Doors stop reading long before this."""
        return self._in_flight_bytes > 2 * self.limits.append_in_flight

    def host_changed(self, host: Partition) -> None:
        """See PartitionServices."""
        if host.shard_id == CLUSTER_SHARD_ID:
            self.turn.for_shard(self.agent.beat)
        elif host.live:
            self.turn.for_shard(partial(self._tell_record, host))
        elif host.elects_itself and (leader := host.replica.leader) is not None:
            self.view.led_by(host.shard_id, host.term, leader)
            if leader == self.node_id and host.is_serving:
                self.live_changed()
        elif self.view.joining:
            self.turn.for_shard(self.splits.look)

    def _tell_record(self, host: Partition) -> None:
        """A live replica set may have been recorded while its leader was still to be told to lead."""
        found = self.view.recorded(host.shard_id)
        if found is not None:
            host.recorded(found, self.view.nodes)

    def live_changed(self) -> None:
        """See PartitionServices."""
        self.turn.for_shard(self.agent.beat_now)

    def is_joining(self, shard_id: int) -> bool:
        """See PartitionServices."""
        return shard_id in self.view.joining

    def host_failed(self, host: Partition, *, needs_leader: bool) -> None:
        """See PartitionServices. A shard whose leader stopped gets another one; replicas that vote see to it themselves."""
        if needs_leader and not self.stopping:
            self.spawn(self._give_up_leadership(host.shard_id))

    async def _give_up_leadership(self, shard_id: int) -> None:
        try:
            await self.elect_leader(shard_id)
        except AntiphonError as error:
            self._log.error("leadership_not_given_up", shard=shard_id, error=error.message)
