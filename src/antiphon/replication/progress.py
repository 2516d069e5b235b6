"""The leader's progress in one follower's log (S0.16): what was pushed, what was acknowledged, and how to go on.

Three states, each left only by the methods here:

* REPLICATE: the follower's log is believed to agree up to `last_pushed`; entries are pushed before earlier ones are
  acknowledged, within a window of bytes (at least one push may always be outstanding).
* PROBE: it is not known where the logs agree; one question at a time, asked again by ticks.
* SNAPSHOT: the leader's log no longer reaches back to where the follower's ends; a snapshot is on its way.

A message that was lost shows itself by a `Reject` of a later one, which names the point to go back to. Messages still
underway from before the step back are rejected too; they carry an older round than `round_floor`, and are ignored.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

from antiphon.replication.live_set import MemberProgress
from antiphon.replication.messages import NodeId


class ProgressState(StrEnum):
    """How the leader treats one follower."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class FollowerStatus(NamedTuple):
    """A follower as its leader sees it, for status pages. Offsets are exclusive ends."""

    node: NodeId
    ack_offset: int
    last_pushed: int
    state: ProgressState
    connected: bool
    high_watermark: int = 0  # what it is known to know
    answers: bool = True  # has it said anything in this term since its connection is there?
    damaged: bool = False  # its promise would be no vote


class Push(msgspec.Struct, frozen=True):
    """One message with entries that is underway."""

    end: int
    size_bytes: int
    high_watermark: int  # what the follower knows once it has acknowledged `end`


@dataclass(slots=True, eq=False)
class Progress:
    """Position of one follower, as known to its leader."""

    node: NodeId
    slot: int  # in the QuorumAckTracker
    state: ProgressState = ProgressState.PROBE
    last_pushed: int = 0  # PROBE: the point that is asked about
    ack_offset: int = 0
    ack_floor: int = 0  # acknowledgements of earlier rounds are of a replica that is no more
    in_flight: deque[Push] = field(default_factory=deque)
    in_flight_bytes: int = 0
    reading_from: int | None = None  # a ReadEntries is being read from here
    reading_ticks: int = 0
    round_floor: int = 0  # rejections of earlier rounds are answers to what no longer matters
    probe_round: int = 0
    round_echoed: int = 0
    bound_until_us: int = 0  # by the leader's clock: it helps nobody else to lead before then
    heartbeat_round: int = 0  # round of the last empty Append, and the watermark that it taught
    heartbeat_watermark: int = 0
    sent_watermark: int = 0  # carried by the last message
    known_watermark: int = 0  # proved to be known to the follower
    damaged: bool = False  # by its own word
    quiet_ticks: int = 0  # since the last progress or question
    connected: bool = True
    active: bool = True  # heard from since the leader last checked
    answers: bool = True  # heard from in this term on this connection; it promised the term when it was added
    wants_term: bool = False  # it is damaged, and votes for nobody before a later term has committed an entry

    def probe_at(self, offset: int, round_: int) -> None:
        """Ask about `offset` next; whatever was underway no longer counts."""
        self.state = ProgressState.PROBE
        self._rewind(offset, round_)
        self.probe_round = round_

    def replicate_from(self, offset: int, round_: int) -> None:
        """The logs agree up to `offset`: push from there. `round_` is the first round sent from now on."""
        self.state = ProgressState.REPLICATE
        self._rewind(offset, round_)

    def start_snapshot(self, round_: int) -> None:
        """The follower gets a snapshot; nothing is pushed until it has it."""
        self.state = ProgressState.SNAPSHOT
        self._rewind(self.last_pushed, round_)

    def _rewind(self, offset: int, round_: int) -> None:
        self.last_pushed = offset
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.reading_from = None
        self.round_floor = round_
        # A heartbeat from before the step back may have been about more than the next answers prove
        self.heartbeat_watermark = 0
        self.quiet_ticks = 0

    def lost_below(self, offset: int) -> bool:
        """The follower has less than it acknowledged (its disk lost data): believe it. True if so."""
        if offset >= self.ack_offset:
            return False
        self.ack_offset = offset
        self.known_watermark = min(self.known_watermark, offset)
        return True

    def pushed(self, end: int, size_bytes: int, high_watermark: int) -> None:
        """Entries up to `end` were sent in a message that carries `high_watermark`."""
        taught = min(high_watermark, end)
        self.in_flight.append(Push(end, size_bytes, taught))
        self.in_flight_bytes += size_bytes
        self.last_pushed = end
        self.sent_watermark = high_watermark

    def heartbeat_sent(self, round_: int, high_watermark: int) -> None:
        """An empty Append was sent; it teaches no more than what the follower has verified by then."""
        self.heartbeat_round = round_
        self.heartbeat_watermark = min(high_watermark, self.last_pushed)
        self.sent_watermark = high_watermark
        self.quiet_ticks = 0

    def acknowledged(self, end: int) -> None:
        """The follower holds everything up to `end` durably (S0.20); duplicates and late ones change nothing."""
        if end <= self.ack_offset:
            return
        self.ack_offset = end
        self.quiet_ticks = 0
        if end > self.last_pushed:  # an answer to what was pushed before a step back
            self.last_pushed = end
            self.reading_from = None
        in_flight = self.in_flight
        while in_flight and in_flight[0].end <= end:
            push = in_flight.popleft()
            self.in_flight_bytes -= push.size_bytes
            if push.high_watermark > self.known_watermark:
                self.known_watermark = push.high_watermark

    def accepted(self, round_: int) -> None:
        """The follower accepted a message of `round_`: it knows the watermark that came with it."""
        if round_ > self.round_echoed:
            self.round_echoed = round_
        if round_ >= self.heartbeat_round and self.heartbeat_watermark > self.known_watermark:
            self.known_watermark = self.heartbeat_watermark

    def has_room(self, size_bytes: int, max_bytes: int) -> bool:
        """May a push of `size_bytes` go out? One always may, however large."""
        return not self.in_flight or self.in_flight_bytes + size_bytes <= max_bytes

    def is_settled(self, log_end: int, high_watermark: int) -> bool:
        """Nothing to do for this follower until something happens: it has everything and knows so."""
        if not self.connected or self.state is ProgressState.SNAPSHOT:
            return True
        return (
            self.state is ProgressState.REPLICATE
            and self.ack_offset >= log_end
            and self.known_watermark >= high_watermark
        )

    def status(self) -> FollowerStatus:
        """For status pages."""
        return FollowerStatus(
            self.node,
            self.ack_offset,
            self.last_pushed,
            self.state,
            self.connected,
            self.known_watermark,
            self.answers,
            self.damaged,
        )

    def as_member(self) -> MemberProgress:
        """For the live set."""
        return MemberProgress(self.node, self.ack_offset, self.connected, self.round_echoed)
