"""A failing run of whole nodes is made small, stays the failure that it was, is told, and can be run again from a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from antiphon.simulation.cluster.faults import KINDS, Fault, Faults
from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS, mutated
from antiphon.simulation.cluster.options import ClusterOptions, draw_options
from antiphon.simulation.cluster.replay import replay, save
from antiphon.simulation.cluster.run import ClusterResult, run_cluster
from antiphon.simulation.cluster.runner import ClusterJob, report, run_job
from antiphon.simulation.cluster.shrink import CLIENTS, SWITCHES, shrink
from antiphon.simulation.cluster.story import tell
from antiphon.simulation.delta import fewer

ACKNOWLEDGES = "node-acknowledges-before-sync"


@contextmanager
def no_node_is_paused_twice() -> Iterator[None]:
    """A promise that nodes cannot keep: broken by the second fault of a kind, whatever else happens."""
    pause, paused = KINDS["pause"], set[int]()

    def judged(faults: Faults, fault: Fault, draw: Random) -> None:
        if fault.nodes[0] in paused:
            raise ValueError(f"node {fault.nodes[0]} was paused twice")
        paused.add(fault.nodes[0])
        pause.effect(faults, fault, draw)

    KINDS["pause"] = replace(pause, effect=judged)
    try:
        yield
    finally:
        KINDS["pause"] = pause


def _failing() -> ClusterResult:
    plain = {name: 0 for name in (field.name for field in fields(ClusterOptions)) if name.endswith("_weight")}
    plain |= dict.fromkeys(CLIENTS, 0) | dict.fromkeys(SWITCHES, False)
    kinds = {"pause_weight": 2, "kill_weight": 2, "cut_weight": 2}
    often = {"fault_ms": 1_000, "fault_every_ms": 60, "operations_per_s": 20}
    some = {"nodes": 4, "appenders": 1, "putters": 1, "watches": True}
    options = draw_options(2, "raft", **{**plain, **kinds, **often, **some})
    failed = run_cluster(options, mutated=no_node_is_paused_twice())
    assert failed.failure is not None
    return failed


@pytest.mark.slow
def test_only_the_faults_that_break_the_promise_are_left(tmp_path: Path) -> None:
    failed = _failing()
    assert len(failed.schedule) > 5
    seen: list[str] = []
    small = shrink(failed, no_node_is_paused_twice, seconds_max=25, progress=seen.append)
    result = small.result
    assert result.failure is not None
    assert result.failure.message.endswith("was paused twice')")
    assert small.faults_before == len(failed.schedule)
    assert len(seen) < small.runs
    if small.complete:  # a busy machine may have cut it short
        assert [fault.kind for fault in result.schedule] == ["pause", "pause"]
        assert result.options.nodes == 3
        assert not any(getattr(result.options, name) for name in (*CLIENTS, *SWITCHES))
        assert result.options.fault_ms <= failed.options.fault_ms
    story = tell(result)
    assert "profile raft, seed 2" in story[0]
    assert any("was stopped for" in line for line in story)
    assert "no-crash was broken" in story[-1]
    assert all(line.endswith(".") for line in story)
    _runs_again(tmp_path / "run.json", result)


def _runs_again(path: Path, result: ClusterResult) -> None:
    save(path, result, None)
    with no_node_is_paused_twice():
        again, mutant = replay(path)
    assert mutant is None
    assert again.digest == result.digest
    assert again.failure == result.failure


def test_a_list_of_faults_repeats_the_run_that_drew_them() -> None:
    options = draw_options(7, "oxia", fault_ms=1_500, fault_every_ms=60)
    drawn = run_cluster(options)
    again = run_cluster(options, schedule=drawn.schedule)
    assert drawn.failure is None
    assert len(drawn.schedule) > 5
    assert again.schedule == drawn.schedule
    assert again.digest == drawn.digest


def test_a_mutant_shows_again_from_a_file_that_names_it(tmp_path: Path) -> None:
    failed = run_job(ClusterJob(1, None, ACKNOWLEDGES, 300))
    assert failed.failure is not None
    assert failed.failure.invariant in report(failed)
    small = shrink(failed, lambda: mutated(CLUSTER_MUTANTS[ACKNOWLEDGES]), seconds_max=4).result
    path = tmp_path / "run.json"
    save(path, small, ACKNOWLEDGES)
    again, mutant = replay(path)
    assert mutant == ACKNOWLEDGES
    assert again.failure == small.failure
    assert run_cluster(small.options, schedule=small.schedule).failure is None


def test_time_bound_is_kept() -> None:
    small = shrink(_failing(), no_node_is_paused_twice, seconds_max=0.0)
    assert not small.complete
    assert small.runs == 0
    assert small.faults == small.faults_before


def test_a_good_run_has_no_story() -> None:
    good = run_job(ClusterJob(5, "raft", None, 300))
    assert good.failure is None
    assert tell(good) == ["Seed 5 kept every promise."]
    assert report(good).startswith("seed 5 ok:")


def _needs(*items: int) -> Callable[[tuple[int, ...]], tuple[int, ...] | None]:
    return lambda kept: kept if set(items) <= set(kept) else None


@pytest.mark.parametrize("needed", [(), (0,), (19,), (3, 17), (4, 5, 6), tuple(range(20))])
def test_as_few_as_still_fail(needed: tuple[int, ...]) -> None:
    assert fewer(tuple(range(20)), _needs(*needed), lambda: False) == needed


def test_none_are_tried_when_time_is_up() -> None:
    def never(_kept: Any) -> Any:
        pytest.fail("time was up")

    assert fewer((1, 2, 3), never, lambda: True) == (1, 2, 3)
