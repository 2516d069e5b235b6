"""Has the logs of compacted topics compacted: one at a time, the one that gains most first, at a set rate, in a thread.

Whatever comes in between (a trim, a cut, the end of the replica) ends a pass; the next one begins where the last one ended.
So does an error of the disk while new segments are written: the old ones are still there. A log that cannot be read is
damaged, as for any other reader.
"""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from antiphon import system
from antiphon.errors import DamagedLogError
from antiphon.log.compaction import CompactionPass, Extent, extent_of, is_due
from antiphon.node.mending import is_over
from antiphon.node.pauses import Pauses

if TYPE_CHECKING:
    import asyncio

    from antiphon.errors import AntiphonError
    from antiphon.log.operations import LogOp
    from antiphon.log.wal import Wal
    from antiphon.node.context import NodeContext
    from antiphon.partition.partition import Partition


class _Due(NamedTuple):
    ratio: float
    host: "Partition"
    extent: Extent


class LogCleaner:
    """See the module's text; of one node, on its event loop.

    Attributes:
        pauses: between two passes, and to keep to the rate.
    """

    def __init__(self, node: "NodeContext", wal: "Wal") -> None:
        self._node = node
        self._settings = node.config.cleaner  # which may change
        self._wal = wal
        self.pauses = Pauses()

    async def run(self) -> None:
        """Until the node ends."""
        while True:
            due = None if self._wal.refuses_clients else self._most_due()
            if due is not None:
                await self.clean(due.host, due.extent)
            await self.pauses.rest(self._settings.backoff_ms / 1000)

    @property
    def dirty_ratio(self) -> float:
        """Of the log with the largest part that could be compacted."""
        found = (_ratio(extent_now(host)) for host in self._compacted())
        return max(found, default=0.0)

    @property
    def oldest_pass_s(self) -> float:
        """When the log whose last pass is the longest ago was compacted, in seconds since 1970; 0: one never was."""
        return min((host.log.compacting.clean.ended_ms for host in self._compacted()), default=0) / 1000

    def _compacted(self) -> "list[Partition]":
        hosts = self._node.hosts.values()
        return [host for host in hosts if host.log.config.compaction is not None and not is_over(host)]

    def _most_due(self) -> _Due | None:
        now_ms = system.wall_ms()
        found: _Due | None = None
        for host in self._compacted():
            rules, extent = host.log.config.compaction, extent_now(host)
            if rules is None or not is_due(host.log.compacting.clean, rules, extent, now_ms):
                continue
            if found is None or _ratio(extent) > found.ratio:
                found = _Due(_ratio(extent), host, extent)
        return found

    async def clean(self, host: "Partition", extent: Extent) -> None:
        """One pass over one log."""
        log, rules, metrics = host.log, host.log.config.compaction, self._node.metrics
        if rules is None:
            return
        work = CompactionPass(log, rules, extent, self._settings.memory)
        try:
            while not is_over(host) and (piece := work.plan()) is not None:
                began_s = self._node.loop.time()
                size = await self._in_thread(piece)
                await self._rest(size, self._node.loop.time() - began_s)
                if is_over(host) or not await self._done(host, work.staged()):
                    return
        except DamagedLogError as error:  # which the log knows by now: nobody is to ask it whether it is over
            host.driver.stopped_by(error)
            return
        except OSError as error:
            metrics.compaction_errors += 1
            host.state.lines.warning("compaction_given_up", error=str(error))
            work.give_up()
        finally:
            metrics.compaction_read_bytes += work.bytes_in
            metrics.compaction_written_bytes += work.bytes_out
        if work.given_up and not is_over(host):
            with contextlib.suppress(OSError):  # the next pass, or start, does it
                await self._in_thread(work.tidy_up)
        ended = None if is_over(host) else work.ended()
        if ended is not None and await self._done(host, ended):
            metrics.compactions += 1
            host.state.lines.info("log_compacted", bytes_in=work.bytes_in, bytes_out=work.bytes_out)

    async def _done(self, host: "Partition", op: "LogOp | None") -> bool:
        """Have the WAL carry it out; False where it cannot."""
        if op is None:
            return True
        done: asyncio.Future[AntiphonError | None] = self._node.loop.create_future()

        def finished(error: "AntiphonError | None") -> None:
            if not done.done():
                done.set_result(error)

        host.driver.submit(op, finished)
        return await done is None

    async def _in_thread(self, work: Callable[[], int]) -> int:
        return await self._node.loop.run_in_executor(None, work)

    async def _rest(self, size: int, took_s: float) -> None:
        """Keep to the rate, and leave at least half of the time to others: records are looked at one by one."""
        rate = self._settings.bytes_per_s
        await self.pauses.rest(max(size / rate if rate else 0.0, took_s))


def extent_now(host: "Partition") -> Extent:
    """What of a replica's log may be compacted: nothing that is not settled, or is part of an open transaction."""
    rules, log = host.log.config.compaction, host.log
    if rules is None:
        return Extent([], 0, 0)
    return extent_of(log, rules, min(host.mode.settled, host.state.stable_end), system.wall_ms())


def _ratio(extent: Extent) -> float:
    return extent.dirty_bytes / extent.size_bytes if extent.size_bytes else 0.0
