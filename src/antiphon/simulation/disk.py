"""A node's disk: one write and one sync at a time for all its replicas, and what a crash leaves of them.

As in a real node one thread takes everything that is queued, writes it, syncs once and reports. What is in that group
when the node crashes is not durable yet: of each replica's writes a prefix survives, drawn from the seed, an append
possibly with only its first entries. A term and a vote survive whole or not at all.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from antiphon.replication.actions import AppendLog, PersistTerm, ResetLog, TruncateLog
from antiphon.simulation.options import MILLION, SimulationOptions
from antiphon.simulation.scheduler import MICROSECOND, Scheduler
from antiphon.simulation.stored_log import StoredLog

if TYPE_CHECKING:
    from antiphon.replication.messages import NodeId

StorageAction = PersistTerm | AppendLog | TruncateLog | ResetLog


class ReplicaFiles:
    """What one replica has on its disk, durably."""

    def __init__(self) -> None:
        self.term = 0
        self.voted_for: NodeId | None = None
        self.log = StoredLog()
        self.high_watermark = 0  # a checkpoint: may be old, never ahead
        self.damaged = False  # something in the middle was found damaged; `log` is the sound part before it

    def carry_out(self, action: StorageAction, chain: int = 0) -> None:
        """Make one storage action durable; `chain` is that of a reset's position."""
        match action:
            case PersistTerm():
                self.term, self.voted_for = action.term, action.voted_for
            case AppendLog():
                self.log.append(action.entries)
            case TruncateLog():
                self.log.truncate(action.to_offset)
            case ResetLog():
                self.log.reset(action.at, chain)


class Write:
    """One storage action on its way to the disk."""

    __slots__ = ("action", "chain", "files", "shard")

    def __init__(self, shard: int, files: ReplicaFiles, action: StorageAction, chain: int) -> None:
        self.shard = shard
        self.files = files
        self.action = action
        self.chain = chain


class NodeDisk:
    """Group commit over all replicas of a node."""

    def __init__(
        self,
        options: SimulationOptions,
        scheduler: Scheduler,
        random: Random,
        synced: Callable[[list[Write]], None],
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._synced = synced
        self._sync_ns_min = options.sync_us_min * MICROSECOND
        self._sync_rate = 1.0 / (options.sync_us_mean * MICROSECOND)
        self._stall = options.sync_stall_ppm / MILLION
        self._kept = options.unsynced_kept_ppm / MILLION
        self._queued: list[Write] = []
        self._in_flight: list[Write] = []
        self._life = 0
        self.failed = False

    def submit(self, write: Write) -> None:
        """Queue a write; writes become durable in the order in which they were queued."""
        if self.failed:
            return
        self._queued.append(write)
        if not self._in_flight:
            self._start()

    def _start(self) -> None:
        self._in_flight, self._queued = self._queued, []
        delay_ns = self._sync_ns_min + int(self._random.expovariate(self._sync_rate))
        if self._stall and self._random.random() < self._stall:
            delay_ns *= 100
        self._scheduler.after(delay_ns, self._finish, self._life)

    def _finish(self, life: int) -> None:
        if life != self._life:
            return
        group, self._in_flight = self._in_flight, []
        for write in group:
            write.files.carry_out(write.action, write.chain)
        if self._queued:
            self._start()
        self._synced(group)

    def fail(self) -> None:
        """The sync in flight fails, and nothing is ever reported again in this life of the node."""
        self._life += 1
        self.failed = True
        self._queued.clear()

    def crash(self) -> None:
        """Power is lost: queued writes are gone, of those in flight a prefix per replica is kept."""
        self._life += 1
        self.failed = False
        group, self._in_flight, self._queued = self._in_flight, [], []
        by_shard: dict[int, list[Write]] = {}
        for write in group:
            by_shard.setdefault(write.shard, []).append(write)
        for writes in by_shard.values():
            keep = len(writes) if self._random.random() < self._kept else self._random.randint(0, len(writes))
            for write in writes[:keep]:
                write.files.carry_out(write.action, write.chain)
            if keep < len(writes):
                self._keep_part(writes[keep])

    def _keep_part(self, write: Write) -> None:
        """A torn append: its first entries got through, the rest fails its checksum and is cut at recovery."""
        if isinstance(write.action, AppendLog) and len(write.action.entries) > 1:
            count = self._random.randrange(len(write.action.entries))
            if count:
                write.files.log.append(write.action.entries[:count])
