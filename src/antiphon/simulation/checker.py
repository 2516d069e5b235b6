"""The promises of the protocol, checked while a script moves its objects.

The checker sees everything at once: every replica's log and disk, every message. It keeps for
each shard what has been committed anywhere (`ShardTruth`) and compares all later events with it. Each check looks only
at what the event touched, so that checking after every step stays cheap.

| name | promise |
|---|---|
| election-safety | at most one leader in a term of a shard |
| log-matching | equal (term, offset) means equal logs up to there |
| leader-completeness | a leader holds everything that leaders of earlier terms committed |
| leader-append-only | a leader never cuts its own log |
| durable-majority | what is committed is on the disks of a majority (of both sets while members change), and stays there |
| durable-live | where elections go by the live replica set: it is on every recorded live member (HW <= min LEO of the set) |
| min-live | nothing is committed with fewer live members than the topic demands |
| no-loss | nothing acknowledged is given up where the rule loses nothing |
| commit-rule | with `at_least(k)`: on k disks when it is acknowledged |
| older-term | what a leader commits ends with an entry of its own term |
| committed-immutable | no replica commits anything else at a committed offset |
| monotonic | terms and high watermarks never fall while a replica lives |
| within-log | high watermark <= log end, and what a replica believes durable is on its disk |
| spoken-is-durable | a promise, vote, candidacy or acknowledgement is on disk before it is sent |
| one-vote | one vote a term, not two, not even over a restart |
| promise-kept | no acknowledgement in a term below one that was promised |
| ack-agrees | an acknowledged prefix is the leader's prefix |
| no-crash | the pure parts raise nothing |
"""

from antiphon.replication.members import Members
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
from antiphon.replication.quorum import majority
from antiphon.replication.replica_state import Role
from antiphon.simulation.truth import ShardTruth, Watched, holders, is_held
from antiphon.simulation.violation import require


class Checker:
    """Raises `ViolationError` at the first event that breaks a promise."""

    def __init__(self) -> None:
        self.shards: dict[ShardId, ShardTruth] = {}
        self.checks = 0

    def add_shard(self, shard: ShardId, ensemble: tuple[NodeId, ...]) -> ShardTruth:
        """Begin to watch a shard."""
        truth = self.shards[shard] = ShardTruth(shard, ensemble)
        return truth

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
                f"node {hosted.node} has another log than somebody before it up to {entry.next_offset}@{entry.term}",
                truth.shard,
            )

    def cut(self, hosted: Watched) -> None:
        """The replica is about to shorten its log."""
        require(
            hosted.role is not Role.LEADER,
            "leader-append-only",
            f"node {hosted.node} cuts its own log while it leads term {hosted.term_seen}",
            hosted.shard,
        )

    def durable_shrank(self, shard: ShardId) -> None:
        """A disk has less than before: what is committed must still be where every election has to look.

        While members change an election needs a majority of both sets, so it is enough that one of them holds it.
        """
        truth = self.shards[shard]
        end, chain = truth.committed.end_offset, truth.committed.end_chain
        if truth.fence != "majority" and self._is_live_held(truth, end, chain):
            return
        if truth.fence == "live":
            self._not_held(truth, truth.live, end, chain)
        if not any(is_held(truth, each, end, chain) for each in truth.members.sets):
            self._not_held(truth, truth.members.sets[0], end, chain)

    def _is_live_held(self, truth: ShardTruth, end: int, chain: int) -> bool:
        """Is it on the disk of every live member, so that any of them may lead? HW <= min LEO of the live set."""
        return len(holders(truth, truth.live, end, chain)) == len(truth.live)

    def _require_majority(self, truth: ShardTruth, members: Members, end: int, chain: int) -> None:
        for each in members.sets:
            if not is_held(truth, each, end, chain):
                self._not_held(truth, each, end, chain)

    def _not_held(self, truth: ShardTruth, nodes: tuple[NodeId, ...], end: int, chain: int) -> None:
        require(
            False,
            "durable-live" if truth.fence == "live" else "durable-majority",
            f"everything before {end} is committed, but only nodes {holders(truth, nodes, end, chain)} of {list(nodes)} "
            "have it on disk",
            truth.shard,
        )

    def _require_rule(self, truth: ShardTruth, hosted: Watched, end: int, chain: int) -> None:
        """What is committed is held by as many as the rule says, of each set that must agree.

        Replicas that vote carry their members in the log, so what a leader goes by is what counts. Where a coordinator keeps
        the members, a leader may hear of a new record late: then it is the record that counts.
        """
        if hosted.replica.live:
            self._require_live(truth, hosted, end, chain)
            return
        sets = list(hosted.replica.members.sets)
        self._require_majority(truth, hosted.replica.members, end, chain)
        rule = hosted.replica.config.commit
        if not truth.may_lose:
            most = max((len(holders(truth, each, end, chain)), each) for each in sets)[1]
            there, needed = holders(truth, most, end, chain), rule.enough(len(most))
            require(
                len(there) >= needed or needed <= majority(len(most)),  # a majority was asked for above
                "commit-rule",
                f"everything before {end} is committed by {rule}, but only nodes {there} of {list(most)} have it on disk",
                truth.shard,
            )

    def _require_live(self, truth: ShardTruth, hosted: Watched, end: int, chain: int) -> None:
        """Commits that go by the live set are on every recorded live member, and those are enough."""
        if truth.fence == "both":
            self.durable_shrank(truth.shard)
        elif not self._is_live_held(truth, end, chain):
            self._not_held(truth, truth.live, end, chain)
        own = hosted.replica.live
        require(
            len(own) >= truth.min_live,
            "min-live",
            f"node {hosted.node} commits up to {end} with live set {list(own)}, fewer than {truth.min_live}",
            truth.shard,
        )

    # -- roles ----------------------------------------------------------------------------------------------------

    def became_leader(self, hosted: Watched, term: int) -> None:
        """A replica leads from now on."""
        truth = self.shards[hosted.shard]
        known = truth.leaders.setdefault(term, hosted.node)
        require(
            known == hosted.node,
            "election-safety",
            f"node {hosted.node} leads term {term}, which node {known} led or leads",
            truth.shard,
        )
        end = truth.committed_before(term)
        require(
            hosted.log.start.offset >= end or hosted.log.chain_at(end) == truth.committed.chain_at(end),
            "leader-completeness",
            f"node {hosted.node} leads term {term} with a log that ends at {hosted.log.end}, "
            f"but everything before {end} was committed in earlier terms",
            truth.shard,
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
            f"node {hosted.node} commits up to {high_watermark} what is not the committed log",
            truth.shard,
        )
        require(
            chain is not None,
            "within-log",
            f"node {hosted.node} commits up to {high_watermark}, which is not an end in its log",
            truth.shard,
        )

    def _extend(self, truth: ShardTruth, hosted: Watched, end: int) -> None:
        old = truth.committed.end_offset
        where = f"node {hosted.node} (term {hosted.term_now()}) commits up to {end}"
        chain = hosted.log.chain_at(end)
        require(chain is not None, "within-log", f"{where}, which is not an end in its log", truth.shard)
        require(
            hosted.log.chain_at(old) == truth.committed.chain_at(old),
            "committed-immutable",
            f"{where}, but its log differs from what is committed before {old}",
            truth.shard,
        )
        for entry in hosted.log.read(old, end, 1 << 60):
            truth.committed.append((entry,))
            if entry.members is not None:
                truth.members = entry.members
        self._require_rule(truth, hosted, end, truth.committed.end_chain)
        require(
            hosted.role is Role.LEADER,
            "durable-majority",
            f"{where} before any leader did",
            truth.shard,
        )
        term = hosted.term_now()
        require(
            truth.committed.end.term == term or truth.may_lose,  # there it is clipped to what is acknowledged
            "older-term",
            f"{where}, an entry of term {truth.committed.end.term}",
            truth.shard,
        )
        require(
            not truth.commit_ends or truth.commit_ends[-1][0] <= term,
            "promise-kept",
            f"{where} after term {truth.commit_ends[-1][0] if truth.commit_ends else 0} has committed",
            truth.shard,
        )
        if truth.commit_ends and truth.commit_ends[-1][0] == term:
            truth.commit_ends.pop()
        truth.commit_ends.append((term, end))

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
            f"node {hosted.node} sends {what}, but its disk has term {files.term}, vote {files.voted_for}, "
            f"log end {files.log.end.offset}@{files.log.end.term}",
            hosted.shard,
        )

    def _ack_sent(self, hosted: Watched, message: Ack) -> None:
        truth, files, end = self.shards[hosted.shard], hosted.files, message.end
        chain = files.log.chain_at(end.offset)
        self._durable(hosted, files.term >= message.term, f"an acknowledgement in term {message.term}")
        self._durable(hosted, chain is not None, f"an acknowledgement of {end.offset}@{end.term}")
        require(
            message.term >= truth.promised.get(hosted.node, 0),
            "promise-kept",
            f"node {hosted.node} acknowledges in term {message.term} after it promised {truth.promised.get(hosted.node)}",
            truth.shard,
        )
        leader = truth.hosted.get(truth.leaders.get(message.term, -1))
        if leader is not None and leader.role is Role.LEADER and leader.term_now() == message.term:
            own = leader.log.chain_at(end.offset)
            require(
                own == chain or leader.log.start.offset > end.offset,
                "ack-agrees",
                f"node {hosted.node} acknowledges up to {end.offset}@{end.term}, where leader {leader.node} has another log",
                truth.shard,
            )

    def _append_sent(self, hosted: Watched, message: Append) -> None:
        truth = self.shards[hosted.shard]
        require(
            truth.leaders.get(message.term) == hosted.node,
            "election-safety",
            f"node {hosted.node} sends Append in term {message.term} and does not lead it",
            truth.shard,
        )
        require(
            message.high_watermark <= truth.committed.end_offset,
            "durable-majority",
            f"node {hosted.node} sends high watermark {message.high_watermark}, "
            f"committed is {truth.committed.end_offset}",
            truth.shard,
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
            f"node {hosted.node} votes for node {candidate} in term {message.term} after it voted for node {known}",
            truth.shard,
        )

    # -- replicas after every step -----------------------------------------------------------------------------------

    def replica(self, hosted: Watched) -> None:
        """A replica was touched: its figures must fit its log, its disk and what they were before.

        This runs after every event, so nothing is put into words unless something is wrong.
        """
        self.checks += 1
        replica, log, files = hosted.replica, hosted.log, hosted.files.log
        term, end, mark, durable = replica.term, replica.log_end, replica.settled, replica.log.durable_end
        if (
            term < hosted.term_seen
            or mark < hosted.mark_seen
            or end != log.end_offset
            or mark > end
            or mark > self.shards[hosted.shard].committed.end_offset
            or (
                durable >= log.start.offset
                and durable >= files.start.offset
                and not files.chain_at(durable) == log.chain_at(durable) is not None
            )
        ):
            self._wrong_figures(hosted)
        hosted.term_seen, hosted.mark_seen = term, mark

    def _wrong_figures(self, hosted: Watched) -> None:
        """Say which of a replica's figures is wrong."""
        replica, shard = hosted.replica, hosted.shard
        term, end, mark = replica.term, replica.log_end, replica.settled
        node, committed = f"node {hosted.node}", self.shards[shard].committed.end_offset
        require(
            term >= hosted.term_seen,
            "monotonic",
            f"{node}: term fell from {hosted.term_seen} to {term}",
            shard,
        )
        require(mark >= hosted.mark_seen, "monotonic", f"{node}: high watermark fell to {mark}", shard)
        own = hosted.log.end_offset
        require(end == own, "within-log", f"{node} believes its log ends at {end}, it ends at {own}", shard)
        require(
            mark <= end, "within-log", f"{node}: high watermark {mark} is beyond the log's end {end}", shard
        )
        require(
            mark <= committed,
            "durable-majority",
            f"{node} has high watermark {mark}, committed is {committed}",
            shard,
        )
        where = (
            f"{node} believes its log durable up to {replica.log.durable_end}, which is not what its disk has"
        )
        require(False, "within-log", where, shard)

    # -- clients -----------------------------------------------------------------------------------------------------

    def tail_lost(self, hosted: Watched, from_offset: int, to_offset: int) -> None:
        """A replica says that it cuts off what it had acknowledged as a leader."""
        truth = self.shards[hosted.shard]
        require(
            truth.may_lose,
            "no-loss",
            f"node {hosted.node} has acknowledged [{from_offset}, {to_offset}) and cuts it off, and the rule loses nothing",
            truth.shard,
        )
