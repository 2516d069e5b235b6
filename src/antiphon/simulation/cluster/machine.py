"""A simulated machine: a disk that outlives processes, a place in the network, and a node that is started on it."""

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from antiphon.errors import AntiphonError
from antiphon.invariants import InvariantError
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.node.config import (
    Cleaner,
    ConsumerGroups,
    Limits,
    Member,
    Metadata,
    NodeConfig,
    Ports,
    Scrub,
    Sessions,
    ShareGroups,
    Timings,
)
from antiphon.security.settings import SASL_MECHANISMS, OAuth, Security
from antiphon.security.tokens import HAS_TOKENS
from antiphon.server.first_user import make_user
from antiphon.server.server import Server
from antiphon.simulation.cluster.accounts import ROOT, root_user
from antiphon.simulation.cluster.disk_view import DIRECTORY
from antiphon.simulation.cluster.slow_turns import SlowTurns
from antiphon.simulation.cluster.timing import (
    CONSUMER_BEAT_MS,
    CONSUMER_SESSION_MS,
    OFFSETS_CHECK_MS,
    OFFSETS_KEPT_MS,
    RETENTION_CHECK_MS,
    SESSION_MIN_MS,
    SHARE_DELIVERIES,
    SHARE_LOCK_MS,
    SHARE_LOCKS,
)
from antiphon.simulation.cluster.tokens import OAUTH, TokenKeys
from antiphon.simulation.cluster.world import (
    HTTP_PORT,
    KAFKA_PORT,
    NATIVE_PORT,
    OXIA_PORT,
    PEER_PORT,
    World,
)
from antiphon.simulation.memory_store import MemoryEngine
from antiphon.simulation.racks import rack_of
from antiphon.simulation.rocks_on_disk import RocksOnDiskEngine
from antiphon.simulation.runtime.process import EPOCH_NS, Process
from antiphon.simulation.runtime.wal import SimulatedWal
from antiphon.simulation.violation import ViolationError

if TYPE_CHECKING:
    from antiphon.log.simulated_faults import Duration, Fault
    from antiphon.node.node import Node
    from antiphon.partition.partition import Partition
    from antiphon.table.store import StoreEngine

KEY_DIRECTORY: Final = "/etc"
KEY_NAME: Final = "peer.key"
KEY: Final = b"the key of all nodes of a simulated cluster"
KERNELS_FROM: Final = 2  # rows of a table's batch, instead of 64, where there are bulk writers
KERNELS_AFTER: Final = 100  # rows of such batches
SCRUB_BYTES_S: Final = 64 * 1024 * 1024
CLEANER_BYTES_S: Final = 4_000_000
CLEANER_BACKOFF_MS: Final = 100
SCRUB_EVERY_S: Final = 2
FEW_BYTES: Final = {
    "kafka_memory": 256 * 1024,
    "native_memory": 256 * 1024,
    "http_memory": 64 * 1024,
    "connection_memory": 128 * 1024,
    "wal_backlog": 16 * 1024,
}
"""For clients, where some do not read, and for the disk: so little that it is soon used up."""
OFFSETS_EXPIRE: Final[dict[str, Any]] = {
    "offsets_retention_ms": OFFSETS_KEPT_MS,
    "offsets_retention_check_interval_ms": OFFSETS_CHECK_MS,
}
DESCRIPTORS: Final = 512  # that a node may have open where crowds come: its listeners take few connections
FEW_PLACES: Final = {"connections": 80, "topics_on_demand": 24}
CARE_S: Final = 2.0  # between two looks of an operator
RESTARTS_MAX: Final = 5
START_AGAIN_S: Final = 0.5  # after a start that failed


class NodeWatcher(Protocol):
    """Who is told of nodes that come and go."""

    def node_made(self, machine: "Machine", node: "Node") -> None:
        """A node is about to start on a machine."""

    def node_gone(self, machine: "Machine", node: "Node") -> None:
        """Its process ended."""


class Machine:
    """See the module's text."""

    def __init__(self, world: World, watcher: NodeWatcher, node_id: int, random: Random) -> None:
        self._world = world
        self._watcher = watcher
        self.node_id = node_id
        self.host = f"node-{node_id}"
        self.random = random
        self.disk = SimulatedDisk(Random(random.getrandbits(64)), self._now_s)
        self.process: Process | None = None
        self.server: Server | None = None
        self.starts = 0
        self.trouble: list[Fault] = []  # what the disk does wrong, over restarts too
        self.may_stop = False  # has the disk given replicas a reason to stop?
        self.flipped: list[tuple[str, int]] = []  # bits, by file
        self.around_flips: dict[tuple[str, int], bytes] = {}  # and what stood there then
        self.rotten: dict[str, int] = {}  # files that decayed under a node that ran, and their bits
        self.cluster_log_decayed = False
        self.has_new_disk = False  # in the place of the one that it began with
        self.disk_is_known = True  # to the coordinator, since a process before this one
        self._capacity_bytes: int | None = None
        self._duration_s: Duration | None = None
        self._put_in(self.disk)
        self.slow_s = 0.0  # what each group of writes takes longer
        self.token_keys = TokenKeys()
        self.founding = True  # has the node never been started?
        self._retired = False

    def _now_s(self) -> float:
        return EPOCH_NS / 1e9 + self._world.loop.now

    # -- its disk -----------------------------------------------------------------------------------------------------

    def _put_in(self, disk: SimulatedDisk) -> None:
        """The disk for the next process. A call at which it ends is one at which the machine loses power."""
        self.disk = disk
        disk.on_end = self.power_off
        self._arm()

    def _arm(self) -> None:
        """What is wrong with the disk is so for the next process too."""
        self.disk.faults = self.trouble
        self.disk.capacity_bytes = self._capacity_bytes
        self.disk.duration_s = self._duration_s

    def set_capacity(self, capacity_bytes: int | None) -> None:
        """The disk takes no more than this; None: as much as comes."""
        self._capacity_bytes = capacity_bytes
        self._arm()

    def set_duration(self, duration_s: "Duration | None") -> None:
        """How long calls to the disk take; None: not worth counting."""
        self._duration_s = duration_s
        self._arm()

    @property
    def is_troubled(self) -> bool:
        """Is anything wrong with the disk now?"""
        return bool(self.trouble) or self._capacity_bytes is not None

    # -- its process --------------------------------------------------------------------------------------------------

    @property
    def node(self) -> "Node | None":
        """The node that runs here."""
        return None if self.server is None else self.server.node

    @property
    def hosts(self) -> "dict[int, Partition]":
        """The replicas that its node has open, by shard."""
        return {} if self.server is None else self.server.node.hosts

    @property
    def is_up(self) -> bool:
        """Does a process run here?"""
        return self.process is not None and self.process.alive

    def config(self) -> NodeConfig:
        """What the node is told."""
        options = self._world.options
        keyed = options.has_key
        members = [
            Member(i, f"node-{i}:{NATIVE_PORT}", f"node-{i}:{PEER_PORT}" if keyed else "")
            for i in range(options.nodes)
        ]
        return NodeConfig(
            cluster_id=self._world.cluster_id,
            node_id=self.node_id,
            nodes=members,
            dir=DIRECTORY,  # type: ignore[arg-type]  # a path on the simulated disk
            bootstrap=self.founding,
            listen_host=self.host,
            rack=rack_of(self.node_id),
            profile=options.profile if options.profile != "multi" else "oxia",
            ports=Ports(
                NATIVE_PORT,
                KAFKA_PORT,
                OXIA_PORT if options.has_oxia else -1,
                HTTP_PORT,
                PEER_PORT if keyed else -1,
            ),
            limits=Limits(
                disk_reserve=options.disk_reserve,
                **(FEW_BYTES if options.stalled_readers else {}),
                **(FEW_PLACES if options.crowds else {}),
            ),
            consumer_groups=ConsumerGroups(
                CONSUMER_BEAT_MS, CONSUMER_SESSION_MS, **(OFFSETS_EXPIRE if options.expiring_groups else {})
            ),
            share_groups=ShareGroups(
                CONSUMER_BEAT_MS,
                CONSUMER_SESSION_MS,
                record_lock_duration_ms=SHARE_LOCK_MS,
                delivery_count_limit=SHARE_DELIVERIES,
                partition_max_record_locks=SHARE_LOCKS,
            ),
            cleaner=Cleaner(CLEANER_BYTES_S, options.cleaner_memory, CLEANER_BACKOFF_MS)
            if options.compacted_writers
            else Cleaner(),
            sessions=Sessions(SESSION_MIN_MS),
            timings=self._timings(),
            metadata=Metadata(
                checkpoint_records=options.checkpoint_records,
                checkpoint_per_object=1,
                checkpoint_batch=options.checkpoint_batch,
                segment_bytes=options.metadata_segment_bytes,
            ),
            scrub=Scrub(SCRUB_BYTES_S if options.scrub else 0, SCRUB_EVERY_S),
            security=Security(
                authentication=options.has_logins,
                super_users=[f"User:{ROOT}"],
                peer_key=f"{KEY_DIRECTORY}/{KEY_NAME}" if keyed else "",
                sasl_mechanisms=list(SASL_MECHANISMS),
                oauth=OAUTH if options.identities and HAS_TOKENS else OAuth(),
            ),
        )

    def _timings(self) -> Timings:
        options = self._world.options
        often = (
            {"retention_check": RETENTION_CHECK_MS}
            if options.retention_writers or options.row_log_bytes
            else {}
        )
        return Timings(founding=options.founding_ms, **often)

    def start(self) -> None:
        """Start the node in a new process. Whoever was to start it again does nothing when the machine is retired."""
        if self._retired:
            return
        world, draw = self._world, self.random
        skew = world.options.node_skew_ppm / 1e6
        self.starts += 1
        process = self.process = Process(
            world.loop,
            f"{self.host}#{self.starts}",
            self.host,
            draw.getrandbits(64),
            rate=1.0 + draw.uniform(-skew, skew),
            wall_skew_s=draw.uniform(-1.0, 1.0),
        )
        if world.options.crowds:
            process.descriptors = DESCRIPTORS
        if world.options.tenants:
            process.work_takes_time(draw.getrandbits(64))
        world.network.medium.down.discard(self.host)
        world.tell("start", self.node_id)
        if world.options.has_key:
            self._give_key()
        process.run(self._serve(process))

    def _give_key(self) -> None:
        """As an operator does: each machine has the key of the nodes, also one with a new disk."""
        if not self.disk.exists(KEY_DIRECTORY):
            self.disk.restore(KEY_DIRECTORY, {KEY_NAME: KEY})

    async def _serve(self, process: Process) -> None:
        try:
            server = self.server = Server(
                self.config(),
                disk=self.disk,
                stores=self._stores(process),
                make_wal=partial(SimulatedWal, rng=process.random, took_s=self._took_s),
                token_keys=self.token_keys,
                finishes_epochs=False,  # it is a thread
            )
            if self._world.options.table_piece:
                server.node.turn.pieces = server.memory.turns = SlowTurns(
                    self._world.options.table_piece, Random(process.random.getrandbits(64))
                )
            if self._world.options.bulk_writers:
                server.node.kernels.at_least, server.node.kernels.left = KERNELS_FROM, KERNELS_AFTER
            self._watcher.node_made(self, server.node)
            await server.start()
            if self._world.options.oxia_page_rows and server.oxia is not None:
                reads = server.oxia.calls.reads
                reads.page_rows = reads.list_keys = self._world.options.oxia_page_rows
            if self._world.options.has_logins:
                server.node.spawn(make_user(server.node.gateway, root_user()))
        except Exception as error:  # noqa: BLE001 - whether it may fail is judged
            self._start_failed(error)
            return
        self.founding = False

    def _start_failed(self, error: Exception) -> None:
        """The node did not start: a finding, unless its disk was made to refuse."""
        self._world.tell("start-failed", self.node_id, repr(error))
        expected = isinstance(error, AntiphonError | OSError) and not isinstance(error, InvariantError)
        if not expected or not self.is_troubled:
            raise ViolationError("no-crash", f"node {self.node_id} did not start: {error!r}") from error
        self._world.loop.call_later(0.0, self._end_failed_start, self.process)

    def _stores(self, process: Process) -> "StoreEngine":
        options = self._world.options
        every = options.store_flush_every
        draw, flush_every = Random(process.random.getrandbits(64)), (max(1, every // 4), every)
        if self._world.rocks_files is not None:
            return RocksOnDiskEngine(self.disk, self._world.rocks_files, draw, flush_every)
        return MemoryEngine(self.disk, draw, flush_every, options.store_block_bytes)

    def _took_s(self) -> float:
        return self.slow_s + self.disk.take_spent_s()

    def kill(self) -> None:
        """End the process as kill -9 does: everything that was written is there for the next one."""
        if self.process is not None and self.process.alive:
            self._world.tell("kill", self.node_id)
            self.process.kill()
            self._put_in(self.disk.kill())
            self._gone()

    def power_off(self, *, sent_arrives: bool = False) -> None:
        """The machine loses power: what was not synced is gone, or torn, and nobody is told.

        What it had sent is gone too, or arrives.
        """
        if self.process is not None and self.process.alive:
            self._world.tell("power-off", self.node_id)
            self._world.network.medium.down.add(self.host)
            self.process.kill(silently=True, sent_arrives=sent_arrives)
            self._put_in(self.disk.crash())
            self._gone()

    def _gone(self) -> None:
        self.disk_is_known = self.is_disk_known()
        server, self.server = self.server, None
        self.slow_s = 0.0
        if server is not None:
            self._watcher.node_gone(self, server.node)

    def power_off_if(self, process: Process | None) -> None:
        """Power off, if that process still runs."""
        if self.process is process:
            self.power_off()

    def _end_failed_start(self, process: Process | None) -> None:
        """The process that could not start ends; who keeps the node running tries again after a while."""
        if self.process is process and self.is_up:
            self.kill()
            self._world.loop.call_later(START_AGAIN_S, self._start_again, process)

    def _start_again(self, process: Process | None) -> None:
        if self.process is process:
            self.start()

    def retire(self) -> None:
        """Its process ends as with kill -9, and nobody starts another one."""
        self.kill()
        self._retired = True

    def fast_again(self) -> None:
        """The disk is as quick as usual."""
        self.slow_s = 0.0

    def mend(self) -> None:
        """No fault any more: the disk is as it should be, the node runs."""
        self.fast_again()
        self.disk.crash_after = self.disk.end_at = None
        self.disk.fail_after = None
        self.trouble.clear()
        self._capacity_bytes = self._duration_s = None
        self._arm()
        if self.process is not None:
            self.process.resume()
            self.process.goes_on()
        if not self.is_up:
            self.start()
        if self.may_stop:
            self._care(RESTARTS_MAX)

    def _care(self, restarts: int) -> None:
        """As an operator does: a node whose replicas stopped because of its disk is started again."""
        node, process = self.node, self.process
        stopped = node is not None and (
            node.shards.broken or any(one.state.failed for one in node.hosts.values())
        )
        if stopped and restarts:
            self.kill()
            self.start()
            restarts -= 1
        elif process is not None and not process.alive:
            self.start()
        self._world.loop.call_later(CARE_S, self._care, restarts)

    def is_disk_known(self) -> bool:
        """Has the coordinator heard which disk this machine has?"""
        node = self.node
        return self.disk_is_known or (node is not None and node.agent.registered.is_set())
