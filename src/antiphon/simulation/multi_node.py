"""A node of the multi-writer world: a real `MultiWriterReplica`, a clock that is wrong, a table, and clients that write."""

from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from antiphon.errors import NotReadyError
from antiphon.replication.actions import Commit, Repaired
from antiphon.replication.multi_messages import MultiMessage
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.replication.multi_writer_actions import (
    AdoptBase,
    AppendEntries,
    FeedRelay,
    MultiAction,
    SplitBrain,
    Tell,
    TrimmedAway,
)
from antiphon.replication.origin_history import START, History, Mark, OriginEntry
from antiphon.replication.origin_index import OriginIndex
from antiphon.replication.origins import origins_of
from antiphon.simulation.multi_checker import SHARD
from antiphon.simulation.multi_disk import MultiDisk, MultiFiles
from antiphon.simulation.options import MILLION
from antiphon.simulation.scheduler import MILLISECOND
from antiphon.simulation.violation import ViolationError
from antiphon.table import merge
from antiphon.table.merge import Cell, pack_id

if TYPE_CHECKING:
    from antiphon.simulation.multi_world import MultiWorld

KEYS = 5
CLOCK_MS_RANGE = 3  # clocks are coarse, so that timestamps collide


class Change(NamedTuple):
    """One entry's content: what it does to a key, when by its writer's clock."""

    serial: int
    key: int
    value: int | None
    timestamp_ms: int


class MultiNode:
    """See the module's text."""

    def __init__(self, world: "MultiWorld", node_id: int, random: Random) -> None:
        self.world = world
        self.node_id = node_id
        self.random = random
        self.disks = 0
        self.alive = False
        self.paused = False
        self.life = 0
        self.log: list[OriginEntry] = []  # what the replica has appended, durable or not
        self.base = START
        self.lsns = History().lsns
        self.committed = 0
        self.durable_to = 0
        self.table: dict[int, Cell] = {}
        skew = world.options.clock_skew_ppm
        self._rate_ppm = MILLION + random.randint(-skew, skew)
        self._clock_offset_ms = random.randint(0, CLOCK_MS_RANGE)
        self._waiting: list[tuple[Any, ...]] = []
        self.disk = self._new_disk()
        self.replica: MultiWriterReplica
        self._tick()

    def _new_disk(self) -> MultiDisk:
        self.disks += 1
        files = MultiFiles(f"disk-{self.node_id}-{self.disks}")
        return MultiDisk(self.world.options, self.world.scheduler, self.random, files, self._synced)

    @property
    def files(self) -> MultiFiles:
        """What is on the disk."""
        return self.disk.files

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Come up from the disk."""
        files, world = self.files, self.world
        world.checker.restarts(self.node_id, files.base, files.entries)
        self.alive, self.life = True, self.life + 1
        self.log, self.committed, self.table = list(files.entries), files.start, {}
        self.base, self.lsns = files.base, History(files.base).lsns
        for entry in self.log:
            self.lsns[entry.origin] = max(entry.lsn, self.lsns[entry.origin])
        self.durable_to = files.entries[-1].next_offset if files.entries else files.start
        index, end = recovered(files, world.origin_of(self.node_id))
        self.replica = MultiWriterReplica(
            node_id=self.node_id,
            shard=SHARD,
            origins=world.origins(),
            index=index,
            end=end,
            life=self.life,
            config=world.config,
            damaged=files.damaged,
        )
        self._commit(end.offset)
        self.event("start")

    def crash(self) -> None:
        """Power is lost."""
        self.alive, self.paused = False, False
        self._waiting.clear()
        self.disk.crash()
        self._check_durable()

    def replace_disk(self) -> None:
        """The node comes back with an empty disk. Only while it is down."""
        gone = self.files.entries
        self.disk = self._new_disk()
        self.durable_to = 0
        self.world.lost(self.node_id, gone)
        self.world.checker.replaced(self.node_id)

    def damage(self) -> None:
        """A part of the log's end is unreadable. Only while it is down.

        Where that leaves less than the clock is known for, the log is begun anew.
        """
        files = self.files
        entries = files.entries
        if not entries:
            return
        cut = self.random.randrange(len(entries))
        if entries[cut].base_offset < files.base.offset:
            cut = 0
            self.world.checker.replaced(self.node_id)
            files.start = entries[-1].next_offset
            files.base = Mark(files.start, (), ())
        gone, files.entries = entries[cut:], entries[:cut]
        files.damaged = True
        self.world.lost(self.node_id, gone)

    def pause(self, until_ns: int) -> None:
        """The process does nothing for a while; what comes waits."""
        self.paused = True
        self.world.scheduler.at(until_ns, self.wake)

    def wake(self) -> None:
        """Go on."""
        if self.paused:
            self.paused = False
            waiting, self._waiting = self._waiting, []
            for name, *arguments in waiting:
                self.event(name, *arguments)

    # -- events -------------------------------------------------------------------------------------------------

    def event(self, name: str, *arguments: Any) -> None:
        """Give the replica an event and do what it says."""
        if not self.alive:
            return
        if self.paused:
            self._waiting.append((name, *arguments))
            return
        self._do(getattr(self.replica, name)(*arguments))

    def deliver(self, source: int, message: MultiMessage) -> None:
        """A message arrives."""
        self.world.trace.note("deliver", SHARD, source, self.node_id, message)
        self.event("receive", source, message)

    def _synced(self, write_id: int) -> None:
        self.world.trace.note("synced", SHARD, self.node_id, write_id)
        self._check_durable()
        self.event("persisted", write_id)

    def _check_durable(self) -> None:
        fresh: list[OriginEntry] = []
        for entry in reversed(self.files.entries):
            if entry.base_offset < self.durable_to:
                break
            fresh.append(entry)
        if fresh:
            self.durable_to = fresh[0].next_offset
            self.world.checker.durable(self.node_id, fresh)

    def _tick(self) -> None:
        delay_ns = self.world.options.tick_ms * MILLISECOND * self._rate_ppm // MILLION
        self.world.scheduler.after(delay_ns, self._tick)
        if self.alive and not self.paused and self.replica.needs_tick:
            self.event("tick")

    def write(self) -> None:
        """A client's write."""
        if not self.alive or self.paused:
            return
        world, random, replica = self.world, self.random, self.replica
        batches = []
        for _ in range(random.choice((1, 1, 1, 3))):
            now_ms = world.scheduler.now_ns * self._rate_ppm // MILLION // (50 * MILLISECOND)
            value = None if random.random() < 0.2 else world.next_serial()
            data = Change(world.next_serial(), random.randrange(KEYS), value, now_ms + self._clock_offset_ms)
            batches.append((1, crc32(repr(data).encode()), 50, data))
        try:
            actions = replica.propose(batches)
        except NotReadyError:
            world.counts["refused"] += 1
            return
        world.trace.note("write", SHARD, self.node_id, replica.origin, len(batches))
        self._do(actions)

    # -- actions ------------------------------------------------------------------------------------------------

    def _do(self, actions: list[MultiAction]) -> None:
        for action in actions:
            match action:
                case AppendEntries():
                    self._append(action)
                case AdoptBase():
                    self.base = action.mark
                    self.world.checker.begins(self.node_id, action.mark)
                    self.lsns = History(action.mark).lsns
                    self.disk.submit(action)
                case Tell():
                    self.world.network.send(self.node_id, action.to, action.message)
                case FeedRelay():
                    self._feed(action)
                case Commit():
                    self._commit(action.high_watermark)
                case SplitBrain():
                    found = f"node {self.node_id} and node {action.peer}: origin {action.origin}, entry {action.lsn}"
                    raise ViolationError("no-split-brain", SHARD, found)
                case TrimmedAway():
                    self.world.counts["trimmed away"] += 1
                case Repaired():
                    self.files.damaged = False
                    self.world.trace.note("repaired", SHARD, self.node_id)

    def _append(self, action: AppendEntries) -> None:
        self.world.checker.staged(self.node_id, self.lsns, action.entries, self.replica.origin)
        for entry in action.entries:
            self.lsns[entry.origin] = entry.lsn
        self.log += action.entries
        self.disk.submit(action)

    def _feed(self, action: FeedRelay) -> None:
        found: list[OriginEntry] = []
        size = 0
        start = self.files.start
        for entry in self.log[max(0, action.from_offset - start) :]:
            if entry.next_offset > action.to_offset or (found and size >= action.max_bytes):
                break
            found.append(entry)
            size += entry.size_bytes
        self._do(self.replica.fed(action.to, action.from_offset, found))

    def _commit(self, high_watermark: int) -> None:
        start = self.files.start
        for entry in self.log[max(0, self.committed - start) : high_watermark - start]:
            self._fold(entry)
            if entry.origin == self.replica.origin:
                self.world.counts["ok"] += 1
                self.world.checker.told(self.node_id, entry)
        self.committed = high_watermark

    def _fold(self, entry: OriginEntry) -> None:
        change = entry.data
        if not isinstance(change, Change):
            return
        value = None if change.value is None else b"%d" % change.value
        ms = change.timestamp_ms
        cell = Cell(value, (pack_id(entry.lsn, entry.origin, 0), 0, ms, ms))
        known = self.table.get(change.key)
        self.table[change.key] = cell if known is None else merge.last_writer_wins(known, cell)

    def trim(self) -> None:
        """Retention: up to where every member has everything."""
        if not self.alive or self.paused:
            return
        offset = self.replica.common_offset()
        if offset <= self.base.offset:
            return
        history = History(self.base)
        for entry in self.log:
            if self.base.offset <= entry.base_offset < offset:
                history.take(entry)
        base: Mark = history.mark()
        gone = [entry for entry in self.log if entry.base_offset < offset]
        self.world.checker.trimmed(self.node_id, gone, base, self.replica.members)
        self.event("trimmed", base)
        self.files.trim(base)
        self.base = base
        self.log = [entry for entry in self.log if entry.base_offset >= base.offset]
        self.world.counts["trims"] += 1


def recovered(files: MultiFiles, _own: int) -> tuple[OriginIndex, Mark]:
    """Index and end of a log, as recovered from its entries."""
    index, history = OriginIndex([files.base], marks_max=16, stride=2), History(files.base)
    for entry in files.entries:
        if entry.base_offset >= files.base.offset:
            history.take(entry)
            index.passed(history, 1)
    return index, history.mark()


def origins_now(world: "MultiWorld") -> dict[int, int]:
    """Members with the origins of their present disks."""
    disks = {node: world.nodes[node].files.disk_id for node in world.members}
    return origins_of(world.origin_table, world.members, disks)
