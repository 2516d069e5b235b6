"""What both clients do after a try has failed: leaders, pauses, questions, the end of the tries, and outcomes."""

from typing import Any

import pytest

from antiphon.client.connection_errors import ClientClosedError, ConnectionLostError
from antiphon.client.routing.outcomes import end_of_write, is_known, of_write, unanswered
from antiphon.client.routing.routes import LAG_S_MAX, Next, Routes, mends, places_to_ask
from antiphon.client.routing.tries import PAUSE_S_MAX, PAUSE_S_MIN, BackOff, Question, Shunned, Tries
from antiphon.errors import (
    AntiphonError,
    DiskFullError,
    InvalidRequestError,
    KeyNotFoundError,
    NotLeaderError,
    NotReadyError,
    OutOfOrderSequenceError,
    OverloadedError,
    StaleTermError,
    TimedOutError,
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
    assert known.leader(7) == 2
    known.adopt(meta(2, 1))
    assert known.leader(7) == 1


def test_who_was_hinted_at_and_knows_of_nobody_is_forgotten() -> None:
    known = routes()
    known.after(7, NotLeaderError("no", leader=2), 0)
    assert known.after(7, NotLeaderError("no", leader=None), 0) is Next.LEARN
    assert known.leader(7) == 0
    known.adopt(meta(1, 2, term=3))
    known.after(7, NotLeaderError("no", leader=None), 0)
    assert known.leader(7) == 0
    known.adopt(meta(1, 2, term=3))  # it has been elected after all: the same term is news again
    assert known.leader(7) == 2


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


# -- the tries of a call ---------------------------------------------------------------------------------------------


def longest(_low: float, high: float) -> float:
    """A draw whose pauses are the longest."""
    return high


def tries(known: Routes | None = None, time_s: float = 60.0, **how: Any) -> Tries:
    return Tries(known or routes(), 0.0, time_s, **how)


AT_0, NOBODY = "node:0", None
LEARNS: list[tuple[AntiphonError, Question | None, Question | None]] = [
    # what failed, what is asked after the first time, and after the second
    (ConnectionLostError("x"), Question(1, AT_0, False), Question(1, AT_0, True)),
    (UnavailableError("x"), Question(1, AT_0, False), Question(1, AT_0, True)),
    (NotLeaderError("x", leader=None), Question(1, AT_0, False), Question(1, AT_0, True)),
    (NotLeaderError("x", leader=0), Question(1, AT_0, False), Question(1, AT_0, True)),
    (UnknownShardError("x"), Question(1, AT_0, False), Question(1, AT_0, False)),
    (WrongShardError("x"), Question(1, NOBODY, False), Question(1, NOBODY, True)),
    (NotLeaderError("x", leader=2), None, Question(1, "node:2", True)),
    (NotReadyError("x"), None, None),
    (OverloadedError("x"), None, None),
    (TimedOutError("x"), None, None),
]


@pytest.mark.parametrize(("error", "first", "second"), LEARNS)
def test_what_is_asked_before_the_next_try(
    error: AntiphonError, first: Question | None, second: Question | None
) -> None:
    one = tries()
    found = []
    for _ in range(2):
        one.failed(7, error, 0)
        found.append(one.step(0, longest).question)
    assert found == [first, second]


def test_several_requests_that_failed_have_one_step() -> None:
    one = tries()
    one.failed(7, OverloadedError("x"), 0)
    assert one.step(0, longest).question is None
    one.failed(7, OverloadedError("x"), 0)
    one.failed(7, UnavailableError("x"), 0)
    one.failed(7, NotReadyError("x"), 0)
    assert one.step(0, longest).question == Question(1, AT_0, True)
    assert one.step(0, longest).question is None  # it was asked
    one.failed(7, UnavailableError("x"), 0)
    one.progressed()  # another one was answered, which does not say who leads this shard
    assert one.step(0, longest).question is not None


def test_pauses_grow_and_begin_anew() -> None:
    one = tries()
    found = []
    for _ in range(8):
        one.failed_anywhere(UnavailableError("x"))
        found.append(one.step(0, longest).pause_s)
    assert found == [min(PAUSE_S_MIN * 2**n, PAUSE_S_MAX) for n in range(8)]
    one.progressed()
    assert one.step(0, longest).pause_s == PAUSE_S_MIN
    assert BackOff(1, 4).next_s(lambda low, _high: low) == 0.5


def test_the_time_is_over_when_the_next_pause_does_not_fit() -> None:
    one = tries(time_s=10)
    one.failed(7, UnavailableError("no majority"), 9.98)
    one.step(9.98, longest)
    one.failed(7, UnavailableError("no majority"), 9.99)
    with pytest.raises(
        TimedOutError, match="2 of 3 had none in time, lastly because of unavailable: no maj"
    ) as caught:
        one.step(9.99, longest, "2 of 3 had none")
    assert isinstance(caught.value.__cause__, UnavailableError)
    assert caught.value.retriable
    one.renewed(9.99, 20)
    assert one.count == 0
    one.failed(7, UnknownShardError("lags"), 9.9 + LAG_S_MAX)
    assert one.step(9.99, longest).pause_s == PAUSE_S_MIN
    with pytest.raises(UnknownShardError):
        one.failed(7, UnknownShardError("lags"), 10 + LAG_S_MAX)


def test_so_many_tries_and_no_more() -> None:
    one = tries(retries=1)
    for _ in range(3):
        one.failed(7, UnavailableError("x"), 0)
        one.progressed()
        one.step(0, longest)
    one.failed(7, UnavailableError("x"), 0)
    one.step(0, longest)
    one.failed(7, UnavailableError("x"), 0)
    with pytest.raises(UnavailableError, match="in 2 tries"):
        one.step(0, longest)


def test_what_another_try_cannot_mend_is_raised_as_it_is() -> None:
    error = StaleTermError("x")
    with pytest.raises(StaleTermError) as caught:
        tries().failed(7, error, 0)
    assert caught.value is error
    with pytest.raises(InvalidRequestError):
        tries().failed_anywhere(InvalidRequestError("x"))
    with pytest.raises(UnknownShardError, match="not here"):
        tries().failed(8, UnknownShardError("not here"), 0)


def test_metadata_lacks_something() -> None:
    one = tries()
    one.lacking(UnavailableError("it was made just now"))
    assert one.step(0, longest).question == Question(1, NOBODY, False)
    assert Tries(Routes(), 0, 1).step(0, longest).question is None


# -- outcomes --------------------------------------------------------------------------------------------------------

DOUBTS: list[tuple[AntiphonError, bool, bool, bool]] = [
    # a write that was sent failed like this: may it have been carried out by a leader; by a coordinator; by way of any node?
    (ConnectionLostError("x"), True, True, True),
    (TimedOutError("x"), True, True, True),
    (NotLeaderError("x"), True, False, False),
    (NotReadyError("x"), False, False, False),
    (OverloadedError("x"), False, True, False),
    (DiskFullError("x"), False, True, False),
    (UnavailableError("x"), False, True, True),
]


@pytest.mark.parametrize(("error", "of_leader", "of_coordinator", "anywhere"), DOUBTS)
def test_an_outcome_is_known_or_not(
    error: AntiphonError, of_leader: bool, of_coordinator: bool, anywhere: bool
) -> None:
    for wrote in (False, True):
        one = tries()
        one.failed_anywhere(error, wrote=wrote)
        assert one.unknown is (anywhere and wrote)
    for coordinated, wanted in ((False, of_leader), (True, of_coordinator)):
        for wrote in (False, True):
            one = tries(coordinated=coordinated)
            one.failed(7, error, 0, wrote=wrote)
            one.step(0, longest)
            assert one.unknown is (wanted and wrote)
            one.failed(7, NotReadyError("y"), 100)
            with pytest.raises(TimedOutError) as caught:
                one.step(100, longest)
            assert caught.value.outcome_unknown is (wanted and wrote)


@pytest.mark.parametrize("coordinated", [False, True])
def test_a_refusal_after_a_lost_try(coordinated: bool) -> None:
    """A shard recognises repeats, so what it says to one is so. A coordinator's refusal may come from what it did before."""
    one = tries(coordinated=coordinated)
    one.failed(7, ConnectionLostError("x"), 0, wrote=True)
    one.step(0, longest)
    with pytest.raises(StaleTermError) as caught:
        one.failed(7, StaleTermError("x"), 0, wrote=True)
    assert caught.value.outcome_unknown is coordinated
    with pytest.raises(ClientClosedError) as closed:
        one.end(ClientClosedError("x"))
    assert closed.value.outcome_unknown is coordinated


def test_the_end_of_a_callers_time() -> None:
    assert unanswered("x", wrote=True).outcome_unknown
    assert not unanswered("x", wrote=False).outcome_unknown
    assert end_of_write(sent=True).outcome_unknown
    assert not end_of_write(sent=False).outcome_unknown
    assert end_of_write(sent=False).retriable
    assert of_write(UnavailableError("x"), sent=True).outcome_unknown
    assert of_write(ClientClosedError("x"), sent=False).message == "x; the write was not carried out"
    refused = InvalidRequestError("x")
    assert of_write(refused, sent=True) is refused


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (end_of_write(sent=False), True),
        (end_of_write(sent=True), False),
        (TimedOutError("x"), False),
        (ClientClosedError("x"), False),
        (NotReadyError("x"), False),
        (InvalidRequestError("x", earlier_try=True), False),
        (InvalidRequestError("x"), True),
        (KeyNotFoundError("x"), True),
    ],
)
def test_what_a_write_ended_with_says_whether_it_was_carried_out(error: AntiphonError, known: bool) -> None:
    assert is_known(error) is known


@pytest.mark.parametrize(
    ("error", "mended"),
    [
        (NotLeaderError("x"), True),
        (UnknownShardError("x"), True),
        (ConnectionLostError("x"), True),
        (WrongShardError("x"), False),
        (OutOfOrderSequenceError("x"), False),
    ],
)
def test_what_is_sent_again(error: AntiphonError, mended: bool) -> None:
    assert mends(error) is mended


# -- places ----------------------------------------------------------------------------------------------------------


def test_whom_is_asked_in_which_order() -> None:
    mixed: list[list[str]] = []

    def shuffle(places: list[str]) -> None:
        mixed.append(list(places))
        places.reverse()

    places = places_to_ask(["a", "b"], ["a", "c", "d"], ["d", "e", "a"], shuffle, "b")
    assert places == ["a", "d", "c", "e", "b"]
    assert mixed == [["c", "d"], ["a", "b"]]
    assert places_to_ask([], [], ["e"], shuffle, "nowhere") == ["e"]


def test_who_does_not_answer_is_left_alone_for_longer_each_time() -> None:
    shunned: Shunned[int] = Shunned(1, 3)
    assert shunned.problem(5, 0) is None
    for now_s, pause_s in ((0, 1), (10, 2), (20, 3), (30, 3)):
        shunned.failed(5, "refused", now_s, longest)
        assert shunned.problem(5, now_s + pause_s - 0.1) == "refused"
        assert shunned.problem(5, now_s + pause_s) is None
        assert shunned.problem(6, now_s) is None
    shunned.answered(5)
    shunned.failed(5, "refused", 40, longest)
    assert shunned.problem(5, 41.5) is None
