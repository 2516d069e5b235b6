"""The sending half of a replica where every replica writes: one relay per peer (S4.15, S4.19).

A peer subscribes with its vector clock. Its relay finds the place in the local log up to which the peer has everything (a
binary search in the index), reads the log from there for ever, leaves out what the peer has or gets first-hand, and passes
the rest on under its own origin and LSN (S4.24). Only what is durable here is relayed: after a crash nobody else can have
an entry that its origin has lost and would number again.

What is underway is bounded by a window of bytes; at least one message always may be. An acknowledgement of the last message
that does not cover what was sent shows that something was lost, and the relay goes back to what was acknowledged. When no
acknowledgement comes, ticks ask for one.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from antiphon.replication.messages import NodeId, ShardId
from antiphon.replication.multi_messages import Relay, RelayAck, RelayBase, Subscribe
from antiphon.replication.multi_writer_actions import MultiAction, ReadForRelay, Send
from antiphon.replication.multi_writer_config import MultiWriterConfig
from antiphon.replication.origin_history import History, Mark, OriginEntry
from antiphon.replication.origin_log import OriginLog
from antiphon.replication.vclock import LOCAL, NOTHING, ORIGINS_MAX, Vclock, join, lag, meet

TERM: Final = 1  # there are no elections, so there is one term


class Split(Exception):  # noqa: N818 - a finding, caught one floor up
    """Two histories of `origin` differ at `lsn` or before."""

    def __init__(self, origin: int, lsn: int) -> None:
        super().__init__(f"histories of origin {origin} differ at {lsn} or before")
        self.origin = origin
        self.lsn = lsn


class RelayCursor:
    """How far one peer has been sent this log."""

    __slots__ = (
        "acked", "asked", "connected", "halted", "has", "history", "in_flight", "in_flight_bytes",
        "newest_session", "node", "owes_hint", "quiet_ticks", "reading", "seq", "session", "skip", "stalled",
    )  # fmt: skip

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.connected = True
        self.halted = False  # a split brain was found on this link
        self.session = 0  # 0: the peer has not subscribed
        self.newest_session = 0  # on this connection
        self.history = History()  # of this log, where the relay reads
        self.has = History().lsns  # of each origin: what the peer has, once it has all that was sent
        self.skip: frozenset[int] = frozenset()
        self.asked: Vclock = NOTHING  # what the peer had when it subscribed, durable or not
        self.acked: Vclock = NOTHING  # what the peer has durably
        self.seq = 0
        self.in_flight: deque[tuple[int, int]] = deque()  # (seq, bytes)
        self.in_flight_bytes = 0
        self.reading = False
        self.stalled = False  # the log could not be read
        self.owes_hint = False  # the peer does not know how far this replica has come with what is left out
        self.quiet_ticks = 0

    def begin(self, mark: Mark, clock: Vclock) -> None:
        """Read from `mark` for a peer that has `clock`."""
        self.history = History(mark)
        self.has = History(Mark(0, clock, ())).lsns
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.reading = self.stalled = self.owes_hint = False
        self.quiet_ticks = 0

    def knows(self, clock: Vclock) -> None:
        """The peer has `clock` durably."""
        if clock == self.acked:
            return
        self.acked = join(self.acked, clock)
        has = self.has
        for origin, lsn in enumerate(clock):
            if lsn > has[origin]:
                has[origin] = lsn

    @property
    def waits(self) -> bool:
        """Is anything outstanding that only a tick can mend?"""
        return self.connected and self.session > 0 and (bool(self.in_flight) or self.stalled)


class RelaySide:
    """The relays of one replica."""

    def __init__(self, shard: ShardId, log: OriginLog, config: MultiWriterConfig) -> None:
        self._shard = shard
        self._log = log
        self._config = config
        self.cursors: dict[NodeId, RelayCursor] = {}
        self._origins: dict[NodeId, int] = {}

    # -- peers --------------------------------------------------------------------------------------------------

    def set_peers(self, origins: Mapping[NodeId, int]) -> None:
        """These are the other members now, with their origins (0: it has none yet)."""
        self._origins = dict(origins)
        self.cursors = {node: self.cursors.get(node) or RelayCursor(node) for node in origins}

    def peer_connected(self, node: NodeId, out: list[MultiAction]) -> None:
        """A new connection: whatever was underway on an old one may be lost."""
        cursor = self.cursors.get(node)
        if cursor is None:
            return
        cursor.connected = True
        # It may have started anew unnoticed, and its clock, which numbers sessions, been set back
        cursor.newest_session = 0
        if cursor.session and self._go_back(cursor, out):
            self._send(cursor, (), (), 0, out)
            self.send_next(cursor, out)

    def peer_lost(self, node: NodeId) -> None:
        """Nothing is sent there until `peer_connected`."""
        cursor = self.cursors.get(node)
        if cursor is not None:
            cursor.connected = False
            cursor.newest_session = 0

    def halt(self, node: NodeId) -> None:
        """Nothing more is relayed to this peer."""
        cursor = self.cursors.get(node)
        if cursor is not None:
            cursor.halted = True
            cursor.session = 0

    def resume(self, node: NodeId) -> None:
        """Try a halted link again."""
        self.cursors[node].halted = False

    # -- messages -----------------------------------------------------------------------------------------------

    def on_subscribe(self, sender: NodeId, message: Subscribe, out: list[MultiAction]) -> None:
        """A peer wants everything beyond its clock. Raises `Split` where its history is another one."""
        cursor = self.cursors[sender]
        if message.session < cursor.newest_session:
            return  # overtaken by the one that took its place
        cursor.newest_session = message.session
        self._compare(message)
        cursor.acked = meet(cursor.acked, message.vclock)  # its disk may be another one
        mark = self._log.index.covered_by(message.vclock)
        if mark is None:
            self._send_base(cursor, message.session, out)
            return
        if cursor.session != message.session:
            cursor.session, cursor.seq = message.session, 0
        cursor.skip = frozenset(message.skip)
        cursor.asked = message.vclock
        cursor.begin(mark, message.vclock)
        self._send(cursor, (), (), 0, out)
        self.send_next(cursor, out)

    def _compare(self, message: Subscribe) -> None:
        """Equal LSNs must have equal chains; where one is behind, the first entry that it gets tells."""
        history = self._log.history
        for origin in range(LOCAL + 1, min(len(message.vclock), len(message.chains), ORIGINS_MAX + 1)):
            lsn = message.vclock[origin]
            if lsn and lsn == history.lsns[origin] and message.chains[origin] != history.chains[origin]:
                raise Split(origin, lsn)

    def on_ack(self, sender: NodeId, message: RelayAck, out: list[MultiAction]) -> None:
        """The peer has more, durably."""
        cursor = self.cursors[sender]
        if message.session != cursor.session:
            return
        cursor.knows(message.vclock)
        cursor.quiet_ticks = 0
        in_flight = cursor.in_flight
        while in_flight and in_flight[0][0] <= message.seq:
            cursor.in_flight_bytes -= in_flight.popleft()[1]
        if not in_flight and message.seq == cursor.seq and not _covers_replicated(cursor.acked, cursor.has):
            self._go_back(cursor, out)
        self.send_next(cursor, out)

    def heard(self, sender: NodeId, clock: Vclock) -> None:
        """A peer said what it has durably."""
        self.cursors[sender].knows(clock)

    def _go_back(self, cursor: RelayCursor, out: list[MultiAction]) -> bool:
        """Begin again from what the peer had when it subscribed, and acknowledged since.

        False if that was trimmed, which the peer is told.
        """
        clock = join(cursor.asked, cursor.acked)
        mark = self._log.index.covered_by(clock)
        if mark is None:
            self._send_base(cursor, cursor.session, out)
            return False
        cursor.begin(mark, clock)
        return True

    def _send_base(self, cursor: RelayCursor, session: int, out: list[MultiAction]) -> None:
        base = self._log.index.base
        cursor.session = 0
        out.append(Send(cursor.node, RelayBase(self._shard, TERM, session, base.clock, base.chains)))

    def rebase(self, out: list[MultiAction]) -> None:
        """The log begins elsewhere now: who was being sent entries from before that is sent those from there, or told."""
        base = self._log.index.base
        for cursor in self.cursors.values():
            if cursor.session and cursor.history.offset <= base.offset and self._go_back(cursor, out):
                self._send(cursor, (), (), 0, out)
                self.send_next(cursor, out)

    # -- sending ------------------------------------------------------------------------------------------------

    def send_to_all(self, out: list[MultiAction]) -> None:
        """More of the log is durable."""
        for cursor in self.cursors.values():
            self.send_next(cursor, out)

    def send_next(self, cursor: RelayCursor, out: list[MultiAction]) -> None:
        """Ask for what is to be sent next, if anything may be."""
        at, end = cursor.history.offset, self._log.durable_end
        if not cursor.session or not cursor.connected or cursor.reading:
            return
        if at >= end:
            if cursor.owes_hint and not cursor.in_flight:
                self._send(cursor, (), (), 0, out)
            return
        room = self._config.window_bytes - cursor.in_flight_bytes
        if room > 0 or not cursor.in_flight:
            cursor.reading = True
            out.append(ReadForRelay(cursor.node, at, end, max(1, min(room, self._config.feed_bytes_max))))

    def entries_read(
        self, to: NodeId, from_offset: int, entries: Sequence[OriginEntry], out: list[MultiAction]
    ) -> None:
        """What a `ReadForRelay` asked for, or nothing when it cannot be read now; any time later."""
        cursor = self.cursors.get(to)
        if cursor is None or not cursor.reading or from_offset != cursor.history.offset:
            return
        cursor.reading = False
        cursor.stalled = not entries
        if not entries or not cursor.session:
            return
        chosen: list[OriginEntry] = []
        chains: list[int] = []
        size_bytes = 0
        history, has = cursor.history, cursor.has
        for entry in entries:
            origin, before = entry.origin, history.chains[entry.origin]
            history.take(entry)
            if origin == LOCAL:
                continue
            if entry.lsn <= has[origin]:
                # The peer has it, and may trim it only when it knows that this replica has it too. What the peer wrote
                # itself it sends here, and hears of that by the acknowledgement.
                cursor.owes_hint |= origin != self._origins[to]
                continue
            if origin in cursor.skip:
                cursor.owes_hint = True
                continue
            has[origin] = entry.lsn
            chosen.append(entry)
            chains.append(before)
            size_bytes += entry.size_bytes
        if chosen:
            self._send(cursor, tuple(chains), tuple(chosen), size_bytes, out)
        self.send_next(cursor, out)

    def _send(
        self,
        cursor: RelayCursor,
        chains: tuple[int, ...],
        entries: tuple[OriginEntry, ...],
        size_bytes: int,
        out: list[MultiAction],
    ) -> None:
        cursor.seq += 1
        cursor.in_flight.append((cursor.seq, size_bytes))
        cursor.in_flight_bytes += size_bytes
        cursor.owes_hint = False
        message = Relay(
            self._shard, TERM, cursor.session, cursor.seq, self._log.durable_clock, chains, entries
        )
        out.append(Send(cursor.node, message))

    # -- time ---------------------------------------------------------------------------------------------------

    @property
    def needs_tick(self) -> bool:
        """Does any peer owe an answer?"""
        return any(cursor.waits for cursor in self.cursors.values())

    def tick(self, out: list[MultiAction]) -> None:
        """Ask again where no acknowledgement came."""
        for cursor in self.cursors.values():
            if not cursor.waits:
                continue
            cursor.quiet_ticks += 1
            if cursor.quiet_ticks < self._config.resend_ticks:
                continue
            cursor.quiet_ticks = 0
            if cursor.stalled:
                cursor.stalled = False
                self.send_next(cursor, out)
            if cursor.in_flight:
                if cursor.in_flight[-1][1] == 0:  # the last one was a question too: the same again
                    cursor.in_flight.pop()
                    cursor.seq -= 1
                self._send(cursor, (), (), 0, out)

    # -- what is known of the others ----------------------------------------------------------------------------

    def stable_clock(self) -> Vclock:
        """What every member has durably, as far as they said."""
        clock = self._log.durable_clock
        for cursor in self.cursors.values():
            clock = meet(clock, cursor.acked)
        return clock

    def has_all_that_is_acked(self) -> bool:
        """Is everything here, durably, that a peer was last heard to have?"""
        clock = self._log.durable_clock
        return all(_covers_replicated(clock, cursor.acked) for cursor in self.cursors.values())

    def common_offset(self) -> int:
        """Everything in the log before this offset is durable at every member: it may be trimmed."""
        stable = self.stable_clock()
        if stable == self._log.durable_clock:
            return self._log.durable_end
        mark = self._log.index.covered_by(stable)
        return self._log.log_start if mark is None else mark.offset

    def lags(self) -> Mapping[NodeId, int]:
        """How many entries each peer lacks of those that are durable here (S4.23)."""
        clock = self._log.durable_clock
        return {node: lag(clock, cursor.acked) for node, cursor in self.cursors.items()}


def _covers_replicated(clock: Vclock, lsns: Sequence[int]) -> bool:
    """Either may be the shorter one: what is not named is 0."""
    known = len(clock)
    return not any(lsns[known:]) and all(
        have >= wanted for have, wanted in zip(clock[1:], lsns[1:], strict=False)
    )
