"""One transactional producer of the simulator that is a Python client, judged as those that speak Kafka's protocol are."""

import contextlib
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError
from antiphon.simulation.cluster.workloads.kafka_transactor import TIMEOUT_MS, Transactor
from antiphon.simulation.cluster.workloads.transactions_book import Asked, Book

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.client.producer import AsyncProducer, AsyncTransaction
    from antiphon.simulation.cluster.kafka_client import KafkaClient
    from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
    from antiphon.simulation.runtime.process import Process

COMMIT_TRIES: Final = 4
BEGIN_TRIES: Final = 40


class NativeTransactor(Transactor):
    """See the module's text. What it has read, and when all is over, is asked for by Kafka's protocol."""

    def __init__(
        self, workload: "KafkaWorkload", book: Book, process: "Process", client: "KafkaClient", number: int
    ) -> None:
        super().__init__(workload, book, process, client, number)
        self._db: AsyncClient | None = None
        self._native: AsyncProducer | None = None

    async def one(self) -> None:
        """See `Transactor`."""
        if self._db is None:
            self._db = await self._workload.connected()
        if self._native is None or self._draw.random() < 0.1:
            self._native = await self._producer_of(self.names[0])
        producer = self._native
        if producer is None:
            return
        asked = self._new(producer.name)
        try:
            transaction = producer.begin()
            await self._fill(transaction, asked)
        except AntiphonError:
            asked.outcome = "not"  # its commit was never asked for
            self._native = None
            return
        if self._draw.random() < 0.1:
            await self._fence(transaction, asked)
        elif self._draw.random() < 0.1:
            self._abandon(asked)
            self._native = None
        else:
            await self._finish(transaction, asked, commit=self._draw.random() < 0.7)

    async def rest(self) -> None:
        """See `Transactor`."""
        await super().rest()
        if self._db is not None:
            await self._db.close()

    async def _producer_of(self, name: str) -> "AsyncProducer | None":
        """The id's producer; None where nobody gives it in time."""
        if self._db is None:
            return None
        timeout_s = self._draw.choice(TIMEOUT_MS) / 1000
        producer = self._db.producer(name, transaction_timeout_s=timeout_s)
        for _ in range(BEGIN_TRIES):
            try:
                await producer.start()
            except AntiphonError:
                await self._client.back_off()
            else:
                return producer
        return None

    async def _fill(self, transaction: "AsyncTransaction", asked: Asked) -> None:
        partitions = sorted(self._workload.shard_ids)
        chosen = self._draw.sample(partitions, self._draw.randint(1, len(partitions)))
        for serial in range(self._draw.randint(1, 3)):
            for partition in chosen:
                value = f"{asked.text}:{partition}:{serial}"
                asked.sent.add(value)
                await transaction.append(self._workload.topic, value, shard=partition)
            if self._draw.random() < 0.5:
                await transaction.flush()
        await transaction.flush()
        for partition in chosen:
            asked.acknowledged[partition] = sorted(
                value for value in asked.sent if value.startswith(f"{asked.text}:{partition}:")
            )
        if self._draw.random() < 0.5:
            await transaction.send_offsets(self._group, {(self._workload.topic, 0): self._count})
            asked.offset = self._count

    async def _fence(self, transaction: "AsyncTransaction", asked: Asked) -> None:
        """Somebody else gets the id, and the producer of before goes on, which it must not."""
        self._native = await self._producer_of(asked.name)
        if self._native is None:
            self._vanish()
            asked.outcome = "not"
            return
        self._book.outcomes["zombies"] += 1
        asked.outcome, asked.broken = "not", "zombie"
        late = f"{asked.text}:{min(asked.acknowledged)}:late"
        asked.sent.add(late)
        with contextlib.suppress(AntiphonError):
            await transaction.append(self._workload.topic, late, shard=min(asked.acknowledged))
            await transaction.commit()

    async def _finish(self, transaction: "AsyncTransaction", asked: Asked, *, commit: bool) -> None:
        for _ in range(COMMIT_TRIES):
            try:
                await (transaction.commit() if commit else transaction.abort())
            except AntiphonError as error:
                if not commit or "earlier_try" not in error.details:
                    asked.outcome = "not"
                if asked.outcome == "not" or not transaction.is_open:
                    self._native = None
                    return
            else:
                asked.outcome = "committed" if commit else "not"
                self._book.outcomes["transactions_committed" if commit else "transactions_aborted"] += 1
                return
        self._vanish()
        self._native = None
