"""A failing run is made small, stays the failure that it was, is told in sentences and can be run again from a file."""

from pathlib import Path

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.simulation.options import derive
from antiphon.simulation.plants import PLANTS
from antiphon.simulation.replay import replay, save
from antiphon.simulation.runner import RunResult, run_seed
from antiphon.simulation.shrink import shrink
from antiphon.simulation.story import tell


def failing(name: str) -> RunResult:
    plant = PLANTS[name]
    for seed in range(1, 21):
        result = run_seed(derive(seed, plant.profile), plant)
        if result.failure is not None:
            return result
    pytest.fail(f"{name} was not found")


@pytest.mark.parametrize(
    ("name", "faults_max"), [("h1-wrong-median", 0), ("forgotten-vote", 4), ("cut-on-every-append", 4)]
)
def test_planted_bug_shrinks_to_few_faults(name: str, faults_max: int) -> None:
    failed = failing(name)
    small = shrink(failed, PLANTS[name], seconds_max=4)
    before, after = failed.failure, small.result.failure
    assert before is not None
    assert after is not None
    assert after.invariant == before.invariant
    if small.complete:  # a busy machine may have cut it short
        assert len(small.result.schedule) <= faults_max
    assert len(small.result.schedule) <= len(failed.schedule)
    assert small.result.options.clients <= failed.options.clients


def test_schedule_replays_the_run_as_it_was() -> None:
    """Faults that are taken from the list do what the drawn ones did, at the same instants."""
    options = derive(7, "raft", fault_every_ms=60, safety_ms=1_500)
    drawn = run_seed(options)
    again = run_seed(options, schedule=drawn.schedule)
    assert drawn.failure is None
    assert drawn.schedule == again.schedule
    assert len(drawn.schedule) > 5
    assert (again.digest, again.entries) == (drawn.digest, drawn.entries)


def test_story_names_who_when_and_what() -> None:
    name = "forgotten-vote"
    story = tell(shrink(failing(name), PLANTS[name], seconds_max=2).result)
    text = "\n".join(story)
    assert "profile raft" in story[0]
    assert "crashed" in text
    assert "was elected in term" in text
    assert "one-vote was broken: node" in story[-1]
    assert all(line.endswith(".") for line in story)


def test_small_run_is_kept_in_a_file(tmp_path: Path) -> None:
    name = "forgotten-vote"
    small = shrink(failing(name), PLANTS[name], seconds_max=2).result
    path = tmp_path / "run.json"
    save(path, small, name)
    again, plant = replay(path)
    assert plant == name
    assert again.digest == small.digest
    assert again.failure is not None
    assert small.failure is not None
    assert again.failure.message == small.failure.message


@pytest.mark.parametrize("text", ["", "{}", '{"options": {"seed": 1}, "faults": []}', "[1]"])
def test_what_is_no_recipe_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match="no recipe"):
        replay(path)
    with pytest.raises(InvalidRequestError, match="no recipe"):
        replay(tmp_path / "missing.json")


def test_time_bound_is_kept() -> None:
    name = "any-head"
    small = shrink(failing(name), PLANTS[name], seconds_max=0.5)
    assert not small.complete
    assert small.seconds < 30  # a run that has begun is not cut short
    assert small.result.failure is not None
