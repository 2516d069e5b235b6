"""A replica of a table: its store beside the log, and on the leader the evaluator that judges operations.

The simulated counterpart of `node.table_shard`: the leader judges by the original `TableEvaluator` and appends effects only,
followers apply what is committed. A crash leaves the store as it was last flushed; it is flushed now and then, and always
before the head of the log is cut.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from antiphon.invariants import invariant
from antiphon.records.builder import build_batch
from antiphon.replication.actions import Action, LeaderReady, ReadFailed, ReadReady, ResetLog, RoleChanged
from antiphon.replication.replica_state import Role
from antiphon.simulation.client_messages import AppendRequest, ReadRequest
from antiphon.simulation.disk import ReplicaFiles, StorageAction
from antiphon.simulation.hosted import Hosted, PureReplica
from antiphon.simulation.table_messages import (
    KeyState,
    OpOutcome,
    TableAnswer,
    TableData,
    TableReadRequest,
    TableWriteRequest,
)
from antiphon.simulation.table_store import EVERYTHING, MemoryTable, TableTruth
from antiphon.table.evaluator import Evaluation, TableEvaluator, results_from_batch
from antiphon.wire.requests import OpResult

if TYPE_CHECKING:
    from antiphon.simulation.node import SimulatedNode

FLUSHES = 0.1  # share of commits after which the store is flushed

Who = tuple[int, int]  # client, sequence


def outcome_of(result: OpResult) -> OpOutcome:
    """What a client is told of one operation."""
    return result.status, -1 if result.version is None else result.version.id


class TableHosted(Hosted):
    """A living replica of a table."""

    def __init__(self, node: "SimulatedNode", shard: int, files: ReplicaFiles, replica: PureReplica) -> None:
        super().__init__(node, shard, files, replica)
        if self.truth.table is None:
            self.truth.table = TableTruth(shard, self.truth.committed)
        self.tables = self.truth.table
        self.evaluator: TableEvaluator | None = None
        flushed = files.table
        self.table = MemoryTable() if flushed is None else MemoryTable(*flushed)
        self._later: dict[int, list[tuple[Who, Callable[[], None]]]] = {}  # answers by what must be applied
        self._confirmed: dict[int, Callable[[int], None]] = {}  # by token: what to do when leadership is
        self.apply(replica.high_watermark)

    # -- the store ---------------------------------------------------------------------------------------------------

    def apply(self, high_watermark: int) -> None:
        """Apply what is committed."""
        if self.evaluator is not None:
            self.evaluator.committed(high_watermark)
            return
        table = self.table
        table.apply_entries(self.log.read(table.applied_offset, high_watermark, EVERYTHING))
        applied = table.applied_offset
        invariant(applied >= high_watermark, f"the log holds nothing to apply at {applied}")

    def _flush(self) -> None:
        self.files.table = (self.table.image(), self.table.applied_offset)

    def _commit(self, high_watermark: int) -> None:
        before = self.table.applied_offset
        self.apply(high_watermark)
        super()._commit(high_watermark)
        self.tables.check(self, before)
        if self.host.random.random() < FLUSHES:
            self._flush()
        applied = self.table.applied_offset
        for end in [end for end in self._later if end <= applied]:
            for _, answer in self._later.pop(end):
                answer()

    def _store(self, action: StorageAction) -> None:
        super()._store(action)
        if isinstance(action, ResetLog) and action.at.offset > self.table.applied_offset:
            image = self.tables.image_at(action.at.offset)
            invariant(image is not None, f"a snapshot at {action.at.offset}, where nothing committed ends")
            if image is not None:
                self.table.install(image, action.at.offset)
                self._flush()

    def trim(self, random: Random) -> None:
        """Retention: what is cut off the log must be in the store on disk."""
        self._flush()
        super().trim(random)

    # -- leading -----------------------------------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> list[Action]:
        match action:
            case LeaderReady():
                self.apply(self.replica.high_watermark)
                self.evaluator = TableEvaluator(self.table)
            case ReadFailed():
                del self._confirmed[action.token]
            case _:
                pass
        return super()._carry_out(action)

    def _role_changed(self, action: RoleChanged) -> None:
        if action.role is not Role.LEADER:
            self.stop_leading()
            self._send_away()
        super()._role_changed(action)

    def stop_leading(self) -> None:
        """Forget what was judged and not committed."""
        self.evaluator = None

    def closed(self) -> None:
        """The replica is removed from this node: clients try elsewhere."""
        self._send_away()
        super().closed()

    def _send_away(self) -> None:
        for waiting in self._later.values():
            for who, _ in waiting:
                self._answer(*who, "not_leader")
        self._later.clear()

    # -- clients -----------------------------------------------------------------------------------------------------

    def client_append(self, request: AppendRequest) -> None:
        """A write: judged now; answered when its effects, or what it was refused for, are committed."""
        invariant(isinstance(request, TableWriteRequest), "a table takes operations of tables")
        who, evaluator = (request.client, request.sequence), self.evaluator
        if self.role is not Role.LEADER or not self.replica.ready or evaluator is None or self.host.disk.full:
            self._answer(*who, "not_leader")
        elif who in self.positions:
            base, end = self.positions[who]
            self.when_applied(end, who, lambda: self._answer_again(who, base))
        elif isinstance(request, TableWriteRequest):
            self._write(evaluator, who, evaluator.evaluate((request.op,), self.host.clock_ms()))

    def _write(self, evaluator: TableEvaluator, who: Who, evaluation: Evaluation) -> None:
        outcome = outcome_of(evaluation.results[0])
        if not evaluation.records:
            self.refuse_operation(who, outcome, evaluation.wait_for)
            return
        replica = self.replica
        base = replica.log_end
        batch = build_batch(evaluation.records, base_offset=base, leader_epoch=replica.term)
        evaluator.appended(evaluation, base)
        self.when_applied(evaluation.wait_for, who, lambda: self.tell(who, "ok", base, outcome))
        self.run(replica.propose([(len(evaluation.records), TableData.of(*who, bytes(batch)))]))

    def _answer_again(self, who: Who, base: int) -> None:
        written = results_from_batch(self.tables.batch_at(base))
        self.tell(who, "ok", base, outcome_of(written.results[0]))

    def refuse_operation(self, who: Who, outcome: OpOutcome, wait_for: int) -> None:
        """Say that nothing was done, when leadership is confirmed after now and what was looked at is committed."""

        def confirmed(offset: int) -> None:
            self.when_applied(
                max(wait_for, offset),
                who,
                lambda: self.tell(who, "refused", self.table.applied_offset, outcome),
            )

        self._when_confirmed(who, confirmed)

    def client_read(self, request: ReadRequest) -> None:
        """A get; answered from the store when leadership is confirmed."""
        invariant(isinstance(request, TableReadRequest), "a table takes reads of tables")
        who = (request.client, request.sequence)
        if self.role is not Role.LEADER or not self.replica.ready or self.evaluator is None:
            self._answer(*who, "not_leader")
        elif isinstance(request, TableReadRequest):
            key = request.key
            self._when_confirmed(
                who, lambda offset: self.when_applied(offset, who, lambda: self._read(who, key))
            )

    def _read(self, who: Who, key: bytes) -> None:
        self.tell(who, "ok", self.table.applied_offset, self.table.key_state(key))

    def _when_confirmed(self, who: Who, then: Callable[[int], None]) -> None:
        self._next_token += 1
        self._reads[self._next_token] = (*who, -1)
        self._confirmed[self._next_token] = then
        self.run(self.replica.request_read(self._next_token))

    def _read_ready(self, action: ReadReady) -> None:
        del self._reads[action.token]
        self._confirmed.pop(action.token)(action.offset)

    def when_applied(self, end: int, who: Who, answer: Callable[[], None]) -> None:
        """Answer when the store has everything before `end`."""
        if end <= self.table.applied_offset:
            answer()
        else:
            self._later.setdefault(end, []).append((who, answer))

    def tell(self, who: Who, outcome: str, offset: int, result: OpOutcome | KeyState) -> None:
        """Answer a client."""
        leader = self.replica.leader
        chain = self.log.chain_at(offset) or 0
        self.host.answer(
            TableAnswer(*who, outcome, offset, chain, -1 if leader is None else leader, result=result)
        )
