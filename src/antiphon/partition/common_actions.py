"""What is done for the actions that replicas of every kind answer with, and when one of them stops or is closed."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from antiphon import system
from antiphon.errors import DamagedStoreError
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.table_folds import TableFolds
from antiphon.replication.actions import Commit, ReadFailed, ReadReady, Repaired
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.tracing import Span


class CommonActions:
    """See the module's text. Within a commit the order is: apply, answer clients, wake readers (S0.20, S1.20).

    `folds` bring a table up to what is committed where no leader has judged it.
    """

    def __init__(self, driver: ReplicaDriver, clients: PartitionClients) -> None:
        self._driver = driver
        self._steps = driver.steps
        self._state = driver.state
        self._clients = clients
        self.folds = TableFolds(driver, self._commit)
        self._log = driver.state.lines

    @property
    def by_action(self) -> Mapping[type, Callable[[Any], None]]:
        """See ActionHandlers."""
        return {
            Commit: self._commit,
            ReadReady: self._read_ready,
            ReadFailed: self._read_failed,
            Repaired: self._repaired,
        }

    def _commit(self, action: Commit, folded: "Sequence[Span] | None" = None) -> None:
        """Apply; then answer clients and wake readers (S0.20, S1.20). `folded`: spans, where a table has it already."""
        state, high_watermark = self._state, action.high_watermark
        table, traces, spans = state.table, state.traces, folded or ()
        if table is not None and folded is None:
            if table.evaluator is None:  # nobody has judged it here, so it may take long
                self.folds.commit(high_watermark)
                return
            if traces is not None:
                spans = traces.applying(high_watermark)
            began_s = system.monotonic_s()
            try:
                table.evaluator.committed(high_watermark)
            except BaseException:  # the store failed, and the replica stops
                for span in spans:
                    span.end("not applied: the replica stopped")
                raise
            state.services.metrics.apply_latency.observe(system.monotonic_s() - began_s)
        state.high_watermark = high_watermark
        self._steps.news.append((self._clients.committed, (high_watermark,)))
        transactions = state.log.producers.transactions
        if transactions.is_used:
            transactions.committed(high_watermark)
        if state.observer is not None:
            self._steps.later(state.observer.committed, high_watermark)
        if traces is not None:
            traces.committed(high_watermark, spans)

    def _read_ready(self, action: ReadReady) -> None:
        self._steps.later(self._clients.read_ready, action)

    def _read_failed(self, action: ReadFailed) -> None:
        self._steps.later(self._clients.read_failed, action)

    def _repaired(self, _action: Repaired) -> None:
        log = self._state.log
        self._log.info("log_repaired", log_end=log.log_end)
        self._driver.submit(log.clear_damage())

    def send_clients_away(self) -> None:
        """The replica leads no more, or stopped."""
        if self._state.traces is not None:
            self._state.traces.give_up("the replica leads no more, or stopped")
        self.folds.forget()
        self._clients.fail_all(self._state.not_leader())

    def stopped(self, error: Exception, *, needs_leader: bool) -> None:
        """The replica stopped for good: tell clients, the coordinator and the node, once this step is done.

        `needs_leader`: it led, and the coordinator is to appoint another one.
        """
        state, steps = self._state, self._steps
        if state.table is not None:
            state.table.stop_leading()
            if isinstance(error, DamagedStoreError):
                state.table.note_damage()
        steps.later(self.send_clients_away)
        if state.observer is not None:
            steps.later(state.observer.role_changed, Role.FENCED, state.term, None)
        steps.later(partial(state.services.replica_failed, state.shard_id, needs_leader=needs_leader))

    def close(self) -> None:
        """The node closes the partition: nothing more comes in, and nobody is answered."""
        self._driver.writer.flush()
        self._state.closed = True
        self.send_clients_away()
