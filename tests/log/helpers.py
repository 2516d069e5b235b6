"""Batches and a synchronous stand-in for the WAL thread's loop."""

from collections.abc import Sequence

from antiphon.errors import AntiphonError
from antiphon.log.disk import Disk
from antiphon.log.group_commit import GroupCommitter
from antiphon.log.operations import LogOp
from antiphon.log.segment import without_padding
from antiphon.records.builder import build_batch


def batch_at(
    offset: int,
    *,
    count: int = 1,
    term: int = 1,
    size: int = 10,
    timestamp: int = 1000,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = -1,
) -> bytearray:
    """A batch of `count` records stamped with offset and term."""
    filler = b"%d." % offset * (size // len(b"%d." % offset) + 1)
    return build_batch(
        [(None, filler[:size], (), timestamp + i) for i in range(count)],
        base_offset=offset,
        leader_epoch=term,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
    )


def finish(op: LogOp, error: AntiphonError | None) -> None:
    """Tell the log, then the submitter, as the event loop does."""
    if op.settle is not None:
        op.settle(error)
    if op.callback is not None:
        op.callback(error)


class Runner:
    """Commits staged operations at once, as the WAL thread would, and keeps the outcomes."""

    def __init__(self, disk: Disk) -> None:
        self.committer = GroupCommitter(disk)
        self.outcomes: list[tuple[LogOp, AntiphonError | None]] = []

    def submit(self, *ops: LogOp | None) -> None:
        for op in ops:
            if op is not None:
                self.committer.add(op)

    def commit(self) -> list[AntiphonError | None]:
        done = self.committer.commit()
        for op, error in done:
            finish(op, error)
        self.outcomes += done
        return [error for _, error in done]

    def run(self, *ops: LogOp | None) -> None:
        """Submit, commit, and insist on success."""
        self.submit(*ops)
        assert all(error is None for error in self.commit())


def joined(batches: Sequence[memoryview]) -> bytes:
    return b"".join(batches)


def data_bytes(disk: Disk, path: str) -> int:
    """Bytes of the batches in a segment's file, without the room behind them."""
    file = disk.open(path)
    return len(without_padding(file.pread(file.size(), 0)))
