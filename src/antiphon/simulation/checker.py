"""The promises of the protocol, checked while it runs.

The checker sees everything at once: every replica's log and disk, every message, every answer to a client. It keeps for
each shard what has been committed anywhere (`ShardTruth`) and compares all later events with it. Each check looks only
at what the event touched, so that checking after every step stays cheap.

| name | promise |
|---|---|
| election-safety | at most one leader in a term of a shard |
| log-matching | equal (term, offset) means equal logs up to there |
| leader-completeness | a leader holds everything that leaders of earlier terms committed |
| leader-append-only | a leader never cuts its own log |
| durable-majority | what is committed is on the disks of a majority, and stays there |
| older-term | what a leader commits ends with an entry of its own term |
| committed-immutable | no replica commits anything else at a committed offset |
| monotonic | terms and high watermarks never fall while a replica lives |
| within-log | high watermark <= log end, and what a replica believes durable is on its disk |
| spoken-is-durable | a promise, vote, candidacy or acknowledgement is on disk before it is sent |
| one-vote | one vote a term, not two, not even over a restart |
| promise-kept | no acknowledgement in a term below one that was promised |
| ack-agrees | an acknowledged prefix is the leader's prefix |
| exactly-once | no request of a client is in the committed log twice |
| acknowledged-kept | what a client was told to be written is in the committed log where it was told |
| linearizable | an operation sees everything that was complete when it began |
| no-crash | the pure parts raise nothing |
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from antiphon.replication.messages import (
    Ack,
    AnyMessage,
    Append,
    NewTermReply,
    NodeId,
    RequestVote,
    ShardId,
    VoteReply,
)
from antiphon.replication.replica_core import ReplicaCore
from antiphon.replication.replica_state import Role
from antiphon.simulation.client_messages import ClientData
from antiphon.simulation.stored_log import StoredLog
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.disk import ReplicaFiles

Identity = tuple[int, int]  # client, sequence


class Watched(Protocol):
    """A living replica as the checker sees it, whoever carries out its actions."""

    term_seen: int
    mark_seen: int

    @property
    def node(self) -> NodeId:
        """Where it lives."""

    @property
    def shard(self) -> ShardId:
        """The shard that it is a replica of."""

    @property
    def files(self) -> "ReplicaFiles":
        """What its disk has."""

    @property
    def log(self) -> StoredLog:
        """Its log with what is not durable yet."""

    @property
    def replica(self) -> ReplicaCore:
        """The object under test."""

    @property
    def role(self) -> Role:
        """Its role, as it sees it itself."""

    def term_now(self) -> int:
        """Its term."""


class ShardTruth:
    """What is known of one shard over all its replicas and over all time."""

    def __init__(self, shard: ShardId, ensemble: tuple[NodeId, ...]) -> None:
        self.shard = shard
        self.ensemble = ensemble
        self.files: dict[NodeId, ReplicaFiles] = {}
        self.hosted: dict[NodeId, Watched] = {}  # replicas that live now
        self.leaders: dict[int, NodeId] = {}
        self.chain_of: dict[tuple[int, int], int] = {}
        self.committed = StoredLog()
        self.commit_ends: list[tuple[int, int]] = []  # (term of the committing leader, end), both rising
        self.position_of: dict[Identity, tuple[int, int]] = {}
        self.votes: dict[tuple[int, NodeId], NodeId] = {}
        self.promised: dict[NodeId, int] = {}
        self.floor = 0  # end of what completed operations have seen

    def committed_before(self, term: int) -> int:
        """End of what leaders of terms below `term` have committed."""
        for commit_term, end in reversed(self.commit_ends):
            if commit_term < term:
                return end
        return 0


class Checker:
    """Raises `ViolationError` at the first event that breaks a promise."""

    def __init__(self) -> None:
        self.shards: dict[ShardId, ShardTruth] = {}
        self.checks = 0

    def add_shard(self, shard: ShardId, ensemble: tuple[NodeId, ...]) -> ShardTruth:
        """Begin to watch a shard."""
        truth = self.shards[shard] = ShardTruth(shard, ensemble)
        return truth

    def places(self, node: NodeId) -> "dict[ShardId, ReplicaFiles]":
        """Where a node keeps its replicas, opened or not, by shard."""
        return {shard: truth.files[node] for shard, truth in self.shards.items() if node in truth.files}

    # -- logs -----------------------------------------------------------------------------------------------------

    def appended(self, hosted: Watched, count: int) -> None:
        """The last `count` entries of the replica's log are new: log matching."""
        truth = self.shards[hosted.shard]
        log = hosted.log
        for at in range(len(log.entries) - count, len(log.entries)):
            entry, chain = log.entries[at], log.chains[at]
            known = truth.chain_of.setdefault((entry.term, entry.next_offset), chain)
            require(
                known == chain,
                "log-matching",
                truth.shard,
                f"node {hosted.node} has another log than somebody before it up to {entry.next_offset}@{entry.term}",
            )

    def cut(self, hosted: Watched) -> None:
        """The replica is about to shorten its log."""
        require(
            hosted.role is not Role.LEADER,
            "leader-append-only",
            hosted.shard,
            f"node {hosted.node} cuts its own log while it leads term {hosted.term_seen}",
        )

    def durable_shrank(self, shard: ShardId) -> None:
        """A disk has less than before: what is committed must still be on a majority of disks."""
        truth = self.shards[shard]
        self._require_majority(truth, truth.committed.end_offset, truth.committed.end_chain)

    def _require_majority(self, truth: ShardTruth, end: int, chain: int) -> None:
        holders = [node for node in truth.ensemble if holds_durably(truth.files[node], end, chain)]
        require(
            2 * len(holders) > len(truth.ensemble),
            "durable-majority",
            truth.shard,
            f"everything before {end} is committed, but only nodes {holders} of {list(truth.ensemble)} have it on disk",
        )

    # -- roles ----------------------------------------------------------------------------------------------------

    def became_leader(self, hosted: Watched, term: int) -> None:
        """A replica leads from now on."""
        truth = self.shards[hosted.shard]
        known = truth.leaders.setdefault(term, hosted.node)
        require(
            known == hosted.node,
            "election-safety",
            truth.shard,
            f"node {hosted.node} leads term {term}, which node {known} led or leads",
        )
        end = truth.committed_before(term)
        require(
            hosted.log.start.offset >= end or hosted.log.chain_at(end) == truth.committed.chain_at(end),
            "leader-completeness",
            truth.shard,
            f"node {hosted.node} leads term {term} with a log that ends at {hosted.log.end}, "
            f"but everything before {end} was committed in earlier terms",
        )

    def committed(self, hosted: Watched, high_watermark: int) -> None:
        """A replica raised its high watermark."""
        truth = self.shards[hosted.shard]
        chain = hosted.log.chain_at(high_watermark)
        if high_watermark > truth.committed.end_offset:
            self._extend(truth, hosted, high_watermark)
            return
        require(
            chain is None or chain == truth.committed.chain_at(high_watermark),
            "committed-immutable",
            truth.shard,
            f"node {hosted.node} commits up to {high_watermark} what is not the committed log",
        )
        require(
            chain is not None,
            "within-log",
            truth.shard,
            f"node {hosted.node} commits up to {high_watermark}, which is not an end in its log",
        )

    def _extend(self, truth: ShardTruth, hosted: Watched, end: int) -> None:
        old = truth.committed.end_offset
        where = f"node {hosted.node} (term {hosted.term_now()}) commits up to {end}"
        chain = hosted.log.chain_at(end)
        require(chain is not None, "within-log", truth.shard, f"{where}, which is not an end in its log")
        require(
            hosted.log.chain_at(old) == truth.committed.chain_at(old),
            "committed-immutable",
            truth.shard,
            f"{where}, but its log differs from what is committed before {old}",
        )
        for entry in hosted.log.read(old, end, 1 << 60):
            truth.committed.append((entry,))
            self._once(truth, entry.data, entry.base_offset, entry.next_offset)
        self._require_majority(truth, end, truth.committed.end_chain)
        require(
            hosted.role is Role.LEADER,
            "durable-majority",
            truth.shard,
            f"{where} before any leader did",
        )
        term = hosted.term_now()
        require(
            truth.committed.end.term == term,
            "older-term",
            truth.shard,
            f"{where}, an entry of term {truth.committed.end.term}",
        )
        require(
            not truth.commit_ends or truth.commit_ends[-1][0] <= term,
            "promise-kept",
            truth.shard,
            f"{where} after term {truth.commit_ends[-1][0] if truth.commit_ends else 0} has committed",
        )
        if truth.commit_ends and truth.commit_ends[-1][0] == term:
            truth.commit_ends.pop()
        truth.commit_ends.append((term, end))

    def _once(self, truth: ShardTruth, data: object, base_offset: int, next_offset: int) -> None:
        if isinstance(data, ClientData):
            identity = (data.client, data.sequence)
            known = truth.position_of.setdefault(identity, (base_offset, next_offset))
            require(
                known[0] == base_offset,
                "exactly-once",
                truth.shard,
                f"request {data.sequence} of client {data.client} is at {known[0]} and at {base_offset}",
            )

    # -- messages -------------------------------------------------------------------------------------------------

    def sent(self, hosted: Watched, to: NodeId, message: AnyMessage) -> None:
        """A replica says something: it must be able to stand by it after a crash."""
        match message:
            case Ack():
                self._ack_sent(hosted, message)
            case Append():
                self._append_sent(hosted, message)
            case NewTermReply():
                self._promise_sent(hosted, message)
            case RequestVote(pre_vote=False) | VoteReply(granted=True, pre_vote=False):
                self._vote_sent(hosted, to, message)
            case _:
                pass

    def _durable(self, hosted: Watched, condition: bool, what: str) -> None:
        files = hosted.files
        require(
            condition,
            "spoken-is-durable",
            hosted.shard,
            f"node {hosted.node} sends {what}, but its disk has term {files.term}, vote {files.voted_for}, "
            f"log end {files.log.end.offset}@{files.log.end.term}",
        )

    def _ack_sent(self, hosted: Watched, message: Ack) -> None:
        truth, files, end = self.shards[hosted.shard], hosted.files, message.end
        chain = files.log.chain_at(end.offset)
        self._durable(hosted, files.term >= message.term, f"an acknowledgement in term {message.term}")
        self._durable(hosted, chain is not None, f"an acknowledgement of {end.offset}@{end.term}")
        require(
            message.term >= truth.promised.get(hosted.node, 0),
            "promise-kept",
            truth.shard,
            f"node {hosted.node} acknowledges in term {message.term} after it promised {truth.promised.get(hosted.node)}",
        )
        leader = truth.hosted.get(truth.leaders.get(message.term, -1))
        if leader is not None and leader.role is Role.LEADER and leader.term_now() == message.term:
            own = leader.log.chain_at(end.offset)
            require(
                own == chain or leader.log.start.offset > end.offset,
                "ack-agrees",
                truth.shard,
                f"node {hosted.node} acknowledges up to {end.offset}@{end.term}, where leader {leader.node} has another log",
            )

    def _append_sent(self, hosted: Watched, message: Append) -> None:
        truth = self.shards[hosted.shard]
        require(
            truth.leaders.get(message.term) == hosted.node,
            "election-safety",
            truth.shard,
            f"node {hosted.node} sends Append in term {message.term} and does not lead it",
        )
        require(
            message.high_watermark <= truth.committed.end_offset,
            "durable-majority",
            truth.shard,
            f"node {hosted.node} sends high watermark {message.high_watermark}, "
            f"committed is {truth.committed.end_offset}",
        )

    def _promise_sent(self, hosted: Watched, message: NewTermReply) -> None:
        truth, files, head = self.shards[hosted.shard], hosted.files, message.head
        self._durable(hosted, files.term >= message.term, f"the promise of term {message.term}")
        self._durable(
            hosted,
            head.offset <= files.log.end_offset and files.log.chain_at(head.offset) is not None,
            f"head {head.offset}@{head.term}",
        )
        truth.promised[hosted.node] = max(message.term, truth.promised.get(hosted.node, 0))

    def _vote_sent(self, hosted: Watched, to: NodeId, message: RequestVote | VoteReply) -> None:
        truth, files = self.shards[hosted.shard], hosted.files
        candidate = to if isinstance(message, VoteReply) else hosted.node
        self._durable(
            hosted,
            files.term > message.term or (files.term == message.term and files.voted_for == candidate),
            f"its vote for node {candidate} in term {message.term}",
        )
        known = truth.votes.setdefault((message.term, hosted.node), candidate)
        require(
            known == candidate,
            "one-vote",
            truth.shard,
            f"node {hosted.node} votes for node {candidate} in term {message.term} after it voted for node {known}",
        )

    # -- replicas after every step -----------------------------------------------------------------------------------

    def replica(self, hosted: Watched) -> None:
        """A replica was touched: its figures must fit its log, its disk and what they were before."""
        self.checks += 1
        replica, shard, node = hosted.replica, hosted.shard, hosted.node
        term, end, mark = replica.term, replica.log_end, replica.high_watermark
        require(
            term >= hosted.term_seen,
            "monotonic",
            shard,
            f"node {node}: term fell from {hosted.term_seen} to {term}",
        )
        require(mark >= hosted.mark_seen, "monotonic", shard, f"node {node}: high watermark fell to {mark}")
        hosted.term_seen, hosted.mark_seen = term, mark
        require(
            end == hosted.log.end_offset,
            "within-log",
            shard,
            f"node {node} believes its log ends at {end}, it ends at {hosted.log.end_offset}",
        )
        require(
            mark <= end,
            "within-log",
            shard,
            f"node {node}: high watermark {mark} is beyond the log's end {end}",
        )
        durable = replica.durable_end
        if durable >= max(hosted.log.start.offset, hosted.files.log.start.offset):
            require(
                hosted.files.log.chain_at(durable) == hosted.log.chain_at(durable) is not None,
                "within-log",
                shard,
                f"node {node} believes its log durable up to {durable}, which is not what its disk has",
            )
        require(
            mark <= self.shards[shard].committed.end_offset,
            "durable-majority",
            shard,
            f"node {node} has high watermark {mark}, committed is {self.shards[shard].committed.end_offset}",
        )

    # -- clients -----------------------------------------------------------------------------------------------------

    def append_answered(self, shard: ShardId, identity: Identity, base_offset: int, floor: int) -> None:
        """A client was told that its request stands at `base_offset`."""
        truth = self.shards[shard]
        known = truth.position_of.get(identity)
        require(
            known is not None and known[0] == base_offset,
            "acknowledged-kept",
            shard,
            f"request {identity[1]} of client {identity[0]} was acknowledged at {base_offset}, committed is {known}",
        )
        require(
            base_offset >= floor,
            "linearizable",
            shard,
            f"a write that began when {floor} had been seen landed at {base_offset}",
        )
        truth.floor = max(truth.floor, known[1] if known else 0)

    def read_answered(self, shard: ShardId, offset: int, chain: int, floor: int) -> None:
        """A client was shown the state as of `offset`."""
        truth = self.shards[shard]
        require(
            offset >= floor,
            "linearizable",
            shard,
            f"a read that began when {floor} had been seen was answered from the state at {offset}",
        )
        require(
            truth.committed.chain_at(offset) == chain,
            "linearizable",
            shard,
            f"a read was answered from a state at {offset} that is not the committed one",
        )
        truth.floor = max(truth.floor, offset)

    def refusal_answered(self, shard: ShardId, expected: int, actual: int, floor: int) -> None:
        """A conditional append was refused because the log's end was `actual`."""
        truth = self.shards[shard]
        require(
            expected != actual and floor <= actual <= truth.committed.end_offset,
            "linearizable",
            shard,
            f"refused: expected {expected}, actual {actual}, seen {floor}, committed {truth.committed.end_offset}",
        )
        truth.floor = max(truth.floor, actual)

    def converged(self, truths: Iterable[ShardTruth]) -> list[str]:
        """What still keeps the shards from having converged; empty when every replica has everything committed."""
        problems = []
        for truth in truths:
            ends = {
                node: truth.hosted[node].log.end_offset for node in truth.ensemble if node in truth.hosted
            }
            chains = [truth.hosted[node].log.end_chain for node in ends]
            marks = [truth.hosted[node].replica.high_watermark for node in ends]
            if len(ends) < len(truth.ensemble) or len(dict.fromkeys(chains)) > 1:
                problems.append(f"shard {truth.shard}: logs end at {ends}")
            elif any(mark != truth.committed.end_offset for mark in marks):
                problems.append(f"shard {truth.shard}: high watermarks {marks}, ends {ends}")
        return problems


def holds_durably(files: "ReplicaFiles", end: int, chain: int) -> bool:
    """Is everything committed before `end` on this disk, or cut off its head because it was applied?

    A log that is known to be damaged counts, and so does one on a new disk that the coordinator does not trust yet: neither
    votes, so no election can miss what they have lost.
    """
    return (
        files.damaged or files.replaced or files.log.start.offset >= end or files.log.chain_at(end) == chain
    )
