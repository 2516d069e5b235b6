"""Reads every shard's log for `antiphon verify`: through the leader, and after the stop from each replica's own files."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from antiphon.client.log_reader import committed_end
from antiphon.errors import AntiphonError, StorageFailedError, TimedOutError
from antiphon.records.batch import iter_batches, read_header
from antiphon.records.decode import Record, decode_records

READ_BYTES: Final = 1024 * 1024
PROBLEMS_PER_CHECK: Final = 5
SETTLE_TIMEOUT_S: Final = 60.0


@dataclass
class ShardCopy:
    """What one shard's log holds below its high watermark; `records` and `terms` (by offset) are without control batches."""

    topic: str
    index: int
    shard_id: int
    end: int = 0
    sha256: str = ""
    records: list[Record] = field(default_factory=list)
    terms: dict[int, int] = field(default_factory=dict)
    batches: list[bytes] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """`topic/index`."""
        return f"{self.topic}/{self.index}"

    def add(self, chunk: "bytes | memoryview") -> None:
        """Take in the batches that follow; notes gaps and repeats."""
        for header, batch in iter_batches(chunk):
            if header.next_offset <= self.end:
                continue  # the first batch of a fetch may start earlier
            if header.base_offset != self.end:
                self.problems.append(
                    f"{self.name}: a batch starts at {header.base_offset}, the one before ended at {self.end}"
                )
            raw = bytes(batch)
            self.batches.append(raw)
            self.end = header.next_offset
            if header.is_control:
                continue
            found = decode_records(raw)
            if [record.offset for record in found] != list(range(header.base_offset, header.next_offset)):
                self.problems.append(
                    f"{self.name}: the batch {header.base_offset}..{header.next_offset} has records at other offsets"
                )
            self.records += found
            for record in found:
                self.terms[record.offset] = header.leader_epoch


async def wait_settled(db: Any) -> None:
    """Wait until all replicas of all shards have the same log, and know it to be committed. Raises TimedOutError."""
    import asyncio

    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_TIMEOUT_S
    while True:
        try:
            waiting = await _lagging(db)
        except AntiphonError as error:
            waiting = [error.message]
        if not waiting:
            return
        if loop.time() > deadline:
            raise TimedOutError(f"not settled after {SETTLE_TIMEOUT_S:.0f} s: {'; '.join(waiting)}")
        await asyncio.sleep(0.2)


async def _lagging(db: Any) -> list[str]:
    meta = await db.metadata()
    names = {shard.shard_id: f"{topic.name}/{shard.index}" for topic in meta.topics for shard in topic.shards}
    members = {shard.shard_id: shard.ensemble for topic in meta.topics for shard in topic.shards}
    ends: dict[int, dict[int, tuple[int, int]]] = {}
    waiting = []
    for node in meta.nodes:
        for replica in (await db.node_status(node.node_id, timeout_s=5.0)).replicas:
            ends.setdefault(replica.shard_id, {})[node.node_id] = (replica.log_end, replica.high_watermark)
            if replica.state != "ok":
                waiting.append(
                    f"the replica of shard {replica.shard_id} on node {node.node_id} is {replica.state}"
                )
    for shard_id, name in names.items():
        found = ends.get(shard_id, {})
        newest = max((end for end, _ in found.values()), default=-1)
        waiting += [
            f"{name} on node {node}: (end, committed) {found.get(node)} of {newest}"
            for node in members[shard_id]
            if found.get(node) != (newest, newest)
        ]
    return waiting


async def read_shards(db: Any) -> list[ShardCopy]:
    """Every shard of every topic and table, from its leader, up to its high watermark."""
    meta = await db.metadata()
    copies = []
    for topic in meta.topics:
        for shard in topic.shards:
            copy = ShardCopy(topic.name, shard.index, shard.shard_id)
            end = committed_end(await db.list_offset(shard.shard_id, -1))
            while copy.end < end:
                before = copy.end
                _, payload = await db.fetch(shard.shard_id, copy.end, max_bytes=READ_BYTES)
                copy.add(payload)
                if copy.end == before:
                    copy.problems.append(f"{copy.name}: nothing to read at {before}, committed up to {end}")
                    break
            copy.sha256 = _digest(copy.batches)
            copies.append(copy)
    return copies


def _digest(batches: Iterable[bytes]) -> str:
    sha = hashlib.sha256()
    for batch in batches:
        sha.update(batch)
    return sha.hexdigest()


def compare_replicas(node_dirs: dict[int, Path], copies: list[ShardCopy]) -> list[str]:
    """After a clean stop: is every replica, opened as a node does, what the leader served, byte for byte?"""
    from antiphon.log.disk import RealDisk
    from antiphon.log.shard_log import ShardLog

    problems = []
    disk = RealDisk()
    try:
        for copy in copies:
            for node_id, directory in node_dirs.items():
                path = directory / "shards" / str(copy.shard_id)
                where = f"{copy.name} on node {node_id}"
                if not path.is_dir():
                    problems.append(f"{where}: there is no replica")
                    continue
                log = ShardLog.open(disk, str(path))
                problems += [f"{where}: {problem}" for problem in _differences(log, copy)]
    finally:
        disk.close()
    return problems


def _differences(log: Any, copy: ShardCopy) -> list[str]:
    if log.damaged is not None:
        return [f"the log is damaged: {log.damaged}"]
    if log.log_start != 0 or log.log_end < copy.end:
        return [f"it holds {log.log_start}..{log.log_end}, committed is 0..{copy.end}"]
    at, number = 0, 0
    while at < copy.end:
        for batch in log.read(at, READ_BYTES, copy.end):
            if number >= len(copy.batches) or bytes(batch) != copy.batches[number]:
                return [f"it differs from what the leader served from offset {at} on"]
            for header, _ in iter_batches(batch):
                at = header.next_offset
            number += 1
    return []


def compare_stores(node_dirs: dict[int, Path], copies: list[ShardCopy], table: str) -> list[str]:
    """After a clean stop: is every table store what its own log folds into, up to where it says that it has applied?

    That may lie behind what the leader served before: nodes stop one after the other, and those that are left elect anew.
    """
    from antiphon.log.disk import RealDisk
    from antiphon.log.shard_log import ShardLog
    from antiphon.partition.table_files import recover_install, store_path
    from antiphon.table.rocks_store import RocksEngine
    from antiphon.table.state import open_state

    problems = []
    stores = RocksEngine()
    disk = RealDisk()
    try:
        for copy in copies:
            for node_id, directory in node_dirs.items() if copy.topic == table else ():
                log_path = str(directory / "shards" / str(copy.shard_id))
                path = store_path(str(directory / "tables"), copy.shard_id)
                recover_install(disk, path, log_path)
                log = ShardLog.open(disk, log_path)
                try:
                    with open_state(path, stores) as state:
                        found = _misfolded(log, state)
                except StorageFailedError as error:
                    found = [error.message]
                problems += [f"{copy.name} on node {node_id}: {told}" for told in found]
    finally:
        disk.close()
    return problems


def _misfolded(log: Any, state: Any) -> list[str]:
    from antiphon.records.changes import decode_changes

    applied = state.applied_offset
    if applied > log.log_end:
        return [f"applied up to {applied}, its log ends at {log.log_end}"]
    expected: dict[bytes, tuple[bytes, int, int]] = {}
    at = log.log_start
    while at < applied:
        batches = log.read(at, READ_BYTES, applied)
        for change in decode_changes(batches):
            if change.value is None:
                expected.pop(change.key, None)
            else:
                expected[change.key] = (change.value, change.version_id, change.modifications)
        at = read_header(batches[-1]).next_offset
    rows, more = state.scan(b"", b"", 10_000)
    found = {row.key: (row.value, row.version.id, row.version.modifications) for row in rows}
    if not more and found == expected:
        return []
    odd = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    return [f"rows that its log does not fold into: {odd[:PROBLEMS_PER_CHECK]}"]
