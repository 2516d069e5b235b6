"""One replica of a shard that every replica writes (`writers=multi`), tied together on the event loop.

It is a `Partition` to everybody: listeners append, fetch and read here as they do at a leader, on every member. Its state
machine is a `MultiWriterReplica`, whose actions are other ones: entries of all origins go to the one log, relays read it,
and what is durable here is committed here. The log is synced at every append whatever `flush` says: an entry that was
relayed and then lost would be numbered a second time.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import msgspec

from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    NotLeaderError,
    OverloadedError,
    StorageFailedError,
)
from antiphon.log.shard_log import ShardLog
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ABSENT_NODE, NodeMeta, ShardMeta
from antiphon.model.requests import ReplicaStatus, TableWrite
from antiphon.partition.base import PartitionBase
from antiphon.partition.log_writer import not_as_said
from antiphon.partition.multi_batches import entries_of, number_batch
from antiphon.partition.multi_files import pass_over, save_marks
from antiphon.partition.multi_table import MergedShard, write_merged
from antiphon.partition.partition import Done
from antiphon.records.batch import BatchHeader, read_header, stamp
from antiphon.replication.members import Members
from antiphon.replication.messages import ChangeMembers, MembersSettled
from antiphon.replication.multi_messages import Relay
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.replication.multi_writer_actions import (
    AdoptBase,
    AppendEntries,
    ReadForRelay,
    SplitBrain,
    Tell,
    TrimmedAway,
)
from antiphon.replication.multi_writer_relay import TERM
from antiphon.replication.origin_history import History, OriginEntry
from antiphon.replication.origins import OriginTable, origin_of, origins_of
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.log.disk import Disk
    from antiphon.log.operations import Callback
    from antiphon.partition.services import PartitionServices
    from antiphon.partition.settings import PartitionSettings
    from antiphon.partition.single_writer import SingleWriterPartition
    from antiphon.records.entry_id import EntryId
    from antiphon.replication.messages import AnyMessage

SAVE_EVERY_ENTRIES: Final = 16_384
FEED_AGAIN_S: Final = 0.2


class MultiWriterPartition(PartitionBase[MultiWriterReplica]):
    """See the module's text."""

    table: MergedShard | None

    def __init__(
        self,
        services: "PartitionServices",
        disk: "Disk",
        log: ShardLog,
        replica: MultiWriterReplica,
        table: MergedShard | None,
        disk_id: str,
        max_message_bytes: int,
    ) -> None:
        super().__init__(services, replica.shard, log, replica, table, max_message_bytes)
        self._disk = disk
        self._disk_id = disk_id
        self._home = ABSENT_NODE  # where clients go that do not care
        self._leaves = False  # this replica is to go: it writes nothing new
        self._saved_at = 0  # log end when the marks were last written down
        self._unsaved = 0
        self._duplicates = 0
        self._waiting_relays: dict[int, ReadForRelay] = {}  # for peers whose connections are congested
        self._feeds: tuple[tuple[int, int, int], list[OriginEntry]] | None = None
        self._carry_out.update(
            {
                AppendEntries: self._append_entries,
                AdoptBase: self._adopt_base,
                Tell: self._tell,
                ReadForRelay: self._read_for_relay,
                SplitBrain: self._split_brain,
                TrimmedAway: self._trimmed_away,
            }
        )

    # -- members ------------------------------------------------------------------------------------------------

    def start(self, shard: ShardMeta, nodes: Mapping[int, NodeMeta]) -> None:
        """The first event."""
        self.recorded(shard, nodes)
        self.call(self.replica.start)

    def recorded(self, shard: ShardMeta, nodes: Mapping[int, NodeMeta]) -> None:
        """Take over the members and origins that the metadata names."""
        self._home = shard.leader
        self._leaves = self.services.node_id not in shard.ensemble
        found = member_origins(shard, nodes, self.services.node_id, self._disk_id)
        if found != self.replica.members:
            self._log.info("origins", origins=found)
            self.call(self.replica.set_members, found)

    def next_identity(self) -> tuple[int, int]:
        """(origin, LSN) that the next batch written here gets."""
        return self.replica.origin, self.replica.next_lsn

    def check_writable(self) -> None:
        """As for any shard, and this replica must have an origin and know its own entries: NotReadyError."""
        super().check_writable()
        if self._leaves:
            raise NotLeaderError(
                f"node {self.services.node_id} is about to give up its replica of shard {self.shard_id}",
                leader=self._home if self._home >= 0 else None,
            )
        self.replica.check_writable()

    def not_leader(self) -> NotLeaderError:
        """Why this replica does not serve, and another one that may."""
        error = super().not_leader()
        others = [one.node for one in self.replica.followers() if one.connected]
        return NotLeaderError(error.message, leader=min(others, default=None), shard_id=self.shard_id)

    def _say_if_held_by_others(self, sender: int, message: ChangeMembers) -> None:
        """A coordinator asks whether this replica may go: yes, once those that stay have all that is here (S0.2)."""
        stay = [node for node in message.members.voters if node != self.services.node_id]
        lags = self.replica.lags()
        is_held = self.replica.durable_end == self.replica.log_end and not any(lags.get(n, 1) for n in stay)
        if self._leaves and is_held:
            self.services.send(self, sender, MembersSettled(self.shard_id, message.term, message.version))

    def configure(self, settings: "PartitionSettings") -> None:
        """Take over the settings of the topic; its log is synced at every append."""
        self.settings = settings
        config = settings.log._replace(flush="always")
        if self.log.config != config:
            self.log.config = config
        self.clients.configure(settings)

    @property
    def merged(self) -> MergedShard:
        """The table's store; WrongKindError for a plain topic's shard."""
        if self.table is None:
            raise self.not_a_table()
        return self.table

    def table_write(self, request: TableWrite, done: Done) -> None:
        """See Partition. Each write is judged against this replica's own rows."""
        self.check_writable()
        try:
            write_merged(self, request, done)
        except StorageFailedError as error:
            raise self.stopped_by(error) from error

    # -- events and actions -------------------------------------------------------------------------------------

    def receive(self, sender: int, message: "AnyMessage") -> None:
        """A message of another replica; entries wait, at their sender, while there is no room for them."""
        if isinstance(message, ChangeMembers):
            self._say_if_held_by_others(sender, message)
            return
        if isinstance(message, Relay) and message.entries and self.services.wal.disk_full:
            return
        self.call(self.replica.receive, sender, message)
        duplicates = self.replica.duplicates - self._duplicates
        if duplicates:
            self._duplicates = self.replica.duplicates
            self.services.metrics.relay_duplicates += duplicates

    def stage(self, batch: bytearray, records: int) -> None:
        """Number a stamped client batch and append it; it is on its way to the disk when this turn ends."""
        super().stage(batch, records)
        self._note(1)

    def _take_batch(self, batch: bytearray, records: int) -> None:
        header = read_header(batch)  # with the client's producer id, by which repeats are told
        number_batch(batch, *self.next_identity())
        for action in self.replica.propose([(records, read_header(batch).crc, len(batch), batch)]):
            self._write_entries(cast(AppendEntries, action), [header])

    def _append_entries(self, action: AppendEntries) -> None:
        """Entries of other replicas, where they stand elsewhere."""
        for entry in action.entries:
            stamp(cast(bytearray, entry.data), entry.base_offset, TERM)
        self._write_entries(action)
        self._writer.flush()
        self.services.metrics.relayed += len(action.entries)
        self._note(len(action.entries))

    def _write_entries(self, action: AppendEntries, known: Sequence[BatchHeader] | None = None) -> None:
        """Stage exactly what the replica says; `known`: the headers by which the log is to know the batches."""
        batches: list[Any] = [entry.data for entry in action.entries]
        headers = [read_header(batch) for batch in batches]
        for header, entry in zip(headers, action.entries, strict=True):
            if (header.leader_epoch, header.base_offset, header.next_offset) != (TERM, *entry[3:5]):
                not_as_said(header, TERM, entry.base_offset, entry.next_offset)
        self._writer.append_checked(action.write_id, batches, known or headers)

    def _note(self, entries: int) -> None:
        """Write the marks down now and then, so that a start reads little of the log."""
        self._unsaved += entries
        if self._unsaved >= SAVE_EVERY_ENTRIES:
            self.save_marks()

    def save_marks(self, saved: Callable[[AntiphonError | None], None] | None = None) -> None:
        """Write the marks down."""
        self._unsaved = 0
        self.submit(save_marks(self._disk, self.log, self.replica.marks()), saved)

    def _adopt_base(self, action: AdoptBase) -> None:
        self._log.warning("log_begins_with", vclock=action.mark.clock)
        self._writer.write(save_marks(self._disk, self.log, [action.mark]), action.write_id)

    def _tell(self, action: Tell) -> None:
        self.services.send(self, action.to, cast(Any, action.message))

    def _read_for_relay(self, action: ReadForRelay) -> None:
        self._steps.queue(self._entries_read, action)

    def _entries_read(self, action: ReadForRelay) -> Sequence[Any]:
        """Read entries for a peer; a congested connection gets them when it is free again."""
        if self.services.is_congested(action.to):
            self._waiting_relays[action.to] = action
            return ()
        key = (action.from_offset, action.to_offset, action.max_bytes)
        if self._feeds is None or self._feeds[0] != key:
            try:
                batches = self.read(action.from_offset, action.max_bytes, action.to_offset)
            except OverloadedError:  # no file descriptors: soon again
                self._waiting_relays[action.to] = action
                asyncio.get_running_loop().call_later(FEED_AGAIN_S, self.peer_drained, action.to)
                return ()
            except NotLeaderError:  # what was read has stopped this replica
                return ()
            self._feeds = (key, entries_of(batches))
            self.services.turn.for_shard(self._forget_feed)
        return self.replica.entries_read(action.to, action.from_offset, self._feeds[1])

    def peer_drained(self, node_id: int) -> None:
        """The connection to a peer has room again."""
        feed = self._waiting_relays.pop(node_id, None)
        if feed is not None:
            self.call(self._entries_read, feed)

    def _forget_feed(self) -> None:
        self._feeds = None

    def _split_brain(self, action: SplitBrain) -> None:
        self.services.metrics.split_brains += 1
        self._log.error("split_brain", peer=action.peer, origin=action.origin, lsn=action.lsn)

    def _trimmed_away(self, action: TrimmedAway) -> None:
        self._log.error("entries_trimmed_at_peer", peer=action.peer, vclock=self.replica.vclock)

    # -- time and end -------------------------------------------------------------------------------------------

    def apply_retention(self, now_ms: int) -> None:
        """Trim what the settings no longer keep and every member has; forget removals that every member has."""
        if self.failed is not None or self.closed:
            return
        if self.table is not None:
            try:
                self.table.forget_tombstones(self.replica.settled_clock())
            except AntiphonError as error:
                self.fail(error)
            return  # its log is what a new member is filled from
        start = self.log.retention_start(now_ms, self.replica.common_offset())
        if start <= self.replica.log_start:
            return
        history = History(self.replica.mark_before(start))
        if not pass_over(self.log, history, start):
            return
        base = history.mark()
        self.call(self.replica.trimmed, base)

        def saved(error: AntiphonError | None) -> None:
            op = None if error is not None or self.closed else self.log.trim(base.offset)
            if op is not None:
                self._log.info("log_trimmed", log_start=self.log.log_start)
                self.submit(op)

        self.save_marks(saved)

    def fail(self, error: Exception) -> None:
        """Stop this replica for good. The others go on writing; nobody is to be elected."""
        if self.failed is None:
            self.replica.role = Role.FENCED
        super().fail(error)

    def close(self) -> None:
        """Stop serving, and note what makes the next start quick."""
        if not self.closed:
            super().close()
            if self.failed is None:
                self.save_marks()

    def status(self) -> ReplicaStatus:
        """For status pages: the vector clock, and whether a split brain was found."""
        found = super().status()
        return msgspec.structs.replace(
            found,
            role="writer" if self.failed is None else found.role,
            state="split_brain" if self.replica.splits and found.state == "ok" else found.state,
            vclock=self.replica.vclock,
        )

    def _silenced(self) -> None:
        self._waiting_relays.clear()

    # -- where nobody leads -------------------------------------------------------------------------------------

    @property
    def is_appointed(self) -> bool:
        """See Partition."""
        return False

    @property
    def elects_itself(self) -> bool:
        """See Partition."""
        return False

    @property
    def needs_new_term(self) -> bool:
        """See Partition."""
        return False

    @property
    def live(self) -> tuple[int, ...]:
        """See Partition."""
        return ()

    @property
    def settled(self) -> int:
        """See Partition."""
        return self.high_watermark

    @property
    def acknowledges_early(self) -> bool:
        """See Partition. What is acknowledged is on this disk, and no election takes it back."""
        return False

    @property
    def waits_for(self) -> str:
        """See Partition."""
        return "is a majority of its replicas up"

    def live_set(self, _told: LiveSet | None) -> LiveSet | None:
        """See Partition."""
        return None

    def live_set_told(self) -> None:
        """See Partition."""

    def hand_over(self) -> bool:
        """See Partition."""
        return False

    def members_at(self, _offset: int) -> None:
        """See Partition."""
        return

    def snapshot_installed(self, _at: "EntryId", _members: Members | None) -> NoReturn:
        """See Partition."""
        raise InvalidRequestError(f"every replica writes shard {self.shard_id}: none takes a snapshot")

    def check_trimmable(self) -> None:
        """See Partition."""
        raise InvalidRequestError(
            f"shard {self.shard_id} is written by every replica, and what one still has to give to the others only it can "
            "say: use retention.ms or retention.bytes"
        )

    def trim(self, _log_start: int, _done: "Callback") -> None:
        """See Partition."""
        self.check_trimmable()

    @property
    def single_writer(self) -> "SingleWriterPartition | None":
        """See Partition."""
        return None

    @property
    def multi_writer(self) -> "MultiWriterPartition":
        """See Partition."""
        return self


def member_origins(
    shard: ShardMeta, nodes: Mapping[int, NodeMeta], node_id: int, disk_id: str
) -> dict[int, int]:
    """Members with their origins; this node's by the disk that it really runs on."""
    table: OriginTable = shard.origins
    disks = {node: nodes[node].disk_id for node in shard.everybody if node in nodes}
    found = origins_of(table, shard.everybody, disks)
    found[node_id] = origin_of(table, node_id, disk_id)
    return found
