"""The scrub: reads what is on the disk of each replica, at a set rate, and tells of what is not as it was written.

Of a log everything that is durable is read: each batch against its checksums and its index entry (`log.log_check`), and the
indexes of aborted transactions (`log.aborted_check`). Of a table's store everything (`StoreEngine.check`). One shard is read
at a time, the one that has waited longest first, each at least once in an interval. The reading is done in a thread, a small
piece at a time, with pauses that keep to the rate.

What is found twice in a row is damage, and is mended from the other replicas (`mending`); an index of aborted transactions
is made anew from what is known here. A disk that refuses to be read is a finding for a person. When each shard was read last
is kept in the node's directory, over restarts.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from antiphon import system
from antiphon.errors import (
    UNDECODABLE,
    DamagedStoreError,
    ResourceExhaustedError,
    StorageFailedError,
    UnknownShardError,
)
from antiphon.log.aborted_check import AbortedCheck, made_anew
from antiphon.log.disk import PASSING, read_whole, replace_file
from antiphon.log.log_check import Checked, LogCheck
from antiphon.model.findings import OF_NODE, ScrubStatus
from antiphon.node.findings import Noted
from antiphon.node.mending import KIND as DAMAGED
from antiphon.node.mending import is_over, text_of
from antiphon.node.pauses import Pauses

if TYPE_CHECKING:
    from antiphon.log.disk import Disk
    from antiphon.log.recovery import DamageReport
    from antiphon.node.context import NodeContext
    from antiphon.node.findings import Findings
    from antiphon.node.mending import Mending
    from antiphon.partition.partition import Partition
    from antiphon.partition.table_shard import TableShard

BOOK_NAME: Final = "scrub"  # in the node's directory: when each shard was read last
LOOK_S: Final = 10.0  # between two looks at what is due
BATCH_COST_BYTES: Final = 1024  # what a batch costs besides its bytes
ON_REQUEST_BYTES_S: Final = 8 * 1024 * 1024  # the rate of what is asked for where none is set
TRIES: Final = 3  # of a store that cannot be read, which may be in the middle of a change
TRY_AGAIN_S: Final = 1.0
TWICE: Final = 2  # in a row: then it is damage
ANEW_S: Final = 60.0  # for the disk to have a file that is made anew
ANEW: Final = "nothing: it is made anew from the log"
KIND: Final = "not_readable"
_END: Final = -1


class Scrub:
    """See the module's text; of one node, on its event loop.

    Attributes:
        pauses: to keep to the rate.
    """

    def __init__(self, node: "NodeContext", findings: "Findings", mending: "Mending") -> None:
        self._node = node
        self._settings = node.config.scrub  # which may change
        self._findings = findings
        self._mending = mending
        self.pauses = Pauses()
        self._path = os.path.join(node.config.dir, BOOK_NAME)
        self._read_ms = _load_book(node.disk, self._path)  # by shard
        self._asked: set[int] = set()
        self._wake = asyncio.Event()
        self._now = (OF_NODE, 0, 0)  # the shard that is read, how much of it was, how much there is

    # -- what others see ----------------------------------------------------------------------------------------

    @property
    def status(self) -> ScrubStatus:
        """How far it is."""
        shard_id, done, total = self._now
        metrics = self._node.metrics
        return ScrubStatus(
            self._settings.bytes_per_s,
            self._settings.interval_s,
            shard_id,
            min(done, total),
            total,
            sum(one != shard_id for one in self._due()),
            self.completed_ms,
            metrics.scrub_bytes,
            metrics.scrub_errors,
        )

    @property
    def completed_ms(self) -> int:
        """Since when everything that is here now has been read; 0: it has not been yet."""
        return min((self._read_ms.get(shard_id, 0) for shard_id in self._node.hosts), default=0)

    def ask(self, shard_id: int = OF_NODE) -> None:
        """Read this shard, or all, now. Raises UnknownShardError for one that has no replica here."""
        hosts = self._node.hosts
        if shard_id != OF_NODE and shard_id not in hosts:
            raise UnknownShardError(
                f"node {self._node.node_id} has no open replica of shard {shard_id}", shard_id=shard_id
            )
        self._asked.update(hosts if shard_id == OF_NODE else (shard_id,))
        self._wake.set()

    def read_again(self, shard_id: int) -> None:
        """Something was damaged there, and there may be more: it is due as soon as it is mended."""
        self._asked.add(shard_id)

    def settings_changed(self) -> None:
        """More may be due now, or less; and the rate is another one."""
        self.pauses.end()
        self._wake.set()

    # -- the work -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the node ends."""
        while True:
            due = self._due()
            if due:
                await self._read(due[0])
                continue
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), LOOK_S)
            except TimeoutError:
                continue

    def _due(self) -> list[int]:
        """Shards to be read: those that were asked for, then those that have waited longest."""
        now_ms, asked = system.wall_ms(), self._asked
        found = [
            shard_id
            for shard_id, host in self._node.hosts.items()
            if not is_over(host)
            and not self._mending.waits(shard_id)
            and (shard_id in asked or self._is_time(shard_id, now_ms))
        ]
        return sorted(found, key=lambda one: (one not in asked, self._read_ms.get(one, 0), one))

    def _is_time(self, shard_id: int, now_ms: int) -> bool:
        # A clock that was set back lets no shard wait for longer.
        since_ms = now_ms - self._read_ms.get(shard_id, 0)
        return self._settings.bytes_per_s > 0 and not 0 <= since_ms < self._settings.interval_s * 1000

    async def _read(self, shard_id: int) -> None:
        """Read one shard to its end, or to the first thing that is wrong."""
        host = self._node.hosts[shard_id]
        table = host.table
        total = host.log.size_bytes + (0 if table is None else table.state.size_bytes())
        self._now = (shard_id, 0, total)
        self._asked.discard(shard_id)
        damage: DamageReport | DamagedStoreError | None = None
        try:
            damage = await self._read_log(host)
            is_whole = damage is not None or await self._read_aborted(host)
            if damage is None and table is not None:
                damage = await self._read_store(host, table)
        except (OSError, StorageFailedError) as error:
            await self._cannot_read(host, error)
            return
        finally:
            self._now = (OF_NODE, 0, 0)
        if is_over(host):
            return
        if damage is None:
            self._findings.take_back(shard_id, KIND)
            if is_whole:
                self._findings.take_back(shard_id, DAMAGED)
                self._findings.read_whole(shard_id)
            await self._note_read(shard_id)
        else:
            self._node.metrics.scrub_errors += 1
            self._mending.found(host, damage)

    async def _read_log(self, host: "Partition") -> "DamageReport | None":
        check, suspected = LogCheck(host.log), False
        while not is_over(host) and (piece := check.plan()) is not None:
            found: Checked = await self._in_thread(piece)
            if found.damage is not None and suspected:
                return found.damage
            suspected = found.damage is not None
            check.offset = max(check.offset, found.next_offset)
            await self._keep_to_rate(found.size_bytes, found.batches * BATCH_COST_BYTES)
        return None

    async def _read_aborted(self, host: "Partition") -> bool:
        """Read the indexes of aborted transactions. What is bad is made anew once; are all whole in the end?"""
        check, bad, is_whole, is_told = AbortedCheck(host.log), 0, True, False
        while not is_over(host) and (piece := check.plan()) is not None:
            found: Checked = await self._in_thread(piece)
            bad = 0 if found.damage is None else bad + 1
            if found.damage is not None and bad == TWICE and not is_over(host):
                is_told = True
                await self._make_anew(host, found.damage)
            elif bad > TWICE:
                bad, is_whole = 0, False  # the finding stays
                check.offset = found.next_offset + 1
            check.offset = max(check.offset, found.next_offset)
            await self._keep_to_rate(found.size_bytes, BATCH_COST_BYTES)
        if is_told and is_over(host):  # what comes in its place is looked at
            self._findings.take_back(host.shard_id, DAMAGED)
            self.read_again(host.shard_id)
        return is_whole

    async def _make_anew(self, host: "Partition", damage: "DamageReport") -> None:
        """Tell of the file, and have it written again from what is known here, behind all that is to be written before."""
        text = text_of(damage)
        self._node.metrics.scrub_errors += 1
        structlog.get_logger().error("scrub_found_damage", shard=host.shard_id, reason=text)
        self._findings.note(Noted(DAMAGED, host.shard_id, text, ANEW))
        done = asyncio.Event()
        host.driver.submit(made_anew(host.log, damage.offset), lambda _: done.set())
        with contextlib.suppress(TimeoutError):  # a full disk: the next look tells
            await asyncio.wait_for(done.wait(), ANEW_S)

    async def _read_store(self, host: "Partition", table: "TableShard") -> DamagedStoreError | None:
        """Read a store. It may be changed meanwhile, or another one be put in its place: then it is read anew."""
        for tries_left in reversed(range(TRIES)):
            state = table.state
            try:
                await self._read_steps(host, table.stores.check(table.path))
                return None
            except ResourceExhaustedError:
                return None
            except StorageFailedError as error:
                if is_over(host):
                    return None
                if not tries_left and table.state is state:
                    if isinstance(error, DamagedStoreError):
                        return error
                    raise
            await asyncio.sleep(TRY_AGAIN_S)
        return None

    async def _read_steps(self, host: "Partition", steps: Iterator[int]) -> None:
        try:
            while not is_over(host):
                size = await self._in_thread(next, steps, _END)
                if size == _END:
                    return
                await self._keep_to_rate(size, size // 4)
        finally:
            close: Callable[[], None] | None = getattr(steps, "close", None)
            if close is not None:
                await self._in_thread(close)

    async def _in_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        return await self._node.loop.run_in_executor(None, work, *args)

    async def _keep_to_rate(self, size: int, cost: int) -> None:
        shard_id, done, total = self._now
        self._now = (shard_id, done + size, total)
        self._node.metrics.scrub_bytes += size
        await self.pauses.rest((size + cost) / (self._settings.bytes_per_s or ON_REQUEST_BYTES_S))

    async def _note_read(self, shard_id: int) -> None:
        """Remember when this shard was read, also over a restart. What cannot be written down is read again sooner."""
        self._read_ms = {one: at for one, at in self._read_ms.items() if one in self._node.hosts}
        self._read_ms[shard_id] = system.wall_ms()
        await self._in_thread(_save_book, self._node.disk, self._path, dict(self._read_ms))

    async def _cannot_read(self, host: "Partition", error: Exception) -> None:
        """The disk refuses to be read: that is for a person to look at, and tried again after the interval."""
        if is_over(host):
            return
        if not (isinstance(error, OSError) and error.errno in PASSING):
            self._node.metrics.scrub_errors += 1
            what = f"the scrub could not read it: {error}"
            do = "look at the disk; replace it, or move the replica to another node"
            self._findings.note(Noted(KIND, host.shard_id, what, do))
        await self._note_read(host.shard_id)


def _load_book(disk: "Disk", path: str) -> dict[int, int]:
    """When each shard was read last; nothing where that is not known."""
    try:
        return msgspec.json.decode(read_whole(disk, path) or b"{}", type=dict[int, int])
    except (OSError, *UNDECODABLE):
        return {}


def _save_book(disk: "Disk", path: str, book: dict[int, int]) -> None:
    try:
        replace_file(disk, path, msgspec.json.encode(book), durable=False)
    except OSError as error:
        structlog.get_logger().warning("scrub_not_noted", error=str(error))
