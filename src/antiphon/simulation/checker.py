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
| durable-majority | what is committed is on the disks of a majority (of both sets while members change), and stays there |
| durable-live | where elections go by the live replica set: it is on every recorded live member (HW <= min LEO of the set) |
| live-within-members | the recorded live set is a part of the members |
| min-live | nothing is committed with fewer live members than the topic demands |
| unclean-forbidden | nobody is elected who may lack committed entries, unless the topic allows it |
| no-loss | nothing acknowledged is given up where the rule loses nothing |
| loss-window | what is lost where it may be was only ever with a leader that was deposed, and was not settled |
| loss-told | and that replica says so |
| marker-after-commit | what a commit marker in the log says to be committed is committed when it is written |
| commit-rule | with `at_least(k)`: on k disks when it is acknowledged |
| older-term | what a leader commits ends with an entry of its own term |
| committed-immutable | no replica commits anything else at a committed offset |
| monotonic | terms and high watermarks never fall while a replica lives |
| within-log | high watermark <= log end, and what a replica believes durable is on its disk |
| spoken-is-durable | a promise, vote, candidacy or acknowledgement is on disk before it is sent |
| one-vote | one vote a term, not two, not even over a restart |
| promise-kept | no acknowledgement in a term below one that was promised |
| ack-agrees | an acknowledged prefix is the leader's prefix |
| condition-held | a conditional append is committed where it expected to be, acknowledged or not |
| exactly-once | no request of a client is in the committed log twice |
| acknowledged-kept | what a client was told to be written is in the committed log where it was told |
| linearizable | an operation sees everything that was complete when it began |
| tables-agree | at every offset the store of a table is what the committed log comes to there, on every replica |
| applied-committed | a table applies all that its replica knows to be committed, and nothing else, and never goes back |
| no-crash | the pure parts raise nothing |
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from antiphon.replication.commit_rule import CommitKind
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
from antiphon.replication.replica_state import Role
from antiphon.simulation.client_messages import ClientData, CommitMark
from antiphon.simulation.losses import Acknowledged
from antiphon.simulation.truth import Identity, ShardTruth, Watched, holders, is_held
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.disk import ReplicaFiles
    from antiphon.wire.metadata import ShardMeta


class Checker:
    """Raises `ViolationError` at the first event that breaks a promise."""

    def __init__(self) -> None:
        self.shards: dict[ShardId, ShardTruth] = {}
        self.checks = 0
        self.now: Callable[[], int] = lambda: 0  # simulated time in ns
        self.on_loss: Callable[[ShardId, int], None] = lambda _shard, _end: (
            None
        )  # committed entries are lost from there on

    def add_shard(self, shard: ShardId, ensemble: tuple[NodeId, ...]) -> ShardTruth:
        """Begin to watch a shard."""
        truth = self.shards[shard] = ShardTruth(shard, ensemble)
        return truth

    def places(self, node: NodeId) -> "dict[ShardId, ReplicaFiles]":
        """Where a node keeps its replicas, opened or not, by shard."""
        return {shard: truth.files[node] for shard, truth in self.shards.items() if node in truth.files}

    def memory_lost(self, shard: ShardId, node: NodeId) -> None:
        """A node's disk is gone. A vote for itself binds nobody then: only its own candidacy could have counted it."""
        truth = self.shards[shard]
        truth.losses.silent[node] = None
        own = [key for key, candidate in truth.votes.items() if key[1] == node == candidate]
        for key in own:
            del truth.votes[key]

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
            if isinstance(entry.data, CommitMark) and not truth.may_lose:
                require(
                    entry.data.high_watermark <= truth.committed.end_offset or bool(truth.unclean),
                    "marker-after-commit",
                    truth.shard,
                    f"node {hosted.node} writes down that {entry.data.high_watermark} is committed, "
                    f"committed is {truth.committed.end_offset}",
                )

    def cut(self, hosted: Watched) -> None:
        """The replica is about to shorten its log."""
        require(
            hosted.role is not Role.LEADER,
            "leader-append-only",
            hosted.shard,
            f"node {hosted.node} cuts its own log while it leads term {hosted.term_seen}",
        )

    def recorded(self, shard: ShardId, meta: "ShardMeta") -> None:
        """The coordinator has committed another record of the shard: its members, and its live replica set."""
        truth = self.shards[shard]
        truth.moved_by_coordinator = True
        members = Members(meta.ensemble, meta.outgoing, meta.learners)
        live = () if meta.fence == "majority" else meta.live
        if (members, live, meta.fence) == (truth.members, truth.live, truth.fence):
            return
        truth.members, truth.live, truth.fence = members, live, meta.fence
        stray = [node for node in live if node not in members.voting]
        require(
            not stray,
            "live-within-members",
            shard,
            f"live set {list(live)}, but {stray} are no members of {members}",
        )
        self.durable_shrank(shard)

    def durable_shrank(self, shard: ShardId) -> None:
        """A disk has less than before: what is committed must still be where every election has to look.

        While members change an election needs a majority of both sets, so it is enough that one of them holds it.
        """
        truth = self.shards[shard]
        end, chain = truth.committed.end_offset, truth.committed.end_chain
        if truth.deleted or (truth.fence != "majority" and self._is_live_held(truth, end, chain)):
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
            truth.deleted,
            "durable-live" if truth.fence == "live" else "durable-majority",
            truth.shard,
            f"everything before {end} is committed, but only nodes {holders(truth, nodes, end, chain)} of {list(nodes)} "
            "have it on disk",
        )

    def _require_rule(self, truth: ShardTruth, hosted: Watched, end: int, chain: int) -> None:
        """What is committed is held by as many as the rule says, of each set that must agree.

        Replicas that vote carry their members in the log, so what a leader goes by is what counts. Where a coordinator keeps
        the members, a leader may hear of a new record late: then it is the record that counts.
        """
        if hosted.replica.live:
            self._require_live(truth, hosted, end, chain)
            return
        if truth.moved_by_coordinator:
            sets = [each for each in truth.members.sets if is_held(truth, each, end, chain)]
            if not sets:
                self._not_held(truth, truth.members.sets[0], end, chain)
        else:
            sets = list(hosted.replica.members.sets)
            self._require_majority(truth, hosted.replica.members, end, chain)
        rule = hosted.replica.commit_rule
        if rule.kind is CommitKind.AT_LEAST and not truth.may_lose:
            most = max((len(holders(truth, each, end, chain)), each) for each in sets)[1]
            there = holders(truth, most, end, chain)
            require(
                len(there) >= min(rule.k, len(most)),
                "commit-rule",
                truth.shard,
                f"everything before {end} is committed by {rule}, but only nodes {there} of {list(most)} have it on disk",
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
            truth.shard,
            f"node {hosted.node} commits up to {end} with live set {list(own)}, fewer than {truth.min_live}",
        )

    # -- roles ----------------------------------------------------------------------------------------------------

    def became_leader(self, hosted: Watched, term: int) -> None:
        """A replica leads from now on."""
        truth = self.shards[hosted.shard]
        known = truth.leaders.setdefault(term, hosted.node)
        truth.terms_began_ns.setdefault(term, self.now())
        require(
            known == hosted.node,
            "election-safety",
            truth.shard,
            f"node {hosted.node} leads term {term}, which node {known} led or leads",
        )
        if term in truth.unclean:
            self._lose_uncleanly(truth, hosted)
        end = truth.committed_before(term)
        require(
            hosted.log.start.offset >= end or hosted.log.chain_at(end) == truth.committed.chain_at(end),
            "leader-completeness",
            truth.shard,
            f"node {hosted.node} leads term {term} with a log that ends at {hosted.log.end}, "
            f"but everything before {end} was committed in earlier terms",
        )

    def unclean_election(self, shard: ShardId, term: int, allowed: bool) -> None:
        """The coordinator is about to appoint a leader that may lack what was committed (C10)."""
        require(
            allowed, "unclean-forbidden", shard, f"an unclean election in term {term}, which nobody allowed"
        )
        self.shards[shard].unclean[term] = None

    def _lose_uncleanly(self, truth: ShardTruth, hosted: Watched) -> None:
        """What the new leader does not have is lost, as was allowed: it is counted, and was never committed from now on."""
        known = truth.committed
        ends = [known.start.offset, *known.ends]
        common = max(
            (
                end
                for end in ends
                if hosted.log.start.offset >= end or hosted.log.chain_at(end) == known.chain_at(end)
            ),
            default=known.start.offset,
        )
        lost = known.truncate(common)
        truth.losses.unclean_entries += len(lost)
        for entry in lost:
            if isinstance(entry.data, ClientData):
                truth.position_of.pop((entry.data.client, entry.data.sequence), None)
        truth.commit_ends = [(term, min(end, common)) for term, end in truth.commit_ends]
        truth.floor = min(truth.floor, common)
        if lost:
            self.on_loss(truth.shard, common)

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
            if entry.members is not None:
                truth.members = entry.members
        self._require_rule(truth, hosted, end, truth.committed.end_chain)
        require(
            hosted.role is Role.LEADER,
            "durable-majority",
            truth.shard,
            f"{where} before any leader did",
        )
        term = hosted.term_now()
        require(
            truth.committed.end.term == term or truth.may_lose,  # there it is clipped to what is acknowledged
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
            require(
                data.expected in (-1, base_offset),
                "condition-held",
                truth.shard,
                f"request {data.sequence} of client {data.client} expected {data.expected} and is committed "
                f"at {base_offset}",
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
        """A replica was touched: its figures must fit its log, its disk and what they were before.

        This runs after every event, so nothing is put into words unless something is wrong.
        """
        self.checks += 1
        replica, log, files = hosted.replica, hosted.log, hosted.files.log
        term, end, mark, durable = replica.term, replica.log_end, replica.settled, replica.durable_end
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
            shard,
            f"{node}: term fell from {hosted.term_seen} to {term}",
        )
        require(mark >= hosted.mark_seen, "monotonic", shard, f"{node}: high watermark fell to {mark}")
        own = hosted.log.end_offset
        require(end == own, "within-log", shard, f"{node} believes its log ends at {end}, it ends at {own}")
        require(
            mark <= end, "within-log", shard, f"{node}: high watermark {mark} is beyond the log's end {end}"
        )
        require(
            mark <= committed,
            "durable-majority",
            shard,
            f"{node} has high watermark {mark}, committed is {committed}",
        )
        where = f"{node} believes its log durable up to {replica.durable_end}, which is not what its disk has"
        require(False, "within-log", shard, where)

    # -- clients -----------------------------------------------------------------------------------------------------

    def acknowledged(self, hosted: Watched, identity: Identity, base_offset: int) -> None:
        """A leader is about to tell a client that its request is committed at `base_offset`."""
        truth = self.shards[hosted.shard]
        if truth.may_lose:
            truth.losses.acknowledged[identity] = Acknowledged(
                base_offset, hosted.term_now(), hosted.node, self.now()
            )

    def tail_lost(self, hosted: Watched, from_offset: int, to_offset: int) -> None:
        """A replica says that it cuts off what it had acknowledged as a leader."""
        truth = self.shards[hosted.shard]
        require(
            truth.may_lose or truth.unclean,
            "no-loss",
            truth.shard,
            f"node {hosted.node} has acknowledged [{from_offset}, {to_offset}) and cuts it off, and the rule loses nothing",
        )
        truth.losses.tails.append((hosted.node, from_offset, to_offset))

    def append_answered(self, shard: ShardId, identity: Identity, base_offset: int, floor: int) -> None:
        """A client was told that its request stands at `base_offset`."""
        truth = self.shards[shard]
        if truth.may_lose:
            return  # the losses are counted in the end
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
        if truth.may_lose:
            return  # it may have seen what is lost later
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
        if truth.may_lose:
            return
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
            if truth.deleted or truth.beyond_help:
                continue
            if truth.members.is_joint or (truth.moved_by_coordinator and truth.members.learners):
                problems.append(f"shard {truth.shard}: a change of members is not over: {truth.members}")
            ends = {
                node: truth.hosted[node].log.end_offset for node in truth.ensemble if node in truth.hosted
            }
            chains = [truth.hosted[node].log.end_chain for node in ends]
            marks = [truth.hosted[node].replica.settled for node in ends]
            if len(ends) < len(truth.ensemble) or len(dict.fromkeys(chains)) > 1:
                problems.append(f"shard {truth.shard}: logs end at {ends}")
            elif any(mark != end for mark in marks for end in (truth.committed.end_offset, *ends.values())):
                problems.append(f"shard {truth.shard}: high watermarks {marks}, ends {ends}")
        return problems
