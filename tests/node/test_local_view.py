"""What a node tells of leaders where replicas vote: its own replica may know better than the coordinator has said."""

from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.model.cluster import LiveSet, MetadataDelta, ShardChange
from antiphon.model.metadata import ABSENT_NODE, Kind, ShardMeta, ShardStatus, TopicMeta
from antiphon.node.agent import ClusterAgent
from antiphon.node.local_view import LocalView

TOPIC = TopicMeta("t", b"t" * 16, Kind.TOPIC, 3, "raft", ())


def delta(version: int, term: int, leader: int, *, base: int = -1) -> MetadataDelta:
    status = ShardStatus.ONLINE if leader >= 0 else ShardStatus.ELECTION
    shard = ShardMeta(7, 0, (0, 1, 2), leader, term, status)
    return MetadataDelta(
        "c", base, version, 0, 1, topics=(TOPIC,), shards=(ShardChange(TOPIC.topic_id, shard),)
    )


def seen(view: LocalView) -> tuple[int, int, ShardStatus]:
    found = view.shard(7)
    assert found is not None
    (shard,) = view.cluster().topics[0].shards
    assert shard == found[1], "look-ups and the whole say the same"
    return shard.leader, shard.term, shard.status


def test_a_newer_leader_is_told_until_the_metadata_has_caught_up() -> None:
    view = LocalView("c")
    assert view.apply(delta(1, 4, 0))
    view.led_by(7, 5, 2)
    assert seen(view) == (2, 5, ShardStatus.ONLINE)
    recorded = view.recorded(7)
    assert recorded is not None
    assert (recorded.leader, recorded.term) == (0, 4)
    assert view.apply(delta(2, 4, ABSENT_NODE, base=1)), (
        "the coordinator lost the old leader and knows no other"
    )
    assert seen(view) == (2, 5, ShardStatus.ONLINE)
    assert view.apply(delta(3, 5, 2, base=2))
    assert seen(view) == (2, 5, ShardStatus.ONLINE)
    assert view.apply(delta(4, 6, 1, base=3))
    assert seen(view) == (1, 6, ShardStatus.ONLINE)
    assert view.recorded(7) == ShardMeta(7, 0, (0, 1, 2), 1, 6, ShardStatus.ONLINE)


def test_an_older_leader_is_no_news() -> None:
    view = LocalView("c")
    view.led_by(7, 9, 1)
    assert view.apply(delta(1, 4, 0))
    view.led_by(7, 3, 1)
    assert seen(view) == (0, 4, ShardStatus.ONLINE)
    view.led_by(7, 5, 1)
    view.led_by(7, 4, 2)
    assert seen(view) == (1, 5, ShardStatus.ONLINE)


def test_what_is_known_here_outlives_a_whole_copy_of_the_metadata() -> None:
    view = LocalView("c")
    assert view.apply(delta(1, 4, 0))
    view.led_by(7, 5, 1)
    assert view.apply(delta(2, 4, 0))
    assert seen(view) == (1, 5, ShardStatus.ONLINE)


@pytest.mark.parametrize("votes", [True, False])
def test_a_leader_that_votes_reports_again_while_the_metadata_shows_an_older_term(votes: bool) -> None:
    """Its report may have come before the record that made it a member, and been passed over (S0.2)."""
    agent: Any = SimpleNamespace(view=LocalView("c"))
    host: Any = SimpleNamespace(mode=SimpleNamespace(elects_itself=votes))
    live = LiveSet(7, 6, (0, 1, 2), ())
    is_news = ClusterAgent._is_news
    assert not is_news(agent, host, live), "nothing is known of the shard"
    assert agent.view.apply(delta(1, 5, ABSENT_NODE))
    assert is_news(agent, host, live) is votes
    assert agent.view.apply(delta(2, 7, 1, base=1))
    assert not is_news(agent, host, live), "a newer leader is recorded"
