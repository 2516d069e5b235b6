"""A replica of a shard where every replica writes (S4.18-S4.28, C11), as a pure state machine.

Every replica takes writes, commits them on its own disk and ships them to the others; nobody leads and nobody is elected.
The asynchronous path in its seven steps (S4.27): a client's entry gets this replica's origin and next LSN (`propose`), goes
to the log, and is committed when it is durable here; then the client hears of it; then the relays read it from the log and
send it; the others append it under the same identity, commit it when it is durable there, and acknowledge with their
vector clocks. What was committed and not yet relayed is lost if this disk never comes back, and goes on its way when it
does (S4.28): that is the price of not waiting for anybody.

Drive it like any replica: one event at a time, actions in the order of the list, storage actions towards the disk in that
order, `persisted` never ahead of the disk. It never cuts its log, so a position that was read once stays valid.

    replica = MultiWriterReplica(node_id=1, shard=7, origins={1: 1, 2: 2}, index=OriginIndex([START]), end=START, life=1)
    actions = replica.start()                                   # Send(2, Subscribe(...))
    actions = replica.propose([(1, crc, size, batch)])          # AppendEntries(write_id=1, ...)
    actions = replica.persisted(1)                              # Commit(1), ReadForRelay(...) for who has subscribed
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.errors import NotReadyError
from antiphon.invariants import invariant
from antiphon.replication.actions import Commit, ReadReady, Repaired
from antiphon.replication.messages import NodeId, ShardId
from antiphon.replication.multi_messages import (
    AskOrigin,
    MultiMessage,
    OriginAnswer,
    Relay,
    RelayAck,
    RelayBase,
    SplitBrainFound,
    Subscribe,
)
from antiphon.replication.multi_writer_actions import (
    AppendEntries,
    MultiAction,
    Send,
    SplitBrain,
    TrimmedAway,
)
from antiphon.replication.multi_writer_config import MultiWriterConfig
from antiphon.replication.multi_writer_intake import SESSION_BITS, IntakeSide
from antiphon.replication.multi_writer_relay import TERM, RelaySide, Split
from antiphon.replication.origin_history import Mark, OriginEntry
from antiphon.replication.origin_index import OriginIndex
from antiphon.replication.origin_log import OriginLog
from antiphon.replication.origin_regain import Regain, take_kept
from antiphon.replication.origins import NONE
from antiphon.replication.progress import FollowerStatus, ProgressState
from antiphon.replication.replica_state import Role
from antiphon.replication.vclock import Vclock, component

Batch = tuple[int, int, int, object]
"""(number of offsets, checksum, bytes, data) of a batch that a client wrote here."""


class MultiWriterReplica:
    """One replica of one shard that every replica writes; every method takes an event and returns actions.

    Args:
        node_id: this node.
        shard: the shard, cluster-wide number.
        origins: the members with their origins, this node included; 0 for one that may not write yet.
        index: marks of the log as recovered, the log's start first.
        end: history of the whole log as recovered.
        life: a number that is higher at each start of this node, below 2^38: earlier sessions must not be taken for ours.
        config: settings.
        damaged: the log was found damaged and is cut at the damage: nothing is written before it is whole again.

    Attributes:
        log: how far each origin has come in it, its marks, and what of it is durable; to be read.
        kept: entries that stood whole behind the log's damage, by origin and LSN; to be filled before `start`. Those of this
            replica's own origin that nobody else has are appended again, once it has got back all others.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        shard: ShardId,
        origins: Mapping[NodeId, int],
        index: OriginIndex,
        end: Mark,
        life: int,
        config: MultiWriterConfig | None = None,
        damaged: bool = False,
    ) -> None:
        self.node_id = node_id
        self.shard = shard
        self.failed = False
        self.term = TERM
        self.role = Role.LEADER  # as far as anybody asks: every replica serves
        # Peer -> (origin, LSN) of the split brain that was found
        self.splits: dict[NodeId, tuple[int, int]] = {}
        self._config = config or MultiWriterConfig()
        self.log = OriginLog(index, end)
        self.ends = self.log  # has `log_end`
        self._relays = RelaySide(shard, self.log, self._config)
        self._intake = IntakeSide(shard, self.log, self._config, life)
        self._regain = Regain(shard, self.log, life) if damaged else None
        self.kept: deque[OriginEntry] = deque()
        self._origins: dict[NodeId, int] = {}
        self._held: deque[tuple[int, NodeId, int]] = deque()  # answers to AskOrigin: (write id, who, nonce)
        self._own_lsn = 0  # the last entry of this replica's own origin that others are known to have
        self._asked: dict[NodeId, int] = {}  # the last nonce of each that asked
        self._set_members(origins)
        self._handlers: dict[type, Callable[[NodeId, Any, list[MultiAction]], None]] = {
            Subscribe: self._on_subscribe,
            Relay: self._on_relay,
            RelayAck: self._relays.on_ack,
            RelayBase: self._on_base,
            SplitBrainFound: self._on_split_found,
            AskOrigin: self._on_ask,
            OriginAnswer: self._on_answer,
        }

    # -- what the caller may look at -------------------------------------------------------------------------------

    @property
    def origin(self) -> int:
        """What this replica writes as; 0 while it may not."""
        return self._origins.get(self.node_id, NONE)

    @property
    def next_lsn(self) -> int:
        """The LSN that the next batch proposed here gets."""
        return self.log.history.lsns[self.origin] + 1

    @property
    def vclock(self) -> Vclock:
        """What this replica has durably."""
        return self.log.durable_clock

    @property
    def log_start(self) -> int:
        """First offset that is still in the log."""
        return self.log.log_start

    @property
    def log_end(self) -> int:
        """Next offset to write, appends underway included."""
        return self.log.log_end

    @property
    def high_watermark(self) -> int:
        """First offset that is not committed: what is durable here is committed here."""
        return self.log.durable_end

    @property
    def damaged(self) -> bool:
        """Is the log not whole again?"""
        return self._regain is not None

    @property
    def ready(self) -> bool:
        """May clients be served? Every replica serves."""
        return not self.failed

    @property
    def leader(self) -> NodeId:
        """Whoever is asked."""
        return self.node_id

    @property
    def members(self) -> Mapping[NodeId, int]:
        """Members with their origins."""
        return self._origins

    @property
    def duplicates(self) -> int:
        """Entries that came again by another path (S4.23)."""
        return self._intake.duplicates

    @property
    def needs_tick(self) -> bool:
        """Is anything outstanding that only `tick` can mend? An idle shard needs none."""
        return not self.failed and (
            self._regain is not None or self._relays.needs_tick or self._intake.needs_tick
        )

    def check_writable(self) -> None:
        """Raise NotReadyError, with the reason, while this replica may not write."""
        if self._regain is not None:
            silent = ", ".join(map(str, self._regain.waits_for)) or "nobody: what they have is being fetched"
            raise NotReadyError(
                f"node {self.node_id} lost part of its log of shard {self.shard}, and writes again when every other member "
                f"has said what it has; waiting for: {silent}"
            )
        if self._own_lsn >= self.next_lsn:
            raise NotReadyError(
                f"others have entry {self._own_lsn} of node {self.node_id} in shard {self.shard}, it has only what comes "
                f"before {self.next_lsn} itself: its directory is an old copy; it writes again when it got them back"
            )
        if self.origin == NONE:
            raise NotReadyError(
                f"node {self.node_id} has no origin id in shard {self.shard} for its disk yet; write at another replica"
            )

    def followers(self) -> tuple[FollowerStatus, ...]:
        """The peers, for status pages: `ack_offset` is as far in this log as the peer is known to have everything."""
        index, found = self.log.index, []
        for node, cursor in self._relays.cursors.items():
            mark = index.covered_by(cursor.acked)
            at = self.log.log_start if mark is None else mark.offset
            if not self._relays.lags()[node]:
                at = self.log.durable_end
            state = ProgressState.REPLICATE if cursor.session else ProgressState.PROBE
            found.append(FollowerStatus(node, at, cursor.history.offset, state, cursor.connected))
        return tuple(found)

    def lags(self) -> Mapping[NodeId, int]:
        """How many of our durable entries each peer lacks, as far as it said (S4.23)."""
        return self._relays.lags()

    def settled_clock(self) -> Vclock:
        """What every member has, if this replica has all that any of them had when it said so; else nothing.

        No entry that was written before its writer had this clock can still be on its way here.
        """
        return self._relays.stable_clock() if self._relays.has_all_that_is_acked() else ()

    def common_offset(self) -> int:
        """The log may be trimmed up to here: every member has what is before."""
        return self._relays.common_offset()

    # -- life and members -----------------------------------------------------------------------------------------

    def start(self) -> list[MultiAction]:
        """The first event: subscribe at everybody who is connected."""
        out: list[MultiAction] = []
        self._intake.subscribe_due(out)
        if self._regain is not None:
            self._regain.ask_all(out)
            self._check_regained(out)
        return out

    def set_members(self, origins: Mapping[NodeId, int]) -> list[MultiAction]:
        """Members or origins have changed. What a removed member wrote stays, and nothing more is taken from it."""
        out: list[MultiAction] = []
        if self.failed or dict(origins) == self._origins:
            return out
        if origins.get(self.node_id) != self.origin:
            self._own_lsn = 0
        self._set_members(origins)
        self._intake.subscribe_due(out)
        if self._regain is not None:
            self._regain.ask_all(out)
            self._check_regained(out)
        return out

    def _set_members(self, origins: Mapping[NodeId, int]) -> None:
        self._origins = dict(origins)
        peers = {node: origin for node, origin in origins.items() if node != self.node_id}
        self._relays.set_peers(peers)
        self._intake.set_peers(peers)
        self.splits = {node: found for node, found in self.splits.items() if node in peers}
        if self._regain is not None:
            self._regain.set_peers(peers)

    # -- events: messages -----------------------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: MultiMessage) -> list[MultiAction]:
        """A message of another member; those of others are ignored."""
        out: list[MultiAction] = []
        handler = self._handlers.get(type(message))
        if self.failed or handler is None or message.shard != self.shard or sender == self.node_id:
            return out
        if sender not in self._relays.cursors:
            return out
        if sender in self.splits and not isinstance(message, SplitBrainFound | AskOrigin | OriginAnswer):
            if isinstance(message, Relay | Subscribe):
                out.append(Send(sender, SplitBrainFound(self.shard, TERM, *self.splits[sender])))
            return out
        try:
            handler(sender, message, out)
        except Split as split:
            self._split(sender, split.origin, split.lsn, out)
            out.append(Send(sender, SplitBrainFound(self.shard, TERM, split.origin, split.lsn)))
        return out

    def _on_subscribe(self, sender: NodeId, message: Subscribe, out: list[MultiAction]) -> None:
        known = self._relays.cursors[sender].newest_session
        self._relays.on_subscribe(sender, message, out)
        if message.session >> SESSION_BITS != known >> SESSION_BITS:
            self._intake.peer_began(sender)

    def _on_relay(self, sender: NodeId, message: Relay, out: list[MultiAction]) -> None:
        taken = self._intake.on_relay(sender, message)
        if taken:
            out.append(self.log.append(taken))
        self._relays.heard(sender, message.vclock)
        self._own_lsn = max(self._own_lsn, component(message.vclock, self.origin))
        self._intake.taken(sender, message, out)

    def _on_base(self, sender: NodeId, message: RelayBase, out: list[MultiAction]) -> None:
        """The peer's log begins after what we have. Where nobody else has what lies between, go on behind it."""
        one = self._intake.subscriptions[sender]
        if message.session != one.session:
            return
        was_empty = self.log.is_empty
        if was_empty or self._intake.on_base(sender):
            if not was_empty:
                out.append(TrimmedAway(sender))
            out.append(self.log.adopt(message.vclock, message.chains))
            self._intake.subscribe(one, out)
            self._relays.rebase(out)

    def _on_split_found(self, sender: NodeId, message: SplitBrainFound, out: list[MultiAction]) -> None:
        if sender not in self.splits:
            self._split(sender, message.origin, message.lsn, out)

    def _split(self, peer: NodeId, origin: int, lsn: int, out: list[MultiAction]) -> None:
        self.splits[peer] = (origin, lsn)
        self._relays.halt(peer)
        self._intake.halt(peer)
        out.append(SplitBrain(peer, origin, lsn))

    def _on_ask(self, sender: NodeId, message: AskOrigin, out: list[MultiAction]) -> None:
        if self._asked.get(sender) != message.nonce:
            self._asked[sender] = message.nonce
            self._intake.forget_sessions()
        self._held.append((self.log.write_id, sender, message.nonce))
        self._answer_held(out)

    def _answer_held(self, out: list[MultiAction]) -> None:
        held = self._held
        while held and held[0][0] <= self.log.persisted_id:
            _, node, nonce = held.popleft()
            out.append(Send(node, OriginAnswer(self.shard, TERM, nonce, self.log.durable_clock)))

    def _on_answer(self, sender: NodeId, message: OriginAnswer, out: list[MultiAction]) -> None:
        if self._regain is not None:
            self._regain.on_answer(sender, message)
            self._check_regained(out)

    def _check_regained(self, out: list[MultiAction]) -> None:
        if self._regain is None or not self._regain.is_done(self.origin):
            return
        kept = take_kept(self.kept, self.log, self.origin, self._config.feed_bytes_max)
        if kept:
            out.append(self.log.append(kept))
        elif self.log.durable_lsn(self.origin) == self.log.history.lsns[self.origin]:
            self._regain = None
            out.append(Repaired())

    # -- events: clients ------------------------------------------------------------------------------------------

    def propose(self, batches: Sequence[Batch]) -> list[AppendEntries]:
        """Append what clients wrote here, from `log_end` and `next_lsn` on; in order, as one write (S4.21).

        The caller has put origin and LSN into the data. Committed when a `Commit` reaches them. Raises NotReadyError.
        """
        self.check_writable()
        if not batches:
            return []
        origin, lsn, at = self.origin, self.next_lsn, self.log.log_end
        entries = []
        for offsets, crc, size_bytes, data in batches:
            entries.append(OriginEntry(origin, lsn, crc, at, at + offsets, size_bytes, data))
            lsn, at = lsn + 1, at + offsets
        return [self.log.append(entries)]

    def request_read(self, token: int, _now_us: int | None = None) -> list[MultiAction]:
        """Reads are of this replica's own state: there is nobody whose word would be needed."""
        return [ReadReady(token, self.log.durable_end)]

    # -- events: disk, reads of the log, connections, time ------------------------------------------------------------

    def persisted(self, write_id: int) -> list[MultiAction]:
        """Every write up to `write_id` is durable: commit, acknowledge, relay."""
        out: list[MultiAction] = []
        if self.failed:
            return out
        invariant(write_id <= self.log.write_id, f"write {write_id} was never asked for")
        before = self.log.durable_end
        if self.log.persisted(write_id):
            if self.log.durable_end > before:
                out.append(Commit(self.log.durable_end))
            self._intake.persisted(out)
            self._relays.send_to_all(out)
            self._check_regained(out)
        self._answer_held(out)
        return out

    def entries_read(self, to: NodeId, from_offset: int, entries: Sequence[OriginEntry]) -> list[MultiAction]:
        """The entries that a `ReadForRelay` asked for, or none when they cannot be read now; any time later."""
        out: list[MultiAction] = []
        if not self.failed:
            self._relays.entries_read(to, from_offset, entries, out)
        return out

    def trimmed(self, base: Mark) -> list[MultiAction]:
        """Retention removed the log before `base`, the history at its new start."""
        invariant(
            base.offset <= self.log.durable_end,
            f"trim to {base.offset}, durable is {self.log.durable_end}",
        )
        out: list[MultiAction] = []
        if base.offset > self.log.log_start:
            self.log.index.trim(base)
            self._relays.rebase(out)
        return out

    def storage_failed(self) -> list[MultiAction]:
        """A write or sync failed: the replica stops for good."""
        self.failed = True
        return []

    def peer_connected(self, node: NodeId) -> list[MultiAction]:
        """A connection to `node` is there. Nodes count as connected until `peer_lost` says otherwise."""
        out: list[MultiAction] = []
        if self.failed:
            return out
        if self.splits.pop(node, None) is not None:  # perhaps it was mended; if not, that shows at once
            self._intake.resume(node)
            self._relays.resume(node)
        self._intake.peer_connected(node, out)
        self._relays.peer_connected(node, out)
        if self._regain is not None:
            self._regain.ask(node, out)
        return out

    def peer_lost(self, node: NodeId) -> list[MultiAction]:
        """The connection to `node` broke: nothing is sent there until `peer_connected`."""
        self._relays.peer_lost(node)
        self._intake.peer_lost(node)
        return []

    def tick(self, _now_us: int | None = None) -> list[MultiAction]:
        """One tick of time passed."""
        out: list[MultiAction] = []
        if self.failed:
            return out
        self._intake.tick(out)
        self._relays.tick(out)
        if self._regain is not None:
            self._regain.tick(self._config, out)
        return out
