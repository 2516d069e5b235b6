"""The options C1-C14 as settings of a topic, the profiles that bundle them, and what the validator refuses and why."""

import pytest

from antiphon.coordination.profiles import PROFILES, Replication, check, normal_name, replication_of
from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import Kind
from antiphon.replication.commit_rule import LIVE, LOCAL, QUORUM, CommitKind, CommitRule


@pytest.mark.parametrize(
    ("profile", "commit", "election", "writers", "isolation", "marker"),
    [
        ("oxia", QUORUM, "coordinator", "single", "committed", "piggyback"),
        ("kip27", QUORUM, "coordinator", "single", "committed", "piggyback"),
        ("raft", QUORUM, "raft", "single", "committed", "piggyback"),
        ("fluvio", LIVE, "coordinator", "single", "uncommitted", "piggyback"),
        ("tarantool", QUORUM, "raft", "single", "committed", "record"),
    ],
)
def test_a_profile_is_a_bundle_of_options(
    profile: str, commit: CommitRule, election: str, writers: str, isolation: str, marker: str
) -> None:
    found = check(profile, {}, 3, Kind.TOPIC)
    assert (found.commit, found.election, found.writers) == (commit, election, writers)
    assert (found.isolation, found.commit_marker) == (isolation, marker)


def test_a_topics_own_settings_come_before_its_profile() -> None:
    found = check("fluvio", {"isolation": "committed", "min_live": "2"}, 3, Kind.TOPIC)
    assert (found.isolation, found.min_live, found.is_live) == ("committed", 2, True)


def test_kafkas_name_for_the_fewest_live_replicas_counts_where_commits_go_by_them() -> None:
    assert check("fluvio", {"min.insync.replicas": "2"}, 3, Kind.TOPIC).min_live == 2
    assert check("oxia", {"min.insync.replicas": "2"}, 3, Kind.TOPIC).min_live == 1


def test_several_writers_bring_their_commit_rule_along() -> None:
    found = check("tarantool", {"writers": "multi"}, 3, Kind.TABLE)
    assert (found.commit, found.election, found.is_multi) == (LOCAL, "manual", True)


@pytest.mark.parametrize(
    ("profile", "config", "kind", "because"),
    [
        ("raft", {"commit": "live"}, Kind.TOPIC, "minority that votes need not meet"),
        ("oxia", {"commit": "at_least(1)"}, Kind.TOPIC, "a majority of 3 replicas may never get"),
        ("oxia", {"commit": "at_least(4)"}, Kind.TOPIC, "can never be kept with 3 replicas"),
        ("oxia", {"commit": "local"}, Kind.TABLE, "cannot be taken back"),
        ("oxia", {"commit": "at_least(1)", "accept.split.brain": "true"}, Kind.TABLE, "use at_least(2)"),
        ("fluvio", {"min.live": "4"}, Kind.TOPIC, "can never be kept"),
        ("oxia", {"unclean.leader.election.enable": "true"}, Kind.TOPIC, "every election has a majority"),
        ("oxia", {"writers": "multi", "commit": "quorum"}, Kind.TOPIC, "asynchronous"),
        ("oxia", {"commit": "most"}, Kind.TOPIC, "is no commit rule: use quorum, "),
        ("oxia", {"election": "lottery"}, Kind.TOPIC, "use coordinator or raft or manual"),
        ("oxia", {"max.in.flight": "many"}, Kind.TOPIC, "whole number"),
        ("oxia", {"accept.split.brain": "yes"}, Kind.TOPIC, "true or false"),
        ("oxia", {"read.lease.ms": "50"}, Kind.TOPIC, "a setting of tables"),
        ("oxia", {"read.lease.ms": "50", "writers": "multi"}, Kind.TABLE, "for tables with one writer"),
        ("oxia", {"read.lease.ms": "201"}, Kind.TABLE, "must be 0, or 10 to 200"),
        ("oxia", {"read.lease.ms": "9"}, Kind.TABLE, "must be 0, or 10 to 200"),
    ],
)
def test_an_unsafe_or_impossible_mix_is_refused_with_its_reason(
    profile: str, config: dict[str, str], kind: Kind, because: str
) -> None:
    with pytest.raises(InvalidRequestError, match=because.replace("(", r"\(").replace(")", r"\)")):
        check(profile, config, 3, kind)


def test_a_small_quorum_needs_the_operators_word() -> None:
    config = {"commit": "at_least(1)", "accept.split.brain": "true"}
    assert check("oxia", config, 3, Kind.TOPIC).commit == CommitRule(CommitKind.AT_LEAST, 1)


def test_more_writers_than_a_vector_clock_has_places_for_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at most 31"):
        check("oxia", {"writers": "multi"}, 32, Kind.TOPIC)


@pytest.mark.parametrize("rule", ["quorum", "live", "local", "at_least(2)"])
def test_a_rule_is_written_as_it_is_read(rule: str) -> None:
    assert str(CommitRule.parse(rule)) == rule


@pytest.mark.parametrize("text", ["", "at_least", "at_least(0)", "at_least(-1)", "QUORUM", "at_least(2) "])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        CommitRule.parse(text)


def test_names_with_underscores_are_taken_for_what_they_mean() -> None:
    assert normal_name("min_live") == "min.live"
    assert normal_name("retention_ms") == "retention_ms"


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_safe_by_itself(profile: str) -> None:
    assert isinstance(check(profile, {}, 3, Kind.TABLE), Replication)
    assert replication_of(profile, {}) == check(profile, {}, 1, Kind.TOPIC)
