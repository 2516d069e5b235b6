"""What both clients do after a try at a shard has failed."""

import pytest

from antiphon.client.routes import LAG_S_MAX, Next, Routes
from antiphon.errors import (
    AntiphonError,
    NotLeaderError,
    OverloadedError,
    StaleTermError,
    UnavailableError,
    UnknownShardError,
    WrongShardError,
)
from antiphon.model.metadata import (
    ABSENT_NODE,
    ClusterMeta,
    Kind,
    NodeMeta,
    ShardMeta,
    ShardStatus,
    TopicMeta,
)

NODES = tuple(NodeMeta(node, f"node:{node}") for node in range(3))


def meta(version: int, leader: int, term: int = 1) -> ClusterMeta:
    shard = ShardMeta(7, 0, (0, 1, 2), leader, term, ShardStatus.ONLINE)
    return ClusterMeta("c", version, 0, NODES, (TopicMeta("t", bytes(16), Kind.TOPIC, 3, "oxia", (shard,)),))


def routes(leader: int = 0) -> Routes:
    found = Routes()
    found.adopt(meta(1, leader))
    return found


def test_a_hint_holds_until_newer_metadata_comes() -> None:
    known = routes()
    assert known.after(7, NotLeaderError("no", leader=2), 0) is Next.FOLLOW
    known.adopt(meta(1, 0))
    assert known.leader_address(7) == "node:2"
    assert (
        known.after(7, NotLeaderError("no", leader=2), 0) is Next.LEARN
    )  # it says of itself what others say
    assert known.after(7, NotLeaderError("no", leader=9), 0) is Next.LEARN  # nobody knows that node
    assert known.after(7, NotLeaderError("no"), 0) is Next.LEARN
    assert known.leader(7) == 2
    known.forget_hint(7)
    assert known.leader(7) == 0
    known.adopt(meta(2, 1))
    assert known.leader(7) == 1


def test_a_higher_term_tells_of_a_leader_before_newer_metadata() -> None:
    known = routes()
    known.adopt(meta(1, 2, term=3))
    assert known.leader(7) == 2
    known.adopt(meta(1, 1, term=2))
    assert known.leader(7) == 2


def test_nobody_leads_and_nobody_knows() -> None:
    known = routes(ABSENT_NODE)
    with pytest.raises(UnavailableError, match="has no leader right now"):
        known.leader_address(7)
    with pytest.raises(UnknownShardError, match="its topic was deleted"):
        known.leader_address(8)
    assert known.known_address(8) is None


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (UnavailableError("x"), Next.LEARN),
        (WrongShardError("x"), Next.LEARN),
        (UnknownShardError("x"), Next.LEARN),
        (OverloadedError("x"), Next.WAIT),
        (StaleTermError("x"), None),
    ],
)
def test_what_can_be_mended(error: AntiphonError, step: Next | None) -> None:
    if step is not None:
        assert routes().after(7, error, 0) is step
    else:
        with pytest.raises(type(error)):
            routes().after(7, error, 0)


def test_a_node_may_lag_for_a_while() -> None:
    with pytest.raises(UnknownShardError):
        routes().after(7, UnknownShardError("x"), LAG_S_MAX + 1)
    with pytest.raises(UnknownShardError):
        routes().after(8, UnknownShardError("x"), 0)
