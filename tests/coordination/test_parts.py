"""Placement, topic rules, timers, the choice of a leader, and the ledger, each alone."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination import topic_rules
from antiphon.coordination.actions import Answer, Propose
from antiphon.coordination.cluster_records import ShardRecord, node_record
from antiphon.coordination.election import Election, choose_leader
from antiphon.coordination.fences import electable
from antiphon.coordination.ledger import PROPOSALS_IN_FLIGHT, Ledger
from antiphon.coordination.membership import Membership, Silence
from antiphon.coordination.placement import NodeLoad, place
from antiphon.coordination.state import ClusterState
from antiphon.coordination.timers import Timers
from antiphon.errors import InvalidRequestError
from antiphon.invariants import InvariantError
from antiphon.model.cluster import CommandDone
from antiphon.model.metadata import Kind, NodeMeta, ShardMeta
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.commit_rule import LIVE, LOCAL, QUORUM, CommitRule
from antiphon.replication.messages import NewTermReply
from antiphon.replication.quorum import majority

# -- placement ----------------------------------------------------------------------------------------------------


def spread(ensembles: list[tuple[int, ...]], nodes: int) -> tuple[list[int], list[int]]:
    replicas = [sum(node in ensemble for ensemble in ensembles) for node in range(nodes)]
    leaders = [sum(ensemble[0] == node for ensemble in ensembles) for node in range(nodes)]
    return replicas, leaders


@settings(max_examples=60, deadline=None)
@given(nodes=st.integers(1, 12), shards=st.integers(1, 200), data=st.data())
def test_placement_is_even_and_deterministic(nodes: int, shards: int, data: st.DataObject) -> None:
    replicas = data.draw(st.integers(1, min(nodes, 5)))
    loads = [NodeLoad(node, 0, 0) for node in range(nodes)]
    ensembles = place(loads, shards, replicas)
    assert ensembles == place(data.draw(st.permutations(loads)), shards, replicas)
    assert all(len(set(ensemble)) == replicas for ensemble in ensembles)
    on, led = spread(ensembles, nodes)
    assert max(on) - min(on) <= 1
    assert max(led) - min(led) <= 2


def test_three_hundred_shards_on_three_nodes() -> None:
    on, led = spread(place([NodeLoad(node, 0, 0) for node in range(3)], 300, 3), 3)
    assert on == [300, 300, 300]
    assert led == [100, 100, 100]


def test_leadership_stays_even_where_one_choice_at_a_time_would_not_keep_it_so() -> None:
    _, led = spread(place([NodeLoad(node, 0, 0) for node in range(7)], 73, 2), 7)
    assert max(led) - min(led) <= 1


def test_new_node_gets_the_next_shards() -> None:
    ensembles = place(
        [NodeLoad(0, 30, 10), NodeLoad(1, 30, 10), NodeLoad(2, 30, 10), NodeLoad(3, 0, 0)], 10, 3
    )
    assert all(3 in ensemble for ensemble in ensembles)


def test_shards_of_a_lost_node_have_partners_all_over_the_cluster() -> None:
    ensembles = place([NodeLoad(node, 0, 0) for node in range(20)], 2_000, 3)
    partners = {node for ensemble in ensembles if 0 in ensemble for node in ensemble} - {0}
    assert len(partners) >= 15


def test_more_replicas_than_nodes_is_a_bug_of_the_caller() -> None:
    with pytest.raises(InvariantError):
        place([NodeLoad(0, 0, 0)], 1, 2)


# -- rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "_a"])
def test_good_names(name: str) -> None:
    topic_rules.check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "ä", "a/b", "a\n", "__cluster", "a\x00"])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        topic_rules.check_name(name)


@pytest.mark.parametrize(
    "config",
    [
        {"retention.ms": "-1", "retention.bytes": "0"},
        {"flush": "interval", "flush.ms": "50"},
        {"cleanup.policy": "delete", "compression.type": "producer", "message.timestamp.type": "CreateTime"},
        {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.25", "delete.retention.ms": "0"},
        {"cleanup.policy": "compact", "min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
        {"min.insync.replicas": "2"},
        {"max.message.bytes": "1048588", "segment.bytes": "1073741824", "segment.ms": "604800000"},
    ],
)
def test_good_settings(config: dict[str, str]) -> None:
    topic_rules.check_config(config, 3)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"retention": "1"}, "did you mean 'retention.ms'"),
        ({"zzz": "1"}, "known are"),
        ({"retention.ms": "soon"}, "not a whole number"),
        ({"retention.ms": "1_000"}, "not a whole number"),
        ({"retention.ms": "9" * 5000}, "not a whole number"),
        ({"retention.ms": "-2"}, "outside"),
        ({"flush": "never"}, "always or interval or os"),
        ({"cleanup.policy": "shrink"}, "use delete, compact or compact,delete"),
        ({"cleanup.policy": "compact,compact"}, "use delete, compact"),
        ({"min.cleanable.dirty.ratio": "1.1"}, "from 0 to 1"),
        ({"min.cleanable.dirty.ratio": "nan"}, "from 0 to 1"),
        ({"delete.retention.ms": "-1"}, "outside"),
        ({"min.insync.replicas": "3"}, "2 of 3 replicas"),
        ({"max.message.bytes": "1"}, "outside"),
    ],
)
def test_bad_settings(config: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        topic_rules.check_config(config, 3)


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        ({}, Kind.TABLE, "in its store"),
        ({"writers": "multi"}, Kind.TOPIC, "writers=multi"),
        ({"commit": "local"}, Kind.TOPIC, "an election can lose"),
        ({"commit": "at_least(1)", "accept.split.brain": "true"}, Kind.TOPIC, "an election can lose"),
        ({"commit": "live", "unclean.leader.election.enable": "true"}, Kind.TOPIC, "may yet be given up"),
        ({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}, Kind.TOPIC, "is above max"),
    ],
)
def test_what_cannot_be_compacted(config: dict[str, str], kind: Kind, words: str) -> None:
    topic_rules.check_settings("oxia", config, 3, kind)
    with pytest.raises(InvalidRequestError, match=words):
        topic_rules.check_settings("oxia", {"cleanup.policy": "compact", **config}, 3, kind)


@pytest.mark.parametrize(
    ("commit", "wanted", "words"),
    [
        (QUORUM, 3, "a majority, 2 of 3 replicas"),
        (LOCAL, 2, "the leader has it on disk"),
        (CommitRule.parse("at_least(2)"), 3, "2 of 3 replicas have it"),
        (LIVE, 4, "all live ones of 3"),
    ],
)
def test_min_insync_replicas_are_at_most_what_the_commit_rule_waits_for(
    commit: CommitRule, wanted: int, words: str
) -> None:
    topic_rules.check_config({"min.insync.replicas": str(wanted - 1)}, 3, commit)
    with pytest.raises(InvalidRequestError, match=words):
        topic_rules.check_config({"min.insync.replicas": str(wanted)}, 3, commit)


@pytest.mark.parametrize("profile", ["raft", "kip27", "fluvio", "tarantool", "oxia"])
def test_all_profiles_are_served(profile: str) -> None:
    topic_rules.check_settings(profile, {"retention.ms": "5", "ack.every": "2"}, 3, Kind.TOPIC)


@pytest.mark.parametrize("profile", ["oxya", ""])
def test_unknown_profiles_are_refused(profile: str) -> None:
    with pytest.raises(InvalidRequestError, match="unknown profile"):
        topic_rules.check_profile(profile)


# -- choosing a leader --------------------------------------------------------------------------------------------


def record(*ensemble: int, untrusted: tuple[int, ...] = ()) -> ShardRecord:
    return ShardRecord(b"t" * 16, ShardMeta(1, 0, ensemble, term=5), untrusted)


def election(heads: dict[int, EntryId], damaged: tuple[int, ...] = ()) -> Election:
    found = Election(1, 5)
    for node, head in heads.items():
        found.replies[node] = NewTermReply(1, 5, head, 0, damaged=node in damaged)
    return found


def choose(found: Election, shard: ShardRecord, load: dict[int, int] | None = None) -> int | None:
    votes = found.votes(shard, lambda _: True)
    return choose_leader(found, shard, votes, lambda node: (load or {}).get(node, 0))


def test_s0_17_best_entry_id_wins_term_before_offset() -> None:
    found = election({1: EntryId(3, 100), 2: EntryId(4, 7), 3: EntryId(4, 6)})
    assert choose(found, record(1, 2, 3)) == 2


@pytest.mark.parametrize("members", [2, 3, 4, 5])
def test_s0_17_whoever_may_lead_has_whatever_a_majority_could_hold(members: int) -> None:
    """Whoever is silent may hold anything: what a majority holds if the silent ones do could be committed."""
    random = Random(members)
    possible = [EntryId(1, 1), EntryId(1, 3), EntryId(2, 2), EntryId(2, 4), EntryId(3, 3)]
    ensemble = tuple(range(1, members + 1))
    for _ in range(400):
        voters = random.sample(ensemble, random.randint(majority(members), members))
        votes = {node: random.choice(possible) for node in voters}
        silent = members - len(votes)
        committed = [
            head
            for head in possible
            if sum(held >= head for held in votes.values()) + silent >= majority(members)
        ]
        able = electable(record(*ensemble).meta, votes)
        assert able, "there is always one"
        for node in able:
            assert all(votes[node] >= head for head in committed), (node, votes)


def test_ties_spread_leadership_and_new_shards_go_to_the_preferred() -> None:
    tied = election({1: EntryId(3, 9), 2: EntryId(3, 9), 3: EntryId(3, 9)})
    assert choose(tied, record(1, 2, 3), {1: 5, 2: 3, 3: 3}) == 2
    fresh = election({1: EMPTY, 2: EMPTY, 3: EMPTY})
    assert choose(fresh, record(1, 2, 3), {1: 5}) == 1


def test_damaged_logs_and_replaced_disks_are_no_votes() -> None:
    found = election({1: EntryId(3, 9), 2: EntryId(3, 8), 3: EntryId(3, 7)}, damaged=(1,))
    assert list(found.votes(record(1, 2, 3, untrusted=(3,)), lambda _: True)) == [2]
    assert list(found.votes(record(1, 2, 3), lambda node: node != 2)) == [3]
    found.candidate = 2
    assert found.heads(record(1, 2, 3)) == ((1, EMPTY), (3, EntryId(3, 7)))


def test_named_node_leads_only_with_a_majority_that_has_no_better_log() -> None:
    found = election({1: EntryId(3, 9), 2: EntryId(3, 8), 3: EntryId(3, 7)})
    found.wanted = 2
    assert choose(found, record(1, 2, 3)) == 2
    found.candidate = 2
    assert found.heads(record(1, 2, 3)) == ((3, EntryId(3, 7)),), (
        "a replica refuses to lead over a better log"
    )
    found.wanted = 3
    assert choose(found, record(1, 2, 3)) == 1


def test_who_failed_to_lead_is_passed_over_while_another_can() -> None:
    found = election({1: EntryId(3, 9), 2: EntryId(3, 8), 3: EntryId(3, 7)})
    found.failed = frozenset({1})
    assert choose(found, record(1, 2, 3)) == 2
    found = election({1: EntryId(3, 9), 3: EntryId(3, 7)})
    found.failed = frozenset({1})
    assert choose(found, record(1, 2, 3)) is None, "nobody else is known to have everything"


# -- time and membership ------------------------------------------------------------------------------------------


def test_timers_give_what_is_due_in_order() -> None:
    timers: Timers[str] = Timers()
    for due, name in [(30, "c"), (10, "a"), (10, "b"), (99, "d")]:
        timers.add(due, name)
    assert timers.due(5, 10) == []
    assert timers.due(50, 2) == ["a", "b"]
    assert timers.due(50, 2) == ["c"]
    assert len(timers) == 1


def test_silence() -> None:
    state = ClusterState()
    state.apply([node_record(NodeMeta(n, "h:1")) for n in range(3)], 1)
    members = Membership(Silence(dead_after_ms=700, after_start_ms=1_500))
    members.start(state, 0)
    for now in range(50, 1_500, 50):
        assert members.silent(now) == []
        members.heard(1, now)
    assert members.silent(1_550) == [0, 2]
    members.lost(0)
    members.lost(2)
    for now in range(1_600, 2_151, 50):
        assert members.silent(now) == []
    assert members.silent(2_200) == [1]


# -- the ledger ---------------------------------------------------------------------------------------------------


def proposals(actions: list[object]) -> list[Propose]:
    return [action for action in actions if isinstance(action, Propose)]


def test_bursts_gather_while_proposals_are_in_flight() -> None:
    ledger = Ledger(ClusterState())
    made: list[Propose] = []
    for node in range(100):
        ledger.put_node(NodeMeta(node, "h:1"))
        made += proposals(list(ledger.flush()))
    assert len(made) == PROPOSALS_IN_FLIGHT
    ledger.committed(made[0].token, 1)
    third = proposals(list(ledger.flush()))
    assert len(third) == 1
    assert len(third[0].records) == 100 - PROPOSALS_IN_FLIGHT
    with pytest.raises(InvariantError):
        ledger.committed(third[0].token, 3)


def test_answers_wait_for_what_they_rest_on() -> None:
    ledger = Ledger(ClusterState())
    ledger.answer_when_committed(1)
    assert ledger.flush() == [Answer(1, CommandDone(0))], "nothing is in flight"
    ledger.put_node(NodeMeta(1, "h:1"))
    (proposal,) = proposals(list(ledger.flush()))
    ledger.answer_when_committed(2)
    assert ledger.flush() == []
    ledger.committed(proposal.token, 7)
    assert ledger.flush() == [Answer(2, CommandDone(7))]
    assert ledger.in_flight == 0


def test_the_last_image_of_a_batch_is_the_one_that_is_written() -> None:
    ledger = Ledger(ClusterState())
    ledger.put_node(NodeMeta(1, "h:1"))
    ledger.put_node(NodeMeta(2, "h:2"))
    ledger.put_node(NodeMeta(1, "h:3"))
    (proposal,) = proposals(list(ledger.flush()))
    assert [key for key, _ in proposal.records] == [b"node/2", b"node/1"]
    assert ledger.take("shard", 5) == 1
    assert ledger.take("shard", 2) == 6
