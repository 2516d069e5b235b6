"""How fast one pass of compaction is, on a log by itself: no node, no client and no limit on the rate."""

import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from antiphon.invariants import invariant
from antiphon.log.compaction import CompactionPass, extent_of
from antiphon.log.config import Compaction, LogConfig
from antiphon.log.disk import RealDisk
from antiphon.log.group_commit import GroupCommitter
from antiphon.log.operations import LogOp
from antiphon.log.shard_log import ShardLog
from antiphon.records.builder import build_batch

SEGMENT_BYTES_MAX: Final = 16 * 1024 * 1024
SEGMENTS: Final = 8  # at least; the newest is never compacted
BYTES_A_SECOND: Final = 32 * 1024 * 1024  # that are written for each second that a measurement is to run
MAP_BYTES: Final = 1 << 30
RECORD_BYTES: Final = 20  # about, of a record beside its value
RULES: Final = Compaction()


class Shape(NamedTuple):
    """What is in a log."""

    records: int  # of a batch
    value_bytes: int
    keys: int


SHAPES: Final = (Shape(10, 10_000, 2_000), Shape(100, 1_000, 20_000), Shape(100, 100, 100_000))


def measure_compaction(seconds: float) -> list[dict[str, Any]]:
    """Bytes and records that a pass goes through per second, elapsed and of processor time, by what is in the log."""
    return [_measure(shape, max(1, int(seconds * BYTES_A_SECOND))) for shape in SHAPES]


def _measure(shape: Shape, size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        disk = RealDisk()
        config = LogConfig(segment_bytes=min(SEGMENT_BYTES_MAX, size // SEGMENTS), compaction=RULES)
        log = ShardLog.open(disk, str(Path(folder) / "log"), config)
        committer = GroupCommitter(disk)
        _fill(log, committer, shape, size)
        log.release_memory(0)
        extent = extent_of(log, RULES, log.log_end, 1 << 50)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        work = CompactionPass(log, RULES, extent, MAP_BYTES)
        while (piece := work.plan()) is not None:
            piece()
            _carry_out(committer, work.staged())
        _carry_out(committer, work.ended())
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        left = log.size_bytes
    read = extent.size_bytes
    records = read / (shape.value_bytes + RECORD_BYTES)
    return {
        "value_bytes": shape.value_bytes,
        "batch_records": shape.records,
        "keys": shape.keys,
        "read_mb": round(read / 1e6, 1),
        "left_mb": round(left / 1e6, 1),
        "mb_per_s": round(read / took_s / 1e6, 1),
        "gb_per_s": round(read / took_s / 1e9, 4),
        "mb_per_cpu_s": round(read / cpu_s / 1e6, 1),
        "records_per_s": round(records / took_s),
    }


def _fill(log: ShardLog, committer: GroupCommitter, shape: Shape, size: int) -> None:
    """Write batches until the log has so many bytes, in segments that are closed, all but the newest."""
    draw = Random(1)
    value = draw.randbytes(shape.value_bytes)
    while log.size_bytes < size:
        keys = (b"%08d" % draw.randrange(shape.keys) for _ in range(shape.records))
        batch = build_batch([(key, value, (), 1) for key in keys], base_offset=log.log_end, leader_epoch=1)
        _carry_out(committer, log.stage_append([batch]))


def _carry_out(committer: GroupCommitter, op: LogOp | None) -> None:
    if op is None:
        return
    committer.add(op)
    for done, error in committer.commit():
        if done.settle is not None:
            done.settle(error)
        invariant(error is None, f"the log was not written: {error}")
