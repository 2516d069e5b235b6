"""The coordinator's decisions about one transactional id, by Kafka's rules, and that any successor goes on from the row."""

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination import transactions as t
from antiphon.coordination.transactions import EPOCH_MAX, NOBODY, Bounds, Producer, Refused, Row, State, Step
from antiphon.model.transactions import OWN_IDS

if TYPE_CHECKING:
    from collections.abc import Callable

BOUNDS = Bounds(timeout_ms_max=60_000, participants_max=10)
ID = 7


def begun(**changes: object) -> Row:
    row = Row(ID, 3, 10_000, 0, State.ONGOING, number=5, began_ms=100, shards=(1, 2), groups=("g",))
    return msgspec.structs.replace(row, **changes)


def at_rest(state: State = State.COMPLETE_COMMIT, **changes: object) -> Row:
    return begun(state=state, shards=(), groups=(), began_ms=-1, **changes)


def init(
    row: Row | None, expected: Producer | None = None, fresh: int = 99, timeout_ms: int = 10_000
) -> Step:
    return t.init(row, timeout_ms, expected, fresh, 1_000, BOUNDS)


def join(row: Row | None, producer: Producer, *shards: int, groups: tuple[str, ...] = ()) -> Step:
    return t.join(row, producer, shards, groups, 4, 1_000, BOUNDS)


def owner(row: Row) -> Producer:
    return Producer(row.producer_id, row.epoch)


# -- InitProducerId -----------------------------------------------------------------------------------------------


def test_a_new_id_gets_a_fresh_producer_at_epoch_0() -> None:
    assert init(None, fresh=NOBODY) == Step(needs_id=True)
    assert init(None) == Step(Row(99, 0, 10_000, 1_000))


@pytest.mark.parametrize("state", sorted(t.AT_REST))
def test_a_known_id_is_fenced_by_the_next_epoch_of_the_same_producer(state: State) -> None:
    row = init(at_rest(state)).row
    assert row is not None
    assert (row.producer_id, row.epoch, row.state, row.number) == (ID, 4, State.EMPTY, 5)
    assert row.last_epoch == NOBODY, "nobody who says the old epoch is let in as a repeat"


def test_a_transaction_under_way_is_aborted_first_by_an_epoch_that_nobody_has() -> None:
    step = init(begun())
    assert step.refused is Refused.CONCURRENT
    assert step.row is not None
    assert (step.row.state, step.row.epoch) == (State.PREPARE_ABORT, 4)
    assert init(step.row) == Step(refused=Refused.CONCURRENT)
    assert t.end(step.row, Producer(ID, 3), commit=True, now_ms=0).refused is Refused.FENCED
    done = t.complete(step.row, 2_000).row
    assert done is not None
    renewed = init(done).row
    assert renewed is not None
    assert (renewed.epoch, renewed.state) == (5, State.EMPTY)


def test_a_producer_that_says_what_it_has_gets_the_next_epoch_and_a_repeat_gets_the_same() -> None:
    first = init(at_rest(), Producer(ID, 3)).row
    assert first is not None
    assert (first.epoch, first.last_epoch) == (4, 3)
    assert init(first, Producer(ID, 3)) == Step()
    assert init(first, Producer(ID, 2)).refused is Refused.FENCED
    assert init(first, Producer(ID + 1, 4)).refused is Refused.FENCED
    assert init(begun(), Producer(ID + 1, 3)).refused is Refused.FENCED
    assert init(begun(), Producer(ID, 2)).refused is Refused.FENCED, (
        "it is the transaction of a newer producer"
    )
    ended = init(begun(), Producer(ID, 3))
    assert (ended.row and ended.row.state, ended.refused) == (State.PREPARE_ABORT, Refused.CONCURRENT)


def test_a_producer_that_was_fenced_by_another_gets_nothing_by_what_it_had() -> None:
    newer = init(at_rest()).row
    assert newer is not None
    assert init(newer, Producer(ID, 3)).refused is Refused.FENCED


def test_epochs_that_are_used_up_give_a_new_producer_id_and_a_repeat_the_same() -> None:
    last = at_rest(epoch=EPOCH_MAX - 1)
    assert init(last, fresh=NOBODY) == Step(needs_id=True)
    by_itself = init(last, owner(last)).row
    assert by_itself is not None
    assert (by_itself.producer_id, by_itself.epoch) == (99, 0)
    assert init(by_itself, owner(last)) == Step()
    fenced = init(begun(epoch=EPOCH_MAX - 1)).row
    assert fenced is not None
    assert fenced.epoch == EPOCH_MAX
    done = t.complete(fenced, 0).row
    assert done is not None
    renewed = init(done).row
    assert renewed is not None
    assert (renewed.producer_id, renewed.epoch, renewed.number) == (99, 0, 5)


@pytest.mark.parametrize("timeout_ms", [0, -1, 60_001])
def test_a_time_out_out_of_bounds_is_refused(timeout_ms: int) -> None:
    assert init(None, timeout_ms=timeout_ms).refused is Refused.TIMEOUT


# -- what takes part ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(t.AT_REST))
def test_a_transaction_begins_with_the_first_that_takes_part_and_has_the_next_number(state: State) -> None:
    row = join(at_rest(state), Producer(ID, 3), 9, 8).row
    assert row is not None
    assert (row.state, row.number, row.began_ms, row.shards, row.known_at) == (
        State.ONGOING,
        6,
        1_000,
        (8, 9),
        4,
    )


def test_more_may_take_part_and_what_does_already_changes_nothing() -> None:
    row = join(begun(), Producer(ID, 3), 2, 3, groups=("h",)).row
    assert row is not None
    assert (row.number, row.began_ms) == (5, 100)
    assert (row.shards, row.groups) == ((1, 2, 3), ("g", "h"))
    assert join(begun(), Producer(ID, 3), 1, groups=("g",)) == Step()
    assert join(begun(), Producer(ID, 3), *range(20)).refused is Refused.TOO_MANY


@pytest.mark.parametrize("producer", [Producer(ID + 1, 3), Producer(ID, 2), Producer(ID, 4)])
def test_only_the_ids_producer_adds_asks_and_ends(producer: Producer) -> None:
    refused = Refused.FENCED if producer.producer_id == ID else Refused.UNKNOWN_PRODUCER
    assert join(begun(), producer, 3).refused is refused
    assert t.check(begun(), producer, 1, None) is refused
    assert t.end(begun(), producer, commit=True, now_ms=0).refused is refused
    assert join(None, producer, 3).refused is Refused.UNKNOWN_PRODUCER


def test_what_takes_part_is_told_so_only_while_the_transaction_is_under_way() -> None:
    producer = Producer(ID, 3)
    assert t.check(begun(), producer, 1, None) is None
    assert t.check(begun(), producer, None, "g") is None
    assert t.check(begun(), producer, 3, None) is Refused.NOT_PART
    assert t.check(begun(), producer, None, "h") is Refused.NOT_PART
    assert t.check(begun(state=State.PREPARE_COMMIT), producer, 1, None) is Refused.CONCURRENT
    assert t.check(begun(state=State.COMPLETE_COMMIT), producer, 1, None) is Refused.NOT_PART


# -- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_is_decided_once_and_repeated_alike(commit: bool) -> None:
    producer = Producer(ID, 3)
    prepared = t.end(begun(), producer, commit=commit, now_ms=0).row
    assert prepared is not None
    assert t.due(prepared) == t.Ending(ID, 3, 5, commit, (1, 2), ("g",))
    assert t.end(prepared, producer, commit=commit, now_ms=0).refused is Refused.CONCURRENT
    assert t.end(prepared, producer, commit=not commit, now_ms=0).refused is Refused.STATE
    assert join(prepared, producer, 3).refused is Refused.CONCURRENT
    done = t.complete(prepared, 0).row
    assert done is not None
    assert t.due(done) is None
    assert not done.shards
    assert not done.groups
    assert t.end(done, producer, commit=commit, now_ms=0) == Step()
    assert t.end(done, producer, commit=not commit, now_ms=0).refused is Refused.STATE


def raised(row: Row | None, producer: Producer, *, commit: bool, fresh: int = NOBODY) -> Step:
    return t.end_and_raise(row, producer, fresh, commit=commit, now_ms=0)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_of_the_second_version_is_decided_once_with_a_new_epoch(commit: bool) -> None:
    was, now = Producer(ID, 3), Producer(ID, 4)
    prepared = raised(begun(), was, commit=commit).row
    assert prepared is not None
    assert prepared.producer == now
    assert t.due(prepared) == t.Ending(ID, 4, 5, commit, (1, 2), ("g",)), "markers carry the new epoch"
    for row in (prepared, t.complete(prepared, 0).row):
        assert row is not None
        repeat = raised(row, was, commit=commit)
        assert repeat == (Step(refused=Refused.CONCURRENT) if row is prepared else Step())
        assert raised(row, was, commit=not commit).refused is Refused.STATE
        assert row.producer == now
        assert join(row, was, 3).refused is Refused.FENCED, "what comes late is no part of the next one"
        assert t.check(row, was, 1, None) is Refused.FENCED
    done = t.complete(prepared, 0).row
    assert done is not None
    after = join(done, now, 3).row
    assert after is not None
    assert after.number == 6
    assert raised(after, was, commit=commit).refused is Refused.FENCED
    assert init(done, was) == Step(), "a client that lost the answer gets the producer that it has"


def test_an_abort_of_what_nobody_heard_of_raises_the_epoch_and_is_a_transaction_without_parts() -> None:
    for state in t.AT_REST:
        row = raised(at_rest(state), Producer(ID, 3), commit=False).row
        assert row is not None
        assert (row.state, row.number, row.producer) == (State.PREPARE_ABORT, 6, Producer(ID, 4))
        assert t.due(row) == t.Ending(ID, 4, 6, False, (), ())
        assert raised(at_rest(state), Producer(ID, 3), commit=True).refused is Refused.STATE
    assert raised(None, Producer(ID, 3), commit=False).refused is Refused.UNKNOWN_PRODUCER
    aborted = t.complete(begun(state=State.PREPARE_ABORT, last_producer_id=ID), 0).row
    assert raised(aborted, Producer(ID, NOBODY), commit=False).refused is Refused.FENCED, (
        "nobody has no epoch"
    )


def test_when_epochs_are_used_up_the_end_gives_another_producer_and_markers_the_largest_epoch() -> None:
    was, now = Producer(ID, EPOCH_MAX - 1), Producer(99, 0)
    row = begun(epoch=EPOCH_MAX - 1)
    assert raised(row, was, commit=True) == Step(needs_id=True)
    prepared = raised(row, was, commit=True, fresh=99).row
    assert prepared is not None
    assert prepared.producer == now
    assert t.due(prepared) == t.Ending(ID, EPOCH_MAX, 5, True, (1, 2), ("g",))
    assert join(prepared, now, 3).refused is Refused.CONCURRENT, "it is the producer, and has to wait"
    assert t.check(prepared, now, 1, None) is Refused.CONCURRENT
    assert raised(prepared, was, commit=True).refused is Refused.CONCURRENT
    done = t.complete(prepared, 0).row
    assert done is not None
    assert owner(done) == now
    assert raised(done, was, commit=True) == Step()
    assert join(done, was, 3).refused is Refused.UNKNOWN_PRODUCER
    assert join(done, now, 3).row is not None


def test_nothing_to_end_is_an_error() -> None:
    assert t.end(at_rest(State.EMPTY), Producer(ID, 3), commit=True, now_ms=0).refused is Refused.STATE
    assert t.complete(begun(), 0).refused is Refused.STATE


def test_a_transaction_past_its_time_out_is_aborted_and_its_producer_fenced() -> None:
    assert t.deadline_ms(begun()) == 10_100
    assert t.abort(begun(), 10_099, only_overdue=True).refused is Refused.STATE
    row = t.abort(begun(), 10_100, only_overdue=True).row
    assert row is not None
    assert (row.state, row.epoch) == (State.PREPARE_ABORT, 4)
    assert init(row, Producer(ID, 3)).refused is Refused.FENCED
    assert init(row).refused is Refused.CONCURRENT
    forced = t.abort(begun(), 0, only_overdue=False).row
    assert forced is not None
    assert forced.state is State.PREPARE_ABORT
    assert t.abort(at_rest(), 0, only_overdue=False).refused is Refused.STATE


def test_an_id_that_was_silent_is_forgotten_but_never_one_with_a_transaction() -> None:
    assert not t.is_expired("id", at_rest(), BOUNDS.expire_ms - 1, BOUNDS)
    assert t.is_expired("id", at_rest(), BOUNDS.expire_ms, BOUNDS)
    assert not t.is_expired("id", begun(), BOUNDS.expire_ms, BOUNDS)
    assert not t.is_expired("id", begun(state=State.PREPARE_ABORT), BOUNDS.expire_ms, BOUNDS)


def test_an_id_that_a_client_made_is_forgotten_sooner() -> None:
    own, long = f"{OWN_IDS}1", BOUNDS._replace(expire_ms=2 * t.OWN_ID_EXPIRES_MS)
    assert not t.is_expired(own, at_rest(), t.OWN_ID_EXPIRES_MS - 1, long)
    assert t.is_expired(own, at_rest(), t.OWN_ID_EXPIRES_MS, long)
    assert not t.is_expired("id", at_rest(), t.OWN_ID_EXPIRES_MS, long)
    assert not t.is_expired(own, begun(), t.OWN_ID_EXPIRES_MS, long)
    assert t.is_expired(own, at_rest(), 1_000, BOUNDS._replace(expire_ms=1_000))


# -- any order ----------------------------------------------------------------------------------------------------


def _moved(row: Row | None, kind: int, pick: int, now_ms: int) -> Step:
    producer = Producer(0, 0) if row is None else Producer(row.producer_id, max(row.epoch - pick // 2, 0))
    moves: dict[int, Callable[[], Step]] = {
        0: lambda: init(row),
        1: lambda: init(row, producer),
        2: lambda: t.join(row, producer, [pick], [], 1, now_ms, BOUNDS),
        3: lambda: t.join(row, producer, [], ["g"], 1, now_ms, BOUNDS),
        4: lambda: t.end(row, producer, commit=True, now_ms=now_ms),
        5: lambda: t.end(row, producer, commit=False, now_ms=now_ms),
        6: lambda: t.abort(row, now_ms, only_overdue=True),
        7: lambda: Step() if row is None else t.complete(row, now_ms),
        8: lambda: t.end_and_raise(row, producer, 100 + now_ms, commit=True, now_ms=now_ms),
        9: lambda: t.end_and_raise(row, producer, 100 + now_ms, commit=False, now_ms=now_ms),
    }
    return moves[kind]()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=40))
def test_numbers_and_epochs_never_fall_and_a_decision_is_never_taken_back(
    moves: list[tuple[int, int]],
) -> None:
    row: Row | None = None
    decided: dict[int, bool] = {}  # by number
    now_ms = 0
    for kind, pick in moves:
        now_ms += 4_000
        new = _moved(row, kind, pick, now_ms).row
        if new is None:
            continue
        if row is not None:
            assert new.number - row.number in {0, 1}
            assert new.state in t.NEXT[row.state]
            assert (new.producer_id, new.epoch) >= (row.producer_id, row.epoch)
            if row.state is State.ONGOING and new.state is State.ONGOING:
                assert set(row.shards) <= set(new.shards)
                assert set(row.groups) <= set(new.groups)
        ending = t.due(new)
        if ending is not None:
            assert decided.setdefault(ending.number, ending.commit) == ending.commit
            assert ending.shards or ending.groups or not ending.commit
        row = new
