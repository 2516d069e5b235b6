"""The judge of histories must be able to say no."""

import pytest

from antiphon.simulation.history import History, Operation
from antiphon.simulation.violation import ViolationError


def operation(kind: str, invoked: int, completed: int, offset: int, **more: object) -> Operation:
    count = 1 if kind == "append" else 0
    one = Operation(1000, invoked, 1, kind, -1, count, invoked, 0, completed, "ok", offset)
    for name, value in more.items():
        setattr(one, name, value)
    return one


def judge(*operations: Operation) -> None:
    history = History()
    history.operations.extend(operations)
    history.check()


def test_one_after_the_other_and_overlapping_are_fine() -> None:
    judge(operation("append", 0, 10, 5), operation("read", 20, 30, 6), operation("append", 40, 50, 6))
    judge(operation("append", 0, 100, 6), operation("append", 0, 100, 5), operation("read", 0, 100, 0))
    judge(operation("append", 0, -1, -1, outcome="unknown"), operation("read", 20, 30, 0))


@pytest.mark.parametrize("kind", ["append", "read"])
def test_what_was_complete_before_must_be_seen(kind: str) -> None:
    with pytest.raises(ViolationError, match="linearizable"):
        judge(operation("append", 0, 10, 5), operation(kind, 20, 30, 5 if kind == "read" else 4))


def test_a_stale_read_after_a_newer_read_is_refused() -> None:
    with pytest.raises(ViolationError, match="linearizable"):
        judge(operation("append", 0, 100, 5), operation("read", 10, 20, 6), operation("read", 30, 40, 5))


def test_a_refusal_proves_the_end_it_names() -> None:
    with pytest.raises(ViolationError, match="linearizable"):
        judge(operation("append", 0, 10, 7, outcome="refused", expected=3), operation("read", 20, 30, 6))


def test_two_appends_in_one_place_are_refused() -> None:
    with pytest.raises(ViolationError, match="share offset 5"):
        judge(operation("append", 0, 10, 5), operation("append", 5, 15, 5))


def test_a_condition_holds_where_the_append_landed() -> None:
    judge(operation("append", 0, 10, 5, expected=5))
    with pytest.raises(ViolationError, match="expected 4 landed at 5"):
        judge(operation("append", 0, 10, 5, expected=4))


def test_shards_are_judged_on_their_own() -> None:
    judge(operation("append", 0, 10, 5), operation("read", 20, 30, 0, shard=2))
