"""Random schedules of one shard whose replicas vote and whose members change, with crashes, lost disks and transfers.

Somebody who plays the coordinator keeps the record that the leaders report, opens empty replicas where learners are to be,
takes replicas away (with their disks) that are no members by the record, and asks for changes. After every event: no term
has two leaders; a leader has everything that was ever committed; nobody commits anything else than the others; what a leader
commits is on the disks of a majority of each set that it goes by. At the end all faults stop, and there is one leader that
is a voter, one log, and no change half done.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from antiphon.errors import AntiphonError
from antiphon.replication import membership, raft_members
from antiphon.replication.actions import Action, AppendLog, MembersChanged, RoleChanged
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.local_log import LocalLog
from antiphon.replication.members import Members, MembersIndex
from antiphon.replication.messages import Entry, NodeId
from antiphon.replication.quorum import majority
from antiphon.replication.raft_members import MembersLog
from antiphon.replication.replica_state import Role
from tests.replication.cluster import Host
from tests.replication.raft_world import MemberCluster, MemberHost
from tests.replication.schedules import ShardSchedule, must_fail, passed

EVENTS = 900
SETTLE_TICKS = 150
NODES = 6


class WatchedCluster(MemberCluster):
    """Checks each leader and each commit; keeps the record that a coordinator would keep."""

    recorded = Members(())
    recorded_at = (0, 0)

    def role_changed(self, host: Host, action: RoleChanged) -> None:
        super().role_changed(host, action)
        if action.role is not Role.LEADER:
            return
        held = {entry.base_offset: entry for entry in host.log}
        for entry in self.chosen:
            if entry.base_offset >= host.log_start.offset:
                assert held.get(entry.base_offset) == entry, (
                    f"{host.node} leads {action.term} without {entry}"
                )

    def committed(self, host: Host, high_watermark: int) -> None:
        super().committed(host, high_watermark)
        replica = host.replica
        if replica.role is not Role.LEADER or any(one.forgot for one in self.hosts.values()):
            return
        last = [entry for entry in host.log if entry.next_offset <= high_watermark]
        for voters in replica.members.sets if last else ():
            copies = sum(self.has(node, last[-1].next_offset, last[-1]) for node in voters)
            assert copies >= majority(len(voters)), (
                f"{host.node} commits {last[-1]} on {copies} disks of {voters}"
            )

    def known_voters(self, host: Host) -> tuple[NodeId, ...]:
        return self.recorded.voters if host.forgot else self.founders

    def has(self, node: NodeId, end: int, entry: object) -> bool:
        host = self.hosts.get(node)
        return host is not None and (host.start.offset >= end or entry in host.disk)

    def note(self, host: Host, action: MembersChanged) -> None:
        """A leader's report of committed members, or a later leader's."""
        replica = self.voter(host.node)
        at = (replica.term, max((e.next_offset for e in host.log if e.members is action.members), default=0))
        if action.committed and replica.role is Role.LEADER and at >= self.recorded_at:
            self.recorded, self.recorded_at = action.members, at


class WatchedHost(MemberHost):
    def run(self, actions: "list[Action]") -> None:  # type: ignore[override]
        super().run(actions)
        for action in actions:
            if isinstance(action, MembersChanged):
                assert isinstance(self.cluster, WatchedCluster)
                self.cluster.note(self, action)


class Schedule(ShardSchedule):
    """One seeded run."""

    cluster: WatchedCluster

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        founders = self.random.choice([(1,), (1, 2), (1, 2, 3), (1, 2, 3), (1, 2, 3, 4)])
        small = ReplicaConfig(feed_bytes_max=100, max_in_flight_bytes=300, resend_ticks=2)
        self.cluster = WatchedCluster(
            NODES,
            founders,
            timeout=lambda _: self.random.randint(10, 20),
            config=self.random.choice([None, small, ReplicaConfig(term_start_on_empty=False)]),
            election=ElectionConfig(pre_vote=self.random.random() < 0.8),
            host=WatchedHost,
        )
        self.cluster.recorded = Members(founders)
        self.slow = self.random.random() < 0.5
        for host in self.hosts:
            self.furnish(host)
        self.forgets = int(seed % 5 == 0)
        self.proposals = self.changes = self.transfers = 0

    def furnish(self, host: Host) -> None:
        host.auto_sync = not (self.slow and self.random.random() < 0.7)
        host.late_feeds = self.random.random() < 0.3

    # -- events ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One event, by weight."""
        events: list[tuple[int, Callable[[], None]]] = [
            (45, self.deliver_some),
            (15, self.sync_some),
            (10, self.propose),
            (18, self.tick),
            (2, self.crash_or_restart),
            (1, self.restart_all),
            (1, self.part),
            (2, self.cluster.heal),
            (1, self.trim),
            (3, self.change),
            (1, self.transfer),
            (1, self.take_away),
            (self.forgets, self.lose_disk),
        ]
        self.random.choices([event for _, event in events], [weight for weight, _ in events])[0]()

    def part(self) -> None:
        if self.random.random() < 0.6:
            self.cluster.isolate(*self.random.sample(self.cluster.ensemble, self.random.randint(1, 3)))
        else:
            source, to = self.random.choices(self.cluster.ensemble, k=2)
            self.cluster.cut.add((source, to))

    def leaders(self) -> list[NodeId]:
        return [node for node in self.cluster.leading if self.cluster.voter(node).ready]

    def propose(self) -> None:
        for node in self.leaders():
            self.proposals += 1
            batch = [f"{self.proposals}.{i}" for i in range(self.random.randint(1, 3))]
            self.cluster.propose(node, *batch)

    def trim(self) -> None:
        living = self.living()
        host = self.random.choice(living) if living else None
        if host is not None and not host.writes:
            limit = min(host.replica.high_watermark, host.replica.log.durable_end)
            ends = [entry.next_offset for entry in host.log if entry.next_offset <= limit]
            if ends:
                self.cluster.trim(host.node, self.random.choice(ends))

    def change(self) -> None:
        """Ask a leader for other members; learners get their empty replicas first."""
        for node in self.leaders():
            members = self.cluster.voter(node).members
            electable = (*members.voters, *members.learners)
            voters = self.random.sample(electable, self.random.randint(1, min(4, len(electable))))
            others = [n for n in self.cluster.ensemble if n not in voters]
            learners = self.random.sample(others, self.random.randint(0, min(2, len(others))))
            if self.random.random() < 0.4:
                voters = list(members.voters)
                learners = [n for n in learners if n not in voters]
            for learner in learners:
                if learner not in self.cluster.hosts:
                    self.cluster.add(learner)
                    self.furnish(self.cluster[learner])
            host = self.cluster[node]
            try:
                host.run(self.cluster.voter(node).propose_members(tuple(voters), tuple(learners)))
            except AntiphonError:
                continue
            self.changes += 1

    def transfer(self) -> None:
        for node in self.leaders():
            replica = self.cluster.voter(node)
            self.cluster[node].run(replica.transfer_leadership(self.random.choice(replica.members.voting)))
            self.transfers += 1

    def take_away(self) -> None:
        """Replicas that are none by the record go, and so do their disks; they may come back as learners.

        Not while a change may still be under way that makes them members: the record then says so as well.
        """
        recorded, end = self.cluster.recorded, self.cluster.recorded_at[1]
        named = {
            node
            for host in self.hosts
            for entry in (*host.log, *host.disk)
            if entry.members is not None and entry.next_offset > end
            for node in entry.members.everybody
        }
        if not recorded.is_joint:
            for node in {*self.cluster.hosts} - {*recorded.everybody} - named:
                self.cluster.remove(node)

    def lose_disk(self) -> None:
        """One voter of at least three comes back empty, and knows that; never two at a time."""
        recorded = self.cluster.recorded
        sets_are_large = all(len(one) > 2 for one in recorded.sets)
        if sets_are_large and not any(host.forgot for host in self.hosts):
            node = self.random.choice(recorded.voters)
            if node in self.cluster.hosts:
                self.cluster.wipe(node)

    # -- the end -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """All faults stop: there must be one leader, one log, and no change half done."""
        self.end_faults()
        self.run_ticks()
        if any(host.forgot for host in self.hosts):
            return  # nobody is left to tell it the terms, where there are but two voters by now
        leader = self.leader()
        self.cluster.propose(leader, "the last")
        self.run_ticks()
        leader = self.leader()
        members = self.cluster.voter(leader).members
        assert not members.is_joint
        assert leader in members.voters
        best = self.cluster[leader]
        for node in members.everybody:
            host = self.cluster[node]
            ends = {host.replica.log_end, host.replica.high_watermark, host.replica.log.durable_end}
            assert ends == {best.replica.log_end}, (node, ends)
            theirs = [entry for entry in host.log if entry.base_offset >= best.log_start.offset]
            assert theirs == [entry for entry in best.log if entry.base_offset >= host.log_start.offset]
            assert host.replica.members == members
        assert self.cluster.chosen[-1] == best.log[-1]

    def place(self) -> None:
        """Replicas are where they should be: who is no member is gone, who is one is there."""
        self.take_away()
        for node in self.leaders():
            for member in self.cluster.voter(node).members.everybody:
                if member not in self.cluster.hosts:
                    self.cluster.add(member)

    def leader(self) -> NodeId:
        leaders = self.leaders()
        assert leaders, "nobody leads"
        return max(leaders, key=lambda node: int(self.cluster.voter(node).term))

    def run_ticks(self) -> None:
        for _ in range(SETTLE_TICKS):
            self.place()
            self.cluster.deliver()
            self.cluster.tick()
            for host in self.hosts:
                while host.feeds:
                    host.feed(host.feeds.pop(0))
                while host.snapshots:
                    if host.replica.role is Role.LEADER and host.snapshots[0] in self.cluster.hosts:
                        self.cluster.snapshot(host.node, host.snapshots[0])
                    else:
                        host.snapshots.pop(0)


def run(seed: int) -> Schedule:
    schedule = Schedule(seed)
    for _ in range(EVENTS):
        schedule.step()
    schedule.settle()
    return schedule


@pytest.mark.parametrize("block", range(4))
def test_any_schedule_of_changes_is_safe_and_ends_in_agreement(block: int) -> None:
    proposals = changes = transfers = 0
    for schedule in passed(run, range(block * 30, block * 30 + 30)):
        proposals += schedule.proposals
        changes += schedule.changes
        transfers += schedule.transfers
    assert min(proposals, changes, transfers) > 30, "the schedules do real work"


def count_new_voters_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Members, "sets", property(lambda members: (members.voters,)))


def change_in_one_step(patch: pytest.MonkeyPatch) -> None:
    right = raft_members.next_members

    def next_members(current: Members, *args: Any, **kwargs: Any) -> Members | None:
        entry = right(current, *args, **kwargs)
        return None if entry is None else Members(entry.voters, (), entry.learners)

    patch.setattr(membership, "next_members", next_members)


def keep_members_of_a_cut_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MembersLog, "truncate", LocalLog.truncate)
    patch.setattr(MembersLog, "append", append_what_is_later)


def append_what_is_later(log: MembersLog, entries: Sequence[Entry]) -> AppendLog:
    for entry in entries:
        if entry.members is not None and entry.next_offset > log.members.end:
            log.members.append(entry.next_offset, entry.members)
    return LocalLog.append(log, entries)


def go_by_committed_members(patch: pytest.MonkeyPatch) -> None:
    def current(index: MembersIndex) -> Members | None:
        items = index.items()
        return items[-2][1] if len(items) > 1 else index.base

    patch.setattr(MembersIndex, "current", property(current))


@pytest.mark.parametrize(
    ("wrong", "first_seed"),  # where the search begins: some need many schedules
    [
        (count_new_voters_only, 880),
        (change_in_one_step, 220),
        (keep_members_of_a_cut_tail, 0),
        (go_by_committed_members, 0),
    ],
)
def test_a_known_error_that_is_put_in_is_seen(
    wrong: Callable[[pytest.MonkeyPatch], None], first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch)
    must_fail(run, range(first_seed, first_seed + 1500))
