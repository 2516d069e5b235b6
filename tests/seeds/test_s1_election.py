"""S1, the Replicated Log pattern and Raft: how a leader is elected, claim by claim, and the five cities."""

from random import Random

import pytest

from antiphon.errors import NotLeaderError
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import Commit, PersistTerm
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.messages import Append, Entry, RequestVote, StaleTerm, VoteReply
from antiphon.replication.replica_state import Role
from tests.log.helpers import Runner
from tests.replication.cluster import SHARD, Cluster
from tests.seeds.test_s1_raft import elected, follower, records


@pytest.mark.parametrize("pre_vote", [True, False])
def test_s1_22_all_nodes_start_as_followers(pre_vote: bool) -> None:
    """Followers that know no leader yet: they ask for nothing, and obey whoever leads."""
    cluster = Cluster(raft=True, election=ElectionConfig(pre_vote=pre_vote))
    cluster.tick(9)
    assert cluster.leading == []
    assert cluster.sent == []
    assert not any(cluster.replica(node).is_candidate for node in (1, 2, 3))
    cluster.receive(1, 2, Append(SHARD, 1, 1, EMPTY, 0, 1))
    assert (cluster.replica(2).role, cluster.replica(2).leader) == (Role.FOLLOWER, 1)


def test_s1_22_whatever_a_node_was_before_it_starts_as_a_follower_again() -> None:
    cluster = elected(3, election=ElectionConfig(pre_vote=False))
    cluster.isolate(2)
    cluster.tick(40)
    assert cluster.replica(2).is_candidate
    cluster.propose(1, "a")
    for node in (1, 2):
        cluster.crash(node)
        cluster.restart(node)
        replica = cluster.replica(node)
        assert (replica.role, replica.leader, replica.is_candidate) == (Role.FENCED, None, False)
        with pytest.raises(NotLeaderError):
            replica.propose([(1, "b")])
        cluster.sent.clear()
        cluster[node].run(replica.tick())
        assert cluster.sent == [], "not even a heartbeat of the term that it led"


def test_s1_23_s1_24_without_a_leader_a_node_becomes_candidate() -> None:
    cluster = Cluster(raft=True, election=ElectionConfig(pre_vote=False))
    cluster[1].run(cluster.replica(1).receive(2, StaleTerm(SHARD, 4)))
    for _ in range(11):
        cluster[1].run(cluster.replica(1).tick())
    replica = cluster.replica(1)
    assert (replica.is_candidate, replica.term, replica.voted_for) == (True, 5, 1)
    assert sorted(to for _, to, message in cluster.sent if isinstance(message, RequestVote)) == [2, 3]


def test_s1_25_one_vote_per_term_and_the_same_answer_again() -> None:
    cluster = Cluster(raft=True)
    for candidate in (1, 3, 1, 3):
        cluster.receive(candidate, 2, RequestVote(SHARD, 2, candidate, EMPTY))
    assert [message.granted for message in cluster.between(2, 1, VoteReply)] == [True, True]
    assert [message.granted for message in cluster.between(2, 3, VoteReply)] == [False, False]


def test_s1_26_a_vote_request_of_a_higher_term_makes_its_receiver_a_follower_of_nobody() -> None:
    cluster = elected()
    for node in (1, 2):
        cluster.receive(3, node, RequestVote(SHARD, 6, 3, EMPTY))
        replica = cluster.replica(node)
        assert (replica.role, replica.term, replica.leader) == (Role.FENCED, 6, None)
        assert cluster.between(node, 3, VoteReply)[-1] == VoteReply(SHARD, 6, granted=False), (
            "and then it is evaluated"
        )


@pytest.mark.parametrize(
    ("head", "granted"),
    [
        (EntryId(2, 4), True),
        (EntryId(2, 3), False),
        (EntryId(3, 1), True),
        (EntryId(1, 99), False),
        (EntryId(2, 5), True),
    ],
)
def test_s1_27_a_vote_only_for_a_log_that_is_as_up_to_date(head: EntryId, granted: bool) -> None:
    cluster = follower((*records(1, 0, "a", "b"), *records(2, 2, "c", "d")), 2)
    cluster.receive(1, 2, RequestVote(SHARD, 5, 1, head))
    assert cluster.between(2, 1, VoteReply) == [VoteReply(SHARD, 5, granted)]


def test_s1_28_no_vote_where_a_leader_is_known() -> None:
    cluster = Cluster(raft=True)
    cluster.receive(1, 2, Append(SHARD, 3, 1, EMPTY, 0, 1))
    assert cluster.replica(2).voted_for is None
    cluster.receive(3, 2, RequestVote(SHARD, 3, 3, EntryId(9, 9)))
    assert cluster.between(2, 3, VoteReply) == [VoteReply(SHARD, 3, granted=False)]


def test_s1_29_a_majority_makes_a_leader_that_heartbeats() -> None:
    cluster = elected()
    cluster.sent.clear()
    cluster.tick(10)
    assert len(cluster.between(1, 2, Append)) >= 5
    assert len(cluster.between(1, 3, Append)) >= 5


def test_s1_29_two_votes_of_five_and_its_own_are_needed() -> None:
    cluster = Cluster(5, raft=True, election=ElectionConfig(pre_vote=False))
    cluster.isolate(1)
    cluster.tick(11)
    assert cluster.replica(1).is_candidate
    cluster.receive(2, 1, VoteReply(SHARD, 1, granted=True))
    cluster.receive(2, 1, VoteReply(SHARD, 1, granted=True))
    cluster.receive(3, 1, VoteReply(SHARD, 1, granted=False))
    assert cluster.leading == []
    cluster.receive(4, 1, VoteReply(SHARD, 1, granted=True))
    assert cluster.leading == [1]


def test_s1_30_lost_heartbeats_bring_a_new_election() -> None:
    cluster = elected()
    cluster.crash(1)
    cluster.tick(60)
    assert cluster.leading in ([2], [3])


def test_s1_31_a_losing_candidate_returns_to_follower() -> None:
    cluster = Cluster(raft=True, election=ElectionConfig(pre_vote=False))
    cluster.isolate(1)
    cluster.tick(11)
    assert cluster.replica(1).is_candidate
    for node in (2, 3):
        cluster.receive(node, 1, VoteReply(SHARD, 1, granted=False))
    assert not cluster.replica(1).is_candidate
    assert cluster.replica(1).role is Role.FENCED


def test_s1_32_a_heartbeat_of_a_higher_term_is_followed() -> None:
    cluster = elected()
    cluster.receive(3, 1, Append(SHARD, 7, 3, EMPTY, 0, 1))
    replica = cluster.replica(1)
    assert (replica.role, replica.term, replica.leader, cluster[1].term) == (Role.FOLLOWER, 7, 3, 7)


ATHENS, BYZANTIUM, CYRENE, DELPHI, EPHESUS = 1, 2, 3, 4, 5


def five_cities() -> tuple[Cluster, dict[int, int]]:
    """Five nodes, and how many ticks each waits for a leader; what is sent carries one entry at a time."""
    patience = {BYZANTIUM: 12, ATHENS: 15, EPHESUS: 10}
    cluster = Cluster(
        5,
        raft=True,
        config=ReplicaConfig(feed_bytes_max=100, max_in_flight_bytes=100),
        election=ElectionConfig(pre_vote=False, election_ticks_min=1000),  # nobody gives up by itself
        timeout=lambda node: patience.get(node, 1000),
    )
    return cluster, patience


def test_s1_37_five_cities() -> None:
    cluster, patience = five_cities()
    entry2 = Entry(1, 2, 3, "Entry2")

    def wait_alone(city: int, ticks: int) -> None:
        for _ in range(ticks):
            cluster[city].run(cluster.replica(city).tick())

    # Ephesus leads generation 1. Entry1 is committed everywhere.
    cluster.tick(10)
    assert (cluster.leading, cluster.replica(EPHESUS).term) == ([EPHESUS], 1)
    cluster.propose(EPHESUS, "Entry1")
    cluster.deliver()
    cluster.tick(2)
    assert {host.replica.high_watermark for host in cluster.hosts.values()} == {2}

    # Entry2 is on Ephesus, Delphi and Athens when Ephesus and Delphi are cut off from the others. It is not committed.
    cluster.isolate(BYZANTIUM, CYRENE)
    cluster.propose(EPHESUS, "Entry2")
    cluster.deliver_to(ATHENS, DELPHI)
    cluster.drop()
    cluster.heal()
    cluster.isolate(EPHESUS, DELPHI)
    assert [city for city in range(1, 6) if entry2 in cluster[city].disk] == [ATHENS, DELPHI, EPHESUS]
    assert cluster.replica(EPHESUS).high_watermark == 2

    # Byzantium loses patience first: Cyrene grants, Athens, whose log is longer, refuses.
    wait_alone(BYZANTIUM, 12)
    cluster.deliver()
    assert cluster.between(CYRENE, BYZANTIUM, VoteReply) == [VoteReply(SHARD, 2, granted=True)]
    assert cluster.between(ATHENS, BYZANTIUM, VoteReply) == [VoteReply(SHARD, 2, granted=False)]
    assert cluster.leading == [EPHESUS], "of generation 1, still"
    patience[BYZANTIUM] = 1000

    # Athens wins generation 3 with both votes.
    wait_alone(ATHENS, 15)
    cluster.deliver_to(BYZANTIUM, CYRENE)
    cluster.deliver_to(ATHENS)
    for city in (BYZANTIUM, CYRENE):
        assert cluster.between(city, ATHENS, VoteReply) == [VoteReply(SHARD, 3, granted=True)]
    assert (cluster.leading, cluster.replica(ATHENS).term) == ([ATHENS, EPHESUS], 3)

    # It replicates Entry2 to both, and does not commit it by that.
    for _ in range(8):
        if entry2 in cluster[BYZANTIUM].disk and entry2 in cluster[CYRENE].disk:
            break
        cluster.deliver_to(BYZANTIUM, CYRENE)
        cluster.deliver_to(ATHENS)
    assert cluster.durable_copies(entry2) == 5
    cluster.deliver_to(ATHENS)
    assert {
        one.ack_offset for one in cluster.replica(ATHENS).followers() if one.node in {BYZANTIUM, CYRENE}
    } == {3}
    assert cluster.replica(ATHENS).high_watermark == 2
    assert not cluster.replica(ATHENS).ready

    # Its own entry of generation 3 reaches the quorum: both are committed.
    cluster.deliver()
    assert cluster[ATHENS].took(Commit)[-1] == Commit(4)
    assert cluster.replica(ATHENS).ready

    # Ephesus returns, is rejected by Cyrene, and steps down.
    cluster.heal()
    assert (cluster.replica(EPHESUS).role, cluster.replica(EPHESUS).term) == (Role.LEADER, 1)
    cluster.sent.clear()
    wait_alone(EPHESUS, 2)
    assert cluster.between(EPHESUS, CYRENE, Append), "it goes on as if it led"
    cluster.deliver_to(CYRENE)
    assert cluster.between(CYRENE, EPHESUS, StaleTerm) == [StaleTerm(SHARD, 3)]
    cluster.deliver_to(EPHESUS)
    assert (cluster.replica(EPHESUS).role, cluster.replica(EPHESUS).term) == (Role.FENCED, 3)
    assert cluster[EPHESUS].term == 3
    with pytest.raises(NotLeaderError):
        cluster.replica(EPHESUS).propose([(1, "Entry3")])

    # It follows Athens like the others; all have both entries, of the generations in which they were made.
    cluster.drop()
    cluster.tick(6)
    assert cluster.leading == [ATHENS]
    assert [(entry.term, entry.data) for entry in cluster[ATHENS].log] == [
        (1, "start of 1"),
        (1, "Entry1"),
        (1, "Entry2"),
        (3, "start of 3"),
    ]
    assert all(host.log == cluster[ATHENS].log for host in cluster.hosts.values())
    assert {host.replica.high_watermark for host in cluster.hosts.values()} == {4}


def test_s1_38_term_and_vote_survive_a_restart() -> None:
    cluster = Cluster(raft=True)
    cluster.receive(1, 2, RequestVote(SHARD, 4, 1, EMPTY))
    assert cluster[2].took(PersistTerm)[-1].voted_for == 1
    cluster.crash(2)
    cluster.restart(2)
    cluster.receive(3, 2, RequestVote(SHARD, 4, 3, EMPTY))
    cluster.receive(1, 2, RequestVote(SHARD, 4, 1, EMPTY))
    assert cluster.between(2, 3, VoteReply) == [VoteReply(SHARD, 4, granted=False)]
    assert cluster.between(2, 1, VoteReply) == [VoteReply(SHARD, 4, granted=True)] * 2


def test_s1_38_a_vote_that_is_not_durable_is_not_given() -> None:
    cluster = Cluster(raft=True)
    cluster[2].auto_sync = False
    cluster.receive(1, 2, RequestVote(SHARD, 4, 1, EMPTY))
    assert cluster.between(2, 1, VoteReply) == []
    cluster.crash(2)
    cluster.restart(2)
    assert cluster.replica(2).term == 0


@pytest.mark.parametrize("seed", range(5))
def test_s1_38_the_disk_has_term_and_vote_when_the_write_is_done(seed: int) -> None:
    disk = SimulatedDisk(Random(seed))
    log, runner = ShardLog.open(disk, "/shard"), Runner(disk)
    runner.run(log.hard_state.stage(4, None), log.hard_state.stage(4, 2))
    found = ShardLog.open(disk.crash(), "/shard").hard_state  # power is lost at once
    assert (found.term, found.voted_for) == (4, 2)


def test_before_any_term_the_first_founder_stands_soon_and_waits_for_durable_votes() -> None:
    cluster = Cluster(raft=True, election=ElectionConfig(first_ticks=2))
    for _ in range(2):
        cluster[1].run(cluster.replica(1).tick())
    cluster.deliver()
    assert cluster.leading == [1]
    assert {cluster.replica(node).term for node in (1, 2, 3)} == {1}
    for node in (1, 2, 3):
        assert cluster.replica(node).election.timer.timeout >= 10, "from now on as always"


def test_who_votes_alone_waits_for_nobody_after_a_start_either() -> None:
    cluster = Cluster(1, raft=True, election=ElectionConfig(first_ticks=1))
    cluster.tick(1)
    assert (cluster.leading, cluster.replica(1).term) == ([1], 1)
    cluster.crash(1)
    cluster.restart(1)
    cluster.tick(1)
    assert (cluster.leading, cluster.replica(1).term) == ([1], 2)
