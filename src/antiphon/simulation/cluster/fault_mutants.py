"""Mutants where disks are full, fail, rot and lose files."""

from typing import Any, Final

from antiphon.log import held_check, recovery
from antiphon.log.disk import FULL_DISK
from antiphon.log.group_commit import GroupCommitter
from antiphon.log.segment import SegmentScan
from antiphon.node.shards import Shards
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM


def _write_there_again(self: GroupCommitter, queue: Any, run: Any) -> OSError | None:
    """Writes as before, and what comes after a write that had to wait for room goes where that one is."""
    freed: dict[Any, tuple[str, int]] = self.__dict__.setdefault("freed", {})
    path, place = freed.pop(queue, ("", 0))
    if path == run.first.data_path and place < run.first.position:
        run.first.position = place
        path = ""
    problem: OSError | None = _WRITE(self, queue, run)
    if problem is not None and problem.errno in FULL_DISK:
        freed[queue] = (run.first.data_path, run.first.position)
    elif path:
        freed[queue] = (path, place)
    return problem


_WRITE: Final[Any] = vars(GroupCommitter)["_write"]
_Recovery = vars(recovery)["_Recovery"]

_DISKS: Final = {**CALM, "fault_ms": 8_000, "fault_every_ms": 400, "fault_lasts_ms": 1_000, "kill_weight": 1}
_LOSSES: Final = {**_DISKS, "lost_files_weight": 4, "kill_weight": 2}
_ROT: Final = {**_DISKS, "bit_flip_weight": 4, "store_flush_every": 5}

_WRITES: Final = (
    ClusterMutant(
        "node-full-disk-is-written",
        "an append that found the disk full counts as written",
        Edit(GroupCommitter, "_succeeded", "        queue.blocked = True\n", "        return True\n"),
        options={**_DISKS, "disk_full_weight": 4},
    ),
    ClusterMutant(
        "node-failed-sync-goes-on",
        "a sync that fails is logged, and what it was to make durable counts as durable",
        Edit(GroupCommitter, "_fdatasync", "if error is not None:", "if error is not None and not due:"),
        options={**_DISKS, "fsync_weight": 4},
    ),
    ClusterMutant(
        "node-forgets-failed-sync",
        "recovery syncs what a sync before has failed for, and does not write it again",
        Edit(_Recovery, "_mend", "write_again(data, scan.unproven_from, segment.size_bytes)", "pass"),
        options={**_DISKS, "fsync_weight": 8, "power_weight": 4},
    ),
)

_ROOM: Final = (
    ClusterMutant(
        "node-full-disk-gives-place-twice",
        "the place where a write found the disk full is given to the write after it once more",
        ((GroupCommitter, "_write", _write_there_again),),
        options={**_DISKS, "disk_full_weight": 4, "power_weight": 2, "kill_weight": 2},
        quick=True,
        first_seed=8,
    ),
)

_STARTS: Final = (
    ClusterMutant(
        "node-emptied-replica-is-new",
        "a replica whose files are gone is taken for one that never had any",
        (
            (held_check, "_loss", lambda *_, **__: None),
            Edit(_Recovery, "_look_for_losses", "if path is not None:", "if False:"),
        ),
        options=_LOSSES,
    ),
    ClusterMutant(
        "node-damage-is-a-torn-tail",
        "recovery cuts a log off at a bad batch, also where the index proves that it was durable",
        (
            Edit(_Recovery, "_scan", "(scan.problem_is_damage or not is_last)", "not is_last"),
            (held_check, "_loss", lambda *_, **__: None),
        ),
        options=_ROT,
    ),
    ClusterMutant(
        "node-takes-terms-nobody-promised",
        "recovery takes a batch's term for right, where no index entry proves it, beyond all that was promised",
        Edit(SegmentScan, "_is_beyond_limit", "bool(self._term_limit)", "False"),
        options={**_DISKS, "term_rot_weight": 4},
        first_seed=11,
    ),
    ClusterMutant(
        "node-one-store-ends-the-opening",
        "what is wrong with one replica's files ends the opening of all that come after it",
        Edit(Shards, "_open", "except Exception as error:", "except InvalidRequestError as error:"),
        options={**_ROT, "trim_weight": 6},
        first_seed=3,
    ),
)

FAULT_MUTANTS: Final = (*_WRITES, *_ROOM, *_STARTS)
