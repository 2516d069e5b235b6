"""What this node has to do for splits: as leader of a shard that is split, or of one that is split off.

The metadata says how far each split is (`antiphon.coordination.splits`), the parent's log says what is frozen or released
(`antiphon.table.ranges`). Whenever either may have changed, the two are compared and what is missing is done: nothing here
is remembered, and doing it twice does no harm. Reports to the coordinator are repeated until the metadata has moved on.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from antiphon.errors import AntiphonError
from antiphon.model.cluster import SplitReport, SplitStep
from antiphon.model.metadata import ShardMeta, SplitPhase
from antiphon.model.shard_part import ShardPart
from antiphon.node.context import NodeContext
from antiphon.node.split_copy import SplitCopy, append_entry, append_releases
from antiphon.node.unfinished_copies import UnfinishedCopy
from antiphon.records.split_entries import Freeze, Release, SplitEntry, Thaw
from antiphon.table.ranges import OwnedRange, releases

if TYPE_CHECKING:
    from antiphon.node.agent import ClusterAgent
    from antiphon.partition.partition import Partition

REPEAT_S: Final = 0.1
PURGE_ROWS: Final = 500
PURGE_PAUSE_S: Final = 0.005


def next_entry(owned: OwnedRange, child: ShardMeta | None) -> SplitEntry | SplitStep | None:
    """What a parent's leader does next, from what its log says and what the metadata says of the split.

    An entry to append, a step to report, or None: nothing now. `child` is None where no split of the shard is under way.
    """
    split = None if child is None else child.split
    if child is None or split is None:
        return Thaw(owned.frozen_at) if owned.is_frozen else None
    first = child.hashes[0]
    if owned.is_frozen:
        if owned.child != child.shard_id or split.phase is SplitPhase.COPY:
            return Thaw(owned.frozen_at)
        if split.phase is SplitPhase.RELEASE:
            if owned.frozen_at != split.frozen_at:
                return SplitStep.LOST
            return Release(owned.frozen_at, first, child.shard_id, split.start)
        return None
    if split.phase is SplitPhase.FREEZE and owned.first < first <= owned.last:
        return Freeze(first, child.shard_id)
    if split.phase is SplitPhase.RELEASE:
        return SplitStep.RELEASED if owned.last == first - 1 else SplitStep.LOST
    return None


class SplitsNode(NodeContext, Protocol):
    """What splits need of the node."""

    agent: "ClusterAgent"

    def recovered_part(self, shard_id: int) -> ShardPart | None:
        """What a table's shard is to hold that lost most replicas once, of a table that was split."""


class Splits:
    """See the module's text."""

    def __init__(self, node: SplitsNode) -> None:
        self._node = node
        self._copies: dict[int, asyncio.Task[None]] = {}  # by child
        self._purges: dict[int, asyncio.Task[None]] = {}
        self._unfinished: dict[int, asyncio.Task[None]] = {}
        self._appending: set[int] = set()  # shards with an entry underway
        self._said: dict[tuple[int, SplitStep], tuple[SplitReport, float]] = {}

    def led(self, shard_id: int) -> None:
        """This node begins to lead a shard: does its log know of all splits that the metadata knows of?"""
        host, part = self._node.hosts.get(shard_id), self._node.recovered_part(shard_id)
        if host is not None and part is not None:
            self._after_recovery(host, part)

    def look(self) -> None:
        """The metadata or the role of a replica has changed, or a commit of ours is through."""
        for change in list(self._node.view.joining.values()):
            child = change.shard
            host = self._node.hosts.get(child.shard_id)
            if host is not None and host.state.is_serving and child.shard_id not in self._copies:
                self._copies[child.shard_id] = self._node.spawn(self._copy(host))
            parent = None if child.split is None else self._node.hosts.get(child.split.parent)
            if parent is not None:
                self._as_parent(parent, child)

    def heartbeat(self) -> None:
        """The same, and what nobody announces: a freeze that nobody waits for, keys to be removed."""
        self.look()
        joining = self._node.view.joining
        for host in list(self._node.hosts.values()):
            table = host.table
            if table is None or host.state.failed is not None or host.state.closed:
                continue
            owned = table.state.owned
            if owned.is_frozen and owned.child not in joining:
                self._as_parent(host, None)
            if host.state.is_serving:
                self.led(host.shard_id)
            if owned.purging and host.shard_id not in self._purges and self._may_purge(host, owned):
                self._purges[host.shard_id] = self._node.spawn(self._purge(host))

    # -- the parent -----------------------------------------------------------------------------------------------

    def _as_parent(self, host: "Partition", child: ShardMeta | None) -> None:
        table = host.table
        if (
            not host.state.is_serving
            or table is None
            or table.evaluator is None
            or host.shard_id in self._appending
        ):
            return
        owned = table.state.owned
        if table.evaluator.owned.frozen_at != owned.frozen_at or table.evaluator.owned.last != owned.last:
            return  # an entry is on its way
        step = next_entry(owned, child)
        if isinstance(step, SplitStep):
            if child is not None and child.split is not None:
                self.report(SplitReport(child.shard_id, host.state.term, step, child.split.frozen_at))
        elif step is not None:
            self._appending.add(host.shard_id)
            self._node.spawn(self._append(host, step))

    def _after_recovery(self, host: "Partition", part: ShardPart) -> None:
        """The shard lost most replicas once, and this node leads it: write what the log does not say of splits."""
        table, shard_id = host.table, host.shard_id
        if table is None or table.evaluator is None or not host.state.is_serving:
            return
        table.hold(part)
        if table.is_incomplete:
            if shard_id not in self._unfinished:
                self._unfinished[shard_id] = self._node.spawn(self._finish(host))
        elif releases(table.state.owned, part) and part.following[0] >= 0 and shard_id not in self._appending:
            self._appending.add(shard_id)
            self._node.spawn(self._release_again(host, part))

    async def _finish(self, host: "Partition") -> None:
        try:
            await UnfinishedCopy(self._node, host, self._node.recovered_part, self.report).run()
        except Exception as error:  # noqa: BLE001 - as for copies
            host.state.lines.error("split_copy_failed", part="split", exc_info=error)
            await asyncio.sleep(1.0)
        finally:
            self._unfinished.pop(host.shard_id, None)

    async def _release_again(self, host: "Partition", part: ShardPart) -> None:
        """The keys are another shard's since long: nobody is served any of them here, and nobody waits for the freeze."""
        try:
            end = await append_releases(host, part)
            host.state.lines.warning(
                "split_released_again", part="split", child=part.following[0], at=end - 1
            )
        except AntiphonError as error:
            host.state.lines.info("split_entry_not_made", part="split", error=error.message)
            await asyncio.sleep(REPEAT_S)
        finally:
            self._appending.discard(host.shard_id)

    async def _append(self, host: "Partition", entry: SplitEntry) -> None:
        try:
            end = await append_entry(host, entry)
            host.state.lines.info("split_entry", part="split", entry=type(entry).__name__, at=end - 1)
        except AntiphonError as error:
            host.state.lines.info("split_entry_not_made", part="split", error=error.message)
            await asyncio.sleep(REPEAT_S)
        finally:
            self._appending.discard(host.shard_id)
        self.look()

    # -- the child ------------------------------------------------------------------------------------------------

    async def _copy(self, host: "Partition") -> None:
        try:
            await SplitCopy(self._node, host, self.report).run()
        except Exception as error:  # noqa: BLE001 - a bug in copying ends this try, not the node
            host.state.lines.error("split_copy_failed", part="split", exc_info=error)
            await asyncio.sleep(1.0)
        finally:
            self._copies.pop(host.shard_id, None)

    def report(self, report: SplitReport) -> None:
        """Tell the coordinator, unless it was told the same a moment ago."""
        key, now = (report.shard_id, report.step), self._node.now_s()
        said = self._said.get(key)
        if said is not None and said[0] == report and now - said[1] < REPEAT_S:
            return
        if len(self._said) > 1000:
            self._said.clear()
        self._said[key] = (report, now)
        self._node.ask_coordinator(self._node.agent.coordinator(), report, _nothing)

    # -- keys that are elsewhere now ------------------------------------------------------------------------------

    def _may_purge(self, host: "Partition", owned: OwnedRange) -> bool:
        """Nothing here may have to be made of these rows: no transaction that has prepared some, and no shard that they
        went to, whose replica here has not got all of them yet.
        """
        found = self._node.view.shard(host.shard_id)
        table = host.table
        if table is None or found is None or not all(map(owned.holds, table.state.transactions.locked)):
            return False
        joining = [one.shard for one in self._node.view.joining.values()]
        for shard in (*found[0].shards, *joining):
            other = self._node.hosts.get(shard.shard_id) if shard.own_start or shard.split else None
            if other is None or other.table is None or other.state.failed is not None or other.state.closed:
                continue
            if other.table.state.owned.first < shard.hashes[0] > owned.last:
                return False
        return True

    async def _purge(self, host: "Partition") -> None:
        """Remove the keys that were released from this replica's store, a few at a time."""
        more = True
        try:
            while more:
                table = host.table
                if table is None or host.state.closed or host.state.failed is not None or self._node.stopping:
                    return
                more = table.state.purge(PURGE_ROWS)
                await asyncio.sleep(PURGE_PAUSE_S)
            host.state.lines.info("split_purged", part="split")
        except AntiphonError as error:
            host.driver.fail(error)
        finally:
            self._purges.pop(host.shard_id, None)


def _nothing(_reply: Any) -> None:
    """The metadata is the answer."""
