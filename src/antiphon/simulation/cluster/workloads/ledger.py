"""Several log-backed stores on one shard (KIP-27's recipe): the log is a legal history, whoever wrote it.

The state is a balance that must not fall below nothing. Each store judges withdrawals on what it has read; conditional
appends are to keep out every operation whose writer had not seen all that was before it.
"""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.client.log_backed_store_aio import AsyncLogBackedStore
from antiphon.errors import AntiphonError, OffsetMismatchError, TimedOutError
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.workload import (
    PATIENCE_S,
    Workload,
    durable_options,
    insist,
    shards_of,
)
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

DEPOSIT_MAX: Final = 5
WITHDRAWAL_MAX: Final = 12
TOGETHER_MAX: Final = 4

State = tuple[int, int]  # balance, operations so far


class _OverdrawnError(Exception):
    """The balance does not cover a withdrawal."""


def _apply(state: State, operation: bytes) -> State:
    return state[0] + int(operation.rsplit(b":", 1)[1]), state[1] + 1


def _validate(state: State, operation: bytes) -> None:
    if _apply(state, operation)[0] < 0:
        raise _OverdrawnError


class Told(NamedTuple):
    """What a client was told of one operation, and how far the log was committed before and after."""

    operation: bytes
    outcome: str
    offset: int
    state: State
    began: int
    ended: int


@workload("ledger_keepers", 6, Drawn(one_of(0, 0, 0, 0, 2, 3), "more loads", 1))
class LedgerWorkload(Workload):
    """Several log-backed stores (`LogBackedStore`) on one shard: deposits and withdrawals, re-evaluated or not, and
    balances.

    Checked: the committed log is a legal history; an acknowledged operation is in it with the state that the client was
    told; a refused one is nowhere and had a valid reason; balances are linearizable.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "ledger") -> None:
        super().__init__(cluster, name)
        self.shard_id = -1
        self.told: list[Told] = []
        self.sent: set[bytes] = set()
        self.outcomes = {"booked": 0, "overdrawn": 0, "overtaken": 0, "not-booked": 0, "balances": 0}

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        options = durable_options(self.cluster)
        await insist(lambda: db.create_topic(self.name, shards=1, **options))
        (self.shard_id,) = await shards_of(db, self.name)

    async def _work_with(self, db: "AsyncClient", process: "Process", number: int) -> None:
        start: State = (0, 0)
        store = AsyncLogBackedStore(
            db, self.name, initial=start, apply=_apply, validate=_validate, timeout_s=PATIENCE_S
        )
        await insist(store.start)
        draw, serial = process.random, 0
        while not self.stopped:
            if draw.random() < 0.2:
                await self._read(store)
                continue
            count, reevaluate = draw.randint(1, TOGETHER_MAX), draw.random() < 0.5
            work = []
            for _ in range(count):
                serial += 1
                amount = draw.choice((draw.randint(1, DEPOSIT_MAX), -draw.randint(1, WITHDRAWAL_MAX)))
                work.append(self._book(store, b"%d:%d:%d" % (number, serial, amount), reevaluate=reevaluate))
            await asyncio.gather(*work)
            await self.think(process, count)
        await store.close()

    def _committed(self) -> int:
        return self.cluster.evidence.truth(self.shard_id).end

    async def _book(self, store: AsyncLogBackedStore[State], operation: bytes, *, reevaluate: bool) -> None:
        began, offset, state = self._committed(), -1, (0, 0)
        self.sent.add(operation)
        try:
            offset, state = await store.submit(operation, reevaluate=reevaluate, timeout_s=PATIENCE_S)
            outcome = "booked"
        except _OverdrawnError:
            outcome = "overdrawn"
        except OffsetMismatchError:
            outcome = "overtaken"
        except TimedOutError as error:
            outcome = "unknown" if error.details.get("sent", True) else "not-sent"
        except AntiphonError as error:
            outcome = f"unknown: {error.code}"
        self.outcomes[outcome if outcome in self.outcomes else "not-booked"] += 1
        self.cluster.tell("book", operation.decode(), outcome, offset, state)
        self.told.append(Told(operation, outcome, offset, state, began, self._committed()))

    async def _read(self, store: AsyncLogBackedStore[State]) -> None:
        began = self._committed()
        try:
            state = await store.catch_up(timeout_s=PATIENCE_S)
        except AntiphonError as error:
            self.cluster.tell("balance-not-read", error.code)
            return
        self.outcomes["balances"] += 1
        self.cluster.tell("balance", state)
        self.told.append(Told(b"", "read", -1, state, began, self._committed()))

    # -- the judge ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        at: dict[bytes, int] = {}
        states: list[tuple[int, State]] = [(0, (0, 0))]  # from which offset on the log comes to this
        for record in self.cluster.evidence.truth(self.shard_id).records():
            operation, state = bytes(record.value or b""), states[-1][1]
            where = f"{operation!r} at {record.offset}"
            require(operation in self.sent, "nobodys-record", f"nobody sent {where}", self.shard_id)
            require(operation not in at, "exactly-once", f"{where} is at {at} too", self.shard_id)
            at[operation] = record.offset
            states.append((record.offset + 1, _apply(state, operation)))
            require(
                states[-1][1][0] >= 0,
                "legal-history",
                f"{where} withdraws from a balance of {state[0]}",
                self.shard_id,
            )
        for told in self.told:
            self._check_answer(told, at, states)

    def _check_answer(self, told: Told, at: dict[bytes, int], states: list[tuple[int, State]]) -> None:
        between = [
            state
            for place, (_, state) in enumerate(states)
            if states[place][0] <= told.ended
            and (place + 1 == len(states) or states[place + 1][0] > told.began)
        ]
        if told.outcome == "booked":
            after = dict(states).get(told.offset + 1)
            require(
                at.get(told.operation) == told.offset and after == told.state,
                "acknowledged-kept",
                f"{told} was acknowledged; it is at {at.get(told.operation)}, and the log comes to {after} there",
                self.shard_id,
            )
        elif told.outcome in {"overdrawn", "overtaken", "not-sent"}:
            require(
                told.operation not in at,
                "refused-nowhere",
                f"{told} was not carried out, and is at {at.get(told.operation)}",
                self.shard_id,
            )
        if told.outcome == "overdrawn":
            amount = int(told.operation.rsplit(b":", 1)[1])
            require(
                any(balance + amount < 0 for balance, _ in between),
                "refusal",
                f"{told} was refused, and the balance covered it at all times: {between}",
                self.shard_id,
            )
        if told.outcome == "read":
            require(
                told.state in between,
                "linearizable",
                f"{told} was read; between question and answer the log came to {between}",
                self.shard_id,
            )
