"""The power fails in the middle of a step: what a leader had committed in it is committed, and its markers are judged."""

from collections.abc import Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

import pytest

from antiphon.log.simulated_disk import SimulatedCrash
from antiphon.records.batch import Buffer
from antiphon.records.builder import committed_of
from antiphon.simulation.cluster.mode_watch import ModeWatch
from antiphon.simulation.cluster.mutant_worlds import CALM
from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS, ClusterMutant, mutated
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import ClusterResult, run_cluster
from tests.simulation.told import words

if TYPE_CHECKING:
    from antiphon.log.operations import LogOp
    from antiphon.partition.single_writer import SingleWriterPartition
    from antiphon.simulation.cluster.machine import Machine

WORLD = {**CALM, "operations_per_s": 200}
listen = ModeWatch._listen_to_markers


def _run(monkeypatch: pytest.MonkeyPatch, mutant: ClusterMutant | None) -> tuple[ClusterResult, list[int]]:
    """A world in which a machine's power fails as its leader writes a marker, under a mutant a wrong one; and which."""
    cut_off: list[int] = []

    def listening(self: ModeWatch, machine: "Machine", host: "SingleWriterPartition") -> None:
        listen(self, machine, host)
        stage = host.log.stage_append

        def staged(batches: Sequence[Buffer], *others: Any) -> "LogOp":
            op = stage(batches, *others)
            marks = [mark for mark in map(committed_of, batches) if mark is not None]
            if self.markers and marks and not cut_off and (mutant is None or marks[0] > host.replica.settled):
                cut_off.append(machine.node_id)
                Context().run(machine.power_off)  # as the disk has it done, not in the name of the process
                raise SimulatedCrash
            return op

        host.log.stage_append = staged  # type: ignore[assignment]

    monkeypatch.setattr(ModeWatch, "_listen_to_markers", listening)
    world = draw_options(1, "tarantool", **WORLD)
    return run_cluster(world, mutated=mutated(mutant)), cut_off


def test_a_marker_is_judged_by_what_was_committed_in_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """tarantool 960353: the commit was only seen when another leader repeated it."""
    result, cut_off = _run(monkeypatch, None)
    assert result.failure is None, words(result)
    assert len(cut_off) == 1


def test_a_marker_of_everything_is_found_in_such_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    result, cut_off = _run(monkeypatch, CLUSTER_MUTANTS["marker-of-everything"])
    assert result.failure is not None
    assert result.failure.message.startswith(f"marker-after-commit: node {cut_off[0]} writes")
