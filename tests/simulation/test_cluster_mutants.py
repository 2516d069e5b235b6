"""A net that catches nothing proves nothing: mistakes put into whole nodes are found, and what is found is the mistake."""

import gc
from pathlib import Path

import pytest

from antiphon.invariants import InvariantError
from antiphon.partition.common_actions import CommonActions
from antiphon.simulation.cluster.mutants import (
    ALL_MUTANTS,
    CLUSTER_MUTANTS,
    ClusterMutant,
    Edit,
    mutated,
)
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.cluster.table_watch import TableWatch
from tests.simulation.mutants_table import BEGIN, END, known, put, table
from tests.simulation.told import caught

QUICK = [name for name, mutant in CLUSTER_MUTANTS.items() if mutant.quick]


@pytest.mark.parametrize("mutant", CLUSTER_MUTANTS.values(), ids=CLUSTER_MUTANTS)
def test_what_a_mutant_replaces_is_there_and_comes_back(mutant: ClusterMutant) -> None:
    places = [(one.where, one.name) if isinstance(one, Edit) else one[:2] for one in mutant.all_patches]
    before = [getattr(where, name) for where, name in places]
    with mutated(mutant):
        assert all(getattr(where, name) is not was for (where, name), was in zip(places, before, strict=True))
    assert [getattr(where, name) for where, name in places] == before
    assert mutant.world(1).profile == mutant.profile


# A run that caught something ends in the middle of everything.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning"
)
@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_caught(name: str) -> None:
    caught(name)
    gc.collect()  # here, and not in somebody else's test


def test_rows_that_are_wrong_for_a_while_are_seen_then_and_not_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant = CLUSTER_MUTANTS["table-rows-after-offset"]
    with mutated(mutant):
        result = run_cluster(mutant.world(1))
        assert result.failure is not None
        assert result.failure.invariant == "table-is-its-log"
        monkeypatch.setattr(TableWatch, "look", lambda *_: None)
        assert run_cluster(mutant.world(1)).failure is None


def test_the_table_of_mutants_is_made_of_one_whole_run() -> None:
    one = {"seeds": 1, "invariant": "one-vote", "elapsed_s": 600 / len(ALL_MUTANTS), "jobs": 2}
    found = [{"mutant": name, **one} for name in ALL_MUTANTS]
    found[1]["seeds"] = 51
    made = table(found)
    assert f"all {len(found)} every one was caught: {len(found) - 1} by the first seed" in made
    assert "the last by seed number 51.\nIt took 10 minutes in 2 processes." in made
    assert put(f"a\n{BEGIN}old\n{END}b\n", made) == f"a\n{BEGIN}{made}{END}b\n"
    with pytest.raises(ValueError, match=str(found[-1]["mutant"])):
        table(found[:-1])
    with pytest.raises(ValueError, match=f"did not find ..{found[2]['mutant']}"):
        table([*found[:2], {**found[2], "seeds": None}, *found[3:]])


def test_a_run_of_all_mutants_goes_on_where_it_was_with_the_same_sources(tmp_path: Path) -> None:
    out = tmp_path / "mutants.jsonl"
    assert known(out, "a") == []
    with out.open("a") as file:
        file.write('{"mutant": "x", "seeds": 3}\n')
    assert known(out, "a") == [{"mutant": "x", "seeds": 3}]
    assert known(out, "b") == []
    assert known(out, "a") == [], "what another version took says nothing of this one"


def test_the_worlds_of_mutants_are_sound_without_them() -> None:
    result = run_cluster(CLUSTER_MUTANTS["node-promises-unsynced"].world(1))
    assert result.failure is None, result.failure


def test_an_edit_of_code_that_has_moved_on_is_an_error() -> None:
    gone = ClusterMutant("gone", "", (Edit(CommonActions, "_commit", "what is not there", ""),))
    with pytest.raises(InvariantError, match="0 times"), mutated(gone):
        pass


def test_docs_name_every_mutant() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    missing = [
        mutant.name
        for mutant in ALL_MUTANTS.values()
        if f"| `{mutant.name}`: {mutant.description} |" not in text
    ]
    assert not missing


@pytest.mark.parametrize("number", range(1, 6))
def test_every_hazard_of_the_requirements_has_a_mutant(number: int) -> None:
    assert any(name.startswith(f"h{number}-") for name in CLUSTER_MUTANTS)
