"""Goes on from one voter's log of `__cluster`, offline, when most voters lost their directories. An operator asks for it.

What is lost with the others cannot be known here. So this only looks (`look`), unless it is told that this may be lost
(`recover`). What is written is said in `coordination.recovery`. First the term is promised; then all that goes behind the
log, with the new only voter in the last entry. Until that one is durable nothing was recovered: the command is run again.

Other voters whose directories are whole have the old history. Each of them is told to join (`join`): its own log of
`__cluster` goes, its replicas stay.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from antiphon.coordination import recovery as rules
from antiphon.coordination.cluster_records import headers_of
from antiphon.errors import InvalidRequestError, StorageFailedError
from antiphon.log.config import LogConfig
from antiphon.log.directory import NodeDirectory
from antiphon.log.group_commit import GroupCommitter
from antiphon.log.identity import find_identity, save_identity
from antiphon.log.shard_log import ShardLog
from antiphon.model.metadata import CLUSTER_SHARD_ID, Recovery, ShardMeta
from antiphon.node.known_voters import VOTERS_NAME, Note, write_note
from antiphon.node.metadata_fold import MetadataFold
from antiphon.node.metrics import NodeMetrics
from antiphon.records.builder import build_batch, build_members
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members

if TYPE_CHECKING:
    from antiphon.coordination.state import ClusterState
    from antiphon.log.disk import Disk
    from antiphon.log.operations import LogOp

READ_BYTES: Final = 1024 * 1024
BATCH_RECORDS: Final = 256


class Looked(NamedTuple):
    """What a voter's directory says.

    Attributes:
        path, node_id, cluster_id: whose it is.
        term: the latest term of `__cluster` that it promised.
        head: where its log ends.
        settled: up to where it surely knew entries to be committed.
        voters: who votes by its log; empty: the log does not say, so the founders of the configuration.
        state: the metadata as of its whole log.
    """

    path: str
    node_id: int
    cluster_id: str
    term: int
    head: EntryId
    settled: int
    voters: tuple[int, ...]
    state: "ClusterState"


def look(disk: "Disk", path: str) -> Looked:
    """Read a stopped voter's directory. Raises InvalidRequestError for what is none, DirectoryInUseError, and others."""
    with _opened(disk, path) as (directory, log):
        return _looked(directory, log)


def recover(disk: "Disk", path: str, others: Sequence[str], now_ms: int) -> Recovery:
    """Make the node of this directory the only voter, in a new history that goes on from its log.

    Raises InvalidRequestError where one of the `others` has a longer log, and changes nothing then.
    """
    found = {other: look(disk, other) for other in others}
    with _opened(disk, path) as (directory, log):
        own = _looked(directory, log)
        _check_longest(own, found)
        mark = rules.next_mark([own.term, *(one.term for one in found.values())])
        before = own.state.recovery
        recovery = Recovery(
            mark, log.log_end, own.node_id, now_ms, 1 if before is None else before.number + 1
        )
        _write(disk, log, own.state, recovery)
        directory.held(CLUSTER_SHARD_ID).set(mark, log.end, durable=True)
        record = ShardMeta(CLUSTER_SHARD_ID, 0, (own.node_id,))
        write_note(disk, os.path.join(path, VOTERS_NAME), Note(record, (), mark))
        return recovery


def join(disk: "Disk", path: str) -> Looked:
    """Let go of a voter's old log of `__cluster`, so that its node may join a cluster that was recovered from another's."""
    with _opened(disk, path) as (directory, log):
        found = _looked(directory, log)
        # An empty log in a directory that was made to found a cluster would count as one that promised nothing.
        save_identity(disk, path, msgspec.structs.replace(directory.identity, bootstrap=False))
        if disk.exists(os.path.join(path, VOTERS_NAME)):
            disk.remove(os.path.join(path, VOTERS_NAME))
        directory.remove_shard(CLUSTER_SHARD_ID)
        return found


@contextmanager
def _opened(disk: "Disk", path: str) -> Iterator[tuple[NodeDirectory, ShardLog]]:
    identity = find_identity(disk, path).identity if disk.is_dir(path) else None
    if identity is None:
        raise InvalidRequestError(f"{path} is no node's directory: name the one that has identity.json")
    directory = NodeDirectory.open(path, identity.cluster_id, identity.node_id, disk=disk)
    try:
        if not disk.is_dir(directory.shard_path(CLUSTER_SHARD_ID)):
            raise InvalidRequestError(
                f"{path} is of node {identity.node_id}, which has no log of `__cluster`"
            )
        log = ShardLog.open(
            disk,
            directory.shard_path(CLUSTER_SHARD_ID),
            LogConfig(),
            held=directory.held(CLUSTER_SHARD_ID),
        )
        yield directory, log
    finally:
        directory.close()


def _looked(directory: NodeDirectory, log: ShardLog) -> Looked:
    identity = directory.identity
    if log.damaged is not None or not log.log_end:
        why = "is empty" if log.damaged is None else f"is damaged: {log.damaged.reason}"
        raise InvalidRequestError(
            f"the log of `__cluster` in {directory.path} {why}; use another voter's directory"
        )
    log.reader.verify()
    fold = MetadataFold(log.log_start, NodeMetrics())
    while fold.offset < log.log_end and (batches := log.read(fold.offset, READ_BYTES, log.log_end)):
        fold.fold(batches)
    if not fold.is_whole:
        raise fold.lacks()
    members = log.members.current
    return Looked(
        directory.path,
        identity.node_id,
        identity.cluster_id,
        log.hard_state.term,
        log.end,
        min(log.hard_state.high_watermark, log.log_end),
        () if members is None else members.voters,
        fold.state,
    )


def _check_longest(own: Looked, others: dict[str, Looked]) -> None:
    for path, one in others.items():
        if one.cluster_id != own.cluster_id:
            raise InvalidRequestError(
                f"{path} is of cluster {one.cluster_id}, {own.path} of {own.cluster_id}"
            )
    heads = {own.path: own.head, **{path: one.head for path, one in others.items()}}
    best = rules.longest(heads)
    if heads[best] > own.head:
        raise InvalidRequestError(
            f"the log in {best} has more (term {heads[best].term}, up to {heads[best].offset}) than the one in {own.path} "
            f"(term {own.head.term}, up to {own.head.offset}): recover from {best}, so that less is lost"
        )


def _write(disk: "Disk", log: ShardLog, state: "ClusterState", recovery: Recovery) -> None:
    term, records = recovery.term, list(rules.recovery_records(state, recovery))
    _run(disk, log.hard_state.stage(term, None))
    for start in range(0, len(records), BATCH_RECORDS):
        some = [
            (key, value, headers_of(key, value), recovery.at_ms)
            for key, value in records[start : start + BATCH_RECORDS]
        ]
        _run(disk, log.stage_append([build_batch(some, base_offset=log.log_end, leader_epoch=term)]))
    last = build_members(Members((recovery.node,)), term, log.log_end, recovery.at_ms)
    _run(disk, log.stage_append([last]))
    _run(disk, log.checkpoint())


def _run(disk: "Disk", op: "LogOp") -> None:
    """Carry out an operation of a log, as the thread that writes would."""
    committer = GroupCommitter(disk)
    committer.add(op)
    for finished, error in committer.commit() if op.steps else ():
        if error is not None:
            raise StorageFailedError(f"the log of `__cluster` was not written: {error}") from error
        if finished.settle is not None:
            finished.settle(None)
