"""Transactions over shards of a table in whole nodes: sound worlds run clean; a judge that was led astray."""

import struct
from typing import TYPE_CHECKING, Any, cast

import pytest

from antiphon.records.builder import build_batch
from antiphon.simulation.cluster.disk_view import DurableLog
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster

if TYPE_CHECKING:
    from antiphon.log.simulated_disk import SimulatedDisk

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 400, "transfer_clients": 3}
COMMANDS = {"fault_ms": 4_000, "fault_every_ms": 400, "operator_weight": 1, "commands": "elect split"}


@pytest.mark.parametrize(
    ("options", "seed"),
    [(CALM, 1), ({**CALM, **COMMANDS}, 1), ({**CALM, **COMMANDS}, 2), (CRASHES, 3)],
    ids=["calm", "elect and split", "the same", "crashes"],
)
def test_sound_worlds_run_clean(options: dict[str, Any], seed: int) -> None:
    result = run_cluster(draw_options(seed, "oxia", **{**options, **WORK}))
    assert result.failure is None, result.failure.message
    done = result.operations
    assert done["transfers"] + done["holds"] + done["audits"] > 0


@pytest.mark.parametrize(
    ("options", "seed"),
    [(CALM, 1), ({**CALM, **COMMANDS}, 2), (CRASHES, 1)],
    ids=["calm", "elect and split", "crashes"],
)
def test_worlds_of_clients_with_ids_of_their_own_run_clean(options: dict[str, Any], seed: int) -> None:
    work = {**WORK, "transfer_clients": 0, "own_transfer_clients": 2}
    result = run_cluster(draw_options(seed, "oxia", **{**options, **work}))
    assert result.failure is None, result.failure.message
    done = result.operations
    assert done["transfers"] > 0
    assert done["shifts"] > 0


class FakeDisk:
    """One file of a log."""

    def __init__(self) -> None:
        self.data = bytearray()

    def durable_names(self, _folder: str) -> list[str]:
        return ["00000000000000000000.log"]

    def durable(self, _path: str) -> bytearray:
        return self.data


def test_a_log_that_was_cut_and_written_anew_is_read_anew() -> None:
    """The old end lies in the middle of a new batch, whose bytes look like the beginning of another one there."""

    def batch(base: int, value: bytes) -> bytes:
        return bytes(build_batch([(None, value, [], 1)], base_offset=base, leader_epoch=1))

    disk, log = FakeDisk(), DurableLog("log")
    first = batch(0, b"first")
    disk.data[:] = first + batch(1, b"old")
    old_end = len(disk.data)
    assert log.batch(cast("SimulatedDisk", disk), 1) == batch(1, b"old")
    looks_like_one = struct.pack(">qi", -5, 100) + bytes(100)
    at = batch(1, b"x" * 300).index(b"xxx") + len(first)  # of the value in the file
    value = (b"y" * (old_end - at) + looks_like_one).ljust(300, b"\0")
    disk.data[:] = first + batch(1, value) + batch(2, b"new")
    assert disk.data[old_end:].startswith(looks_like_one)
    assert log.batch(cast("SimulatedDisk", disk), 2) == batch(2, b"new")
