"""The disk of a node in the multi-writer world: group commit, and what a crash, damage or a replacement leaves.

One write and sync at a time; what is in it when the node crashes is not durable: a prefix of it survives, an append possibly
with only its first entries.
"""

from collections.abc import Callable, Sequence
from random import Random

from antiphon.replication.multi_writer_actions import AdoptBase, AppendEntries
from antiphon.replication.origin_history import START, Mark, OriginEntry
from antiphon.simulation.options import MILLION, SimulationOptions
from antiphon.simulation.scheduler import MICROSECOND, Scheduler

StorageAction = AppendEntries | AdoptBase


class MultiFiles:
    """What is durable of one replica."""

    def __init__(self, disk_id: str) -> None:
        self.disk_id = disk_id
        self.base: Mark = START  # where the log begins for whoever asks
        self.start = 0  # offset of the first entry
        self.entries: list[OriginEntry] = []
        self.damaged = False

    def carry_out(self, action: StorageAction) -> None:
        """Make an action durable."""
        if isinstance(action, AdoptBase):
            self.base = action.mark
        else:
            self.entries += action.entries

    def trim(self, base: Mark) -> None:
        """The log starts at `base` now."""
        self.base, self.start = base, base.offset
        self.entries = [entry for entry in self.entries if entry.base_offset >= base.offset]


class MultiDisk:
    """One node's disk; `synced` is called with the write ids that are durable, in order."""

    def __init__(
        self,
        options: SimulationOptions,
        scheduler: Scheduler,
        random: Random,
        files: MultiFiles,
        synced: Callable[[int], None],
    ) -> None:
        self.files = files
        self._scheduler = scheduler
        self._random = random
        self._synced = synced
        self._sync_ns_min = options.sync_us_min * MICROSECOND
        self._sync_rate = 1.0 / (options.sync_us_mean * MICROSECOND)
        self._stall = options.sync_stall_ppm / MILLION
        self._kept = options.unsynced_kept_ppm / MILLION
        self._queued: list[StorageAction] = []
        self._in_flight: Sequence[StorageAction] = ()
        self._life = 0

    def submit(self, action: StorageAction) -> None:
        """Queue a write."""
        self._queued.append(action)
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
        group, self._in_flight = self._in_flight, ()
        for action in group:
            self.files.carry_out(action)
        if self._queued:
            self._start()
        self._synced(group[-1].write_id)

    def crash(self) -> None:
        """Power is lost."""
        self._life += 1
        group, self._in_flight, self._queued = list(self._in_flight), (), []
        if not group:
            return
        keep = len(group) if self._random.random() < self._kept else self._random.randint(0, len(group))
        for action in group[:keep]:
            self.files.carry_out(action)
        if keep < len(group):
            torn = group[keep]
            if isinstance(torn, AppendEntries) and len(torn.entries) > 1:
                count = self._random.randrange(len(torn.entries))
                self.files.entries += torn.entries[:count]
