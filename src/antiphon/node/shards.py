"""The replicas on this node: opened, kept in step with the metadata, ticked, trimmed, closed.

Opening a replica touches the disk, so a long list of them is opened a few milliseconds' worth at a time, and one that
takes long in a thread (`long_openings`). Messages for one that is still to be opened are kept until it is. A replica's
directory is removed when the metadata shows that its shard is gone, or, for one that is found at the start, when the
metadata is certainly newer than the shard: it knows a later one (ids only rise).
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from antiphon import system
from antiphon.errors import (
    AntiphonError,
    ForeignDirectoryError,
    InvalidRequestError,
    NewerFormatError,
    StorageFailedError,
)
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import Disk
from antiphon.log.operations import LogOp
from antiphon.log.recovery import empty_log
from antiphon.model.metadata import CLUSTER_SHARD_ID, ShardMeta, TopicMeta
from antiphon.node.leased import may_promise
from antiphon.node.long_openings import LongOpenings
from antiphon.node.old_history import is_old, may_be_needed
from antiphon.node.partition_opener import OpeningNode, PartitionOpener, Recovered
from antiphon.node.raft_shards import (
    Placement,
    known_placement,
    note_placement,
    placement_of,
)
from antiphon.node.reopening import Reopening
from antiphon.node.rounds import Round
from antiphon.node.topic_settings import SettingsBook
from antiphon.partition.failures import as_failure
from antiphon.partition.partition import Partition
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.partition.table_files import (
    destroy_state,
    store_path,
)
from antiphon.replication.multi_messages import ReplicaMessage

if TYPE_CHECKING:
    from antiphon.node.agent import ClusterAgent
    from antiphon.node.timers import Timers

OPEN_SLICE_S = 0.01
EARLY_MESSAGES_MAX = 64  # per shard that is not open yet


class ShardsNode(OpeningNode, Protocol):
    """What the replicas' keeper needs of the node."""

    agent: "ClusterAgent"
    timers: "Timers"

    def coordinate(self, host: SingleWriterPartition) -> None:
        """The replica of `__cluster` is open: let a coordinator rest on it."""

    def coordinate_no_more(self) -> None:
        """That replica is about to be closed."""


class Shards:
    """See the module's text."""

    def __init__(self, node: ShardsNode, disk: Disk, directory: NodeDirectory) -> None:
        self._node = node
        self._disk = disk
        self._directory = directory
        self._tables = os.path.join(node.config.dir, "tables")
        self._log = structlog.get_logger()
        if directory.mended:
            self._log.error("identity_made_anew", reason=directory.mended)
        if directory.is_remade:
            self._log.error(
                "inventory_lost", reason="this directory counts as a new disk: what is in it is refetched"
            )
        self._to_open: deque[int] = deque()
        self._opening = False
        self._early: dict[int, list[tuple[int, ReplicaMessage]]] = {}
        self._found = directory.shard_ids()
        self.settings = SettingsBook(node.config)
        self._opener = PartitionOpener(node, disk, directory, self.settings)
        self._long = LongOpenings(node, disk, directory, self._plan, self._recovered)
        self.broken: dict[int, AntiphonError] = {}  # shards whose replica cannot be opened
        self._closing: set[asyncio.Future[None]] = set()  # threads that close tables' stores
        self._removing: set[int] = set()  # not to be opened before their files are gone, or let go of
        self._reopening = Reopening(node, self)
        # Replicas that vote, opened by what this node knew before it was restarted; the metadata has the last word on them.
        self._remembered: dict[int, Placement] = {}
        self.placements: dict[int, Placement] = {}  # as they stand on the disk
        self._checkpoints = Round(node, lambda host: host.upkeep.checkpoint(), self._checkpoints_made)
        self._retention = Round(node, _apply_retention)

    # -- following the metadata ---------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Open what the metadata places here, close and remove what is gone, take over changed settings."""
        node, view, own = self._node, self._node.view, self._node.node_id
        wanted: dict[int, Placement] = {}
        for topic, shard in view.all_shards():
            if own in shard.ensemble or own in shard.outgoing or own in shard.learners:
                wanted[shard.shard_id] = (topic, shard)
        for shard_id in list(node.hosts):
            if shard_id != CLUSTER_SHARD_ID and shard_id not in wanted and not self._is_early(shard_id):
                self._leave(shard_id)
        for shard_id in [known for known in self.broken if known not in wanted and known != CLUSTER_SHARD_ID]:
            del self.broken[shard_id]
            if not self._long.has(shard_id):  # else the thread sees to them
                self._remove_files(shard_id)
        for shard_id, (topic, shard) in wanted.items():
            host = node.hosts.get(shard_id)
            self._remembered.pop(shard_id, None)
            if host is not None and is_old(host, shard, own):
                self.remove(shard_id)  # and it begins anew, empty
            elif host is not None:
                self._configure(host, topic)
                self._note_placement(host, topic, shard)
                host.recorded(shard, view.nodes)
            elif not (shard_id in self._to_open or self._long.has(shard_id) or shard_id in self.broken):
                self._to_open.append(shard_id)
        self.settings.forget({topic.topic_id for topic in view.topics.values()})
        self._remove_orphans(view.shard_ids(), wanted)
        self._continue_opening()

    def remember(self) -> None:
        """Open the replicas that need no coordinator, before anybody says that they are still placed here."""
        for shard_id in self._found:
            if shard_id != CLUSTER_SHARD_ID:
                try:
                    known = known_placement(self._disk, self._directory.shard_path(shard_id))
                except OSError as error:  # the replica opens once the metadata says that it is placed here
                    self._log.warning("placement_not_read", shard=shard_id, error=str(error))
                    continue
                if known is not None:
                    self._remembered[shard_id] = self.placements[shard_id] = known
        self._found = [shard_id for shard_id in self._found if shard_id not in self._remembered]
        self._to_open.extend(self._remembered)
        self._continue_opening()

    def _is_early(self, shard_id: int) -> bool:
        """May metadata that does not place the replica here be older than the record that did?"""
        return shard_id in self._remembered and not self._node.agent.registered.is_set()

    def _note_placement(self, host: Partition, topic: TopicMeta, shard: ShardMeta) -> None:
        if host.mode.elects_itself:
            placement = placement_of(topic, shard)
            if self.placements.get(shard.shard_id) != placement:
                try:
                    note_placement(self._disk, self._directory.shard_path(shard.shard_id), placement)
                except OSError as error:  # it only serves the next start, and is tried again
                    self._log.warning("placement_not_kept", shard=shard.shard_id, error=str(error))
                else:
                    self.placements[shard.shard_id] = placement

    def _configure(self, host: Partition, topic: TopicMeta) -> None:
        """Take over settings that were changed; those that mean nothing to this version leave the old ones in force."""
        try:
            settings = self.settings.of(topic)
        except InvalidRequestError as error:
            self._log.error("settings_not_taken", topic=topic.name, error=error.message)
            return
        path = self._directory.shard_path(host.shard_id)
        if host.state.settings is not settings and may_promise(self._disk, path, host, settings):
            host.configure(settings)

    def _remove_orphans(self, known: list[int], wanted: Container[int]) -> None:
        """Directories of shards that were deleted, or moved elsewhere, while this node was down.

        A shard that lives on elsewhere is given up only once this process is registered: what a coordinator says before
        that may be older than the record that placed the replica here.
        """
        if not self._found or not known:
            return
        is_new = self._node.agent.registered.is_set()
        alive = set(known)
        keep = []
        for shard_id in self._found:
            if shard_id == CLUSTER_SHARD_ID or shard_id in wanted:
                continue
            if may_be_needed(self._node.view, self._node.node_id, shard_id):
                keep.append(shard_id)
            elif is_new if shard_id in alive else shard_id < known[-1]:
                self._log.info("orphan_removed", shard=shard_id)
                self._remove_files(shard_id)
            else:
                keep.append(shard_id)
        self._found = keep

    def _continue_opening(self) -> None:
        if self._to_open and not self._opening:
            self._opening = True
            self._open_some()

    def _open_some(self) -> None:
        deadline = system.monotonic_s() + OPEN_SLICE_S
        while self._to_open and system.monotonic_s() < deadline:
            shard_id = self._to_open.popleft()
            found = None if self._long.has(shard_id) else self._placed(shard_id)
            if found is not None and not self._long.takes(found[0], shard_id):
                self._open(*found)
        if self._to_open and not self._node.stopping:
            self._node.loop.call_soon(self._open_some)
        else:
            self._opening = False

    def _placed(self, shard_id: int) -> tuple[TopicMeta, ShardMeta] | None:
        """Topic and shard, if the replica is to be opened here; None if it is not, or not any more, or is open."""
        node = self._node
        found = node.view.shard(shard_id) or self._remembered.get(shard_id)
        if found is None or node.stopping or node.node_id not in found[1].everybody:
            return None
        is_there = shard_id in node.hosts or shard_id in self._removing
        return None if is_there or not self._may_open(shard_id) else found

    def _plan(self, shard_id: int) -> Callable[[], Recovered] | None:
        """What recovers a replica that is opened in a thread."""
        if shard_id == CLUSTER_SHARD_ID:
            is_here = self._node.voters.is_held_here and not self._node.stopping
            return self._opener.recover_cluster_shard if is_here else None
        found = self._placed(shard_id)
        return None if found is None else partial(self._opener.recover, *found)

    def _may_open(self, shard_id: int) -> bool:
        """A replica that is not on this disk yet is made only once this process is registered, with the disk that it has.

        Before, the coordinator may take its promise for that of the disk before, with all that was on it.
        """
        return self._node.agent.registered.is_set() or self._disk.exists(self._directory.shard_path(shard_id))

    def _open(self, topic: TopicMeta, shard: ShardMeta) -> None:
        try:
            host = self._opener.open(topic, shard)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other shards are opened
            self._not_opened(shard.shard_id, error)
        else:
            self._opened(host, topic, shard)

    def _recovered(self, shard_id: int, found: Recovered | Exception) -> None:
        """A thread has read the files of a replica. What is placed here may be other than when it began."""
        if shard_id == CLUSTER_SHARD_ID:
            self._cluster_recovered(found)
            return
        placed = self._placed(shard_id)
        if placed is None:
            if isinstance(found, Recovered):
                self._opener.let_go(found)
            if self._is_early(shard_id):
                self._found.append(shard_id)  # newer metadata may place it here again
            elif not self._node.stopping:
                self._remove_files(shard_id)
            return
        try:
            if isinstance(found, Exception):
                raise found
            host = self._opener.start(*placed, found)
        except Exception as error:  # noqa: BLE001 - as for those that are opened at once
            self._not_opened(shard_id, error)
        else:
            self._opened(host, *placed)

    def _not_opened(self, shard_id: int, error: Exception) -> None:
        self._log.error("replica_not_opened", shard=shard_id, error=str(error), exc_info=error)
        self.broken[shard_id] = as_failure(error, f"shard {shard_id} cannot be opened")

    def _opened(self, host: Partition, topic: TopicMeta, shard: ShardMeta) -> None:
        self.broken.pop(shard.shard_id, None)
        self._node.hosts[shard.shard_id] = host
        self._node.suspects.add(shard.shard_id)
        self._note_placement(host, topic, shard)
        host.recorded(shard, self._node.view.nodes)
        for sender, message in self._early.pop(shard.shard_id, ()):
            host.receive(sender, message)

    def open_cluster_shard(self) -> None:
        """Open this voter's replica of `__cluster`, on which a coordinator rests.

        Where its files cannot be read the node serves without it: a voter that says nothing is one that is down, and
        holds no other shard up. What a newer version wrote is refused.
        """
        try:
            found = self._opener.recover_cluster_shard()
        except NewerFormatError:
            raise
        except (OSError, StorageFailedError, ForeignDirectoryError) as error:
            self._not_opened(CLUSTER_SHARD_ID, error)
        else:
            self._start_cluster_shard(found)

    def _start_cluster_shard(self, found: Recovered) -> None:
        host = self._opener.start_cluster_shard(found)
        self._node.hosts[CLUSTER_SHARD_ID] = host
        self._node.suspects.add(CLUSTER_SHARD_ID)
        self._node.coordinate(host)
        for sender, message in self._early.pop(CLUSTER_SHARD_ID, ()):
            host.receive(sender, message)

    def _cluster_recovered(self, found: Recovered | Exception) -> None:
        if self._node.stopping:
            return
        if isinstance(found, Exception):
            self._not_opened(CLUSTER_SHARD_ID, found)
            return
        self.broken.pop(CLUSTER_SHARD_ID, None)
        try:
            self._start_cluster_shard(found)
        except Exception as error:  # noqa: BLE001 - as for the others
            self._not_opened(CLUSTER_SHARD_ID, error)

    # -- messages -----------------------------------------------------------------------------------------------

    def early(self, sender: int, message: ReplicaMessage) -> None:
        """A message for a shard that is not open here: kept if the metadata places the shard here, or may soon."""
        if message.shard in self.broken:
            return
        kept = self._early.setdefault(message.shard, [])
        if len(kept) < EARLY_MESSAGES_MAX and len(self._early) < 10_000:
            kept.append((sender, message))

    # -- now and then -------------------------------------------------------------------------------------------

    def note_watermarks(self) -> None:
        """Leave hints for the next start, for the shards that moved; let go of memory of those that did not."""
        self._node.voters.follow()
        self._note_joined()
        self._checkpoints.begin()

    def _checkpoints_made(self) -> None:
        if self._directory.inventory.has_news:
            self._node.wal.submit(self._directory.inventory.stage_save())

    def _note_joined(self) -> None:
        """What the cluster had placed here before this directory was made is open by now, if anything was."""
        agent = self._node.agent
        if not agent.registered.is_set() or self._to_open or self._long.is_busy:
            return
        if self._directory.may_replace:
            self._directory.note_joined()
        if self._remembered:  # not placed here by metadata that is certainly new
            self._remembered.clear()
            self.reconcile()

    def mend_damaged(self) -> None:
        """Logs that were damaged and are being repaired count only from a term that began since: ask for these elections."""
        self._reopening.mend()

    def apply_retention(self) -> None:
        """Trim what the topics' settings no longer keep."""
        self._retention.begin()

    # -- closing ------------------------------------------------------------------------------------------------

    def remove(self, shard_id: int) -> None:
        """The shard is no longer here: close its replica and remove its files."""
        self.placements.pop(shard_id, None)
        self._remembered.pop(shard_id, None)  # or it would come again, if the shard was deleted
        host = self._node.hosts.get(shard_id)
        if host is not None:
            self._log.info("replica_removed", shard=shard_id)
            self._end(shard_id, host, self._remove_files)

    def _leave(self, shard_id: int) -> None:
        """The metadata places the shard elsewhere. What it may still have to go on from is closed, and stays."""
        if not may_be_needed(self._node.view, self._node.node_id, shard_id):
            self.remove(shard_id)
            return
        self._log.warning("replica_set_aside", shard=shard_id)
        self.placements.pop(shard_id, None)
        self._found.append(shard_id)
        self._end(shard_id, self._node.hosts[shard_id], self._removed)

    def open_again(self, shard_id: int) -> None:
        """Try once more to open a replica that could not be opened."""
        if shard_id == CLUSTER_SHARD_ID:
            if not self.is_being_opened(shard_id):
                self._long.open(shard_id)
        elif not self.is_being_opened(shard_id):
            self._long.expect(shard_id)
            self._to_open.append(shard_id)
            self._continue_opening()

    def is_being_opened(self, shard_id: int) -> bool:
        """Is this replica on its way from closed to open?"""
        return shard_id in self._removing or shard_id in self._to_open or self._long.has(shard_id)

    def start_over(self, shard_id: int) -> None:
        """A replica that cannot be opened gives up what it has, but for its promise: the others send everything anew."""
        if shard_id in self.broken and not self.is_being_opened(shard_id):
            self._removing.add(shard_id)
            self._long.expect(shard_id)
            emptied = self._node.loop.run_in_executor(None, self._empty_now, shard_id)
            emptied.add_done_callback(lambda _done: self._removed(shard_id))

    def _empty_now(self, shard_id: int) -> None:
        with contextlib.suppress(OSError):  # tried again once the disk takes it
            empty_log(self._disk, self._directory.shard_path(shard_id), "its table's store was damaged")
            destroy_state(self._disk, store_path(self._tables, shard_id))

    def reopen(self, shard_id: int, host: Partition) -> None:
        """Close a replica and open it again from what is in its files."""
        if shard_id == CLUSTER_SHARD_ID:
            self._node.coordinate_no_more()
        else:
            self._long.expect(shard_id)
        self._end(shard_id, host, self._removed)

    def _end(self, shard_id: int, host: Partition, then: Callable[[int], None]) -> None:
        self._node.hosts.pop(shard_id, None)
        self._node.timers.forget(shard_id)
        host.close()
        self._removing.add(shard_id)
        # What is queued for the files is carried out first; nothing is submitted for this log any more.
        barrier = LogOp(host.log.queue, [])
        host.driver.submit(barrier, lambda _error: self._close_store(host, then))

    def _close_store(self, host: Partition, then: Callable[[int], None]) -> None:
        """A store writes what it has in memory when it is closed, which may take long: that is done in a thread.

        At a stop of the node the next start does what is to follow.
        """
        if host.table is None:
            then(host.shard_id)
        elif self._node.stopping:
            host.table.let_go(host.state.failed)
        else:
            closing = self._node.loop.run_in_executor(None, host.table.let_go, host.state.failed)
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            closing.add_done_callback(lambda _done: then(host.shard_id))

    def _remove_files(self, shard_id: int) -> None:
        self._remembered.pop(shard_id, None)
        self._removing.add(shard_id)
        removal = self._node.loop.run_in_executor(None, self._remove_now, shard_id)
        removal.add_done_callback(lambda _done: self._removed(shard_id))

    def _removed(self, shard_id: int) -> None:
        """The files are gone, or are to be opened again. A shard that is placed here is opened from what there is."""
        self._removing.discard(shard_id)
        if self._node.stopping:
            return
        if shard_id == CLUSTER_SHARD_ID:
            self._long.open(shard_id)
        else:
            self._to_open.append(shard_id)
            self._continue_opening()

    def _remove_now(self, shard_id: int) -> None:
        with contextlib.suppress(OSError):  # tried again once there is room
            self._directory.renounce_shard(shard_id)
        with contextlib.suppress(OSError):
            destroy_state(self._disk, store_path(self._tables, shard_id))
        self._directory.remove_shard(shard_id)

    def close_all(self) -> None:
        """Stop serving, and note what makes the next start quick; the WAL thread is stopped afterwards."""
        for host in self._node.hosts.values():
            host.close()
            if host.state.failed is None:
                host.upkeep.note_watermark()
                host.driver.submit(host.log.checkpoint())

    async def opening_ended(self) -> None:
        """For a stop: nothing is opened any more, and no thread is at a replica's files."""
        await self._long.ended()
        if self._closing:
            await asyncio.wait(self._closing)

    def close_tables(self) -> None:
        """Close the tables' stores; the last thing of a stop."""
        for host in self._node.hosts.values():
            if host.table is not None:
                host.table.let_go(host.state.failed)


def _apply_retention(host: Partition) -> None:
    if host.shard_id != CLUSTER_SHARD_ID:
        host.upkeep.apply_retention(system.wall_ms())
