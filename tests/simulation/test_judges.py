from pathlib import Path

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.simulation.linearizability import (
    NO,
    Operation,
    Verdict,
    check,
    check_object,
    register,
    text_value,
)
from antiphon.simulation.public_histories import judge_history
from antiphon.simulation.public_quorums import judge_quorums
from tests.judged_cases import JUDGED_CASES, cases, needs_judged_cases


def op(
    process: int, what: str, argument: object, result: object, invoked: int, returned: int | None
) -> Operation:
    return Operation(process, what, argument, result, invoked, returned)


def test_concurrent_reads_may_see_either_side_of_a_write() -> None:
    write = op(0, "write", 1, None, 0, 5)
    assert (
        check([write, op(1, "read", None, None, 1, 2), op(2, "read", None, 1, 3, 4)], register, None)
        is Verdict.LINEARIZABLE
    )
    # ... but not new and then old again, one after the other
    old_after_new = [write, op(1, "read", None, 1, 1, 2), op(2, "read", None, None, 3, 4)]
    assert check(old_after_new, register, None) is Verdict.NOT_LINEARIZABLE


def test_a_stale_read_after_an_acknowledged_write_is_found() -> None:
    assert (
        check([op(0, "write", 1, None, 0, 1), op(1, "read", None, None, 2, 3)], register, None)
        is Verdict.NOT_LINEARIZABLE
    )


def test_an_unknown_write_may_have_happened_late_or_never() -> None:
    unknown = op(0, "write", 1, None, 0, None)
    for seen in (None, 1):
        assert check([unknown, op(1, "read", None, seen, 8, 9)], register, None) is Verdict.LINEARIZABLE
    came_and_went = [unknown, op(1, "read", None, 1, 1, 2), op(1, "read", None, None, 3, 4)]
    assert check(came_and_went, register, None) is Verdict.NOT_LINEARIZABLE


def test_cas_outcomes_are_judged() -> None:
    done = op(0, "cas", (None, 1), True, 0, 1)
    assert check([done, op(1, "cas", (1, 2), True, 2, 3)], register, None) is Verdict.LINEARIZABLE
    assert check([done, op(1, "cas", (1, 2), False, 2, 3)], register, None) is Verdict.NOT_LINEARIZABLE
    assert register(5, op(0, "cas", (4, 6), True, 0, 1)) is NO


def test_keys_are_checked_one_by_one() -> None:
    good = Operation(0, "put", "a", None, 0, 1, "x")
    bad = Operation(1, "get", None, "a", 2, 3, "y")
    assert check([good], text_value, "") is Verdict.LINEARIZABLE
    assert check([good, bad], text_value, "") is Verdict.NOT_LINEARIZABLE


def test_a_search_that_is_cut_off_says_so() -> None:
    writes = [op(i, "write", i, None, 0, 100) for i in range(12)]
    never = op(99, "read", None, -5, 200, 201)
    assert check_object([*writes, never], register, None, steps_max=50) is Verdict.UNKNOWN


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("two choirs\n")
    with pytest.raises(InvalidRequestError, match="neither a Jepsen register log"):
        judge_history(tmp_path / "poem.txt")
    with pytest.raises(InvalidRequestError, match="no stanzas"):
        judge_quorums(tmp_path / "poem.txt")
    with pytest.raises(InvalidRequestError, match="cannot read"):
        judge_history(tmp_path / "absent")


def test_a_wrong_expectation_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "case.txt"
    file.write_text("# a comment\ncommitted cfg=(1,2) idx=(7,9)\n----\n   idx\nx>  7 (id=1)\n9\n")
    stanzas, wrong = judge_quorums(file)
    assert len(stanzas) == 1
    assert [(stanza.line, answer) for stanza, answer in wrong] == [(2, "7")]


@needs_judged_cases
def test_every_public_register_history_gets_its_verdict() -> None:
    verdicts = dict(
        line.split()
        for line in (JUDGED_CASES / "porcupine" / "verdicts.txt").read_text().splitlines()
        if line
    )
    assert len(verdicts) > 50
    found = {name: judge_history(JUDGED_CASES / "porcupine" / "jepsen" / name).value for name in verdicts}
    assert found == verdicts


@needs_judged_cases
@pytest.mark.parametrize("path", cases("porcupine/kv/*.txt"), ids=lambda path: path.stem)
def test_every_public_key_value_history_gets_its_verdict(path: Path) -> None:
    assert judge_history(path) is (
        Verdict.LINEARIZABLE if path.stem.endswith("ok") else Verdict.NOT_LINEARIZABLE
    )


@needs_judged_cases
def test_all_public_quorum_stanzas() -> None:
    judged = [judge_quorums(path) for path in cases("etcd-raft/quorum/*.txt")]
    assert [wrong for _, wrong in judged if wrong] == []
    assert sum(len(stanzas) for stanzas, _ in judged) == 127
