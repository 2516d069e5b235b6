"""What is done for the actions of a replica whose shard every replica writes.

Entries of all origins go to the one log, relays read it, and what is durable here is committed here.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import NotLeaderError, OverloadedError
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.log_writer import not_as_said
from antiphon.partition.multi_batches import entries_of, number_batch
from antiphon.partition.multi_upkeep import OriginMarks
from antiphon.partition.reads import PartitionReads
from antiphon.records.batch import BatchHeader, read_header, stamp
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.replication.multi_writer_actions import (
    AdoptBase,
    AppendEntries,
    ReadForRelay,
    Send,
    SplitBrain,
    TrimmedAway,
)
from antiphon.replication.multi_writer_relay import TERM
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.replication.origin_history import OriginEntry

FEED_AGAIN_S: Final = 0.2


class MultiWriterActions:
    """See the module's text."""

    def __init__(
        self,
        driver: ReplicaDriver,
        replica: MultiWriterReplica,
        common: CommonActions,
        reads: PartitionReads,
        marks: OriginMarks,
    ) -> None:
        self._driver = driver
        self._writer = driver.writer
        self._services = driver.state.services
        self._replica = replica
        self._common = common
        self._reads = reads
        self._marks = marks
        self._waiting_relays: dict[int, ReadForRelay] = {}  # for peers whose connections are congested
        self._feeds: tuple[tuple[int, int, int], list[OriginEntry]] | None = None
        self._log = driver.state.lines

    @property
    def by_action(self) -> Mapping[type, Callable[[Any], None]]:
        """See ActionHandlers."""
        return {
            **self._common.by_action,
            AppendEntries: self._append_entries,
            AdoptBase: self._adopt_base,
            Send: self._send,
            ReadForRelay: self._read_for_relay,
            SplitBrain: self._split_brain,
            TrimmedAway: self._trimmed_away,
        }

    # -- the log ------------------------------------------------------------------------------------------------

    def take_batch(self, batch: bytearray, records: int) -> None:
        """See ActionHandlers. The batch is numbered; relays read it from the log, once it is durable."""
        replica = self._replica
        header = read_header(batch)  # with the client's producer id, by which repeats are told
        number_batch(batch, replica.origin, replica.next_lsn)
        for action in replica.propose([(records, read_header(batch).crc, len(batch), batch)]):
            self._write_entries(action, [header])
        self._marks.note(1)

    def _append_entries(self, action: AppendEntries) -> None:
        """Entries of other replicas, where they stand elsewhere."""
        for entry in action.entries:
            stamp(entry.data, entry.base_offset, TERM)
        self._write_entries(action)
        self._writer.flush()
        self._services.metrics.relayed += len(action.entries)
        self._marks.note(len(action.entries))

    def _write_entries(self, action: AppendEntries, known: Sequence[BatchHeader] | None = None) -> None:
        """Stage exactly what the replica says; `known`: the headers by which the log is to know the batches."""
        batches: list[Any] = [entry.data for entry in action.entries]
        headers = [read_header(batch) for batch in batches]
        for header, entry in zip(headers, action.entries, strict=True):
            if (header.leader_epoch, header.base_offset, header.next_offset) != (TERM, *entry[3:5]):
                not_as_said(header, TERM, entry.base_offset, entry.next_offset)
        self._writer.append_checked(action.write_id, batches, known or headers)

    def _adopt_base(self, action: AdoptBase) -> None:
        self._log.warning("log_begins_with", vclock=action.mark.clock)
        self._writer.write(self._marks.begin_with(action.mark), action.write_id)

    # -- other replicas -----------------------------------------------------------------------------------------

    def _send(self, action: Send) -> None:
        self._services.send_message(action.to, action.message)

    def _read_for_relay(self, action: ReadForRelay) -> None:
        self._driver.steps.queue(self._entries_read, action)

    def _entries_read(self, action: ReadForRelay) -> Sequence[Any]:
        """Read entries for a peer; a congested connection gets them when it is free again."""
        if self._services.is_congested(action.to):
            self._waiting_relays[action.to] = action
            return ()
        key = (action.from_offset, action.to_offset, action.max_bytes)
        if self._feeds is None or self._feeds[0] != key:
            try:
                batches = self._reads.read(action.from_offset, action.max_bytes, action.to_offset)
            except OverloadedError:  # no file descriptors: soon again
                self._waiting_relays[action.to] = action
                asyncio.get_running_loop().call_later(FEED_AGAIN_S, self.peer_drained, action.to)
                return ()
            except NotLeaderError:  # what was read has stopped this replica
                return ()
            self._feeds = (key, entries_of(batches))
            self._services.turn.for_shard(self._forget_feed)
        return self._replica.entries_read(action.to, action.from_offset, self._feeds[1])

    def peer_drained(self, node_id: int) -> None:
        """The connection to a peer has room again."""
        deferred = self._waiting_relays.pop(node_id, None)
        if deferred is not None:
            self._driver.call(self._entries_read, deferred)

    def _forget_feed(self) -> None:
        self._feeds = None

    def _split_brain(self, action: SplitBrain) -> None:
        self._services.metrics.split_brains += 1
        self._services.look_at(self._driver.shard_id)
        self._log.error("split_brain", peer=action.peer, origin=action.origin, lsn=action.lsn)

    def _trimmed_away(self, action: TrimmedAway) -> None:
        self._log.error("entries_trimmed_at_peer", peer=action.peer, vclock=self._replica.vclock)

    # -- the end ------------------------------------------------------------------------------------------------

    def stopped(self, error: Exception, *, was_leader: bool) -> None:  # noqa: ARG002 - each leads, and none is appointed
        """See ActionHandlers. The others go on writing; nobody is to be elected."""
        self._replica.role = Role.FENCED
        self._waiting_relays.clear()
        self._common.stopped(error, needs_leader=False)

    def closed(self) -> None:
        """No follower is sent entries any more."""
        self._waiting_relays.clear()
