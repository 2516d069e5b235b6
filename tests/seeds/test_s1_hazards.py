"""The five hazards H1-H5: errors in the code of S1, the Replicated Log pattern, that a literal port would take over.

Each has a scenario that the protocol passes and that fails when exactly that error is put back.
"""

from collections.abc import Callable

import pytest

from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EMPTY, EntryId, TermIndex
from antiphon.replication.actions import Action, Send
from antiphon.replication.follower import FollowerSide
from antiphon.replication.messages import Ack, Append, Reject
from tests.replication.cluster import SHARD
from tests.replication.test_random_schedules import commit_at_half, commit_older_terms
from tests.seeds.test_s1_raft import answers, elected, follower, older_entry_on_a_majority, records

Scenario = Callable[[], None]


def scenario_h1_even_number_of_members() -> None:
    """Two of four is no majority."""
    cluster = elected(4)
    cluster.isolate(3, 4)
    cluster.propose(1, "on 1 and 2")
    cluster.deliver()
    assert cluster.replica(1).high_watermark == 1


def scenario_h2_divergent_tail_is_not_acknowledged() -> None:
    """Node 2's tail is longer than what the leader sent; the acknowledgement ends where the leader's entries do."""
    cluster = follower((*records(1, 0, "a"), *records(2, 1, "x", "y", "z")), 2)
    (ack,) = answers(cluster, Append(SHARD, 3, 1, EMPTY, 0, 1, records(1, 0, "a")))
    assert ack == Ack(SHARD, 3, EntryId(1, 1), 1)


def scenario_h3_empty_log_and_log_that_is_too_short() -> None:
    """What precedes is checked for an empty log, and for one that ends before it."""
    for log in ((), records(1, 0, "a")):
        cluster = follower(log, 1)
        said = answers(cluster, Append(SHARD, 1, 1, EntryId(1, 2), 0, 1, records(1, 2, "c")))
        assert [type(message) for message in said] == [Reject]
        assert cluster[2].log == list(log)


def scenario_h4_older_term_is_not_counted() -> None:
    """An entry of an older term on a majority is not committed by that."""
    assert older_entry_on_a_majority().replica(1).high_watermark == 0


def scenario_h5_commit_is_bounded_by_what_was_verified() -> None:
    """The leader has committed five; of node 2's five, only one is known to be the leader's."""
    cluster = follower((*records(1, 0, "a"), *records(2, 1, "w", "x", "y", "z")), 2)
    answers(cluster, Append(SHARD, 3, 1, EntryId(1, 1), 5, 1))
    assert cluster.replica(2).high_watermark == 1
    answers(cluster, Append(SHARD, 3, 1, EntryId(1, 1), 5, 1, records(3, 1, "b")))
    assert cluster.replica(2).high_watermark == 2


def wrong_h2(patch: pytest.MonkeyPatch) -> None:
    def acknowledge(self: FollowerSide, out: list[Action]) -> None:
        assert self.leader is not None
        out.append(Send(self.leader, Ack(self._shard, self._term, self._log.terms.end, self._ack_round)))

    patch.setattr(FollowerSide, "acknowledge", acknowledge)


def wrong_h3(patch: pytest.MonkeyPatch) -> None:
    right = TermIndex.holds
    patch.setattr(TermIndex, "holds", lambda self, entry: self.log_end == 0 or right(self, entry))


def wrong_h5(patch: pytest.MonkeyPatch) -> None:
    right = FollowerSide.on_append

    def on_append(self: FollowerSide, message: Append, out: list[Action]) -> None:
        right(self, message, out)
        self._commit(min(message.high_watermark, self._log.terms.log_end), out)

    patch.setattr(FollowerSide, "on_append", on_append)


HAZARDS = [
    pytest.param(scenario_h1_even_number_of_members, commit_at_half, id="H1"),
    pytest.param(scenario_h2_divergent_tail_is_not_acknowledged, wrong_h2, id="H2"),
    pytest.param(scenario_h3_empty_log_and_log_that_is_too_short, wrong_h3, id="H3"),
    pytest.param(scenario_h4_older_term_is_not_counted, commit_older_terms, id="H4"),
    pytest.param(scenario_h5_commit_is_bounded_by_what_was_verified, wrong_h5, id="H5"),
]


@pytest.mark.parametrize(("scenario", "wrong"), HAZARDS)
def test_s1_hazards_are_avoided_and_would_be_seen(
    scenario: Scenario, wrong: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario()
    wrong(monkeypatch)
    with pytest.raises((AssertionError, InvariantError)):
        scenario()
