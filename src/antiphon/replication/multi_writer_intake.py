"""The receiving half of a replica where every replica writes: one applier per peer (S4.20, S4.23).

The replica that wants entries dials: it subscribes at every peer with its clock. What comes is taken if it is the next entry
of its origin and its origin's history agrees; what is here already is a duplicate of another path and is dropped; what
leaves a gap is refused, and the applier subscribes anew from where it stands. An acknowledgement is sent when everything
that the message brought, or repeated, is durable.

Every peer passes on everything it has. That is what makes the mesh survive any cut, and it is wasteful while nothing is
cut. So an applier tells its peers to leave out the origins whose own nodes it is subscribed at. A peer that is ahead with
such an origin for long shows that its own node's link is stuck, and then that origin is taken from everybody again.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from antiphon.replication.messages import NodeId, ShardId
from antiphon.replication.multi_messages import Relay, RelayAck, Subscribe
from antiphon.replication.multi_writer_actions import MultiAction, Send
from antiphon.replication.multi_writer_config import MultiWriterConfig
from antiphon.replication.multi_writer_relay import TERM, Split
from antiphon.replication.origin_history import OriginEntry, link
from antiphon.replication.origin_log import OriginLog
from antiphon.replication.vclock import LOCAL, ORIGINS_MAX, Vclock, component

SESSION_BITS: Final = 24
STUCK_TRIES: Final = 3


@dataclass(slots=True, eq=False)
class Subscription:
    """What this replica wants from one peer."""

    node: NodeId
    connected: bool = True
    halted: bool = False  # a split brain was found on this link
    stuck: int = 0  # how often the peer has said that its log begins after what this replica has
    session: int = 0
    confirmed: bool = False  # the peer answered in this session
    answered: bool = False  # the peer answered on this connection
    due: bool = True  # to be subscribed at the next tick
    skip: tuple[int, ...] = ()
    suspect: bool = False  # its own entries reached us through others first: do not rely on this link
    vclock: Vclock = ()  # what the peer has durably
    acks: deque[tuple[int, int]] = field(default_factory=deque)  # (write id that must be durable, seq)
    quiet_ticks: int = 0
    behind_ticks: int = 0

    def reset(self) -> None:
        """The connection is a new one, or gone."""
        self.confirmed = self.answered = self.suspect = False
        self.stuck = 0
        self.acks.clear()
        self.quiet_ticks = self.behind_ticks = 0


class IntakeSide:
    """The appliers of one replica."""

    def __init__(self, shard: ShardId, log: OriginLog, config: MultiWriterConfig, life: int) -> None:
        self._shard = shard
        self._log = log
        self._config = config
        self._sessions = life << SESSION_BITS
        self._origins: dict[NodeId, int] = {}
        self.subscriptions: dict[NodeId, Subscription] = {}
        self.duplicates = 0

    # -- peers --------------------------------------------------------------------------------------------------

    def set_peers(self, origins: Mapping[NodeId, int]) -> None:
        """These are the other members now, with their origins (0: it has none yet)."""
        self._origins = dict(origins)
        self.subscriptions = {
            node: self.subscriptions.get(node) or Subscription(node) for node in self._origins
        }

    def subscribe_due(self, out: list[MultiAction]) -> None:
        """Subscribe wherever that is due."""
        for one in self.subscriptions.values():
            if one.due and one.connected and not one.halted:
                self.subscribe(one, out)

    def subscribe(self, one: Subscription, out: list[MultiAction]) -> None:
        """Begin a new session with a peer, from where this replica stands (S4.19)."""
        self._sessions += 1
        one.session, one.confirmed, one.due, one.quiet_ticks = self._sessions, False, False, 0
        one.acks.clear()
        self._ask(one, out)

    def _ask(self, one: Subscription, out: list[MultiAction]) -> None:
        history = self._log.history
        one.skip = self._first_hand(one.node)
        clock = history.clock()
        chains = tuple(history.chains[: len(clock)])
        out.append(Send(one.node, Subscribe(self._shard, TERM, one.session, clock, chains, one.skip)))

    def _first_hand(self, without: NodeId) -> tuple[int, ...]:
        """Origins that come straight from their own nodes, other than the node `without`."""
        if not self._config.first_hand:
            return ()
        found = []
        for node, one in self.subscriptions.items():
            reliable = one.connected and one.answered and not (one.halted or one.suspect or one.stuck)
            if node != without and reliable and self._origins[node]:
                found.append(self._origins[node])
        return tuple(sorted(found))

    def peer_connected(self, node: NodeId, out: list[MultiAction]) -> None:
        """A new connection: subscribe on it."""
        one = self.subscriptions.get(node)
        if one is not None:
            one.connected = True
            one.reset()
            if not one.halted:
                self.subscribe(one, out)

    def peer_began(self, node: NodeId) -> None:
        """The peer's replica was opened anew, perhaps on the same connection: it knows of no subscription of before."""
        one = self.subscriptions.get(node)
        if one is not None and one.confirmed:
            one.due = True

    def peer_lost(self, node: NodeId) -> None:
        """Nothing comes from there; what it wrote may come by way of others."""
        one = self.subscriptions.get(node)
        if one is not None:
            one.connected = False
            one.reset()
            self._refresh()

    def _refresh(self) -> None:
        """Send peers at the next tick if what they may leave out has changed."""
        for node, one in self.subscriptions.items():
            if one.confirmed and one.skip != self._first_hand(node):
                one.due = True

    def forget_sessions(self) -> None:
        """Take nothing more of what is on its way, from whomever."""
        for one in self.subscriptions.values():
            if not one.halted:
                self._sessions += 1
                one.session, one.confirmed, one.answered, one.due = self._sessions, False, False, True

    def halt(self, node: NodeId) -> None:
        """Nothing more is taken from this peer."""
        one = self.subscriptions.get(node)
        if one is not None:
            one.halted = True
            one.due = False
            one.reset()
            self._refresh()

    def resume(self, node: NodeId) -> None:
        """Try a halted link again."""
        self.subscriptions[node].halted = False

    # -- entries ------------------------------------------------------------------------------------------------

    def on_relay(self, sender: NodeId, message: Relay) -> list[OriginEntry]:
        """Entries of a peer; returns those to append. Raises `Split` where histories differ; nothing is taken then."""
        one = self.subscriptions[sender]
        if message.session != one.session:
            return []
        fresh = not one.answered
        one.answered = one.confirmed = True
        one.quiet_ticks, one.stuck, one.vclock = 0, 0, message.vclock
        taken, gap = self._choose(message)
        one.due |= gap
        if one.suspect and any(entry.origin == self._origins[sender] for entry in taken):
            one.suspect, fresh = False, True
        if fresh:
            self._refresh()
        return taken

    def on_base(self, sender: NodeId) -> bool:
        """The peer no longer has what this replica lacks; true when that is not just so because others are quicker."""
        one = self.subscriptions[sender]
        # The peer has ended the session: what it said before is not to be taken for an answer
        self._sessions += 1
        one.session, one.confirmed = self._sessions, False
        one.stuck += 1
        if one.stuck < STUCK_TRIES:
            return False
        one.stuck = 0
        return True

    def _choose(self, message: Relay) -> tuple[list[OriginEntry], bool]:
        log = self._log
        history = log.history
        taken: list[OriginEntry] = []
        # Origin -> LSN and chain, with what was taken from this message
        ahead: dict[int, tuple[int, int]] = {}
        for entry, chain in zip(message.entries, message.chains, strict=True):
            origin, lsn = entry.origin, entry.lsn
            if not LOCAL < origin <= ORIGINS_MAX:
                return taken, True
            have, agreed = ahead.get(origin) or (history.lsns[origin], history.chains[origin])
            if lsn <= have:
                self.duplicates += 1
                known = log.checksum_of(origin, lsn)
                if known is not None and known != entry.crc:
                    raise Split(origin, lsn)
                continue
            if lsn > have + 1:
                return taken, True
            if chain != agreed:
                raise Split(origin, lsn - 1)
            ahead[origin] = lsn, link(chain, lsn, entry.crc)
            taken.append(entry)
        return taken, False

    def taken(self, sender: NodeId, message: Relay, out: list[MultiAction]) -> None:
        """What the message brought is staged: acknowledge it when it is durable."""
        one = self.subscriptions[sender]
        if message.session == one.session:
            one.acks.append((self._log.write_id, message.seq))
            self._acknowledge(one, out)

    def _acknowledge(self, one: Subscription, out: list[MultiAction]) -> None:
        seq = 0
        while one.acks and one.acks[0][0] <= self._log.persisted_id:
            seq = max(seq, one.acks.popleft()[1])
        if seq:
            out.append(Send(one.node, RelayAck(self._shard, TERM, one.session, seq, self._log.durable_clock)))

    def persisted(self, out: list[MultiAction]) -> None:
        """More is durable: say so."""
        for one in self.subscriptions.values():
            if one.acks:
                self._acknowledge(one, out)

    # -- time ---------------------------------------------------------------------------------------------------

    @property
    def needs_tick(self) -> bool:
        """Is a subscription outstanding, or an origin late that should come first-hand?"""
        return any(
            one.connected and not one.halted and (one.due or not one.confirmed or bool(self._late(one)))
            for one in self.subscriptions.values()
        )

    def _late(self, one: Subscription) -> list[int]:
        """Origins that this peer leaves out at our wish, and has more of than we do."""
        lsns = self._log.history.lsns
        return [origin for origin in one.skip if component(one.vclock, origin) > lsns[origin]]

    def tick(self, out: list[MultiAction]) -> None:
        """Subscribe where that is due, ask again where no answer came, give up on links that are stuck."""
        for one in self.subscriptions.values():
            if not one.connected or one.halted:
                continue
            late = self._late(one) if one.confirmed else []
            one.behind_ticks = one.behind_ticks + 1 if late else 0
            if one.behind_ticks >= self._config.stall_ticks:
                one.behind_ticks = 0
                for node, origin in self._origins.items():
                    self.subscriptions[node].suspect |= origin in late
                self._refresh()
        for one in self.subscriptions.values():
            if not one.connected or one.halted:
                continue
            if one.due:
                self.subscribe(one, out)
            elif not one.confirmed:
                one.quiet_ticks += 1
                wait = self._config.stall_ticks if one.stuck else self._config.resend_ticks
                if one.quiet_ticks >= wait:
                    one.quiet_ticks = 0
                    self._ask(one, out)
