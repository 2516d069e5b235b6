"""A node: one event loop, one WAL thread, and everything between the sockets and the disk.

What runs where: all decisions on the event loop; writes and syncs on the WAL thread; on threads of the loop's executor
what takes long: copies and flushes of stores, recovery of damaged replicas, removing of directories. There are no timers
per shard (`node.timers`).
"""

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

import structlog

from antiphon import system
from antiphon.coordination.cluster_records import FORMAT
from antiphon.errors import AntiphonError, NotLeaderError, UnavailableError
from antiphon.log.disk import Disk, RealDisk
from antiphon.log.wal import Wal
from antiphon.log.wal_thread import WalThread
from antiphon.model.metadata import CLUSTER_SHARD_ID, NodeMeta
from antiphon.model.requests import StatusReply
from antiphon.node import memory, old_history, own_voter
from antiphon.node.agent import ClusterAgent
from antiphon.node.back_pressure import BackPressure
from antiphon.node.bulk_gate import gate_of
from antiphon.node.config import NodeConfig, check_config
from antiphon.node.coordinator_shell import CoordinatorShell
from antiphon.node.disk_care import DiskCare
from antiphon.node.formats import FORMATS
from antiphon.node.forwarding import Forwarder
from antiphon.node.gauges import (
    add_election_counts,
    add_gauges,
    add_lag,
    add_metadata_gauges,
    producers_known,
)
from antiphon.node.injected_faults import InjectedFaults
from antiphon.node.known_voters import KnownVoters
from antiphon.node.live_settings import LiveSettings
from antiphon.node.local_backups import LocalBackups
from antiphon.node.local_replicas import LocalReplicas
from antiphon.node.local_transactions import LocalTransactions
from antiphon.node.local_view import LocalView
from antiphon.node.memory import HeapTrimmer, LongLived
from antiphon.node.metrics import NodeMetrics
from antiphon.node.node_gateway import NodeGateway
from antiphon.node.peer_network import PeerNetwork
from antiphon.node.raft_shards import hand_over
from antiphon.node.reserve import has_room_for, open_directory
from antiphon.node.shards import Shards
from antiphon.node.snapshots import Snapshots
from antiphon.node.splits import Splits
from antiphon.node.timers import Chore, Timers
from antiphon.node.trimming import Trimming
from antiphon.node.turn import Turn
from antiphon.partition.partition import Partition
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.records.packed_effects import EffectKernels
from antiphon.replication.messages import (
    Append,
    BecomeLeaderReply,
    MembersSettled,
    NewTermReply,
    StaleTerm,
)
from antiphon.replication.multi_messages import ReplicaMessage
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.store import StoreEngine


class Node:
    """See the module's text. `server.server.Server` puts it together with its listeners.

    It lives through `open()`, `join()`, `leave()`, `close_shards()` and `close()`, each once, on its event loop. Listeners
    take connections from `open()` on and are closed before `close()`.

    Attributes:
        gateway: the node, as listeners see it.
        network: connections to and from other nodes.
        back_pressure: has listeners read no more while the node has too much in hand.
        timers: what the node does by the clock.
    """

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk | None = None,
        faults: InjectedFaults | None = None,
        make_wal: Callable[..., Wal] = WalThread,
        stores: StoreEngine | None = None,
    ) -> None:
        self.settings = LiveSettings(check_config(config))
        config = self.config = self.settings.config
        self.node_id = config.node_id
        self.cluster_id = config.cluster_id
        self.limits, self.session_bounds = config.limits, config.sessions
        self.incarnation = system.new_uuid().hex
        self.random = system.rng()
        self.loop = asyncio.get_running_loop()
        self.now_s = self.loop.time
        self.metrics = NodeMetrics()
        self.turn = Turn(self.loop, self._broken)
        self.hosts: dict[int, Partition] = {}
        self.stirred, self.suspects = set[int](), set[int]()
        self.look_at: Callable[[int], None] = self.suspects.add
        self.stopping = self.producers_full = False
        self.kernels = EffectKernels(partial(self.loop.run_in_executor, None))
        self._log = structlog.get_logger()
        self.disk: Disk = RealDisk() if disk is None else disk  # of every file of this node
        self._directory = open_directory(self.disk, config)
        self.wal = make_wal(self.disk, backlog_bytes_max=self.limits.wal_backlog)
        self.stores: StoreEngine = RocksEngine() if stores is None else stores
        self.history: Callable[[], int] = partial(own_voter.history_of, self)
        self.agent = ClusterAgent(self, config.cluster_id)
        self.voters = KnownVoters(config, self.view, self.disk)
        self.network = PeerNetwork(config, self.incarnation, self.turn, self, faults, self.disk, self.metrics)
        self.link = self.network.link
        self.lost_peers = self.network.lost_peers
        self.back_pressure = BackPressure(self.limits, self.wal, self.network)
        self.replicas = LocalReplicas(self.node_id, self.view, self.hosts, lambda: tuple(self.shards.broken))
        self.shards: Shards = Shards(self, self.disk, self._directory)
        self.care = DiskCare(self, self.wal, lambda: self.shards, self.agent.registered.is_set)
        self.timers = self._make_timers()
        self.snapshots = Snapshots(self, os.path.join(config.dir, "snapshots"))
        self.splits = Splits(self)
        self.bulk = gate_of(config, self.replicas, self.shards.settings, self.metrics)
        self.forwarder = Forwarder(self.view, self.shards.settings, self.link, self.metrics)
        self.transactions = LocalTransactions(self.replicas, self.link)
        self.backups = LocalBackups(self, self.replicas, self.snapshots)
        self.gateway = self._make_gateway()
        self._hand_on()
        for follower in (self.shards.settings.read_again, self.care.settings_changed, partial(_bound, self)):
            self.settings.follow(follower)
        self.coordinator: CoordinatorShell | None = None
        self._long_lived = LongLived()
        self._alive: set[int] = set()  # as the metadata last said
        self._tasks: set[asyncio.Task[Any]] = set()
        self._addresses: dict[str, str] = {}
        self._started_s = self.loop.time()

    def _make_gateway(self) -> NodeGateway:
        return NodeGateway(
            self.config,
            self.agent,
            self.replicas,
            trimming=Trimming(self.replicas, self.link, self.agent.ask),
            bulk=self.bulk,
            forwarder=self.forwarder,
            transactions=self.transactions,
            own=self,
        )

    def _hand_on(self) -> None:
        """What others than the node do, of the services of partitions (`PartitionServices`) and of peers (`PeerFrames`)."""
        self.needs_ticks = self.timers.needs_ticks
        self.someone_waits = self.timers.someone_waits
        self.in_flight: Callable[[int], None] = self.back_pressure.in_flight
        self.is_congested: Callable[[int], bool] = self.network.is_congested
        self.recovered_part = partial(old_history.recovered_part, self.view, self.shards.placements)
        self.send_message: Callable[[int, ReplicaMessage], None] = self.network.send
        self.send_snapshot = self.snapshots.send
        self.refusal_of = self.view.refusal_of
        self.metadata_pushed = self.agent.apply
        self.snapshot_received = self.snapshots.receive
        self.end_transaction = self.transactions.received
        self.question = self.gateway.asked

    # -- life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the WAL thread: listeners may hand on requests from now on, which find no replicas yet."""
        self.wal.start(self.loop)
        add_gauges(self.metrics, self.hosts, self.wal, lambda: self.back_pressure.in_flight_bytes)
        add_lag(self.metrics, self.hosts)
        add_metadata_gauges(self.metrics, lambda: self.coordinator)
        add_election_counts(
            self.metrics, lambda: None if self.coordinator is None else self.coordinator.coordinator
        )

    def join(self, addresses: Mapping[str, str]) -> None:
        """Recover the replicas and make for the cluster, which is told these addresses of the listeners.

        Returns when the node serves, which may be before it is part of the cluster.
        """
        self._addresses = dict(addresses)
        self.network.add_first(() if self.voters.note is None else self.voters.note.addresses)
        if self.voters.is_held_here:
            self.shards.open_cluster_shard()
        self.shards.remember()
        self.network.start()
        self.timers.start()
        self.care.start()
        self._log.info(
            "started", node=self.node_id, cluster=self.cluster_id, addresses=self._addresses, pid=system.pid()
        )

    async def joined(self, timeout_s: float) -> bool:
        """Wait until the coordinator counts on this node; False when that takes longer than `timeout_s`."""
        try:
            await asyncio.wait_for(self.agent.registered.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def leave(self) -> None:
        """Hand over what is led here, where replicas vote, and do nothing by the clock any more."""
        self.stopping = True
        self.timers.end_ticks()
        self._log.info("stopping", node=self.node_id)
        await hand_over(self)
        self.timers.stop()

    def close_shards(self) -> None:
        """Close the replicas. Whoever waits for one is told to ask elsewhere, on connections that are still open."""
        self.bulk.close()
        if self.coordinator is not None:
            self.coordinator.stop()
        self.shards.close_all()

    async def close(self) -> None:
        """Bring everything to disk, let go of the directory."""
        await self.network.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.shards.opening_ended()
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

    # -- who this is --------------------------------------------------------------------------------------------

    @property
    def view(self) -> LocalView:
        """The metadata as it is kept here."""
        return self.agent.view

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
            peer=addresses.get("peer", ""),
            rack=self.config.rack,
            reads=FORMAT,
        )

    def status(self, shards: Collection[int] | None = None) -> StatusReply:
        """State of this node and its replicas, or those of some shards."""
        uptime_ms = int((self.loop.time() - self._started_s) * 1000)
        found = StatusReply(
            self.meta(),
            system.installed_version(),
            uptime_ms,
            system.resident_bytes(),
            self.replicas.statuses(shards),
            self.metrics.metadata_unreadable,
            counters=self.metrics.counters(),
            formats=FORMATS,
        )
        return self.care.add_to(found)

    # -- time ---------------------------------------------------------------------------------------------------

    def _make_timers(self) -> Timers:
        def heartbeat() -> None:
            self.agent.heartbeat()
            self.splits.heartbeat()

        def count_producers() -> None:
            self.producers_full = producers_known(self.hosts) > self.limits.producers

        timings, shards = self.config.timings, self.shards
        checkpoint_s = timings.checkpoint / 1000
        chores = (
            Chore(shards.note_watermarks, checkpoint_s),
            Chore(self.care.look, checkpoint_s),
            Chore(count_producers, checkpoint_s),
            Chore(shards.mend_damaged, checkpoint_s),
            Chore(memory.collect, memory.COLLECT_EVERY_S, later=True),
            Chore(memory.give_back, memory.GIVE_BACK_EVERY_S, later=True),
            Chore(HeapTrimmer().look, memory.LOOK_EVERY_S),
            Chore(shards.apply_retention, timings.retention_check / 1000, later=True),
        )
        return Timers(self.loop, timings, heartbeat, chores, self._broken)

    # -- other nodes --------------------------------------------------------------------------------------------

    def heard_of(self, node_id: int) -> None:
        """See PeerFrames."""
        if self.network.heard_of(node_id):
            self.peer_up(node_id)

    def peer_up(self, node_id: int) -> None:
        """See PeerEvents."""
        self.network.lost.discard(node_id)
        for host in list(self.hosts.values()):
            host.driver.call(host.replica.peer_connected, node_id)
        own_voter.send_recovery(self, node_id)
        if self.coordinator is not None:
            self.coordinator.peer_up(node_id)
        if not self.agent.registered.is_set():
            self.agent.heartbeat()

    def peer_lost(self, node_id: int, *, refused: bool) -> None:
        """See PeerEvents."""
        if node_id not in self.network.lost:
            self.network.lost.add(node_id)
            for host in list(self.hosts.values()):
                host.driver.call(host.replica.peer_lost, node_id)
        self.agent.peer_gone(node_id)
        if refused and self.coordinator is not None:
            self.coordinator.node_lost(node_id)

    def peer_drained(self, node_id: int) -> None:
        """See PeerEvents."""
        for host in self.hosts.values():
            host.peer_drained(node_id)

    def deliver(self, sender: int, message: ReplicaMessage) -> None:
        """A replica message arrived."""
        self.metrics.messages_in += 1
        kind = type(message)
        if message.shard == CLUSTER_SHARD_ID and own_voter.is_told_nothing(message, self.voters.mark):
            return
        if kind is NewTermReply or kind is BecomeLeaderReply or kind is MembersSettled or kind is StaleTerm:
            if self.coordinator is not None:
                self.coordinator.receive(sender, message)
            if kind is not StaleTerm:
                return
        host = self.hosts.get(message.shard)
        if host is None:
            self.shards.early(sender, message)
            return
        lacks_room = self.wal.disk_full or self.wal.is_low
        if lacks_room and kind is Append and not has_room_for(self.wal, message):  # type: ignore[arg-type]
            return  # the leader asks again; there is no room to keep it until then
        host.receive(sender, message)
        if self.wal.backlog_bytes >= self.wal.backlog_bytes_max:
            self.back_pressure.entries_came()

    # -- coordinator --------------------------------------------------------------------------------------------

    def ask_coordinator(self, node_id: int, body: Any, answered: Callable[[Any], None]) -> None:
        """Send a request to the node that is believed to coordinate."""
        if node_id == self.node_id:
            self.coordinator_request(self.node_id, body, answered)
            return
        try:
            link = self.link(node_id)
        except UnavailableError as error:
            answered(error)
        else:
            link.request(body, answered)

    def coordinate(self, host: SingleWriterPartition) -> None:
        """The replica of `__cluster` is open: a coordinator rests on it, where it leads."""
        self.coordinator = CoordinatorShell(self, host)

    def coordinate_no_more(self) -> None:
        """The replica of `__cluster` is about to be closed. Whoever waits for its coordinator is told to ask elsewhere."""
        if self.coordinator is not None:
            self.coordinator.stop("opens the cluster's own log anew")
            self.coordinator = None

    def coordinator_request(self, sender: int, body: Any, answered: Callable[[Any], None]) -> None:
        """A node asks this one as the coordinator."""
        if self.coordinator is not None:
            self.coordinator.request(sender, body, answered)
            return
        known = self.agent.coordinator()
        leader = None if known == self.node_id else known
        answered(
            NotLeaderError(
                f"node {self.node_id} does not coordinate", leader=leader, **self.network.address_of(leader)
            )
        )

    def metadata_changed(self) -> None:
        """The metadata moved on: follow it."""
        nodes = self.view.nodes
        for link in self.network.follow(nodes):
            self.spawn(link.close())
        self.settings.take(self.view.node_settings)  # before shards take over those of their topics
        self.shards.reconcile()
        own_voter.follow_voters(self, self.shards, is_registered=self.agent.registered.is_set())
        self._ask_returned({node.node_id for node in nodes.values() if node.alive})
        self.splits.look()
        self._long_lived.note_count(self.view.shard_count)

    def registered(self) -> None:
        """The coordinator counts on this node: replicas that waited for that are opened."""
        self.timers.joined()
        self.shards.reconcile()
        own_voter.follow_voters(self, self.shards, is_registered=True)

    def _ask_returned(self, alive: set[int]) -> None:
        """Nodes that were silent and are alive again, on connections that never broke: leaders ask them where they are."""
        returned = sorted(alive - self._alive - self.network.lost)
        self._alive = alive
        for node_id in returned:
            for host in list(self.hosts.values()):
                if host.state.is_leader:
                    host.driver.call(host.replica.peer_connected, node_id)

    # -- what partitions tell -----------------------------------------------------------------------------------

    def replica_changed(self, shard_id: int) -> None:
        """See PartitionServices."""
        host = self.hosts.get(shard_id)
        self.splits.led(shard_id)
        if shard_id == CLUSTER_SHARD_ID:
            self.turn.for_shard(self.agent.heartbeat)
        elif host is not None and host.mode.live:
            self.turn.for_shard(partial(self._pass_record_on, host))
        elif host is not None and host.mode.elects_itself and (leader := host.replica.leader) is not None:
            self.view.led_by(shard_id, host.state.term, leader)
            if leader == self.node_id and host.state.is_serving:
                self.live_changed()
        elif self.view.joining:
            self.turn.for_shard(self.splits.look)

    def _pass_record_on(self, host: Partition) -> None:
        """A live replica set may have been recorded while its leader was still to be told to lead."""
        found = self.view.recorded(host.shard_id)
        if found is not None:
            host.recorded(found, self.view.nodes)

    def live_changed(self) -> None:
        """See PartitionServices."""
        self.turn.for_shard(self.agent.heartbeat_now)

    def is_joining(self, shard_id: int) -> bool:
        """See PartitionServices."""
        return shard_id in self.agent.view.joining

    def replica_failed(self, shard_id: int, *, needs_leader: bool) -> None:
        """See PartitionServices. A shard whose leader stopped gets another one; replicas that vote see to it themselves."""
        self.suspects.add(shard_id)
        if needs_leader and not self.stopping:
            self.spawn(self._give_up_leadership(shard_id))

    async def _give_up_leadership(self, shard_id: int) -> None:
        try:
            await self.gateway.elect_leader(shard_id)
        except AntiphonError as error:
            self._log.error("leadership_not_given_up", shard=shard_id, error=error.message)


def _bound(node: Node) -> None:
    """Settings have changed, and with them how much the node that coordinates lets clients make."""
    if node.coordinator is not None:
        node.coordinator.config.capacity.become(node.limits.capacity)
