"""What every kind of replica answers to, and what it shows."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from antiphon.errors import NotLeaderError, NotReadyError
from antiphon.invariants import invariant
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action, AppendLog, Commit
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.following import Following
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Ack,
    AnyMessage,
    Append,
    Entry,
    NodeId,
    Reject,
    SnapshotOffer,
    StaleTerm,
)
from antiphon.replication.progress import FollowerStatus
from antiphon.replication.replica_state import LeaderPhase, Role
from antiphon.replication.term_state import TermState

Handler = Callable[[NodeId, Any, list[Action]], None]


class ReplicaBase:
    """One replica of one shard, as a pure state machine: every method takes an event and returns actions.

    It hands each event to the part that it is for. The parts share one `TermState`; `Replica` and `RaftReplica` say which
    there are.

    Attributes:
        node_id: this node.
        shard: the shard.
        log: what this replica knows of its own log; for others to read only.
        in_term: its term, its role and the members; for others to read only, where a property costs too much.
        following: what it makes of a leader's messages.
    """

    def __init__(self, state: TermState, following: Following) -> None:
        self.node_id = state.node_id
        self.shard = state.shard
        self.log = state.log
        self.ends = state.log.terms  # has `log_end`
        self._state = self.in_term = state
        self.following = following
        self._handlers: dict[type, Handler] = {
            Append: following.on_append,
            SnapshotOffer: following.on_snapshot_offer,
            Ack: state.on_ack,
            Reject: state.on_reject,
            StaleTerm: state.on_stale_term,
        }

    # -- what it shows ---------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The latest term that this replica promised."""
        return self._state.term

    @property
    def voted_for(self) -> NodeId | None:
        """Who got this replica's vote in `term`."""
        return self._state.voted_for

    @property
    def role(self) -> Role:
        """What this replica is in its term."""
        return self._state.role

    @property
    def members(self) -> Members:
        """Everybody who has a say in the shard, as far as this replica knows."""
        return self._state.members

    @property
    def config(self) -> ReplicaConfig:
        """The settings of now."""
        return self._state.config

    @property
    def leader(self) -> NodeId | None:
        """The leader of this term, if known."""
        return self._state.leader

    @property
    def damaged(self) -> bool:
        """Is the log not whole, so that this replica neither votes nor leads?"""
        return not self._state.repair.is_sound

    @property
    def log_start(self) -> int:
        """First offset that is still in the log."""
        return self.log.terms.log_start

    @property
    def log_end(self) -> int:
        """Next offset to write, appends underway included."""
        return self.log.terms.log_end

    @property
    def high_watermark(self) -> int:
        """First offset that clients must not be shown: what a leader has committed by its rule, `settled` elsewhere.

        It may fall where a leadership ends whose rule acknowledges what an election can lose (`local`, small `at_least(k)`).
        """
        return self.log.commit_mark if self._state.leading is not None else self.log.settled

    @property
    def settled(self) -> int:
        """First offset that is not known to be safe from every election.

        It is what a checkpoint is to hold, and as far as a log may be trimmed. What is below is on this disk, except for a
        leader's newest entries. While a snapshot is being put in place of the log it is below the log's start.
        """
        return self.log.settled

    @property
    def live(self) -> tuple[NodeId, ...]:
        """The live replica set as recorded, as far as it is known here; empty in terms that do not go by it (S3.6)."""
        leading, following = self._state.leading, self._state.following
        if leading is not None:
            return leading.live.recorded if leading.live is not None else ()
        return following.live if following is not None else ()

    @property
    def ready(self) -> bool:
        """May clients be served: it leads, an entry of its term is committed (S1.36), and it hands over to nobody."""
        leading = self._state.leading
        return leading is not None and leading.phase is LeaderPhase.READY

    @property
    def needs_tick(self) -> bool:
        """Is anything outstanding that only `tick` can mend? An idle shard needs none."""
        leading = self._state.leading
        return (leading is not None and leading.needs_tick) or bool(self._state.promise.kept)

    def followers(self) -> tuple[FollowerStatus, ...]:
        """What a leader knows of its followers; empty on others."""
        leading = self._state.leading
        return leading.replicator.followers() if leading is not None else ()

    # -- messages --------------------------------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: AnyMessage, now_us: int | None = None) -> list[Action]:
        """A message of another node, or of the coordinator there. What is not allowed now is refused or ignored.

        `now_us`: of a host with leases, by a clock that never goes back.
        Raises `ProtocolViolationError` for an Append whose entries do not follow each other.
        """
        out: list[Action] = []
        if self._state.failed:
            return out
        self._state.note_time(now_us, self._handlers, out)
        handler = self._handlers.get(type(message))
        if handler is not None and message.shard == self.shard:
            handler(sender, message, out)
        return out

    # -- the disk --------------------------------------------------------------------------------------------------

    def persisted(self, write_id: int) -> list[Action]:
        """Every write up to `write_id` is durable: say what was held back, count the own disk."""
        out: list[Action] = []
        state = self._state
        if state.failed:
            return out
        log = state.log
        waits_for_term = log.persisted_id < log.term_write_id
        moved = log.persisted(write_id)
        if log.settled < log.terms.log_start <= log.durable_end:
            log.settled = log.terms.log_start  # a snapshot has taken the place of the log
            out.append(Commit(log.settled))
        if state.held:
            state.release_held(write_id, out)
        if moved or waits_for_term:
            if state.leading is not None:
                state.leading.persisted(out)
            else:
                self.following.persisted(out)
        return out

    def storage_failed(self) -> list[Action]:
        """A write or sync failed. The replica stops for good: it serves nobody and says nothing any more."""
        out: list[Action] = []
        if not self._state.failed:
            self._state.fail(out)
        return out

    def trimmed(self, log_start: int) -> list[Action]:
        """Retention removed the log before `log_start`, which is at most the high watermark."""
        log = self.log
        invariant(
            log_start <= log.settled,
            f"trim to {log_start} beyond what is settled, {log.settled}",
        )
        if log_start > log.terms.log_start:
            log.terms.trim(log_start)
        return []

    def snapshot_installed(self, at: EntryId) -> list[Action]:
        """A snapshot of committed state up to `at` arrived here, whole.

        It is taken over, and only then, if the answer holds a `ResetLog`; otherwise the log has come that far by itself, or
        the replica no longer follows, and the snapshot is to be dropped.
        """
        out: list[Action] = []
        self.following.snapshot_installed(at, out)
        return out

    # -- clients ---------------------------------------------------------------------------------------------------

    def propose(self, batches: Sequence[tuple[int, object]]) -> list[Action]:
        """Append client batches, (number of offsets, data) each, from `log_end` on; in order, as one write.

        The caller has stamped the data with these offsets and this term. They are committed when a `Commit` reaches them.
        Raises `NotLeaderError`, `NotReadyError`: nothing was appended.
        """
        leading = self._state.leading
        if leading is None or leading.phase is not LeaderPhase.READY:
            raise self._cannot_serve()
        out: list[Action] = []
        if batches:
            leading.replicator.propose(batches, out)
        return out

    def append_batch(self, count: int, data: object) -> AppendLog:
        """Append one client batch, as `propose` does, without sending it: `send_appended`, which the caller owes, sends all
        batches since as one message. This is for a host that must know at once where each batch stands.

        Raises `NotLeaderError`, `NotReadyError`: nothing was appended.
        """
        leading = self._state.leading
        if leading is None or leading.phase is not LeaderPhase.READY:
            raise self._cannot_serve()
        return leading.replicator.append_batch(count, data)

    def send_appended(self, now_us: int | None = None) -> list[Action]:
        """Send the followers what `append_batch` has appended."""
        out: list[Action] = []
        leading = self._state.leading
        if leading is not None:
            if now_us is not None:
                leading.lease.note_time(now_us)
            leading.replicator.send_appended(out)
        return out

    def request_read(self, token: int, now_us: int | None = None) -> list[Action]:
        """Ask to serve a linearizable read: `ReadReady(token, offset)` or `ReadFailed(token)` follows.

        It came before `now_us`. A leader that hands over serves reads as long as it leads.
        Raises `NotLeaderError`, `NotReadyError`, and `OverloadedError` when too many reads wait.
        """
        leading = self._state.leading
        if leading is None or leading.phase is LeaderPhase.STARTING:
            raise self._cannot_serve()
        out: list[Action] = []
        if now_us is not None:
            leading.lease.note_time(now_us)
        leading.reads.request(token, now_us, out)
        return out

    def _cannot_serve(self) -> NotLeaderError | NotReadyError:
        leading = self._state.leading
        if leading is None:
            return NotLeaderError(
                f"node {self.node_id} is {self.role} of shard {self.shard}, not its leader",
                leader=self.leader,
            )
        return NotReadyError(
            f"node {self.node_id} leads shard {self.shard} but its term {self.term} has no committed entry yet; retry",
            leader=self.node_id,
        )

    # -- settings and records --------------------------------------------------------------------------------------

    def set_config(self, config: ReplicaConfig) -> list[Action]:
        """Other settings from now on.

        Another commit rule (C1) counts in this term and in later ones that do not go by a live set. It is safe at any time:
        elections go by majorities whatever the rule. `live` takes effect with a term that is begun with a live set; without
        one it counts as `quorum`.
        """
        state = self._state
        state.config = config
        out: list[Action] = []
        if state.following is not None:
            state.following.config = config
        if state.leading is not None:
            state.leading.set_config(config)
            state.leading.recount(out)  # `min_live` says whether anything may be committed
        return out

    def live_recorded(self, term: int, version: int, live: Collection[NodeId]) -> list[Action]:
        """The metadata says that `live` is the live replica set of `term` by now, as record `version` (S3.28, S3.29).

        It answers `ProposeLiveSet`, and may be told again and of any term; only a newer record of this leadership counts.
        """
        out: list[Action] = []
        state = self._state
        if state.leading is not None and term == state.term:
            state.leading.live_recorded(version, live, out)
        return out

    # -- entries that were read, snapshots, connections, time ------------------------------------------------------

    def entries_read(self, to: NodeId, entries: Sequence[Entry], size_bytes: int) -> list[Action]:
        """The entries that a `ReadEntries` asked for, or none when they can no longer be read; any time later."""
        out: list[Action] = []
        leading = self._state.leading
        if leading is not None:
            leading.replicator.entries_read(to, entries, size_bytes, out)
        return out

    def snapshot_sent(self, to: NodeId, at: EntryId) -> list[Action]:
        """The snapshot that `SendSnapshot` asked for reached the follower; it is the state at `at`."""
        out: list[Action] = []
        leading = self._state.leading
        if leading is not None:
            leading.replicator.snapshot_sent(to, at, out)
        return out

    def snapshot_failed(self, to: NodeId) -> list[Action]:
        """The snapshot did not reach the follower; a later tick asks again."""
        leading = self._state.leading
        if leading is not None:
            leading.replicator.snapshot_failed(to)
        return []

    def peer_connected(self, node: NodeId) -> list[Action]:
        """A connection to `node` is there. Nodes count as connected until `peer_lost` says otherwise."""
        out: list[Action] = []
        state = self._state
        state.lost_peers.discard(node)
        if state.leading is not None:
            state.leading.replicator.peer_connected(node, out)
        return out

    def peer_lost(self, node: NodeId) -> list[Action]:
        """The connection to `node` broke: nothing is sent there until `peer_connected`."""
        state = self._state
        state.lost_peers.add(node)
        if state.leading is not None:
            state.leading.replicator.peer_lost(node)
        return []

    def tick(self, now_us: int | None = None) -> list[Action]:
        """One tick of time passed."""
        out: list[Action] = []
        self._state.note_time(now_us, self._handlers, out)
        leading = self._state.leading
        if leading is not None:
            leading.tick(out)
        return out
