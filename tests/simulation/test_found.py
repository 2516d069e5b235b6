"""What seeds have found and a smaller test can show."""

import msgspec

from antiphon.coordination.live_sets import accept, vouched_for
from antiphon.wire.cluster import LiveSet
from antiphon.wire.metadata import ShardMeta

META = ShardMeta(1, 0, ensemble=(3, 0), leader=3, term=2, live=(3,), live_version=4, fence="live")


def report(*live: int, learners: tuple[int, ...] = ()) -> LiveSet:
    return LiveSet(1, 2, live, (), 4, learners=learners)


def test_a_proposal_of_former_members_is_answered() -> None:
    """fluvio 5119: the leader counts whom it proposed until it is told of a newer record."""
    answered = accept(META, report(2, 3), 3, lambda _: True)
    assert answered == msgspec.structs.replace(META, live_version=5)
    returned = accept(META, report(2, 3, learners=(2,)), 3, lambda _: True)
    assert returned == answered, "one of them is back, as a learner that seems to hold what it held before"


def test_a_proposal_that_was_overtaken_vouches_for_nobody() -> None:
    """fluvio 5119: who was proposed has left since, and is back with nothing: it is not among the followers."""
    overtaken = msgspec.structs.replace(META, live_version=6)
    assert vouched_for(META, report(0, 3)) == {0, 3}
    assert vouched_for(overtaken, report(0, 3)) == {3}
    assert vouched_for(overtaken, report(0, 3, learners=(0,))) == {0, 3}, "whom it names for what it holds"
    nothing_asked = msgspec.structs.replace(report(0, 3), version=-1)
    assert vouched_for(overtaken, nothing_asked) == {0, 3}


def test_a_learner_that_has_become_a_voter_is_not_live_by_that() -> None:
    """fluvio 197: the leader names it as caught up, and does not count it yet."""
    assert accept(META, report(0, 3, learners=(0,)), 3, lambda _: True).live == (3,)
    assert accept(META, report(0, 3), 3, lambda _: True).live == (3, 0)
