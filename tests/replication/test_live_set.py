"""The live set by itself: every standing, and what leads from one to another (S3.24, S3.28, S3.29)."""

import pytest

from antiphon.invariants import InvariantError
from antiphon.replication.actions import ProposeLiveSet
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.live_set import LiveSet, MemberProgress, Standing
from antiphon.replication.members import Members
from antiphon.replication.messages import ChangeMembers, MembersSettled
from tests.replication.cluster import COORDINATOR, SHARD
from tests.replication.live_cluster import LIVE_CONFIG, LiveCluster

CONFIG = ReplicaConfig(resend_ticks=2, live_lag_entries_max=3, live_lag_ticks=4)
VOTERS = (1, 2, 3)


def live_set(*recorded: int, config: ReplicaConfig = CONFIG) -> LiveSet:
    return LiveSet(1, 5, recorded, config)


def at(node: int, end: int, *, connected: bool = True) -> MemberProgress:
    return MemberProgress(node, end, connected)


def standing_of(live: LiveSet, node: int, want: Standing) -> None:
    assert live.standing(node) is want, live.standing(node)


def test_s3_29_out_to_offered_to_live() -> None:
    live = live_set(1, 2)
    standing_of(live, 3, Standing.OUT)
    assert live.heard(at(3, 10), committed=10, log_end=12)
    standing_of(live, 3, Standing.OFFERED)
    assert live.counting == (1, 2, 3), "it counts before it is asked for"
    assert live.proposal(VOTERS) == ProposeLiveSet(5, (1, 2, 3))
    assert live.proposal(VOTERS) is None, "once is enough for now"
    assert live.record(6, (1, 2, 3))
    standing_of(live, 3, Standing.LIVE)
    assert live.proposal(VOTERS) is None


def test_s3_29_who_is_near_is_waited_for_first() -> None:
    live = live_set(1, 2)
    assert live.heard(at(3, 9), committed=10, log_end=12)
    standing_of(live, 3, Standing.JOINING)
    assert live.counting == (1, 2, 3)
    assert live.proposal(VOTERS) is None
    assert not live.heard(at(3, 10), committed=10, log_end=14), "it counted already"
    standing_of(live, 3, Standing.OFFERED)


def test_s3_29_who_is_far_is_not() -> None:
    live = live_set(1, 2)
    assert not live.heard(at(3, 2), committed=10, log_end=12)
    standing_of(live, 3, Standing.OUT)


def test_s3_29_who_does_not_use_its_chance_has_to_catch_up_by_itself() -> None:
    live = live_set(1, 2)
    live.heard(at(3, 9), committed=10, log_end=12)
    assert live.tick([at(2, 12), at(3, 9, connected=False)], 12, 0)
    standing_of(live, 3, Standing.OUT)
    assert not live.heard(at(3, 9), committed=10, log_end=12)
    assert live.heard(at(3, 10), committed=10, log_end=12)


def test_s3_29_an_offer_that_is_not_recorded_is_not_repeated_at_once() -> None:
    live = live_set(1, 2)
    live.heard(at(3, 10), committed=10, log_end=10)
    live.record(6, (1, 2))
    standing_of(live, 3, Standing.OUT)
    assert not live.heard(at(3, 10), committed=10, log_end=10)
    for _ in range(CONFIG.live_lag_ticks):
        live.tick([at(2, 10)], 10, 0)
    assert live.heard(at(3, 10), committed=10, log_end=10)


def test_s3_28_live_to_leaving_to_out() -> None:
    live = live_set(1, 2, 3)
    for _ in range(CONFIG.live_lag_ticks):
        standing_of(live, 3, Standing.LIVE)
        live.tick([at(2, 10), at(3, 9)], 10, 0)
    standing_of(live, 3, Standing.LEAVING)
    assert live.counting == (1, 2, 3), "until it is recorded"
    assert live.proposal(VOTERS) == ProposeLiveSet(5, (1, 2))
    live.record(6, (1, 2))
    assert list(live.counting) == [1, 2]


def test_s3_28_who_catches_up_in_time_stays() -> None:
    live = live_set(1, 2, 3)
    for _ in range(CONFIG.live_lag_ticks):
        live.tick([at(2, 10), at(3, 9)], 10, 0)
    live.heard(at(3, 10), committed=8, log_end=10)
    standing_of(live, 3, Standing.LIVE)
    assert live.proposal(VOTERS) is None


def test_s3_28_who_leaves_an_answer_open_lags_too() -> None:
    live = live_set(1, 2, 3)
    for _ in range(CONFIG.live_lag_ticks):
        live.tick([MemberProgress(2, 10, True, 7), MemberProgress(3, 10, True, 6)], 10, 7)
    standing_of(live, 2, Standing.LIVE)
    standing_of(live, 3, Standing.LEAVING)


def test_s3_28_a_leader_that_was_struck_off_itself_does_not_count() -> None:
    live = live_set(1, 2, 3)
    live.record(6, (2, 3))
    assert live.counting == (2, 3)


def test_s3_28_an_older_record_or_the_same_changes_nothing() -> None:
    live = live_set(1, 2, 3)
    assert not live.record(5, (1,))
    assert not live.record(4, (1,))
    assert live.recorded == (1, 2, 3)


def test_s3_28_a_record_of_somebody_who_did_not_count_is_a_broken_coordinator() -> None:
    live = live_set(1, 2)
    with pytest.raises(InvariantError):
        live.record(6, (1, 2, 3))


def test_s3_28_only_voters_stay() -> None:
    live = live_set(1, 2, 3)
    assert live.proposal((1, 3)) == ProposeLiveSet(5, (1, 3))


@pytest.mark.parametrize("min_live", [1, 2, 3])
def test_c1_fewer_than_min_live_are_not_proposed(min_live: int) -> None:
    live = live_set(1, 2, 3, config=ReplicaConfig(live_lag_ticks=1, min_live=min_live))
    live.tick([at(2, 0), at(3, 0)], 1, 0)
    found = live.proposal(VOTERS)
    assert (len(found.live) if found is not None else 3) == min_live
    assert live.is_enough


def test_s3_29_a_live_member_that_is_struck_off_on_an_idle_shard_comes_back_though_questions_get_lost() -> (
    None
):
    cluster = LiveCluster(config=LIVE_CONFIG)
    cluster.lead_live(1)
    cluster.propose(1, "a")
    cluster.tick(3)
    assert not cluster.replica(1).needs_tick
    cluster.set_live((1, 2))
    cluster.tell(1)
    cluster.drop()
    assert cluster.replica(1).needs_tick
    cluster.tick(4)
    cluster.settle_live(1)
    assert list(cluster.live) == [1, 2, 3]
    assert not cluster.replica(1).needs_tick
    assert cluster.replica(1).term == 1


def test_s3_28_members_are_confirmed_once_no_former_one_counts() -> None:
    """Until then it could come back, and count by what the replica held that it gave up (fluvio 5119)."""
    cluster = LiveCluster(config=LIVE_CONFIG)
    cluster.lead_live(1)
    cluster.propose(1, "a")
    cluster.tick(3)
    cluster.set_live((1, 3))  # and it is no member any more, of which the leader has not heard
    cluster.tell(1)
    cluster.tick(4)
    assert cluster.proposals[-1][2].live == (1, 2, 3)
    cluster.receive(COORDINATOR, 1, ChangeMembers(SHARD, 1, 1, Members((1, 3))))
    cluster.tick()
    assert not [told for _, told in cluster.told if isinstance(told, MembersSettled)]
    cluster.set_live((1, 3))  # nothing is left of the proposal
    cluster.tell(1)
    assert cluster.told[-1][1] == MembersSettled(SHARD, 1, 1)
    assert [status.node for status in cluster.replica(1).followers()] == [3]
