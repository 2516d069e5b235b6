"""Compares the replicas of every shard, byte for byte, from the nodes' own files."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon.errors import TimedOutError
from antiphon.log.segment import without_padding
from antiphon.records.batch import iter_batches
from antiphon.tools.demo.lake import Proof

SETTLE_TIMEOUT_S = 60.0
DATA_GLOB = "**/shards/{shard_id}/*.log"


def wait_settled(statuses: Any, names: Sequence[str]) -> None:
    """Wait until every replica of these topics and tables has all of its shard's log. `statuses()` asks all nodes."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        waiting = statuses()
        if not waiting:
            return
        if time.monotonic() > deadline:
            raise TimedOutError(
                f"replicas lag after {SETTLE_TIMEOUT_S:.0f} s: {', '.join(waiting)} ({', '.join(names)})"
            )
        time.sleep(0.1)


def digest(files: Sequence[Path]) -> tuple[str, int, int]:
    """(SHA-256 of all batches, their number, first offset after them) of one replica's segments, in order."""
    sha = hashlib.sha256()
    batches, end = 0, 0
    for file in files:
        for header, batch in iter_batches(without_padding(file.read_bytes())):
            sha.update(batch)
            batches += 1
            end = header.next_offset
    return sha.hexdigest(), batches, end


def identical(node_dirs: Sequence[Path], shards: Sequence[tuple[str, int, int]]) -> Proof:
    """Are the logs of all nodes the same? `shards`: (topic, index, shard id)."""
    same, batches, differing = 0, 0, []
    for topic, index, shard_id in shards:
        found = [digest(sorted(node_dir.glob(DATA_GLOB.format(shard_id=shard_id)))) for node_dir in node_dirs]
        if len(set(found)) == 1 and found[0][1]:
            same += 1
            batches += found[0][1]
        else:
            differing.append(f"{topic}/{index}")
    said = f"{same} of {len(shards)} shards, {batches:,} batches in each copy"
    return Proof(
        f"the {len(node_dirs)} replicas of every shard are identical, byte for byte",
        not differing,
        said if not differing else f"{said}; different: {', '.join(differing)}",
    )
