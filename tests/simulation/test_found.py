"""What seeds have found and a smaller test can show."""

import msgspec

from antiphon.coordination.live_sets import accept
from antiphon.wire.cluster import LiveSet
from antiphon.wire.metadata import ShardMeta

META = ShardMeta(1, 0, ensemble=(3, 0), leader=3, term=2, live=(3,), live_version=4, fence="live")


def report(*live: int, learners: tuple[int, ...] = ()) -> LiveSet:
    return LiveSet(1, 2, live, (), 4, learners=learners)


def test_a_proposal_of_former_members_is_answered() -> None:
    """fluvio 5119: the leader counts whom it proposed until it is told of a newer record."""
    answered = accept(META, report(2, 3), 3, lambda _: True)
    assert answered == msgspec.structs.replace(META, live_version=5)


def test_a_learner_that_has_become_a_voter_is_not_live_by_that() -> None:
    """fluvio 197: the leader names it as caught up, and does not count it yet."""
    assert accept(META, report(0, 3, learners=(0,)), 3, lambda _: True) is META
    assert accept(META, report(0, 3), 3, lambda _: True).live == (3, 0)
