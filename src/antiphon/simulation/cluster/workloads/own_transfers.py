"""Transfers by `db.transaction()`: several transactions of one client at the same time, without ids of the caller's.

Everything is judged as for `transfers`. What changes rows of one shard only is one request, which is in the log whole.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError, InvalidTxnStateError
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.transfers import (
    ACCOUNTS,
    BACK_OFF_S,
    TIMEOUTS_S,
    Asked,
    Mover,
    TransferWorkload,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from antiphon.client.aio import AsyncClient
    from antiphon.client.own_transactions import AsyncTransactionBlock
    from antiphon.client.producer import AsyncTransaction
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

AT_ONCE: Final = 3  # transactions of a client
INTERRUPTED_S: Final = (0.0005, 0.002, 0.01)


class OwnMover(Mover):
    """One of those that share a client."""

    def __init__(
        self, of: "OwnTransferWorkload", db: "AsyncClient", process: "Process", number: int, name: str
    ) -> None:
        super().__init__(of, db, process, number, name)
        self._ids = of.ids
        self._block: AsyncTransactionBlock | None = None

    async def rest(self) -> None:
        """Return when none is under way, of no client: a client that was killed has told nobody of its ids."""
        for name in sorted(self._ids):
            self._name = name
            await super().rest()

    async def _in_transaction(
        self, kind: str, fill: "Callable[[AsyncTransaction, Asked], Awaitable[None]]"
    ) -> None:
        shift = kind == "transfer" and self._draw.random() < 0.5
        try:
            await super()._in_transaction("shift" if shift else kind, self._shift if shift else fill)
        finally:
            block, self._block = self._block, None
            if block is not None:
                over = InvalidTxnStateError("what is not committed by now is given up")
                await block.__aexit__(type(over), over, None)

    async def _begin(self) -> "AsyncTransaction":
        self._block = self._db.transaction(transaction_timeout_s=self._draw.choice(TIMEOUTS_S))
        transaction = await self._block.__aenter__()
        self._ids.add(transaction._name)  # noqa: SLF001 - judges end what a killed client has left
        return transaction

    async def _abandon(self, transaction: "AsyncTransaction", asked: Asked) -> None:
        """Interrupt a step of it, and end it: what the step did belongs to no other transaction."""
        asked.outcome = "not"
        try:
            async with asyncio.timeout(self._draw.choice(INTERRUPTED_S)):
                await transaction.flush()
                await transaction.abort()
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            self._of.cluster.tell("transfer-interrupted", asked.tag)

    async def _shift(self, transaction: "AsyncTransaction", asked: Asked) -> None:
        """From one account to another, of one shard where there are two: no journal, no offsets."""
        first = self._draw.choice(ACCOUNTS)
        place = self._table.places.place_of
        others = [key for key in ACCOUNTS if key != first]
        near = [key for key in others if place(key)[0] == place(first)[0]]
        chosen = [first, self._draw.choice(near or others)]
        rows = [asked.saw(key, await transaction.find(self._table, key)) for key in chosen]
        amount = self._draw.randint(1, 20)
        for key, row, change in zip(chosen, rows, (-amount, amount), strict=True):
            balance = 0 if row is None else int(row.value.split()[0])
            value = asked.writes[key] = b"%d %s" % (balance + change, asked.tag.encode())
            await transaction.put(self._table, key, value)


@workload("own_transfer_clients", 30, Drawn(one_of(0, 0, 0, 0, 0, 2)))
class OwnTransferWorkload(TransferWorkload):
    """Python clients with several transactions at a time, without transactional ids of the caller's, move money between
    rows of one or of several shards, with a journal and offsets, and interrupt steps of some.

    Checked: the same; and what changed rows of one shard only is in the log as one batch, whole.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "own-transfers") -> None:
        super().__init__(cluster, name)
        self.ids: set[str] = set()
        self.outcomes |= {"shifts": 0}

    async def _work_with(self, db: "AsyncClient", process: "Process", number: int) -> None:
        await self._until_known(db)
        movers = [
            OwnMover(self, db, process, AT_ONCE * number + place, f"own-{number}-{place}")
            for place in range(AT_ONCE)
        ]
        await asyncio.gather(*(self._move(process, mover) for mover in movers))
        await movers[0].rest()

    async def _until_known(self, db: "AsyncClient") -> None:
        while True:
            try:
                await db.table(self.name)
            except AntiphonError:
                await self.pause(BACK_OFF_S)
            else:
                return

    async def _move(self, process: "Process", mover: OwnMover) -> None:
        while not self.stopped:
            await mover.one()
            await self.think(process, 4)
