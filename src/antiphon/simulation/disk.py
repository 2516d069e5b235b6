"""A node's disk: one write and one sync at a time for all its replicas, and what a crash leaves of them.

As in a real node one thread takes everything that is queued, writes it, syncs once and reports. What is in that group
when the node crashes is not durable yet: of each replica's writes a prefix survives, drawn from the seed, an append
possibly with only its first entries and a torn piece of the next. A term and a vote survive whole or not at all.

A full disk refuses appends: they wait, and with them all that the same replica writes after them, until there is room.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from antiphon.replication.actions import AppendLog, PersistTerm, ResetLog, TruncateLog
from antiphon.simulation.options import MILLION, SimulationOptions
from antiphon.simulation.scheduler import MICROSECOND, Scheduler
from antiphon.simulation.stored_log import StoredLog

if TYPE_CHECKING:
    from antiphon.replication.members import Members
    from antiphon.replication.messages import Entry, NodeId
    from antiphon.simulation.table_store import Image

StorageAction = PersistTerm | AppendLog | TruncateLog | ResetLog


class ReplicaFiles:
    """What one replica has on its disk, durably."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.term = 0
        self.voted_for: NodeId | None = None
        self.log = StoredLog()
        self.high_watermark = 0  # a checkpoint: may be old, never ahead
        self.acknowledged = (
            0  # end of what a leader here told clients to be committed, where that is not settled
        )
        self.damaged = False  # something in the middle was found damaged; `log` is the sound part before it
        self.forgot = (
            False  # the disk came back empty: nobody here knows what was promised (replicas that vote)
        )
        self.replaced = False  # the same where a coordinator elects, until it trusts the replica again
        self.joining = (
            False  # began empty when the shard was older, and has not caught up yet (replicas that vote)
        )
        self.table: tuple[Image, int] | None = None  # a table's store as it was last flushed, with its offset
        self.members: Members | None = None  # as of the log's start, where replicas vote; None: the founders
        self.rotten: int | None = None  # base offset of an entry in which a bit has flipped; not found yet
        self.torn: Entry | None = (
            None  # a piece of this entry lies behind the log's end; recovery cuts it off
        )

    @property
    def unsound(self) -> bool:
        """Has this replica lost something that it had on its disk?"""
        return (self.damaged and not self.joining) or self.replaced or self.rotten is not None

    def lose_everything(self, votes: bool) -> None:
        """The disk came back empty; `votes`: the replica elects its leader with the others."""
        self._begin()
        self.damaged = self.forgot = votes
        self.replaced = not votes

    def recover(self) -> None:
        """What opening the files finds and mends: a torn tail is cut off, a flipped bit ends the sound part of the log."""
        self.torn = None
        if self.rotten is not None:
            self.spoil(self.rotten)
        self.high_watermark = min(self.high_watermark, self.log.end_offset)

    def spoil(self, at: int) -> None:
        """Damage was found at the entry that begins at `at`: only what is before it can be relied on."""
        self.rotten = None
        if at < self.log.start.offset or at >= self.log.end_offset:
            return  # that entry is gone already
        self.log.truncate(at)
        self.damaged = True

    def carry_out(self, action: StorageAction, chain: int = 0) -> None:
        """Make one storage action durable; `chain` is that of a reset's position."""
        if self.rotten is not None and not isinstance(action, PersistTerm | AppendLog):
            self._rewritten(action)
        match action:
            case PersistTerm():
                self.term, self.voted_for = action.term, action.voted_for
            case AppendLog():
                self.log.append(action.entries)
            case TruncateLog():
                self.log.truncate(action.to_offset)
            case ResetLog():
                self.log.reset(action.at, chain)
                self.members = action.members

    def trim(self, log_start: int) -> None:
        """Cut the head of the log; what its members entries said is remembered."""
        for entry in self.log.entries:
            if entry.members is not None and entry.next_offset <= log_start:
                self.members = entry.members
        self.log.trim(log_start)

    def _rewritten(self, action: TruncateLog | ResetLog) -> None:
        if isinstance(action, ResetLog) or (self.rotten or 0) >= action.to_offset:
            self.rotten = None


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
        self.full = False

    def submit(self, write: Write) -> None:
        """Queue a write; writes become durable in the order in which they were queued."""
        if self.failed:
            return
        self._queued.append(write)
        if not self._in_flight:
            self._start()

    def room_again(self) -> None:
        """There is room: what waited for it is written."""
        self.full = False
        if self._queued and not self._in_flight and not self.failed:
            self._start()

    def drop(self, shard: int) -> None:
        """The replica of a shard is removed: what waits to be written for it is not written."""
        self._queued = [write for write in self._queued if write.shard != shard]

    def _take(self) -> list[Write]:
        """What can be written now; on a full disk nothing from a replica's first append on."""
        if not self.full:
            everything, self._queued = self._queued, []
            return everything
        taken: list[Write] = []
        left: list[Write] = []
        waiting: dict[int, None] = {}
        for write in self._queued:
            if isinstance(write.action, AppendLog):
                waiting[write.shard] = None
            (left if write.shard in waiting else taken).append(write)
        self._queued = left
        return taken

    def _start(self) -> None:
        self._in_flight = self._take()
        if not self._in_flight:
            return
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

    def crash(self) -> tuple[int, int]:
        """Power is lost: queued writes are gone, of those in flight a prefix per replica is kept.

        Returns how many entries that were not synced are lost, and how many of them lie torn behind the log's end.
        """
        self._life += 1
        self.failed = False
        waiting = [*self._in_flight, *self._queued]
        group, self._in_flight, self._queued = self._in_flight, [], []
        by_shard: dict[int, list[Write]] = {}
        for write in group:
            by_shard.setdefault(write.shard, []).append(write)
        kept = torn = 0
        for writes in by_shard.values():
            keep = len(writes) if self._random.random() < self._kept else self._random.randint(0, len(writes))
            for write in writes[:keep]:
                write.files.carry_out(write.action, write.chain)
                kept += _entries_of(write)
            if keep < len(writes):
                kept += self._keep_part(writes[keep])
                torn += writes[keep].files.torn is not None
        return sum(map(_entries_of, waiting)) - kept, torn

    def _keep_part(self, write: Write) -> int:
        """A torn append: its first entries got through, the rest fails its checksum and is cut at recovery."""
        if not isinstance(write.action, AppendLog):
            return 0
        entries = write.action.entries
        count = self._random.randrange(len(entries))
        write.files.log.append(entries[:count])
        write.files.torn = entries[count]
        return count


def _entries_of(write: Write) -> int:
    return len(write.action.entries) if isinstance(write.action, AppendLog) else 0
