"""A leader of one table's replica, and a follower that gets its log."""

from pathlib import Path

from antiphon.model.requests import TableOp
from antiphon.records.builder import build_batch
from antiphon.table.evaluation import Evaluation
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import TableState, open_state


class Leader:
    """A one-replica shard: drives the evaluator as its text says, and sees commits when it is told to."""

    def __init__(self, state: TableState) -> None:
        self.state = state
        self.evaluator = TableEvaluator(state)
        self.log: list[bytes] = []
        self.end = state.applied_offset

    def write(self, *ops: TableOp, now_ms: int = 100, atomic: bool = False) -> Evaluation:
        found = self.evaluator.evaluate(ops, now_ms, atomic=atomic)
        self.take(found)
        return found

    def take(self, found: Evaluation) -> None:
        if found.records:
            batch = build_batch(found.records, base_offset=self.end, leader_epoch=1)
            self.evaluator.appended(found, self.add(bytes(batch), len(found.records)))

    def add(self, batch: bytes, count: int = 1) -> int:
        """Into the log; returns the batch's offset."""
        base = self.end
        self.log.append(batch)
        self.end += count
        return base

    def commit(self) -> None:
        self.evaluator.committed(self.end)


class LeaderAndFollower(Leader):
    """Both have their stores on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.follower = open_state(str(path / "follower"), RocksEngine())
        super().__init__(open_state(str(path / "leader"), RocksEngine()))

    def close(self) -> None:
        self.state.close()
        self.follower.close()
