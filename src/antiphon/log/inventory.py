"""The replicas that a node holds and how far their logs reach, stored apart from the replicas' own files.

The files of one replica cannot say that they are missing. So the node's directory has a file, `inventory`. It names
every replica that has promised or acknowledged anything, with its term and an end that its log had durably reached. A
replica whose own files say less has lost something: it is opened as damaged, and is no evidence for an election.

The cost: a sync when a replica becomes durable, when its log is truncated below the noted end, and when it is removed;
several at once share one. The end of a log is noted in memory and written with the node's periodic checkpoint and at a
clean stop. So the file may say less than the truth, never more.

The file is replaced as a whole. `inventory.copy` is written after it without a sync, and read if the first cannot be
read. Both are sealed (`snapshot.seal`), with magic "ANTIPHIV" and a msgpack array of [shard, term, end term, end].
"""

import os
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from antiphon.errors import UNDECODABLE
from antiphon.log.disk import Disk, read_whole, replace_file
from antiphon.log.operations import CallStep, LogOp, OpQueue
from antiphon.log.snapshot import seal, unframe
from antiphon.records.entry_id import EMPTY, EntryId

INVENTORY_NAME: Final = "inventory"
INVENTORY_COPY_NAME: Final = "inventory.copy"
_MAGIC: Final = b"ANTIPHIV"
VERSION: Final = 1


class Holding(NamedTuple):
    """A replica on this node. `term`: the promised one; `end`: the log's durable end, or an earlier one."""

    term: int = 0
    end: EntryId = EMPTY


LOST: Final = Holding(1 << 62)  # more than can be found: a replica of which is not known what it held


class Inventory:
    """The holdings of one node. Methods may be called in any thread; those that say so block on the disk."""

    def __init__(self, disk: Disk, directory: str, holdings: dict[int, Holding]) -> None:
        self._disk = disk
        self._path = os.path.join(directory, INVENTORY_NAME)
        self._copy_path = os.path.join(directory, INVENTORY_COPY_NAME)
        self._queue = OpQueue(self._path)
        self._holdings = holdings
        self._on_disk = dict(holdings)
        self._changes = 0
        self._written = 0
        self._lock = threading.Lock()  # of the holdings
        self._writing = threading.Lock()  # of the files

    @classmethod
    def load(cls, disk: Disk, directory: str) -> "Inventory | None":
        """What the files say; None where there are none, or neither is whole. Blocking.

        Raises PermissionError where the only one that may be whole may not be read.
        """
        refused: PermissionError | None = None
        for name in (INVENTORY_NAME, INVENTORY_COPY_NAME):
            path = os.path.join(directory, name)
            try:
                payload = unframe(_MAGIC, VERSION, read_whole(disk, path), path)
            except PermissionError as error:
                refused = refused or error
                continue
            if payload is not None:
                try:
                    rows = msgspec.msgpack.decode(payload, type=list[tuple[int, int, int, int]])
                except UNDECODABLE:
                    continue
                found = {shard: Holding(term, EntryId(end_term, end)) for shard, term, end_term, end in rows}
                inventory = cls(disk, directory, found)
                if name == INVENTORY_COPY_NAME:
                    inventory._changes += 1
                    inventory.save()
                return inventory
        if refused is not None:
            raise refused
        return None

    @classmethod
    def create(cls, disk: Disk, directory: str, holdings: dict[int, Holding]) -> "Inventory":
        """A new inventory. Blocking."""
        inventory = cls(disk, directory, {})
        inventory._holdings.update(holdings)
        inventory._changes += 1
        inventory.save()
        return inventory

    @property
    def has_news(self) -> bool:
        """Is anything noted that is not written yet?"""
        return self._written < self._changes

    def shard_ids(self) -> list[int]:
        """The shards that have a replica here, rising."""
        with self._lock:
            return sorted(self._holdings)

    def get(self, shard_id: int) -> Holding | None:
        """What is noted of a replica."""
        return self._holdings.get(shard_id)

    def on_disk(self, shard_id: int) -> Holding | None:
        """The written line of a replica; equal to the noted one, or older."""
        return self._on_disk.get(shard_id)

    def put(self, shard_id: int, holding: Holding, *, durable: bool) -> None:
        """Note it; `durable`: and write everything down. Blocking then."""
        with self._lock:
            if self._holdings.get(shard_id) != holding:
                self._holdings[shard_id] = holding
                self._changes += 1
        if durable:
            self.save()

    def forget(self, shard_id: int) -> None:
        """The replica is about to be removed: its missing files are no damage from now on. Blocking."""
        with self._lock:
            if self._holdings.pop(shard_id, None) is None and shard_id not in self._on_disk:
                return
            self._changes += 1
        self.save()

    def save(self) -> None:
        """Write down what was noted since the last time; durable when it returns. Blocking. Calls at once share a write."""
        wanted = self._changes
        with self._writing:
            if self._written >= wanted:
                return
            with self._lock:
                changes, holdings = self._changes, dict(self._holdings)
            rows = [(shard, one.term, *one.end) for shard, one in sorted(holdings.items())]
            data = seal(_MAGIC, VERSION, msgspec.msgpack.encode(rows))
            replace_file(self._disk, self._path, data)
            self._written, self._on_disk = changes, holdings
            replace_file(self._disk, self._copy_path, data, durable=False)

    def stage_save(self) -> LogOp:
        """The same as an operation of the WAL thread."""
        return LogOp(self._queue, [CallStep(self.save)])


class Held:
    """One replica's line in the inventory, as its log uses it. Each call reports what is durable, and may block.

    Without an `inventory` nothing is noted.
    """

    def __init__(self, inventory: Inventory | None = None, shard_id: int = -1) -> None:
        self._inventory = inventory
        self._shard_id = shard_id

    @property
    def known(self) -> Holding | None:
        """What is noted; None for a replica that never held anything."""
        return None if self._inventory is None else self._inventory.get(self._shard_id)

    def set(self, term: int, end: EntryId, *, durable: bool = True) -> None:
        """Note this, whatever was noted before."""
        if self._inventory is not None:
            self._inventory.put(self._shard_id, Holding(term, end), durable=durable)

    def promised(self, term: int) -> None:
        """A term was promised. Written down at once only where the replica is not in the file yet."""
        known = self.known or Holding()
        self.set(max(term, known.term), known.end, durable=not self.is_written)

    def reached(self, end: EntryId) -> None:
        """The log has durably come that far. Written down at once only where the replica is not in the file yet."""
        known = self.known or Holding()
        self.set(known.term, max(known.end, end), durable=not self.is_written)

    def lower(self, end: EntryId) -> None:
        """The log is about to be truncated to `end`: the noted end must not be above it before that happens."""
        known, written = self.known, self._written
        if known is not None:
            must = written is not None and end < written.end
            self.set(known.term, min(known.end, end), durable=must)

    def cut(self, end: EntryId, cut: Callable[[], None]) -> None:
        """Cut the log to `end` with `cut`."""
        self.lower(end)
        cut()

    def extend(self, end: EntryId, sync: Callable[[], None]) -> None:
        """After `sync` the log is durable up to `end`."""
        sync()
        self.reached(end)

    def found(self, term: int, end: EntryId) -> None:
        """The replica was opened, with no less than is noted."""
        if term or end != EMPTY:
            known = self.known or Holding()
            self.set(max(known.term, term), max(known.end, end), durable=False)

    @property
    def is_written(self) -> bool:
        """Is the replica in the file?"""
        return self._inventory is None or self._written is not None

    @property
    def _written(self) -> Holding | None:
        return None if self._inventory is None else self._inventory.on_disk(self._shard_id)
