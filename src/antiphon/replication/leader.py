"""The leading half of a replica: one cursor per follower, and what it is fed. `LeaderCommit` is the other part of it.

It is made when leadership begins and thrown away when it ends, so nothing of an old leadership can be mistaken for the
new one's. An answer that was underway is recognised by its term (messages) or checked against the log (`fed`).

Appending and sending are two steps. An entry is part of the log as soon as it is appended; `send_appended` then pushes all
that was appended since, in one message, to every follower that has been pushed everything before, while the own disk syncs.
So a host can append each batch when it comes and send once for all of them. A follower that is behind is fed from the log.
The high watermark rises when the tracker says so (S0.34), whoever's acknowledgement it was. Every Append carries it (S0.26,
S1.18); when writes stop, a tick carries the last one (S0.28).

Lost messages: nothing is sent again blindly. When a follower makes no progress for `resend_ticks`, it gets an empty
Append whose preceding entry is the last that was pushed. If it has that, it answers with what is durable; if not, it
rejects, and its hint says from where to push again.
"""

from collections.abc import Sequence

from antiphon.invariants import invariant
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import Action, AppendLog, Feed, Send, SendSnapshot
from antiphon.replication.follower_cursor import CursorState, FollowerCursor, FollowerStatus
from antiphon.replication.leader_commit import LeaderCommit
from antiphon.replication.messages import Ack, Append, Entry, NodeId, Reject, Truncate, TruncateReply

OPAQUE_BYTES = 100  # taken for the size of an entry whose data is not bytes (in the simulator)


class LeaderSide(LeaderCommit):
    """State of leading in one term: the feeding, on top of what is committed."""

    # -- start -----------------------------------------------------------------------------------------------------

    def start(self, entry: Entry, heads: Sequence[tuple[NodeId, EntryId]], out: list[Action]) -> None:
        """Append the term-start entry (S1.36) and begin to feed the followers that have promised the term."""
        log = self._log
        if log.terms.end == EMPTY and not self._config.term_start_on_empty:
            for node, head in heads:
                self.add_follower(node, head, out)
            self._became_ready(out)
            return
        invariant(
            entry.term == self._term and entry.base_offset == log.terms.log_end,
            f"term-start entry {entry!r:.80} does not fit term {self._term} at {log.terms.log_end}",
        )
        out.append(log.append((entry,)))
        for node, head in heads:
            self.add_follower(node, head, out)

    def add_follower(self, node: NodeId, head: EntryId, out: list[Action]) -> None:
        """Begin to feed a follower (S0.38). A repeated request for one that is being fed changes nothing.

        Unless it says that the follower has less than it acknowledged: its replica was removed, or its disk replaced, and it
        has promised this term anew. Then it counts by what it acknowledges from now on. One that is silent is asked again.
        """
        if node == self._node:
            return
        cursor = self.cursors.get(node)
        if cursor is not None:
            if head.offset < cursor.ack_offset:
                self._start_anew(cursor, head, out)
            elif cursor.connected and not cursor.answers:
                self.peer_connected(node, out)  # what it was asked may have come before it promised this term
            return
        cursor = FollowerCursor(node, self.tracker.add(node))
        self.cursors[node] = cursor
        if node in self._forgotten:
            self._round += 1
            cursor.ack_floor = self._round
        point = self._log.common_point(head)
        if point is None:
            self._snapshot(cursor, out)
        elif point == head:
            cursor.replicate_from(point.offset, self._round)
            if self._log.terms.end == EMPTY:
                self._beat(cursor, out)  # no entry will come soon to make it a follower
            self._pump(cursor, out)
        else:
            self._round += 1
            cursor.probe_at(point.offset, self._round)
            out.append(Send(node, Truncate(self._shard, self._term, self._node, point)))

    def _start_anew(self, cursor: FollowerCursor, head: EntryId, out: list[Action]) -> None:
        """The follower has no more than `head`; what it acknowledged before does not count, nor what is underway of that."""
        self._round += 1
        cursor.ack_floor = self._round
        point = self._log.common_point(head)
        left = 0 if point is None else point.offset
        cursor.lost_below(left)
        self.tracker.record(cursor.slot, left)
        if point is None:
            self._snapshot(cursor, out)
        else:
            cursor.probe_at(left, self._round)
            self._beat(cursor, out)

    # -- writing ---------------------------------------------------------------------------------------------------

    def propose(self, batches: Sequence[tuple[int, object]], out: list[Action]) -> None:
        """Append client entries and push them to whoever has everything before them (S1.6)."""
        term = self._term
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
        entry = Entry(self._term, at, at + count, data)
        self._unsent.append(entry)
        self._unsent_bytes += _size_of(data)
        return log.append_one(entry)

    def append(self, entry: Entry, out: list[Action]) -> None:
        """Append an entry of the protocol's own, made for the log's end, and push it, with what was not sent before it."""
        out.append(self._log.append((entry,)))
        self._unsent.append(entry)
        self._unsent_bytes += OPAQUE_BYTES
        self.send_appended(out)

    def send_appended(self, out: list[Action]) -> None:
        """Push what was appended and not sent yet to whoever has everything before it; feed the others from the log."""
        if not self._unsent:
            return
        entries, size = tuple(self._unsent), self._unsent_bytes
        self._unsent, self._unsent_bytes = [], 0
        log, config = self._log, self._config
        base, at = entries[0].base_offset, entries[-1].next_offset
        # The log before it ends with an entry of this term, unless it was opened empty and without a term-start entry.
        prev_term = self._term if base else EMPTY.term
        fits = size <= config.feed_bytes_max or len(entries) == 1
        message = None
        for cursor in self.cursors.values():
            if (
                fits
                and cursor.last_pushed == base
                and cursor.state is CursorState.REPLICATE
                and cursor.feed_from is None
                and cursor.connected
                and cursor.has_room(size, config.max_in_flight_bytes)
            ):
                if message is None:
                    prev = EntryId(prev_term, base)
                    message = self._message(prev, entries)
                out.append(Send(cursor.node, message))
                cursor.pushed(at, size, log.high_watermark)
            else:
                self._pump(cursor, out)

    def _message(self, prev: EntryId, entries: tuple[Entry, ...] = ()) -> Append:
        """A message of now; under the live rule it tells the live set and the log's end, too (S3.26)."""
        log, live = self._log, self.live
        shard, term, node = self._shard, self._term, self._node
        if live is None:
            return Append(shard, term, node, prev, log.high_watermark, self._round, entries)
        return Append(
            shard,
            term,
            node,
            prev,
            log.high_watermark,
            self._round,
            entries,
            live.recorded,
            log.terms.log_end,
        )

    def _pump(self, cursor: FollowerCursor, out: list[Action]) -> None:
        """Ask for the next entries of a follower that is behind, unless they are being read or the window is full."""
        start = cursor.last_pushed
        if (
            start >= self._log.terms.log_end
            or cursor.feed_from is not None
            or cursor.state is not CursorState.REPLICATE
            or not cursor.connected
        ):
            return
        if start < self._log.terms.log_start:
            self._snapshot(cursor, out)
            return
        config = self._config
        room = config.max_in_flight_bytes - cursor.in_flight_bytes
        wanted = min(config.feed_bytes_max, config.max_in_flight_bytes)
        if cursor.in_flight and room < max(1, wanted // 4):
            return  # acknowledgements will make room for more than crumbs
        cursor.feed_from = start
        cursor.feed_ticks = 0
        out.append(Feed(cursor.node, start, max(1, min(room, wanted))))

    def fed(self, to: NodeId, entries: Sequence[Entry], size_bytes: int, out: list[Action]) -> None:
        """Entries that were read for a Feed. Those that are no longer wanted, or no longer in the log, are dropped."""
        cursor = self.cursors.get(to)
        if cursor is None or cursor.feed_from is None:
            return
        terms = self._log.terms
        if not entries:
            cursor.feed_from = None  # nothing was there to read; a tick asks again
            if cursor.last_pushed < terms.log_start:
                self._snapshot(cursor, out)
            return
        first, last = entries[0], entries[-1]
        if (
            first.base_offset != cursor.feed_from
            or first.base_offset < terms.log_start
            or not terms.holds(last.end)
        ):
            return
        cursor.feed_from = None
        prev = self._log.point(first.base_offset)
        mark = self._log.high_watermark
        out.append(Send(to, self._message(prev, tuple(entries))))
        cursor.pushed(last.next_offset, size_bytes, mark)
        self._pump(cursor, out)

    def _snapshot(self, cursor: FollowerCursor, out: list[Action]) -> None:
        self._round += 1
        cursor.start_snapshot(self._round)
        out.append(SendSnapshot(cursor.node))

    def snapshot_sent(self, to: NodeId, at: EntryId, out: list[Action]) -> None:
        """The follower has the snapshot, or has it soon: ask whether it goes on from there."""
        cursor = self.cursors.get(to)
        if cursor is None or cursor.state is not CursorState.SNAPSHOT:
            return
        self._round += 1
        known = self._log.terms.holds(at)
        cursor.probe_at(at.offset if known else self._log.terms.log_start, self._round)
        if known:
            self._beat(cursor, out)

    def snapshot_failed(self, to: NodeId) -> None:
        """Ask the follower again, by the next tick, where it is; that decides whether a snapshot is still needed."""
        cursor = self.cursors.get(to)
        if cursor is not None and cursor.state is CursorState.SNAPSHOT:
            self._round += 1
            cursor.probe_at(self._log.terms.log_start, self._round)

    # -- answers ---------------------------------------------------------------------------------------------------

    def persisted(self, out: list[Action]) -> None:
        """More of the own log is durable."""
        durable_end = self._log.durable_end
        self.tracker.acks[self._own_slot] = durable_end
        if durable_end > self._log.high_watermark:
            self._advance(out)
        if self._unsettled is not None:
            self._check_settled(out)

    def on_ack(self, sender: NodeId, message: Ack, out: list[Action]) -> None:
        """A follower holds a prefix durably (S1.11). It counts only if that prefix is this log's (S0.13)."""
        cursor = self.cursors.get(sender)
        if cursor is None or message.round < cursor.ack_floor:
            return
        if self._acknowledged(cursor, message.end, message.round, out):
            cursor.accepted(message.round)
            cursor.damaged = message.damaged
            if (
                message.high_watermark > cursor.known_watermark
            ):  # of this log, not of one that it may have given up
                cursor.known_watermark = min(message.high_watermark, cursor.ack_offset)
            if self._reads.is_waiting:
                self._confirm_reads(out)

    def on_truncate_reply(self, sender: NodeId, message: TruncateReply, out: list[Action]) -> None:
        """The follower has cut its log to a prefix of this one."""
        cursor = self.cursors.get(sender)
        if cursor is not None:
            is_answer = message.head.offset == cursor.last_pushed
            self._acknowledged(cursor, message.head, cursor.probe_round if is_answer else 0, out)

    def _acknowledged(self, cursor: FollowerCursor, end: EntryId, round_: int, out: list[Action]) -> bool:
        terms = self._log.terms
        offset = end.offset
        is_own = end.term == self._term and self.tracker.term_start < offset <= terms.log_end
        if not is_own and offset > cursor.ack_offset and not terms.holds(end):
            return False
        cursor.active = cursor.answers = True
        is_probe_answer = cursor.state is CursorState.PROBE and round_ >= cursor.probe_round
        agreed = max(offset, cursor.last_pushed) if is_probe_answer else offset
        is_progress = offset > cursor.ack_offset
        if is_progress:
            cursor.acknowledged(offset)
            self.tracker.record(cursor.slot, offset)
        if cursor.state is not CursorState.REPLICATE and (is_progress or is_probe_answer):
            cursor.replicate_from(agreed, self._round)
        if is_progress and offset > self._log.high_watermark:
            self._advance(out)
        if self._unsettled is not None:
            self._check_settled(out)
        if self.live is not None:
            self._heard_live(cursor, out)
        self._pump(cursor, out)
        return True

    def on_reject(self, sender: NodeId, message: Reject, out: list[Action]) -> None:
        """The logs do not agree where we asked: go back to where they may (S1.14-S1.16)."""
        cursor = self.cursors.get(sender)
        if cursor is None:
            return
        cursor.active = cursor.answers = True
        if message.round > cursor.round_echoed:
            cursor.round_echoed = message.round
            if self._reads.is_waiting:
                self._confirm_reads(out)
        is_to_truncate = message.round == 0  # a refused Truncate; it matters only while its answer is awaited
        is_stale = (
            cursor.state is not CursorState.PROBE if is_to_truncate else message.round < cursor.round_floor
        )
        if cursor.state is CursorState.SNAPSHOT or is_stale:
            return
        point = self._log.common_point(message.hint)
        if cursor.lost_below(message.hint.offset):
            self.tracker.record(cursor.slot, message.hint.offset)
        at_its_start = message.hint.offset <= message.log_start  # it cannot go back any further
        if point is None or point.offset < message.log_start or (at_its_start and point != message.hint):
            self._snapshot(cursor, out)
        elif point == message.hint:
            self._round += 1
            cursor.replicate_from(point.offset, self._round)
            self._pump(cursor, out)
        elif cursor.state is CursorState.REPLICATE or point.offset < cursor.last_pushed or is_to_truncate:
            self._round += 1
            cursor.probe_at(point.offset, self._round)
            self._beat(cursor, out)

    # -- time and connections --------------------------------------------------------------------------------------

    def _beat(self, cursor: FollowerCursor, out: list[Action]) -> None:
        """Send an empty Append: it asks where the follower is, confirms leadership and tells the high watermark."""
        log = self._log
        if cursor.state is CursorState.SNAPSHOT:
            prev = log.terms.start
        elif cursor.last_pushed < log.terms.log_start:
            self._snapshot(cursor, out)
            return
        else:
            prev = log.point(cursor.last_pushed)
        mark = log.high_watermark
        out.append(Send(cursor.node, self._message(prev)))
        cursor.beat(self._round, mark)

    def heartbeat(self, out: list[Action]) -> None:
        """A sign of life to every follower (S1.19, S1.29)."""
        self._round += 1
        for cursor in self.cursors.values():
            if cursor.connected:
                self._beat(cursor, out)

    def tick(self, out: list[Action]) -> None:
        """Ask again where an answer is overdue, and tell the last high watermark where nothing else did."""
        self._round += 1
        for cursor in self.cursors.values():
            if not cursor.connected:
                continue
            cursor.quiet_ticks += 1
            cursor.feed_ticks += 1
            if cursor.feed_ticks >= self._config.resend_ticks:
                cursor.feed_from = None  # whoever was to read it has forgotten it; a late answer does no harm
            if self._needs_beat(cursor):
                self._beat(cursor, out)
            self._pump(cursor, out)
        self._tick_live(out)

    def _needs_beat(self, cursor: FollowerCursor) -> bool:
        is_overdue = cursor.quiet_ticks >= self._config.resend_ticks
        if is_overdue and self._reads.is_waiting and cursor.round_echoed < self._reads.round:
            return True
        if cursor.state is CursorState.SNAPSHOT:
            return False
        if cursor.state is CursorState.PROBE:
            return is_overdue
        mark = self._log.high_watermark
        if cursor.known_watermark < mark and cursor.sent_watermark < mark:
            return True
        # Who is damaged is asked until it says that it no longer is: the answer may be lost, or overtaken by an older one.
        return is_overdue and (cursor.damaged or not cursor.is_settled(cursor.last_pushed, mark))

    @property
    def needs_tick(self) -> bool:
        """Is anything outstanding that only time can mend?"""
        if self._reads.is_waiting:
            return True
        log_end, mark = self._log.terms.log_end, self._log.high_watermark
        if any(cursor.damaged or not cursor.is_settled(log_end, mark) for cursor in self.cursors.values()):
            return True
        live = self.live
        if live is None:
            return False
        concerned = {*self.members.voters, *live.counting}  # a learner is not to become live
        return live.needs_tick(
            [
                node
                for node, cursor in self.cursors.items()
                if node in concerned and cursor.connected and cursor.ack_offset >= log_end
            ]
        )

    def peer_connected(self, node: NodeId, out: list[Action]) -> None:
        """A connection to the follower is there (again): ask where it is."""
        cursor = self.cursors.get(node)
        if cursor is not None:
            cursor.connected, cursor.answers = True, False
            if cursor.state is not CursorState.SNAPSHOT:
                self._round += 1
                self._beat(cursor, out)
            self._pump(cursor, out)

    def peer_lost(self, node: NodeId) -> None:
        """The connection broke: send nothing until it is there again."""
        cursor = self.cursors.get(node)
        if cursor is not None:
            cursor.connected = cursor.answers = False
            cursor.feed_from = None

    def followers(self) -> tuple[FollowerStatus, ...]:
        """For status pages."""
        return tuple(cursor.status() for cursor in self.cursors.values())


def _size_of(data: object) -> int:
    return len(data) if isinstance(data, (bytes, bytearray, memoryview)) else OPAQUE_BYTES
