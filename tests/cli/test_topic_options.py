"""What the command line says of a topic's replication, without a cluster."""

import pytest

from antiphon.cli.topic_commands import SHARD_HEADINGS, _for_people
from antiphon.cli.topic_options import (
    caveats,
    describe_source,
    in_force,
    settings_in_force,
    values_of_node,
    with_options,
)
from antiphon.coordination.topic_settings import TOPIC_SETTINGS
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.node_settings import NodeSettingsReply


def topic(profile: str = "oxia", replicas: int = 3, kind: Kind = Kind.TOPIC, **config: str) -> TopicMeta:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    return TopicMeta("t", bytes(16), kind, replicas, profile, (), settings)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (topic(), []),
        (topic("raft"), []),
        (topic("tarantool"), []),
        (topic("fluvio"), ["may vanish"]),
        (topic("fluvio", isolation="committed"), []),
        (topic(isolation="uncommitted"), ["may vanish"]),
        (topic(commit="local"), ["acknowledged writes can be lost"]),
        (topic(commit="local", replicas=1), []),
        (topic(commit="at_least(1)", accept_split_brain="true"), ["acknowledged writes can be lost"]),
        (topic(commit="at_least(2)"), []),
        (topic(kind=Kind.TABLE, writers="multi"), ["one replica alone"]),
        (topic(commit="live", unclean_leader_election_enable="true"), ["lacks committed records"]),
    ],
)
def test_s3_32_s4_28_a_choice_that_may_cost_something_says_so_in_one_line(
    made: TopicMeta, words: list[str]
) -> None:
    found = caveats(made)
    assert len(found) == len(words)
    for line, word in zip(found, words, strict=True):
        assert word in line
        assert "\n" not in line


def test_options_in_force_say_where_they_come_from() -> None:
    shown = {name: (value, whence) for name, value, whence in in_force(topic("fluvio", min_live="2"))}
    assert shown["commit"] == ("live", "profile fluvio")
    assert shown["min.live"] == ("2", "set")
    assert shown["election"] == ("coordinator", "default")
    multi = {name: value for name, value, _ in in_force(topic(kind=Kind.TABLE, writers="multi"))}
    assert (multi["commit"], multi["election"]) == ("local", "manual")


def test_settings_in_force_are_all_shown_with_their_defaults() -> None:
    made = topic(segment_bytes="4096", min_live="2", of_a_newer_version="1")
    shown = {name: (value, source) for name, value, source in settings_in_force(made)}
    assert shown["retention.ms"] == ("-1", "default")
    assert shown["segment.bytes"] == ("4096", "set")
    assert shown["of.a.newer.version"] == ("1", "set")
    both = set(shown) | {name for name, _, _ in in_force(made)}
    assert both - {"of.a.newer.version"} == set(TOPIC_SETTINGS)
    assert not set(shown) & {name for name, _, _ in in_force(made)}


def test_what_a_node_has_for_topics_that_set_nothing_is_shown_as_its() -> None:
    told = NodeSettingsReply(
        3,
        (),
        {
            "record_validation": (("full", "all"), ("uncompressed", "default")),
            "flush_interval_ms": (("100", "default"),),
        },
    )
    of_node = values_of_node(told)
    assert of_node == {"record.validation": ("full", "node 3: set for all nodes")}
    rows = settings_in_force(topic(), of_node)
    assert ("record.validation", "full", "node 3: set for all nodes") in rows
    assert ("flush.ms", "100", "default") in rows
    assert ("record.validation", "shallow", "set") in settings_in_force(
        topic(record_validation="shallow"), of_node
    )


def test_the_bound_that_a_node_has_for_the_logs_of_tables_is_not_shown_of_topics() -> None:
    told = NodeSettingsReply(3, (), {"table_log_bytes": (("1000", "all"), ("-1", "default"))})
    assert values_of_node(told) == {}
    of_node = values_of_node(told, of_table=True)
    assert of_node == {"retention.bytes": ("1000", "node 3: set for all nodes")}
    assert ("retention.bytes", "7", "set") in settings_in_force(topic(retention_bytes="7"), of_node)


def test_what_is_easily_overlooked_stands_beside_a_setting() -> None:
    assert describe_source("retention.ms", "-1", "default") == "default"
    assert "records' own timestamps" in describe_source("retention.ms", "5", "set")
    assert "node's file" in describe_source("flush", "always", "default")


def test_options_of_their_own_win_over_config() -> None:
    found = with_options({"commit": "quorum", "a": "b"}, commit="at_least(1)", accept_split_brain=True)
    assert found == {"commit": "at_least(1)", "a": "b", "accept.split.brain": "true"}


def test_a_change_of_members_shows_in_the_ensemble() -> None:
    row: list[object] = ["t", 0, "Online", 1, 4, [1, 2, 3], [1, 2, 3], 7, 7, [], 100]
    assert len(row) == len(SHARD_HEADINGS)
    at = SHARD_HEADINGS.index("ENSEMBLE")
    assert _for_people([[*row, [4], [], None, None]])[0][at] == [1, 2, 3, "+4"]
    assert _for_people([[*row, [], [0, 1, 2], None, None]])[0][at] == [1, 2, "+3", "-0"]
