"""The model of a table's key, by which answers to clients are judged, must be able to say no."""

from dataclasses import replace

import pytest

from antiphon.simulation.cluster.workloads.table import one_key
from antiphon.simulation.linearizability import Operation, Verdict, check_object
from antiphon.table.evaluator import ABSENT


def op(what: str, argument: object, result: object, invoked: int, returned: int | None) -> Operation:
    return Operation(1, what, argument, result, invoked, returned)


PUT = op("put", (None, b"x"), ("ok", 7), 0, 1)


@pytest.mark.parametrize(
    ("then", "possible"),
    [
        (op("get", None, (7, b"x"), 2, 3), True),
        (op("get", None, None, 2, 3), False),
        (op("get", None, (6, b"x"), 2, 3), False),
        (op("put", (7, b"y"), ("ok", 9), 2, 3), True),
        (op("put", (6, b"y"), ("ok", 9), 2, 3), False),
        (op("put", (None, b"y"), ("ok", 5), 2, 3), False),
        (op("put", (ABSENT, b"y"), ("mismatch", 7), 2, 3), True),
        (op("put", (7, b"y"), ("mismatch", 7), 2, 3), False),
        (op("put", (3, b"y"), ("mismatch", 8), 2, 3), False),
        (op("delete", (None, None), ("ok", ABSENT), 2, 3), True),
        (op("delete", (None, None), ("absent", ABSENT), 2, 3), False),
        (op("delete", (ABSENT, None), ("mismatch", 7), 2, 3), True),
    ],
)
def test_a_key_is_judged_with_its_versions(then: Operation, possible: bool) -> None:
    verdict = check_object([PUT, then], one_key, None)
    assert verdict is (Verdict.LINEARIZABLE if possible else Verdict.NOT_LINEARIZABLE)


def test_a_write_without_an_answer_may_come_late_or_never() -> None:
    late = replace(PUT, result=None, returned=None)
    for seen in (None, (7, b"x")):
        assert check_object([late, op("get", None, seen, 5, 6)], one_key, None) is Verdict.LINEARIZABLE
    gone = [late, op("get", None, (7, b"x"), 2, 3), op("get", None, None, 4, 5)]
    assert check_object(gone, one_key, None) is Verdict.NOT_LINEARIZABLE
