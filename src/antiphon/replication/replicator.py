"""Sending the log to the followers: one `Progress` each, and what goes out to it (S0.16).

Appending and sending are two steps. An entry is part of the log as soon as it is appended; `send_appended` then sends all
that was appended since, in one message, to every follower that has been sent everything before, while the own disk syncs.
So a host can append each batch when it comes and send once for all of them. A follower that is behind is sent entries that
the caller reads from the log. Every Append carries the high watermark (S0.26, S1.18); when writes stop, a tick carries the
last one (S0.28).

Lost messages: nothing is sent again blindly. When a follower makes no progress for `resend_ticks`, it gets an empty
Append whose preceding entry is the last that was sent. If it has that, it answers with what is durable; if not, it
rejects, and its hint says from where to send again.
"""

from collections.abc import Collection, Sequence

from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import Action, AppendLog, ReadEntries, Send, SendSnapshot
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.leadership import Leadership
from antiphon.replication.live_set import LiveSet
from antiphon.replication.messages import Append, Entry, NodeId, Reject, Truncate
from antiphon.replication.progress import FollowerStatus, Progress, ProgressState
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker

OPAQUE_BYTES = 100  # taken for the size of an entry whose data is not bytes (in the simulator)


class Replicator:
    """The followers of one leadership.

    Attributes:
        progress: one per node that entries are sent to, in the order in which they came.
        round: of the messages that are sent now; their answers repeat it.
        config: settings.
        lease_ms: followers are asked to support nobody else for so long.
    """

    def __init__(
        self, leadership: Leadership, tracker: QuorumAckTracker, live: LiveSet | None, config: ReplicaConfig
    ) -> None:
        self.progress: dict[NodeId, Progress] = {}
        self.round = 1
        self.config = config
        self.lease_ms = 0
        self._leadership = leadership
        self._log = leadership.log
        self._tracker = tracker
        self._live = live  # told in every message, where this term's commits go by it
        self._unsent: list[Entry] = []  # appended, and not sent to followers yet
        self._unsent_bytes = 0
        self._forgotten: set[NodeId] = set()  # sent to in this term, and perhaps removed since

    # -- who is sent to --------------------------------------------------------------------------------------------

    def add_follower(self, node: NodeId, head: EntryId, out: list[Action]) -> None:
        """Begin to send entries to a follower (S0.38). A repeated request changes nothing.

        Unless it says that the follower has less than it acknowledged: its replica was removed, or its disk replaced, and it
        has promised this term anew. Then it counts by what it acknowledges from now on. One that is silent is asked again.
        """
        if node == self._leadership.node:
            return
        progress = self.progress.get(node)
        if progress is not None:
            if head.offset < progress.ack_offset:
                self._start_anew(progress, head, out)
            elif progress.connected and not progress.answers:
                self.peer_connected(node, out)  # what it was asked may have come before it promised this term
            return
        progress = Progress(node, self._tracker.add(node))
        self.progress[node] = progress
        if node in self._forgotten:
            self.round += 1
            progress.ack_floor = self.round
        point = self._log.common_point(head)
        if point is None:
            self._snapshot(progress, out)
        elif point == head:
            progress.replicate_from(point.offset, self.round)
            if self._log.terms.end == EMPTY:
                self.send_heartbeat(progress, out)  # no entry will come soon to make it a follower
            self.send_next(progress, out)
        else:
            self.round += 1
            progress.probe_at(point.offset, self.round)
            leadership = self._leadership
            out.append(Send(node, Truncate(leadership.shard, leadership.term, leadership.node, point)))

    def _start_anew(self, progress: Progress, head: EntryId, out: list[Action]) -> None:
        """The follower has no more than `head`; what it acknowledged before does not count, nor what is underway of that."""
        self.round += 1
        progress.ack_floor = self.round
        progress.bound_until_us = 0  # this replica has promised nothing
        point = self._log.common_point(head)
        left = 0 if point is None else point.offset
        progress.lost_below(left)
        self._tracker.record(progress.slot, left)
        if point is None:
            self._snapshot(progress, out)
        else:
            progress.probe_at(left, self.round)
            self.send_heartbeat(progress, out)

    def keep(self, staying: Collection[NodeId]) -> None:
        """Send to nobody else any longer."""
        for node in [node for node in self.progress if node not in staying]:
            del self.progress[node]
            self._tracker.drop(node)
            self._forgotten.add(node)

    # -- writing ---------------------------------------------------------------------------------------------------

    def propose(self, batches: Sequence[tuple[int, object]], out: list[Action]) -> None:
        """Append client entries and push them to whoever has everything before them (S1.6)."""
        term = self._leadership.term
        at = self._log.terms.log_end
        made = []
        for count, data in batches:
            made.append(Entry(term, at, at + count, data))
            at += count
            self._unsent_bytes += _size_of(data)
        self._unsent += made
        out.append(self._log.append(made))
        self.send_appended(out)

    def append_batch(self, count: int, data: object) -> AppendLog:
        """Append one client entry, to be pushed by `send_appended`."""
        log = self._log
        at = log.terms.log_end
        entry = Entry(self._leadership.term, at, at + count, data)
        self._unsent.append(entry)
        self._unsent_bytes += len(data) if type(data) is bytearray else _size_of(data)
        return log.append_one(entry)

    def append(self, entry: Entry, out: list[Action]) -> None:
        """Append an entry of the protocol's own, made for the log's end, and push it, with what was not sent before it."""
        out.append(self._log.append((entry,)))
        self._unsent.append(entry)
        self._unsent_bytes += OPAQUE_BYTES
        self.send_appended(out)

    def send_appended(self, out: list[Action]) -> None:
        """Push what was appended and not sent yet to whoever has everything before it; read the log for the others."""
        if not self._unsent:
            return
        entries, size = tuple(self._unsent), self._unsent_bytes
        self._unsent, self._unsent_bytes = [], 0
        log, config = self._log, self.config
        base, at = entries[0].base_offset, entries[-1].next_offset
        # The log before it ends with an entry of this term, unless it was opened empty and without a term-start entry.
        prev_term = self._leadership.term if base else EMPTY.term
        fits = size <= config.feed_bytes_max or len(entries) == 1
        message = None
        for progress in self.progress.values():
            if (
                fits
                and progress.last_pushed == base
                and progress.state is ProgressState.REPLICATE
                and progress.reading_from is None
                and progress.connected
                and progress.has_room(size, config.max_in_flight_bytes)
            ):
                if message is None:
                    prev = EntryId(prev_term, base)
                    message = self._message(prev, entries)
                out.append(Send(progress.node, message))
                progress.pushed(at, size, log.settled)
            else:
                self.send_next(progress, out)

    def _message(self, prev: EntryId, entries: tuple[Entry, ...] = ()) -> Append:
        """A message of now; under the live rule it tells the live set and the log's end, too (S3.26)."""
        log, live = self._log, self._live
        shard, node, term, _ = self._leadership
        if live is None:
            if self.lease_ms:
                mark, ms = log.settled, self.lease_ms
                return Append(shard, term, node, prev, mark, self.round, entries, lease_ms=ms)
            return Append(shard, term, node, prev, log.settled, self.round, entries)
        return Append(
            shard,
            term,
            node,
            prev,
            log.settled,
            self.round,
            entries,
            live.recorded,
            log.terms.log_end,
            self.lease_ms,
        )

    def send_next(self, progress: Progress, out: list[Action]) -> None:
        """Ask for the next entries of a follower that is behind, unless they are being read or the window is full."""
        start = progress.last_pushed
        if (
            start >= self._log.terms.log_end
            or progress.reading_from is not None
            or progress.state is not ProgressState.REPLICATE
            or not progress.connected
        ):
            return
        if start < self._log.terms.log_start:
            self._snapshot(progress, out)
            return
        config = self.config
        room = config.max_in_flight_bytes - progress.in_flight_bytes
        wanted = min(config.feed_bytes_max, config.max_in_flight_bytes)
        if progress.in_flight and room < max(1, wanted // 4):
            return  # acknowledgements will make room for more than crumbs
        progress.reading_from = start
        progress.reading_ticks = 0
        out.append(ReadEntries(progress.node, start, max(1, min(room, wanted))))

    def entries_read(self, to: NodeId, entries: Sequence[Entry], size_bytes: int, out: list[Action]) -> None:
        """Entries that were read for an Append. Those that are no longer wanted, or no longer in the log, are dropped."""
        progress = self.progress.get(to)
        if progress is None or progress.reading_from is None:
            return
        terms = self._log.terms
        if not entries:
            progress.reading_from = None  # nothing was there to read; a tick asks again
            if progress.last_pushed < terms.log_start:
                self._snapshot(progress, out)
            return
        first, last = entries[0], entries[-1]
        if (
            first.base_offset != progress.reading_from
            or first.base_offset < terms.log_start
            or not terms.holds(last.end)
        ):
            return
        progress.reading_from = None
        prev = self._log.point(first.base_offset)
        mark = self._log.settled
        out.append(Send(to, self._message(prev, tuple(entries))))
        progress.pushed(last.next_offset, size_bytes, mark)
        self.send_next(progress, out)

    def _snapshot(self, progress: Progress, out: list[Action]) -> None:
        self.round += 1
        progress.start_snapshot(self.round)
        out.append(SendSnapshot(progress.node))

    def snapshot_sent(self, to: NodeId, at: EntryId, out: list[Action]) -> None:
        """The follower has the snapshot, or has it soon: ask whether it goes on from there."""
        progress = self.progress.get(to)
        if progress is None or progress.state is not ProgressState.SNAPSHOT:
            return
        self.round += 1
        known = self._log.terms.holds(at)
        progress.probe_at(at.offset if known else self._log.terms.log_start, self.round)
        if known:
            self.send_heartbeat(progress, out)

    def snapshot_failed(self, to: NodeId) -> None:
        """Ask the follower again, by the next tick, where it is; that decides whether a snapshot is still needed."""
        progress = self.progress.get(to)
        if progress is not None and progress.state is ProgressState.SNAPSHOT:
            self.round += 1
            progress.probe_at(self._log.terms.log_start, self.round)

    # -- answers ---------------------------------------------------------------------------------------------------

    def holds(self, progress: Progress, end: EntryId, round_: int) -> bool:
        """The follower holds its log up to `end` durably (S1.11). True when that is progress.

        The caller has checked that `end` is in this log, and sends on afterwards.
        """
        offset = end.offset
        progress.active = progress.answers = True
        is_probe_answer = progress.state is ProgressState.PROBE and round_ >= progress.probe_round
        agreed = max(offset, progress.last_pushed) if is_probe_answer else offset
        is_progress = offset > progress.ack_offset
        if is_progress:
            progress.acknowledged(offset)
            self._tracker.record(progress.slot, offset)
        if progress.state is not ProgressState.REPLICATE and (is_progress or is_probe_answer):
            progress.replicate_from(agreed, self.round)
        return is_progress

    def is_ours(self, progress: Progress, end: EntryId) -> bool:
        """Does an acknowledgement of `end` count: is it a prefix of this log (S0.13), or no news?"""
        terms, offset = self._log.terms, end.offset
        is_own = end.term == self._leadership.term and self._tracker.term_start < offset <= terms.log_end
        return is_own or offset <= progress.ack_offset or terms.holds(end)

    def step_back(self, progress: Progress, message: Reject, out: list[Action]) -> None:
        """The logs do not agree where we asked: go back to where they may (S1.14-S1.16)."""
        is_to_truncate = message.round == 0  # a refused Truncate; it matters only while its answer is awaited
        is_stale = (
            progress.state is not ProgressState.PROBE
            if is_to_truncate
            else message.round < progress.round_floor
        )
        if progress.state is ProgressState.SNAPSHOT or is_stale:
            return
        point = self._log.common_point(message.hint)
        if progress.lost_below(message.hint.offset):
            self._tracker.record(progress.slot, message.hint.offset)
        at_its_start = message.hint.offset <= message.log_start  # it cannot go back any further
        if point is None or point.offset < message.log_start or (at_its_start and point != message.hint):
            self._snapshot(progress, out)
        elif point == message.hint:
            self.round += 1
            progress.replicate_from(point.offset, self.round)
            self.send_next(progress, out)
        elif (
            progress.state is ProgressState.REPLICATE or point.offset < progress.last_pushed or is_to_truncate
        ):
            self.round += 1
            progress.probe_at(point.offset, self.round)
            self.send_heartbeat(progress, out)

    # -- time and connections --------------------------------------------------------------------------------------

    def send_heartbeat(self, progress: Progress, out: list[Action]) -> None:
        """Send an empty Append: it asks where the follower is, confirms leadership and tells the high watermark."""
        log = self._log
        if progress.state is ProgressState.SNAPSHOT:
            prev = log.terms.start
        elif progress.last_pushed < log.terms.log_start:
            self._snapshot(progress, out)
            return
        else:
            prev = log.point(progress.last_pushed)
        mark = log.settled
        out.append(Send(progress.node, self._message(prev)))
        progress.heartbeat_sent(self.round, mark)

    def send_heartbeats(self, out: list[Action]) -> None:
        """A sign of life to every follower (S1.19, S1.29)."""
        self.round += 1
        for progress in self.progress.values():
            if progress.connected:
                self.send_heartbeat(progress, out)

    def tick(self, awaited_round: int, out: list[Action]) -> None:
        """Ask again where an answer is overdue, and tell the last high watermark where nothing else did.

        `awaited_round`: an answer to a message of this round, or later, is waited for; 0 if none.
        """
        self.round += 1
        for progress in self.progress.values():
            if not progress.connected:
                continue
            progress.quiet_ticks += 1
            progress.reading_ticks += 1
            if progress.reading_ticks >= self.config.resend_ticks:
                progress.reading_from = (
                    None  # whoever was to read it has forgotten it; a late answer does no harm
                )
            if self._needs_heartbeat(progress, awaited_round):
                self.send_heartbeat(progress, out)
            self.send_next(progress, out)

    def _needs_heartbeat(self, progress: Progress, awaited_round: int) -> bool:
        is_overdue = progress.quiet_ticks >= self.config.resend_ticks
        if is_overdue and progress.round_echoed < awaited_round:
            return True
        if progress.state is ProgressState.SNAPSHOT:
            return False
        if progress.state is ProgressState.PROBE:
            return is_overdue
        mark = self._log.settled
        if progress.known_watermark < mark and progress.sent_watermark < mark:
            return True
        return is_overdue and (
            self._must_answer(progress) or not progress.is_settled(progress.last_pushed, mark)
        )

    def _must_answer(self, progress: Progress) -> bool:
        """Is an answer awaited for its own sake: the last one may be lost, or overtaken by an older one?

        Who is damaged is asked until it says that it no longer is. Of an empty log everybody has everything, so only the
        answer to the last question says whether the follower is damaged.
        """
        is_unheard = progress.connected and progress.round_echoed < progress.heartbeat_round
        return progress.damaged or (is_unheard and self._log.terms.log_end == 0)

    @property
    def needs_tick(self) -> bool:
        """Has a follower not everything, or does it not know so?"""
        log_end, mark = self._log.terms.log_end, self._log.settled
        return any(
            self._must_answer(progress) or not progress.is_settled(log_end, mark)
            for progress in self.progress.values()
        )

    def peer_connected(self, node: NodeId, out: list[Action]) -> None:
        """A connection to the follower is there (again): ask where it is."""
        progress = self.progress.get(node)
        if progress is not None:
            progress.connected, progress.answers = True, False
            if progress.state is not ProgressState.SNAPSHOT:
                self.round += 1
                self.send_heartbeat(progress, out)
            self.send_next(progress, out)

    def peer_lost(self, node: NodeId) -> None:
        """The connection broke: send nothing until it is there again."""
        progress = self.progress.get(node)
        if progress is not None:
            progress.connected = progress.answers = False
            progress.reading_from = None

    def followers(self) -> tuple[FollowerStatus, ...]:
        """For status pages."""
        return tuple(progress.status() for progress in self.progress.values())


def _size_of(data: object) -> int:
    return len(data) if isinstance(data, (bytes, bytearray, memoryview)) else OPAQUE_BYTES
