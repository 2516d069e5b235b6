"""A net that catches nothing proves nothing: mistakes planted in whole nodes are found, and what is found is the mistake."""

import gc
from pathlib import Path

import pytest

from antiphon.invariants import InvariantError
from antiphon.partition.common_actions import CommonActions
from antiphon.simulation.cluster.plants import (
    ALL_PLANTS,
    CLUSTER_PLANTS,
    ClusterPlant,
    Edit,
    planted,
    seeds_to_catch,
)
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.cluster.table_watch import TableWatch
from tests.simulation.plants_table import BEGIN, END, put, table
from tests.simulation.told import seeds_from

QUICK_SEEDS = 8
QUICK = [name for name, plant in CLUSTER_PLANTS.items() if plant.quick]


@pytest.mark.parametrize("plant", CLUSTER_PLANTS.values(), ids=CLUSTER_PLANTS)
def test_what_a_plant_replaces_is_there_and_comes_back(plant: ClusterPlant) -> None:
    places = [(one.where, one.name) if isinstance(one, Edit) else one[:2] for one in plant.patches]
    before = [getattr(where, name) for where, name in places]
    with planted(plant):
        assert all(getattr(where, name) is not was for (where, name), was in zip(places, before, strict=True))
    assert [getattr(where, name) for where, name in places] == before
    assert plant.world(1).profile == plant.profile


# A run that caught something ends in the middle of everything.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning"
)
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    plant = CLUSTER_PLANTS[name]
    caught = seeds_to_catch(plant, seeds_from(plant.first_seed, QUICK_SEEDS))
    assert caught is not None, f"{name} got through {QUICK_SEEDS} seeds"
    del caught
    gc.collect()  # here, and not in somebody else's test


def test_rows_that_are_wrong_for_a_while_are_seen_then_and_not_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = CLUSTER_PLANTS["table-rows-after-offset"]
    with planted(plant):
        result = run_cluster(plant.world(1))
        assert result.failure is not None
        assert result.failure.invariant == "table-is-its-log"
        monkeypatch.setattr(TableWatch, "look", lambda *_: None)
        assert run_cluster(plant.world(1)).failure is None


def test_the_table_of_plants_is_made_of_one_whole_run() -> None:
    found = [{"plant": name, "seeds": 1, "invariant": "one-vote"} for name in ALL_PLANTS]
    found[1]["seeds"] = 51
    run = {"plants": found, "missed": [], "elapsed_s": 600, "jobs": 2}
    made = table(run)
    assert f"all {len(found)} every one was caught: {len(found) - 1} by the first seed" in made
    assert "the last by seed\nnumber 51. It took 10 minutes in 2 processes." in made
    assert put(f"a\n{BEGIN}old\n{END}b\n", made) == f"a\n{BEGIN}{made}{END}b\n"
    with pytest.raises(ValueError, match=str(found[-1]["plant"])):
        table({**run, "plants": found[:-1]})


def test_the_worlds_of_plants_are_sound_without_them() -> None:
    result = run_cluster(CLUSTER_PLANTS["node-promises-unsynced"].world(1))
    assert result.failure is None, result.failure


def test_an_edit_of_code_that_has_moved_on_is_an_error() -> None:
    gone = ClusterPlant("gone", "", (Edit(CommonActions, "_commit", "what is not there", ""),))
    with pytest.raises(InvariantError, match="0 times"), planted(gone):
        pass


def test_docs_name_every_plant() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    missing = [
        plant.name for plant in ALL_PLANTS.values() if f"| `{plant.name}`: {plant.description} |" not in text
    ]
    assert not missing


@pytest.mark.parametrize("number", range(1, 6))
def test_every_hazard_of_the_requirements_has_a_plant(number: int) -> None:
    assert any(name.startswith(f"h{number}-") for name in CLUSTER_PLANTS)
