"""`antiphon simulate` as people call it."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from antiphon.cli.simulate import simulate
from antiphon.simulation.multi_plants import MULTI_PLANTS
from antiphon.simulation.plants import PLANTS

app = typer.Typer()
app.command()(simulate)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_lists_plants_a_name_a_line() -> None:
    result = call("--plants")
    assert result.exit_code == 0
    assert result.stdout.split() == [*PLANTS, *MULTI_PLANTS]


def test_good_seeds_exit_zero_and_say_what_was_done() -> None:
    result = call("--seeds", "3", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "seeds 1..3: every promise kept" in result.stdout
    assert "cluster-seconds per second" in result.stdout


def test_one_seed_prints_its_options_and_trace_hash() -> None:
    first, second = call("--seed", "5", "--profile", "raft"), call("--seed", "5", "--profile", "raft")
    assert first.exit_code == 0
    assert "options: seed=5 profile=raft" in first.stdout
    assert first.stdout.split("trace ")[1] == second.stdout.split("trace ")[1]


def test_planted_bug_exits_one_with_seed_step_and_trace() -> None:
    result = call("--plant", "h1-wrong-median", "--seeds", "20", "--jobs", "1")
    assert result.exit_code == 1
    assert "broke durable-majority at step" in result.stdout
    assert "options: seed=" in result.stdout
    assert "last events" in result.stdout
    assert "again: antiphon simulate --seed" in result.stdout
    assert "--plant h1-wrong-median" in result.stdout
    assert "durable-majority was broken" in result.stdout.splitlines()[-1]


def test_failing_run_is_written_down_small_and_run_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    failed = call("--plant", "h1-wrong-median", "--seeds", "20", "--jobs", "1", "--save", str(path))
    assert failed.exit_code == 1
    assert f"--replay {path}" in failed.stdout
    again = call("--replay", str(path))
    assert again.exit_code == 1
    assert "broke durable-majority at step" in again.stdout
    assert call("--replay", str(tmp_path / "none.json")).exit_code == 2
    assert call("--replay", str(path), "--seed", "1").exit_code == 2


def test_story_can_be_left_out() -> None:
    result = call("--plant", "h1-wrong-median", "--seeds", "20", "--jobs", "1", "--no-shrink")
    assert result.exit_code == 1
    assert "made small" not in result.stdout


def test_json_is_one_object() -> None:
    good = json.loads(call("--seeds", "2", "--jobs", "2", "--json").stdout)
    assert good["seeds"] == 2
    assert good["failure"] is None
    bad = call("--plant", "h1-wrong-median", "--seeds", "20", "--jobs", "1", "--json")
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["failure"]["invariant"] == "durable-majority"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--profile", "paxos"),
        ("--plant", "no-such-bug"),
        ("--plant", "h1-wrong-median", "--profile", "oxia"),
        ("--seeds", "0"),
        ("--seed", "-1"),
        ("--nonsense",),
    ],
)
def test_wrong_usage_exits_two(arguments: tuple[str, ...]) -> None:
    assert call(*arguments).exit_code == 2
