"""Random schedules of one shard whose members, live set or commit rule change while everything else goes wrong.

The schedules are those of `test_random_schedules`, with the part of a coordinator that each of them needs. What it
knows is recorded at once; what it says, and what is said to it, is lost, late, repeated and reordered like every other
message.
"""

from collections.abc import Callable
from dataclasses import replace

from antiphon.replication.actions import Action, Commit, LostTail
from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    AddFollower,
    AnyMessage,
    BecomeLeader,
    BecomeLeaderReply,
    ChangeMembers,
    Entry,
    MembersSettled,
    NewTerm,
    NewTermReply,
    NodeId,
)
from antiphon.replication.quorum import majority
from antiphon.replication.replica_state import Role
from tests.replication.cluster import COORDINATOR, SHARD, Cluster, Host, commit_by
from tests.replication.live_cluster import LiveCluster
from tests.replication.test_random_schedules import Schedule

Event = tuple[int, Callable[[], None]]


class CoordinatedSchedule(Schedule):
    """One seeded run, with checks that hold in every mode."""

    worth = 0  # how often what the schedule is for has happened
    votes = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed, raft=self.votes)

    def events(self) -> list[Event]:
        """Calmer than usual: changes need some time to be made."""
        more = [(60, self.deliver_some), (30, self.sync_some), (25, self.tick), (10, self.propose)]
        return [*super().events(), *more, (3, self.cluster.heal), (3, self.restart_all)]

    def check_commits(self) -> None:
        """What was ever settled is in the log of whoever is ready to lead the newest term."""
        for node in self.cluster.leading:
            replica = self.cluster.replica(node)
            if replica.ready and replica.term == max(self.cluster.leaders):
                held = {entry.base_offset: entry for entry in self.cluster[node].log}
                for entry in self.cluster.chosen:
                    if entry.base_offset >= replica.log.terms.log_start:
                        assert held.get(entry.base_offset) == entry, f"{node} leads without {entry}"

    def holds(self, host: Host, entry: Entry) -> bool:
        """Is a committed entry on this disk (or trimmed there, which takes that it was settled)?"""
        return host.start.offset >= entry.next_offset or entry in host.disk


# -- members ----------------------------------------------------------------------------------------------------------


class JointSchedule(CoordinatedSchedule):
    """Members change, by joint steps and at any moment."""

    def __init__(self, seed: int) -> None:
        self.members = Members((1, 2, 3))
        self.version = 0
        super().__init__(seed)
        self.begun_in = 0  # the term that was begun under the newest version

    def make_cluster(self) -> Cluster:
        self.nodes = 6
        config = ReplicaConfig(resend_ticks=2, feed_bytes_max=self.random.choice([100, 10_000]))
        cluster = Cluster(6, config=config)
        cluster.ensemble = (1, 2, 3, 4, 5, 6)
        return cluster

    def events(self) -> list[Event]:
        return [*super().events(), (2, self.change), (4, self.remind)]

    def change(self) -> None:
        """Begin a change, to any other voters."""
        if not self.members.is_joint:
            new = tuple(sorted(self.random.sample(range(1, 7), self.random.choice([1, 2, 3, 3, 4]))))
            if new != self.members.voters:
                self.record(Members(new, self.members.voters))

    def record(self, members: Members) -> None:
        self.version, self.members, self.begun_in = self.version + 1, members, 0
        self.remind()

    def remind(self) -> None:
        """Tell the leader of the members, and fence whoever is to be fed, as often as you like."""
        if self.chosen is not None:
            message = ChangeMembers(SHARD, self.term, self.version, self.members)
            self.cluster.underway.append((COORDINATOR, self.chosen, message))
            for node in self.members.everybody:
                if node not in self.promised:
                    self.cluster.underway.append((COORDINATOR, node, NewTerm(SHARD, self.term)))

    def coordinate(self) -> None:
        told, self.cluster.told = self.cluster.told, []
        for node, message in told:
            if isinstance(message, NewTermReply) and message.term == self.term:
                self.promise(node, message)
            elif self.says_settled(message):
                self.settled()

    def says_settled(self, message: AnyMessage) -> bool:
        """Either it says so, or it says that a term is ready that was begun under the newest record."""
        if isinstance(message, BecomeLeaderReply):
            return message.term == self.term == self.begun_in
        return isinstance(message, MembersSettled) and message.version == self.version

    def promise(self, node: NodeId, message: NewTermReply) -> None:
        first = node not in self.promised
        self.promised.setdefault(node, message.head)
        if self.chosen is not None:
            late = AddFollower(SHARD, self.term, node, message.head)
            self.cluster.underway.append((COORDINATOR, self.chosen, late))
        elif first:
            self.elect()

    def elect(self) -> None:
        heads, members = self.promised, self.members
        if any(len(heads.keys() & set(one)) < majority(len(one)) for one in members.sets):
            return
        able = [
            node
            for node in members.voting
            if node in heads
            and all(
                sum(heads[other] <= heads[node] for other in one if other in heads) >= majority(len(one))
                for one in members.sets
            )
        ]
        if not able:
            return
        self.chosen = self.random.choice(able)
        self.begun_in = self.term
        own = heads[self.chosen]
        others = tuple((n, head) for n, head in heads.items() if n != self.chosen and head <= own)
        message = BecomeLeader(
            SHARD,
            self.term,
            members.voters,
            others,
            outgoing=members.outgoing,
            learners=members.learners,
            members_version=self.version,
        )
        self.cluster.underway.append((COORDINATOR, self.chosen, message))

    def settled(self) -> None:
        """The old voters may go; nothing that was ever committed may need them."""
        if not self.members.is_joint:
            return
        new = self.members.voters
        for entry in self.cluster.chosen:
            copies = sum(self.holds(self.cluster[node], entry) for node in new)
            assert copies >= majority(len(new)), f"{entry} is held by {copies} of {new}"
        self.worth += 1
        self.record(Members(new))

    def settle(self) -> None:
        self.end_faults()
        self.cluster.deliver()
        for _ in range(3):
            self.new_term()
            self.run_ticks()
            self.remind()
            self.run_ticks()
        assert not self.members.is_joint
        leader = next(node for node in self.cluster.leading if self.cluster.replica(node).term == self.term)
        self.cluster.propose(leader, "the last")
        self.run_ticks()
        end = self.cluster.replica(leader).log_end
        for node in self.members.voters:
            replica = self.cluster.replica(node)
            assert (replica.log_end, replica.high_watermark) == (end, end), node


# -- the live set ------------------------------------------------------------------------------------------------------


class LiveSchedule(CoordinatedSchedule):
    """Commits go by the live set; its record is late, lost and reordered, and shrinks by itself."""

    cluster: LiveCluster

    def make_cluster(self) -> LiveCluster:
        self.nodes = self.random.choice([2, 3, 3, 4])
        config = ReplicaConfig(
            resend_ticks=2,
            live_lag_entries_max=self.random.choice([0, 3, 20]),
            live_lag_ticks=self.random.choice([3, 6]),
            min_live=self.random.choice([1, 1, 2]),
            term_start_on_empty=self.random.random() < 0.5,
        )
        return LiveCluster(self.nodes, config=config)

    def events(self) -> list[Event]:
        return [*super().events(), (9, self.record), (9, self.tell), (1, self.shrink), (3, self.lose_peer)]

    def record(self) -> None:
        """One of the last proposals arrives; it may come again."""
        proposals = self.cluster.proposals
        if proposals:
            index = self.random.randrange(max(0, len(proposals) - 4), len(proposals))
            if self.random.random() < 0.3:
                proposals.append(proposals[index])
            self.worth += self.cluster.record(index)

    def tell(self) -> None:
        """One of the last records reaches somebody."""
        news = self.cluster.news[-3:]
        host = self.random.choice(self.living())
        if news:
            host.run(host.replica.live_recorded(*self.random.choice(news)))

    def shrink(self) -> None:
        """The coordinator takes somebody for dead, rightly or not; never the leader."""
        others = [node for node in self.cluster.live if node != self.chosen]
        if others and self.chosen is not None:
            gone = self.random.choice(others)
            self.cluster.set_live([node for node in self.cluster.live if node != gone])

    def lose_peer(self) -> None:
        host, peer = self.random.choice(self.living()), self.random.choice(self.cluster.ensemble)
        event = self.random.choice([host.replica.peer_lost, host.replica.peer_connected])
        host.run(event(peer))

    def new_term(self) -> None:
        super().new_term()
        self.cluster.term = self.term

    def coordinate(self) -> None:
        list(self.promises())
        if self.chosen is None and self.random.random() < 0.3:
            self.elect()

    def elect(self) -> None:
        """Any live member that has promised may lead: it has all that is committed."""
        cluster, heads = self.cluster, self.promised
        able = [node for node in cluster.live if node in heads]
        if not able:
            return
        self.chosen = self.random.choice(able)
        cluster.version, cluster.live = cluster.version + 1, tuple(able)
        own = heads[self.chosen]
        message = BecomeLeader(
            SHARD,
            self.term,
            cluster.ensemble,
            tuple((n, head) for n, head in heads.items() if n != self.chosen and head <= own),
            live=cluster.live,
            live_version=cluster.version,
        )
        self.cluster.underway.append((COORDINATOR, self.chosen, message))
        for node, head in heads.items():
            if head > own:
                self.cluster.underway.append(
                    (COORDINATOR, self.chosen, AddFollower(SHARD, self.term, node, head))
                )

    def check_commits(self) -> None:
        super().check_commits()
        for node in self.cluster.live:
            host = self.cluster[node]
            for entry in self.cluster.chosen[-8:]:
                assert self.holds(host, entry), (
                    f"{entry} is committed and not held by {node}, which may be elected"
                )

    def settle(self) -> None:
        self.end_faults()
        for host in self.hosts:
            for node in self.cluster.ensemble:
                host.run(host.replica.peer_connected(node))
        self.cluster.deliver()
        self.new_term()
        self.cluster.deliver()
        self.coordinate()
        if self.chosen is None:
            self.elect()
        assert self.chosen is not None, "some live member has promised"
        self.run_ticks()
        leader = self.cluster[self.chosen]
        for _ in range(5):
            self.cluster.settle_live(self.chosen)
            self.run_ticks()
        self.cluster.propose(self.chosen, "the last")
        self.run_ticks()
        self.cluster.settle_live(self.chosen)
        self.run_ticks()
        assert set(self.cluster.live) == set(self.cluster.ensemble)
        for host in self.hosts:
            ends = {host.replica.log_end, host.replica.high_watermark, host.replica.log.durable_end}
            assert ends == {leader.replica.log_end}, (host.node, ends)
            start = max(host.log_start.offset, leader.log_start.offset)
            ours, theirs = ([e for e in one.log if e.base_offset >= start] for one in (host, leader))
            assert ours == theirs, host.node
        assert not leader.replica.needs_tick


class UncleanSchedule(LiveSchedule):
    """Where nobody of the live set answers, whoever does is elected: what is lost is lost, and the logs must agree."""

    def make_cluster(self) -> LiveCluster:
        made = super().make_cluster()
        return UncleanCluster(len(made.ensemble), config=replace(made.config, unclean=True, min_live=1))

    def elect(self) -> None:
        if not set(self.cluster.live) & self.promised.keys() and self.promised:
            self.worth += 1
            self.cluster.live = (max(self.promised, key=lambda node: self.promised[node]),)
        super().elect()

    def check_commits(self) -> None:
        """Nothing of it holds but what `agree` checks at the end."""

    def check_reads(self) -> None:
        """A read may be from before what is lost."""


class UncleanCluster(LiveCluster):
    """What is committed may be lost."""

    def committed(self, host: Host, high_watermark: int) -> None:
        """See `UncleanSchedule`."""


# -- acknowledged before settled -----------------------------------------------------------------------------------------


class EarlySchedule(CoordinatedSchedule):
    """The rule changes among all that acknowledge by the leader's disk, by any number, or by a majority."""

    cluster: "EarlyCluster"

    RULES = ("local", "at_least(1)", "at_least(2)", "at_least(3)", "quorum", "local")

    def __init__(self, seed: int) -> None:
        self.marks: dict[NodeId, int] = {}  # what each replica has told its clients
        super().__init__(seed)

    def make_cluster(self) -> Cluster:
        self.nodes = self.random.choice([2, 3, 4, 5])
        rule = CommitRule.parse(self.random.choice(self.RULES))
        return EarlyCluster(self, ReplicaConfig(resend_ticks=2, commit=rule))

    def events(self) -> list[Event]:
        """Leaders that are cut off and replaced, above all."""
        usual = [event for event in super().events() if event[1] != self.read]
        return [*usual, (3, self.set_rule), (2, self.part), (0 if self.votes else 3, self.new_term)]

    def set_rule(self) -> None:
        rule = self.random.choice(self.RULES)
        for host in self.living():
            if self.random.random() < 0.7:
                host.run(commit_by(host.replica, rule))

    def check_commits(self) -> None:
        super().check_commits()
        for host in self.living():
            replica = host.replica
            assert replica.settled <= replica.log.commit_mark <= replica.log_end
            assert replica.high_watermark in {replica.settled, replica.log.commit_mark}
            self.check_settled(host)

    def check_settled(self, host: Host) -> None:
        """What a replica takes for settled, a majority holds; nobody's settled log contradicts another's."""
        replica = host.replica
        if replica.role is Role.LEADER and replica.ready and replica.term == max(self.cluster.leaders):
            for entry in host.log[-12:]:
                if entry.next_offset <= replica.settled:
                    copies = sum(self.holds(other, entry) for other in self.hosts)
                    assert copies >= majority(self.nodes), f"{entry} is settled on {copies} disks"
        self.cluster.settled(host, replica.settled)


class EarlyVotedSchedule(EarlySchedule):
    """The same where the replicas vote (S4.1: the rule is one thing, the election another)."""

    votes = True

    def events(self) -> list[Event]:
        """Elections take many ticks."""
        return [*super().events(), (150, self.tick)]


class EarlyCluster(Cluster):
    """What is committed here may be lost; what is settled may not."""

    def __init__(self, schedule: EarlySchedule, config: ReplicaConfig) -> None:
        self.schedule = schedule
        timeout = schedule.random.randint
        super().__init__(
            schedule.nodes, config=config, raft=schedule.votes, timeout=lambda _: timeout(10, 20)
        )

    def committed(self, host: Host, high_watermark: int) -> None:
        """Checked by `settled` instead."""

    def settled(self, host: Host, mark: int) -> None:
        super().committed(host, mark)

    def did(self, host: Host, action: Action) -> None:
        marks = self.schedule.marks
        if isinstance(action, Commit):
            assert action.high_watermark > marks.get(host.node, -1), "a Commit never lowers"
            marks[host.node] = action.high_watermark
        elif isinstance(action, LostTail):
            assert action.to_offset == marks[host.node], "all of the tail that was told"
            assert action.from_offset >= host.replica.settled
            self.schedule.worth += 1
            marks[host.node] = action.from_offset

    def crash(self, node: NodeId) -> None:
        super().crash(node)
        self.schedule.marks.pop(node, None)
