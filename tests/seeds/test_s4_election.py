"""S4.1-S4.5, Tarantool's election: independent of how entries are replicated, one leader a term, another try at random.

The same replicas that S1 describes carry it; here is what the Tarantool document says of them in its own words.
"""

from itertools import pairwise
from random import Random

import pytest

from antiphon.coordination.profiles import check
from antiphon.errors import NotLeaderError
from antiphon.model.metadata import Kind
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import PersistTerm
from antiphon.replication.commit_rule import LOCAL, QUORUM, CommitRule
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.messages import RequestVote, VoteReply
from antiphon.replication.replica_state import Role
from tests.replication.cluster import SHARD, Cluster

RULES = [QUORUM, LOCAL, CommitRule.parse("at_least(2)"), CommitRule.parse("at_least(3)")]


def elected(rule: CommitRule = QUORUM, election: ElectionConfig | None = None) -> Cluster:
    cluster = Cluster(
        raft=True,
        election=election,
        config=ReplicaConfig(resend_ticks=2, commit=rule),
        timeout=lambda node: 10 if node == 1 else 15 + node,
    )
    cluster.tick(10)
    assert cluster.leading == [1]
    return cluster


# -- S4.1: two subsystems ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_s4_01_votes_elect_whatever_the_commit_rule(rule: CommitRule) -> None:
    cluster = elected(rule)
    cluster.propose(1, "a")
    cluster.tick(3)
    cluster.crash(1)
    cluster.tick(40)
    (leader,) = cluster.leading
    assert cluster[leader].data == ["a"]
    assert cluster.replica(leader).config.commit == rule


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_s4_01_entries_are_replicated_whoever_chose_the_leader(rule: CommitRule) -> None:
    for raft in (False, True):
        cluster = elected(rule) if raft else Cluster(config=ReplicaConfig(resend_ticks=2, commit=rule))
        if not raft:
            cluster.lead(1, 1)
        cluster.propose(1, "a")
        cluster.tick(3)
        assert [host.data for host in cluster.hosts.values()] == [["a"]] * 3
        assert cluster.replica(1).high_watermark == cluster.replica(1).log_end


@pytest.mark.parametrize("election", ["coordinator", "raft", "manual"])
@pytest.mark.parametrize("commit", ["quorum", "local", "at_least(2)"])
def test_s4_01_a_topic_may_have_either_without_the_other(election: str, commit: str) -> None:
    found = check("oxia", {"election": election, "commit": commit}, 3, Kind.TOPIC)
    assert (found.election, str(found.commit)) == (election, commit)


def test_s4_01_an_election_decides_nothing_about_what_is_committed() -> None:
    """A leader with nobody behind it has won; under `quorum` it commits nothing, under `local` everything."""
    for rule, commits in ((QUORUM, False), (LOCAL, True)):
        cluster = elected(rule)
        cluster.isolate(1)
        before = cluster.replica(1).high_watermark
        cluster.propose(1, "a")
        cluster.tick(2)
        assert (cluster.replica(1).high_watermark > before) is commits


# -- S4.2: roles ---------------------------------------------------------------------------------------------------------


def test_s4_02_there_are_a_leader_replicas_and_candidates() -> None:
    cluster = elected(election=ElectionConfig(pre_vote=False))
    assert [cluster.replica(node).role for node in (1, 2, 3)] == [Role.LEADER, Role.FOLLOWER, Role.FOLLOWER]
    cluster.isolate(2)
    cluster.tick(20)
    assert [cluster.replica(node).is_candidate for node in (1, 2, 3)] == [False, True, False]


def test_s4_02_a_replica_points_to_the_leader_for_reads_and_writes() -> None:
    cluster = elected()
    with pytest.raises(NotLeaderError) as write:
        cluster.replica(2).propose([(1, "a")])
    with pytest.raises(NotLeaderError) as read:
        cluster.replica(3).request_read(1)
    assert [refused.value.details["leader"] for refused in (write, read)] == [1, 1]


# -- S4.3: terms ---------------------------------------------------------------------------------------------------------


def test_s4_03_terms_are_stored_and_never_fall() -> None:
    cluster = elected()
    for seed in range(3):
        cluster.crash(cluster.leading[0])
        cluster.tick(60)
        for node, host in cluster.hosts.items():
            if not host.alive:
                cluster.restart(node)
        cluster.tick(20)
        for host in cluster.hosts.values():
            terms = [action.term for action in host.took(PersistTerm)]
            assert terms == sorted(set(terms)), seed
            assert host.term == host.replica.term


def test_s4_03_a_term_may_end_with_no_leader() -> None:
    """Two of four stand at the same moment: each gets two votes."""
    cluster = Cluster(4, raft=True, election=ElectionConfig(pre_vote=False), timeout=lambda _: 10)
    for node in (1, 2):
        for _ in range(10):
            cluster[node].run(cluster.replica(node).tick())
    for candidate, voter in ((1, 3), (2, 4)):
        cluster.receive(candidate, voter, RequestVote(SHARD, 1, candidate, EntryId(0, 0)))
    cluster.deliver()
    assert [cluster[node].voted_for for node in (1, 2, 3, 4)] == [1, 2, 1, 2]
    assert cluster.leaders == {}
    cluster.tick(60)
    assert 1 not in cluster.leaders


# -- S4.4: votes ---------------------------------------------------------------------------------------------------------


def test_s4_04_a_candidate_votes_for_itself_first() -> None:
    cluster = Cluster(raft=True, election=ElectionConfig(pre_vote=False))
    cluster[1].auto_sync = False
    cluster.tick(11)
    assert cluster[1].took(PersistTerm) == [PersistTerm(1, 1, 1)]
    assert cluster.between(1, 2, RequestVote) == []
    cluster[1].sync()
    assert cluster[1].voted_for == 1
    assert len(cluster.between(1, 2, RequestVote)) == 1


@pytest.mark.parametrize(
    ("own_term", "voted_for", "asked", "granted"),
    [(0, None, 1, True), (3, None, 3, True), (3, 3, 3, False), (3, 1, 3, True), (4, None, 3, None)],
)
def test_s4_04_a_vote_needs_a_term_not_below_the_own_and_no_other_vote_in_it(
    own_term: int, voted_for: int | None, asked: int, granted: bool | None
) -> None:
    cluster = Cluster(raft=True, terms={2: own_term})
    cluster[2].voted_for = voted_for
    cluster.restart(2)
    cluster.receive(1, 2, RequestVote(SHARD, asked, 1, EntryId(0, 0)))
    answers = cluster.between(2, 1, VoteReply)
    assert [answer.granted for answer in answers] == ([] if granted is None else [granted])


# -- S4.5: majority, or another try --------------------------------------------------------------------------------------


def test_s4_05_a_majority_makes_a_leader() -> None:
    cluster = Cluster(5, raft=True, election=ElectionConfig(pre_vote=False))
    cluster.isolate(1)
    cluster.tick(11)
    for voter in (2, 3):
        assert cluster.leading == []
        cluster.receive(voter, 1, VoteReply(SHARD, 1, granted=True))
    assert cluster.leading == [1]


def test_s4_05_without_a_majority_it_tries_again_after_a_random_time_of_its_own() -> None:
    random = Random(5)
    drawn: dict[int, list[int]] = {1: [], 2: [], 3: []}

    def draw(node: int) -> int:
        drawn[node].append(random.randint(10, 20))
        return drawn[node][-1]

    cluster = Cluster(raft=True, election=ElectionConfig(pre_vote=False), timeout=draw)
    cluster.isolate(1)
    tries = [0]
    for tick in range(1, 200):
        term = cluster.replica(1).term
        cluster.tick()
        if cluster.replica(1).term > term:
            tries.append(tick)
    waits = [later - earlier for earlier, later in pairwise(tries)]
    assert waits == drawn[1][: len(waits)], "as long as was drawn, each time anew"
    assert len(set(waits)) > 3


def test_s4_05_candidates_that_split_the_votes_get_apart() -> None:
    """All patience is the same at first; whatever is drawn then, it is over after a few rounds."""
    for seed in range(50):
        random = Random(seed)
        first = dict.fromkeys(range(1, 5), 10)
        cluster = Cluster(
            4,
            raft=True,
            election=ElectionConfig(pre_vote=False),
            timeout=lambda node, first=first, random=random: first.pop(node, 0) or random.randint(10, 20),  # type: ignore[misc]
        )
        cluster.tick(200)
        assert len(cluster.leading) == 1, seed
        assert cluster.leaders
