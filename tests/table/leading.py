"""A leader of one table's replica, with its store on disk, and a follower that gets its log."""

from pathlib import Path

from antiphon.model.requests import TableOp
from antiphon.records.builder import build_batch
from antiphon.table.evaluation import Evaluation
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import open_state


class LeaderAndFollower:
    """The leader sees commits when it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = open_state(str(path / "leader"), RocksEngine())
        self.follower = open_state(str(path / "follower"), RocksEngine())
        self.evaluator = TableEvaluator(self.state)
        self.log: list[bytes] = []
        self.end = 0

    def write(self, *ops: TableOp, atomic: bool = False) -> Evaluation:
        found = self.evaluator.evaluate(ops, 100, atomic=atomic)
        self.take(found)
        return found

    def take(self, found: Evaluation) -> None:
        if found.records:
            batch = build_batch(found.records, base_offset=self.end, leader_epoch=1)
            self.evaluator.appended(found, self.end)
            self.add(bytes(batch), len(found.records))

    def add(self, batch: bytes, count: int = 1) -> None:
        self.log.append(batch)
        self.end += count

    def close(self) -> None:
        self.state.close()
        self.follower.close()
