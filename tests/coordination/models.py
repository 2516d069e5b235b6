"""Replicas reduced to what a coordinator can get wrong: promises, logs, and commits by majorities or by the live set.

A `ModelReplica` speaks the messages of the real ones and returns the same actions, but writes to its disk at once, sends
whole tails and keeps everything. Its commit rule is the definition: the smallest durable end over what is recorded
together with what it has proposed. `Voters` are a shard whose replicas elect by themselves: somebody leads after a while
whenever a majority is up.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ShardMeta
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import Commit, RoleChanged, Send
from antiphon.replication.messages import (
    Ack,
    AddFollower,
    Append,
    BecomeLeader,
    BecomeLeaderReply,
    Entry,
    NewTerm,
    NewTermReply,
    Reject,
    StaleTerm,
)
from antiphon.replication.progress import ProgressState
from antiphon.replication.replica_state import Role

LAG_TICKS = 6


@dataclass
class Fed:
    """What a leader knows of one that it feeds."""

    node: int
    next_offset: int
    ack_offset: int = 0
    connected: bool = True
    lag_ticks: int = 0
    state: ProgressState = ProgressState.REPLICATE


@dataclass
class ModelReplica:
    """One copy of one shard; `disk` is the world's, and survives."""

    node_id: int
    shard: int
    disk: Any
    min_live: int = 1
    may_lose: bool = False  # the topic allows unclean elections
    lost_peers: set[int] = field(default_factory=set)
    leading: BecomeLeader | None = None
    is_follower: bool = False
    high_watermark: int = 0
    needs_tick: bool = True

    def __post_init__(self) -> None:
        self.log: list[Entry] = self.disk.logs.setdefault(self.shard, [])
        self.loaded_term = self.term
        self.fed: dict[int, Fed] = {}
        self.recorded: tuple[int, tuple[int, ...]] = (0, ())
        self.proposed: tuple[int, ...] | None = None
        self.term_start = 0
        self.coordinator = -1

    # -- what the world asks ----------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        return int(self.disk.terms.get(self.shard, 0))

    @property
    def end(self) -> EntryId:
        return self.log[-1].end if self.log else EMPTY

    @property
    def ready(self) -> bool:
        return self.leading is not None and self.high_watermark > self.term_start

    @property
    def reports(self) -> bool:
        return self.ready or (self.leading is not None and bool(self.leading.live))

    def followers(self) -> list[Fed]:
        return list(self.fed.values())

    def report(self) -> LiveSet:
        """What goes into the heartbeat."""
        keeps_up = {f.node for f in self.fed.values() if f.connected and f.ack_offset >= self.high_watermark}
        lagging = tuple(sorted(set(self.fed) - keeps_up))
        if self.leading is not None and self.leading.live:
            live = self.recorded[1] if self.proposed is None else self.proposed
            return LiveSet(self.shard, self.term, live, lagging, version=self.recorded[0])
        return LiveSet(self.shard, self.term, tuple(sorted({self.node_id, *keeps_up})), lagging)

    def peer_connected(self, node: int) -> list[Any]:
        self.lost_peers.discard(node)
        if node in self.fed:
            self.fed[node].connected = True
        return []

    def peer_lost(self, node: int) -> list[Any]:
        self.lost_peers.add(node)
        if node in self.fed:
            self.fed[node].connected = False
        return []

    def propose(self, entries: list[tuple[int, object]]) -> list[Any]:
        out: list[Any] = []
        for _, data in entries:
            self.log.append(Entry(self.term, len(self.log), len(self.log) + 1, data))
        self._commit(out)
        self._feed_all(out)
        return out

    def metadata(self, meta: ShardMeta) -> list[Any]:
        """The node's metadata says this of the shard."""
        out: list[Any] = []
        if self.leading is not None and self.leading.live and meta.term == self.term:
            if meta.live_version > self.recorded[0]:
                self.recorded, self.proposed = (meta.live_version, meta.live), None
            self._commit(out)
        return out

    def tick(self) -> list[Any]:
        out: list[Any] = []
        if self.leading is None:
            return out
        self._feed_all(out)
        for fed in self.fed.values():
            behind = not fed.connected or fed.ack_offset < len(self.log)
            fed.lag_ticks = fed.lag_ticks + 1 if behind else 0
        if self.leading.live:
            self._propose_live()
            self._commit(out)
        return out

    # -- messages ---------------------------------------------------------------------------------------------------

    def receive(self, sender: int, message: Any) -> list[Any]:
        out: list[Any] = []
        match message:
            case NewTerm():
                self._new_term(sender, message, out)
            case BecomeLeader():
                self._become_leader(sender, message, out)
            case AddFollower() if message.term == self.term and self.leading is not None:
                if message.node != self.node_id:
                    connected = message.node not in self.lost_peers
                    self.fed[message.node] = Fed(message.node, message.head.offset, connected=connected)
                    self._feed(self.fed[message.node], out)
            case AddFollower():
                out.append(Send(sender, StaleTerm(self.shard, self.term)))
            case Append():
                self._append(sender, message, out)
            case Ack() if self.leading is not None and message.term == self.term and sender in self.fed:
                fed = self.fed[sender]
                fed.ack_offset = max(fed.ack_offset, message.end.offset)
                fed.next_offset = max(fed.next_offset, message.end.offset)
                self._commit(out)
            case Reject() if self.leading is not None and message.term == self.term and sender in self.fed:
                back = min(message.hint.offset, self.fed[sender].next_offset - 1)
                self.fed[sender].next_offset = max(0, back)
        return out

    def _new_term(self, sender: int, message: NewTerm, out: list[Any]) -> None:
        if message.term < self.term:
            out.append(Send(sender, StaleTerm(self.shard, self.term)))
            return
        if message.term > self.term:
            self.disk.terms[self.shard] = message.term
            self.leading, self.is_follower, self.loaded_term = None, False, -1
        damaged = self.shard in self.disk.damaged
        out.append(Send(sender, NewTermReply(self.shard, self.term, self.end, 0, damaged)))

    def _become_leader(self, sender: int, message: BecomeLeader, out: list[Any]) -> None:
        if self.leading is not None and message.term == self.term:
            return
        may = (
            message.term == self.term != self.loaded_term
            and not self.is_follower
            and self.shard not in self.disk.damaged
            and all(head <= self.end for _, head in message.heads)
        )
        if not may:
            out.append(Send(sender, StaleTerm(self.shard, self.term)))
            return
        self.leading, self.coordinator = message, sender
        self.recorded, self.proposed = (message.live_version, message.live), None
        self.fed = {n: Fed(n, h.offset, connected=n not in self.lost_peers) for n, h in message.heads}
        self.term_start = len(self.log)
        out.append(RoleChanged(Role.LEADER, self.term, self.node_id))
        out.extend(self.propose([(1, f"start of term {self.term}")]))

    def _append(self, sender: int, message: Append, out: list[Any]) -> None:
        if message.term < self.term:
            out.append(Send(sender, StaleTerm(self.shard, self.term)))
            return
        if message.term > self.term or self.leading is not None:
            return
        self.is_follower = True
        prev = message.prev.offset
        here = EMPTY if prev == 0 else self.log[prev - 1].end if prev <= len(self.log) else None
        if here != message.prev:
            hint = EntryId(0, max(0, min(prev - 1, len(self.log))))
            out.append(Send(sender, Reject(self.shard, self.term, hint, 0, 0)))
            return
        end = prev
        for entry in message.entries:
            if entry.base_offset < len(self.log) and self.log[entry.base_offset].end != entry.end:
                assert entry.base_offset >= self.high_watermark or self.may_lose, (
                    "what was committed is never cut"
                )
                self.high_watermark = min(self.high_watermark, entry.base_offset)
                del self.log[entry.base_offset :]
            if entry.base_offset == len(self.log):
                self.log.append(entry)
            end = entry.next_offset
        settled = min(message.high_watermark, end)
        if settled > self.high_watermark:
            self.high_watermark = settled
            out.append(Commit(settled))
        if settled and self.log[settled - 1].term == self.term:
            self.disk.damaged.discard(self.shard)
        out.append(Send(sender, Ack(self.shard, self.term, self.log[end - 1].end if end else EMPTY, 0)))

    # -- leading ----------------------------------------------------------------------------------------------------

    def _feed_all(self, out: list[Any]) -> None:
        for fed in self.fed.values():
            self._feed(fed, out)

    def _feed(self, fed: Fed, out: list[Any]) -> None:
        start = min(fed.next_offset, len(self.log))
        prev = self.log[start - 1].end if start else EMPTY
        entries = tuple(self.log[start:])
        out.append(
            Send(fed.node, Append(self.shard, self.term, self.node_id, prev, self.high_watermark, 0, entries))
        )

    def _acked(self, node: int) -> int:
        if node == self.node_id:
            return len(self.log)
        return self.fed[node].ack_offset if node in self.fed else 0

    def _commit(self, out: list[Any]) -> None:
        leading = self.leading
        assert leading is not None
        if leading.live:
            counted = {*self.recorded[1], *(self.proposed or ())}
            mark = min(self._acked(node) for node in counted)
            if len(self.recorded[1]) < self.min_live:
                return
        else:
            sets = (leading.ensemble, leading.outgoing) if leading.outgoing else (leading.ensemble,)
            mark = min(sorted((self._acked(n) for n in each), reverse=True)[len(each) // 2] for each in sets)
        if mark > max(self.high_watermark, self.term_start):
            was_ready = self.ready
            self.high_watermark = mark
            out.append(Commit(mark))
            if not was_ready:
                out.append(Send(self.coordinator, BecomeLeaderReply(self.shard, self.term)))

    def _propose_live(self) -> None:
        if self.proposed is not None:
            return
        live = set(self.recorded[1])
        for fed in self.fed.values():
            if fed.node in live and fed.lag_ticks > LAG_TICKS:
                live.discard(fed.node)
            elif fed.connected and fed.lag_ticks == 0 and fed.ack_offset >= self.high_watermark:
                live.add(fed.node)
        if live != set(self.recorded[1]):
            self.proposed = tuple(sorted(live))


@dataclass
class Voters:
    """A shard whose replicas vote, seen from far away."""

    random: Random
    term: int = 0
    leader: int | None = None
    since_ms: int = 0

    def step(self, now_ms: int, ensemble: tuple[int, ...], up: set[int]) -> None:
        """Time has passed: somebody may have lost, or won, an election."""
        there = [node for node in ensemble if node in up]
        if len(there) < len(ensemble) // 2 + 1:
            self.leader = None
        elif self.leader not in there:
            if self.leader is not None or not self.since_ms:
                self.leader, self.since_ms = None, now_ms
            if now_ms - self.since_ms > 200:
                self.term += self.random.randint(1, 3)
                self.leader, self.since_ms = self.random.choice(there), 0
