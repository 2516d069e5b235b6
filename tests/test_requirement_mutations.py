"""The mutations of the numbered requirements fit the sources as they are now. `make prove-requirements` carries them out."""

import ast
import functools

import pytest

from tests.requirement_mutations.mutations import (
    FAMILIES,
    ROOT,
    Edit,
    Mutation,
    numbers_in,
    numbers_of,
    read_mutations,
)
from tests.requirement_mutations.prove import Outcome, missing, objection, prove, selected

MUTATIONS = read_mutations()


@functools.cache
def functions_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def misfits(mutation: Mutation) -> list[str]:
    """Why this mutation cannot be carried out, or would prove nothing."""
    wrong = [
        f"stands {found} times in {edit.file}: {edit.find!r}"
        for edit in mutation.edits
        if (found := edit.occurrences(ROOT)) != 1
    ]
    if any(not edit.file.startswith("src/") for edit in mutation.edits):
        wrong.append("a mistake is made in the product, not in a test")
    if any(edit.find == edit.replace for edit in mutation.edits):
        wrong.append("changes nothing")
    if mutation.test_name not in functions_in(mutation.test.partition("::")[0]):
        wrong.append(f"there is no test {mutation.test}")
    if not mutation.requirements or not set(mutation.requirements) <= numbers_in(mutation.test_name):
        wrong.append("the test does not bear the number")
    return wrong


def test_the_mutations_fit_the_sources() -> None:
    assert not {mutation.name: wrong for mutation in MUTATIONS if (wrong := misfits(mutation))}


def test_names_are_given_once() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert sorted(names) == sorted(set(names))


def test_every_statement_has_a_mutation() -> None:
    assert [number for family in FAMILIES for number in missing(MUTATIONS, [family])] == []


def test_what_is_asked_for_is_selected() -> None:
    def of(number: str, name: str) -> Mutation:
        return Mutation((number,), name, (), "")

    some = [of("S0.1", "a"), of("S0.11", "b"), of("C1", "c"), of("C11", "d")]
    assert selected(some, []) == some
    assert selected(some, ["s0.1"]) == some[:1]
    assert selected(some, ["S0"]) == some[:2]
    assert selected(some, ["C"]) == some[2:]
    assert selected(some, ["C1", "b"]) == some[1:3]
    assert missing(some, ["C"]) == [number for number in numbers_of("C") if number not in {"C1", "C11"}]
    assert missing(some, ["S0.2", "S0.1"]) == ["S0.2"]
    assert len(missing([], [])) == sum(FAMILIES.values()) == 155 + 14


def test_a_mistake_that_its_test_does_not_see_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    file, test = "src/antiphon/replication/quorum.py", "tests/seeds/test_s0_oxia.py::test_s0_10_"
    test += "without_a_majority_nothing_is_committed"
    line = "return members // 2 + 1"
    tried = [
        Mutation(("S0.10",), name, (Edit(file, line, replaced),), test)
        for name, replaced in (
            ("harmful", "return members // 2"),
            ("harmless", "return 1 + members // 2"),
            ("broken", "return member // 2"),
        )
    ]
    assert prove(tried, jobs=1) == 2
    seen, survives, broken = capsys.readouterr().out.splitlines()
    assert "seen" in seen
    assert "NO" in survives
    assert "SURVIVES" in survives
    assert "the mutant itself is broken: NameError" in broken


def test_only_a_test_that_fails_by_itself_counts() -> None:
    failed = {"test": "AssertionError: assert 1 == 2"}
    assert objection(Outcome(failed, frozenset(), 0, "")) == ""
    assert "SURVIVES" in objection(Outcome({}, frozenset({"test"}), 0, ""))
    for broken in (
        Outcome({}, frozenset(), 0, "no tests ran"),
        Outcome(failed, frozenset(), 1, "ERROR at setup"),
        Outcome({"test": "NameError: name 'x' is not defined"}, frozenset(), 0, ""),
        Outcome({"test": "Failed: Timeout (>60.0s) from pytest-timeout."}, frozenset(), 0, ""),
    ):
        assert objection(broken)
