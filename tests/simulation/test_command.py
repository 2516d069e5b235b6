"""`antiphon simulate` as people call it."""

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from antiphon.cli.simulate import simulate
from antiphon.simulation.cluster import shrink
from antiphon.simulation.cluster.mutants import ALL_MUTANTS, CLUSTER_MUTANTS
from antiphon.tools import simulation_runs

app = typer.Typer()
app.command()(simulate)

NODE_MUTANT = ("--mutant", "node-acknowledges-before-sync", "--seeds", "5", "--seconds", "0.5", "--jobs", "1")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def broken(output: str) -> str:
    """The promise that a run of whole nodes broke: which of those about disks is seen first is the checks' to say."""
    found = re.search(r"broke (durable-[a-z]+) at step \d+, \d+ ms after", output)
    assert found is not None, output
    return found[1]


@pytest.mark.parametrize("option", ["--mutants", "--plants"])
def test_lists_mutants_a_name_a_line(option: str) -> None:
    result = call(option)
    assert result.exit_code == 0
    names = result.stdout.splitlines()
    assert names == list(ALL_MUTANTS)
    assert len(set(names)) == len(names)


def test_mutants_are_known_by_their_names_of_before_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the listeners were `door-...`: scripts that name them so, and runs that were saved, go on."""
    monkeypatch.setattr(shrink, "RUNS_MAX", 2)  # how small a run becomes is another test's
    saved = str(tmp_path / "run.json")
    found = call("--mutant", "door-wrong-offset", "--seed", "1", "--seconds", "0.5", "--save", saved)
    assert found.exit_code == 1, found.output
    assert "--mutant listener-wrong-offset" in found.stdout
    Path(saved).write_text(Path(saved).read_text().replace("listener-wrong-offset", "door-wrong-offset"))
    again = call("--replay", saved)
    assert again.exit_code == 1, again.output
    assert "broke acknowledged-committed" in again.stdout


def test_good_seeds_of_whole_nodes_exit_zero_and_say_what_was_done() -> None:
    result = call("--seeds", "2", "--seconds", "0.5", "--jobs", "2", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["seeds"], figures["failure"]) == (2, None)
    assert figures["operations"]["ok"] > 0
    assert figures["entries"] > 0


def test_one_seed_prints_its_options_and_trace_hash() -> None:
    arguments = ("--seed", "5", "--profile", "raft", "--seconds", "0.5")
    first, second = call(*arguments), call(*arguments)
    assert first.exit_code == 0
    assert "seeds 5..5: every promise kept" in first.stdout
    assert "cluster-seconds per second" in first.stdout
    assert "options: seed=5 profile=raft" in first.stdout
    assert "fault_ms=500" in first.stdout
    assert first.stdout.split("trace ")[1] == second.stdout.split("trace ")[1]


def test_mutant_exits_one_with_seed_step_and_trace() -> None:
    result = call(*NODE_MUTANT, "--no-shrink")
    assert result.exit_code == 1
    assert f"\n{broken(result.stdout)}: " in result.stdout
    assert "options: seed=" in result.stdout
    assert "last events" in result.stdout
    again = result.stdout.splitlines()[-1]
    assert again.startswith("again: antiphon simulate --seed ")
    assert again.endswith("--profile oxia --mutant node-acknowledges-before-sync --seconds 0.5")
    assert "made small" not in result.stdout


def test_failing_run_is_told_small_written_down_and_run_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    failed = call(*NODE_MUTANT, "--save", str(path))
    assert failed.exit_code == 1
    assert "made small in" in failed.stdout
    assert f"--replay {path}" in failed.stdout
    story = failed.stdout.splitlines()[-2]
    assert f"{broken(failed.stdout)} was broken" in story
    again = call("--replay", str(path))
    assert again.exit_code == 1
    assert broken(again.stdout) == broken(failed.stdout)
    assert again.stdout.splitlines()[-1] == story
    as_json = call("--replay", str(path), "--json")
    assert json.loads(as_json.stdout)["failure"]["invariant"] == broken(failed.stdout)


def test_json_of_a_failure_is_one_object() -> None:
    bad = call(*NODE_MUTANT, "--json")
    assert bad.exit_code == 1
    failure = json.loads(bad.stdout)["failure"]
    assert failure["invariant"].startswith("durable-")
    assert failure["profile"] == "oxia"
    assert failure["trace"]


@pytest.mark.parametrize(("word", "profile"), [("table", "oxia"), ("table-raft", "raft")])
def test_words_for_profiles_of_before_are_taken(
    word: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[simulation_runs.Seeds] = []

    def run(seeds: simulation_runs.Seeds, *_: object) -> None:
        asked.append(seeds)
        raise typer.Exit

    monkeypatch.setattr(simulation_runs, "run", run)
    assert call("--profile", word, "--seed", "3", "--seconds", "0.5").exit_code == 0
    assert [seeds.profile for seeds in asked] == [profile]


def test_a_mutant_that_no_world_shows_runs_its_script() -> None:
    result = call("--plant", "hasty-transfer")  # the word of before
    assert result.exit_code == 1
    assert "broke leader-completeness" in result.stdout.splitlines()[-1]


def test_the_script_of_a_mutant_holds_without_it() -> None:
    written = simulation_runs.script_of("hasty-transfer")
    assert written is not None
    assert simulation_runs.carry_out(written, None, lambda _: None).line == 0


def test_mutants_are_caught_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: CLUSTER_MUTANTS[name] for name in ("h5-unclipped-commit", "ready-at-once")}
    few["hasty-transfer"] = ALL_MUTANTS["hasty-transfer"]
    monkeypatch.setattr(simulation_runs, "MUTANTS", few)
    result = call("--catch", "--seeds", "5", "--jobs", "1", "--json")
    found = json.loads(result.stdout)
    assert [one["mutant"] for one in found["mutants"]] == list(few)
    assert [one["plant"] for one in found["plants"]] == list(few), "the keys of before"
    assert all(one["seeds"] and one["invariant"] for one in found["mutants"])
    assert (result.exit_code, found["missed"]) == (0, [])
    assert call("--catch", "--seeds", "1", "--profile", "fluvio").exit_code == 0, (
        "none of these is of that profile"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--profile", "paxos"),
        ("--mutant", "no-such-bug"),
        ("--mutant", "h1-wrong-median", "--profile", "oxia"),
        ("--mutant", "node-acknowledges-before-sync", "--profile", "raft"),
        ("--seconds", "0"),
        ("--seeds", "0"),
        ("--seed", "-1"),
        ("--nonsense",),
        ("--replay", "no-such-file.json"),
        ("--replay", "run.json", "--seed", "1"),
        ("--script", "scenarios/figure-7.txt", "--mutant", "node-acknowledges-before-sync"),
    ],
)
def test_wrong_usage_exits_two(arguments: tuple[str, ...]) -> None:
    assert call(*arguments).exit_code == 2


@pytest.mark.parametrize(
    "text", ["", "[]", '{"world": "nodes"}', '{"world": "nodes", "options": {"seed": 1}, "faults": []}']
)
def test_what_is_no_recipe_exits_two(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    result = call("--replay", str(path))
    assert result.exit_code == 2
    assert "no recipe" in result.stderr
