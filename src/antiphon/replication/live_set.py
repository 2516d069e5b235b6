"""The live replica set of one leadership: who has to hold an entry before it is committed (S3.24, S3.28, S3.29).

Under the live rule an entry is committed when *every* live member holds it, and any one live member may lead next. So
the set that counts here must never be smaller than the set that elections go by, which is the one that the coordinator
has recorded. The leader cannot know at every moment what is recorded; it knows what may be: the record that it heard of
last, and whatever it has proposed since on top of that. All of these together count:

    counting = recorded + offered + joining

A member that is to go stays in `counting` until the record without it is known (the gap in the documents: a high
watermark that passes a member that can still be elected loses what was acknowledged). A member that is to come counts
before it is proposed, so it has everything committed from the moment when it may be elected.

What a member that the leader replicates to is, and what changes that:

| standing | counts | leaves when |
|---|---|---|
| OUT | no | it has what is committed: OFFERED · it trails by few entries: JOINING |
| JOINING | yes | it has what is committed: OFFERED · it lags or is cut off: OUT |
| OFFERED | yes | a record names it: LIVE · a record does not: OUT, and for a while not offered again |
| LIVE | yes | it lags or is cut off: LEAVING · a record does not name it: OUT |
| LEAVING | yes | it catches up: LIVE · a record does not name it: OUT |

JOINING exists so that a member can catch up with a leader that is busy: the high watermark waits for it, for the few
entries that it is behind. Who fails to use that is not waited for again before it has caught up by itself. An offer is
not taken back, since it may have been recorded by then; the record tells.

`version` numbers the records. A proposal names the one that it goes on from, and is recorded only if that is still the
newest (compare-and-set), so that at most one of a leader's proposals on top of a record is ever taken.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from antiphon.invariants import invariant
from antiphon.replication.actions import ProposeLiveSet
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.messages import NodeId


class Standing(StrEnum):
    """What a member that the leader replicates to is to the live set."""

    OUT = "out"
    JOINING = "joining"
    OFFERED = "offered"
    LIVE = "live"
    LEAVING = "leaving"


class MemberProgress(NamedTuple):
    """How far a member is, as its leader knows. Offsets are exclusive ends."""

    node: NodeId
    durable_end: int
    connected: bool
    round_echoed: int = 0  # the latest question that it has answered


class Lag:
    """How long a member has been behind, in ticks.

    What was written or asked within the last tick is underway, and no sign of anything.
    """

    __slots__ = ("_end", "_round", "_seen_end", "far", "late")

    def __init__(self) -> None:
        self.far = 0  # for so long it has been trailing by too many entries
        self.late = 0  # for so long it has not done all that there was to do at some moment, which is
        self._end = 0  # to hold the log up to here,
        self._round = 0  # and to answer this
        self._seen_end = 0  # the log's end a tick ago

    def has_caught_up(self, progress: MemberProgress) -> bool:
        """Is all that was to be done done?"""
        return (
            progress.connected and progress.durable_end >= self._end and progress.round_echoed >= self._round
        )

    def tick(self, progress: MemberProgress, log_end: int, round_: int, entries_max: int) -> int:
        """One tick passed; for how long it has been lagging by now."""
        self.far = self.far + 1 if self._seen_end - progress.durable_end > entries_max else 0
        if self.has_caught_up(progress):
            self.late, self._end, self._round = 0, log_end, round_
        if not (progress.connected and progress.durable_end >= log_end and progress.round_echoed >= round_):
            self.late += 1
        self._seen_end = log_end
        return max(self.far, self.late)


class LiveSet:
    """The live set as the leader `own` sees it. Whoever changes it asks for `proposal` afterwards."""

    def __init__(self, own: NodeId, version: int, recorded: Iterable[NodeId], config: ReplicaConfig) -> None:
        self.version = version
        self.recorded = tuple(sorted(recorded))
        invariant(own in self.recorded, f"leader {own} is not in the live set {self.recorded}")
        self._own = own
        self.config = config
        self._standing: dict[NodeId, Standing] = dict.fromkeys(self.recorded, Standing.LIVE)
        self._lag: dict[NodeId, Lag] = {}
        self._too_slow: set[NodeId] = set()  # failed to catch up while the high watermark waited for them
        self._refused: dict[NodeId, int] = {}  # ticks until they may be offered again
        self._proposed: tuple[NodeId, ...] | None = None
        self._quiet_ticks = 0  # since the proposal was made
        self._unasked_ticks = 0  # since such voters were asked where they are

    @property
    def counting(self) -> tuple[NodeId, ...]:
        """Who has to hold an entry before it is committed."""
        return tuple(sorted(self._standing))

    @property
    def is_enough(self) -> bool:
        """May anything be committed (`min_live`)?"""
        return len(self.recorded) >= self.config.min_live

    def standing(self, node: NodeId) -> Standing:
        """What `node` is to the set."""
        return self._standing.get(node, Standing.OUT)

    # -- events ------------------------------------------------------------------------------------------------------

    def heard(self, progress: MemberProgress, committed: int, log_end: int) -> bool:
        """A voter has acknowledged something. True when `counting` has grown.

        It must be a member that may be elected (no learner, nobody on its way out), and connected. `committed` is an end of
        all that was ever committed, by earlier leaders too: it may be beyond the high watermark.
        """
        node, held = progress.node, progress.durable_end
        standing = self.standing(node)
        if standing is Standing.LIVE or standing is Standing.OFFERED:
            return False
        near = log_end - held <= self.config.live_lag_entries_max
        if standing is Standing.LEAVING:
            if near and self._lag_of(node).has_caught_up(progress):
                self._be(node, Standing.LIVE)
            return False
        if node in self._refused:
            return False
        if held >= committed:
            self._too_slow.discard(node)
            self._be(node, Standing.OFFERED)
        elif near and node not in self._too_slow:
            self._be(node, Standing.JOINING)
        return standing is Standing.OUT and node in self._standing

    def tick(self, members: Iterable[MemberProgress], log_end: int, round_: int) -> bool:
        """One tick passed. True when `counting` has shrunk.

        Args:
            members: all that count but the leader.
            log_end: the leader's.
            round_: that reads wait for an answer to, 0 if none.
        """
        shrunk = False
        config = self.config
        for progress in members:
            node = progress.node
            lag = self._lag_of(node).tick(progress, log_end, round_, config.live_lag_entries_max)
            standing = self.standing(node)
            if standing is Standing.JOINING and (lag >= config.live_lag_ticks or not progress.connected):
                self._be(node, Standing.OUT)
                self._too_slow.add(node)
                shrunk = True
            elif standing is Standing.LIVE and lag >= config.live_lag_ticks:
                self._be(node, Standing.LEAVING)
        self._refused = {node: ticks - 1 for node, ticks in self._refused.items() if ticks > 1}
        self._quiet_ticks += 1
        self._unasked_ticks += 1
        return shrunk

    def record(self, version: int, live: Collection[NodeId]) -> bool:
        """A newer record is known: it counts from now on. False if it is not newer.

        Only what may have been proposed on top of the last one, or less, can have been recorded.
        """
        if version <= self.version:
            return False
        counting = set(self._standing)
        invariant(
            counting.issuperset(live),
            f"live set {sorted(live)} was recorded as {version}, but {sorted(counting)} counted since {self.version}",
        )
        self.version, self.recorded, self._proposed = version, tuple(sorted(live)), None
        for node in sorted(counting):
            standing = self._standing[node]
            if node in live:
                self._be(node, Standing.LEAVING if standing is Standing.LEAVING else Standing.LIVE)
            elif standing is not Standing.JOINING:
                self._be(node, Standing.OUT)
                if standing is Standing.OFFERED:
                    self._refused[node] = self.config.live_lag_ticks
        return True

    def proposal(self, eligible: Collection[NodeId]) -> ProposeLiveSet | None:
        """What the coordinator is to be asked for, if anything, and if it was not asked lately.

        `eligible` are the voters. Fewer than `min_live` are never proposed: nothing could be committed with them either, and
        whoever is struck off could not be elected.
        """
        wanted = self._wanted(eligible)
        if wanted == self.recorded:
            self._proposed = None
            return None
        if wanted == self._proposed and self._quiet_ticks < self.config.resend_ticks:
            return None
        self._proposed, self._quiet_ticks = wanted, 0
        return ProposeLiveSet(self.version, wanted)

    def _wanted(self, eligible: Collection[NodeId]) -> tuple[NodeId, ...]:
        standings = self._standing
        offered = [node for node in standings if standings[node] is Standing.OFFERED]
        staying = [node for node in self.recorded if node == self._own or node in eligible]
        kept = [node for node in staying if node == self._own or standings[node] is Standing.LIVE]
        for node in staying:
            if len(kept) + len(offered) < self.config.min_live and node not in kept:
                kept.append(node)
        return tuple(sorted(kept + offered))

    # -- parts -------------------------------------------------------------------------------------------------------

    def is_to_ask(self) -> bool:
        """Is it time to ask voters that do not count where they are? Nothing else may bring an answer of theirs."""
        if self._unasked_ticks < self.config.resend_ticks:
            return False
        self._unasked_ticks = 0
        return True

    def needs_tick(self, settled: Collection[NodeId]) -> bool:
        """Can only time mend something? `settled` are the connected members that have everything; they should count."""
        if self._proposed is not None or any(node not in self._standing for node in settled):
            return True
        return any(
            node != self._own and node not in settled and standing is not Standing.LEAVING
            for node, standing in self._standing.items()
        )

    def _lag_of(self, node: NodeId) -> Lag:
        return self._lag.setdefault(node, Lag())

    def _be(self, node: NodeId, standing: Standing) -> None:
        if standing is Standing.OUT:
            self._standing.pop(node, None)
            self._lag.pop(node, None)
        else:
            self._standing[node] = standing
