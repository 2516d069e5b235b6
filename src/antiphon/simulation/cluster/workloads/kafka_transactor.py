"""One transactional producer of the simulator: it commits, aborts, abandons, and goes on as a zombie now and then.

With each producer id that it gets it speaks the first or the second version of Kafka's transactions (KIP-890). The second
one adds nothing to a transaction beforehand, and has a new epoch after each end; what comes late of the old one must be
refused.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from antiphon import system
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import FETCH, PRODUCE
from antiphon.kafka.messages import cluster as cm
from antiphon.kafka.messages import groups as gm
from antiphon.kafka.messages import transactions as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.kafka.schema import Message
from antiphon.records.batch import TRANSACTIONAL_BIT, iter_batches
from antiphon.records.builder import build_batch, seal
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster import kafka_messages as km
from antiphon.simulation.cluster.kafka_client import Address, KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.transactions_book import Asked, Book
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
    from antiphon.simulation.runtime.process import Process

GROUP: Final = "of-transactor-"  # and its number: two of them would commit in any order
INIT, ADD, ADD_OFFSETS, END, OFFSETS, DESCRIBE, FIND, OFFSET_FETCH = 22, 24, 25, 26, 28, 65, 10, 9
GROUP_KEY, TRANSACTION_KEY = 0, 1
TIMEOUT_MS: Final = (1_500, 4_000)
LONG_MS, SURELY_S = 8_000, 5.0  # clocks of nodes are 2 s apart at most
FENCED: Final = frozenset({code.PRODUCER_FENCED, code.INVALID_PRODUCER_EPOCH})
TRIES: Final = 25
REST_S: Final = 20.0  # after the faults, within which every transaction ends
AGAIN: Final = frozenset(
    {
        code.NOT_COORDINATOR,
        code.COORDINATOR_NOT_AVAILABLE,
        code.COORDINATOR_LOAD_IN_PROGRESS,
        code.CONCURRENT_TRANSACTIONS,
        code.NOT_LEADER_OR_FOLLOWER,
        code.LEADER_NOT_AVAILABLE,
        code.NOT_ENOUGH_REPLICAS,
        code.REQUEST_TIMED_OUT,
        code.KAFKA_STORAGE_ERROR,
        code.UNSTABLE_OFFSET_COMMIT,
        code.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class _FailedError(Exception):
    """A step was refused, or its outcome stayed unknown."""

    def __init__(self, error: int, *, unknown: bool) -> None:
        super().__init__(error)
        self.error = error
        self.unknown = unknown


class _Producer:
    """What InitProducerId, or the end of a transaction, gave; `is_second`: it speaks the second version."""

    def __init__(self, name: str, producer_id: int, epoch: int, *, is_second: bool) -> None:
        self.name = name
        self.producer_id = producer_id
        self.epoch = epoch
        self.is_second = is_second
        self.sequences: dict[int, int] = {}

    @property
    def fields(self) -> dict[str, Any]:
        """What names it in each request of a transaction."""
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    @property
    def end_version(self) -> int:
        return 5 if self.is_second else 3

    def after(self, told: m.EndTxnResponse) -> "_Producer":
        """What it is when a transaction has ended."""
        if not self.is_second:
            return self
        return _Producer(self.name, told.producer_id, told.producer_epoch, is_second=True)


class Transactor:
    """See the module's text."""

    def __init__(
        self, workload: "KafkaWorkload", book: Book, process: "Process", client: KafkaClient, number: int
    ) -> None:
        self._workload = workload
        self._book = book
        self._process = process
        self._client = client
        self._number = number
        self.numbers = [number]  # of those whose place it took, and its own
        self._draw = client.random
        self._count = 0
        self._producer: _Producer | None = None
        self.names = [f"tx-{number}"]
        self._group = f"{GROUP}{number}"
        self._places: dict[tuple[int, str], Address] = {}

    def inherit(self, before: "Transactor") -> None:
        """Take the place of one that was killed: with its ids, the first of which is used next, and what it left open."""
        self.names = list(before.names)
        self.numbers = [*before.numbers, self._number]

    # -- what it does ---------------------------------------------------------------------------------------------

    async def one(self) -> None:
        """One transaction, whatever comes of it."""
        try:
            await self._one()
        except _FailedError:
            self._producer = None  # the next one begins with InitProducerId, which ends what is open

    async def _one(self) -> None:
        if self._producer is None or self._draw.random() < 0.1:
            self._producer = await self._begun(self.names[0], self._draw.choice(TIMEOUT_MS))
        producer, draw = self._producer, self._draw
        asked = self._new(producer.name)
        await self._write(producer, asked)
        if draw.random() < 0.1:
            await self._zombie(producer, asked)
        elif draw.random() < 0.1:
            self._abandon(asked)
        elif draw.random() < 0.2:
            await self._ask_once(producer, asked)
        else:
            await self._end(producer, asked, commit=draw.random() < 0.7)

    def _new(self, name: str) -> Asked:
        self._count += 1
        asked = Asked(f"{self._number}:{self._count}", name)
        self._book.asked[asked.text] = asked
        return asked

    async def _write(self, producer: _Producer, asked: Asked) -> None:
        partitions = sorted(self._workload.shard_ids)
        chosen = self._draw.sample(partitions, self._draw.randint(1, len(partitions)))
        if not producer.is_second:
            await self._add(producer, chosen)
        for serial in range(self._draw.randint(1, 3)):
            for partition in chosen:
                await self._send(producer, asked, partition, f"{asked.text}:{partition}:{serial}")
        if self._draw.random() < 0.5:
            await self._offset(producer, asked)

    async def _ask_once(self, producer: _Producer, asked: Asked) -> None:
        """Ask for the commit once, and vanish if no answer says that it stands."""
        request = m.EndTxnRequest(**producer.fields, committed=True)
        with contextlib.suppress(NoAnswerError):
            told = await self._asked(END, producer.end_version, producer.name, request)
            if not told.error_code:
                self._producer = producer.after(told)
                asked.outcome = "committed"
                return
        self._vanish()

    def _abandon(self, asked: Asked) -> None:
        """Nobody comes back for it: it has to end by its time-out."""
        asked.outcome = "not"
        self._vanish()

    def _vanish(self) -> None:
        """Its id is used no more."""
        self._producer = None
        self.names.insert(0, f"tx-{self._number}-{self._count}")

    async def _zombie(self, old: _Producer, asked: Asked) -> None:
        """Somebody else gets the id, and the producer of before goes on, which it must not."""
        raises = self._draw.random() < 0.3
        self._producer = newer = await self._begun(
            old.name, LONG_MS if raises else self._draw.choice(TIMEOUT_MS)
        )
        self._book.outcomes["zombies"] += 1
        asked.outcome, asked.broken = "not", "zombie"
        if raises:
            await self._raise(old, newer)
            return
        late = self._new(old.name)
        late.outcome, late.broken = "not", "zombie"
        with contextlib.suppress(_FailedError):
            if self._draw.random() < 0.5:
                await self._send(old, late, min(asked.acknowledged), f"{late.text}:late")
            request = m.EndTxnRequest(**old.fields, committed=True)
            await self._step(END, old.name, request, version=old.end_version)

    async def _raise(self, old: _Producer, newer: _Producer) -> None:
        """The fenced one asks for its next epoch, as some clients do (KIP-360), in the middle of the newer's transaction."""
        asked, ends_s = self._new(newer.name), self._workload.now + SURELY_S
        await self._write(newer, asked)
        request = cm.InitProducerIdRequest(**old.fields, transaction_timeout_ms=TIMEOUT_MS[0])
        with contextlib.suppress(NoAnswerError):
            await self._asked(INIT, 4, old.name, request)
        try:
            await self._end(newer, asked, commit=True)
        except _FailedError as failed:
            is_ours = failed.error not in FENCED or self._workload.now > ends_s
            require(is_ours, "zombie", f"{old.name}: who was fenced has fenced its successor: {failed.error}")
            raise

    async def _end(self, producer: _Producer, asked: Asked, *, commit: bool) -> None:
        request = m.EndTxnRequest(**producer.fields, committed=commit)
        try:
            told = await self._step(END, producer.name, request, version=producer.end_version)
        except _FailedError as failed:
            if not commit or not failed.unknown:
                asked.outcome = "not"
            raise
        asked.outcome = "committed" if commit else "not"
        self._book.outcomes["transactions_committed" if commit else "transactions_aborted"] += 1
        self._producer = producer.after(told)
        if producer.is_second and asked.acknowledged and self._draw.random() < 0.2:
            await self._late(producer, min(asked.acknowledged))

    async def _late(self, ended: _Producer, partition: int) -> None:
        """A batch of the transaction that has ended comes late: it must be no part of the next one.

        As long as the partition has not heard of the end, the batch is a part of its own transaction, as it should be.
        """
        if not await self._is_at_rest(ended.name):
            return
        late = self._new(ended.name)
        late.outcome, late.broken = "not", "zombie"
        with contextlib.suppress(_FailedError):
            await self._send(ended, late, partition, f"{late.text}:late")

    async def rest(self) -> None:
        """Wait until all that was begun here is over."""
        deadline_s = self._workload.now + REST_S
        for name in self.names:
            while not await self._is_at_rest(name):
                shard_id = min(self._workload.shard_ids.values())
                require(
                    self._workload.now < deadline_s,
                    "transaction-open",
                    f"a transaction of {name} was under way {REST_S} s after the last request",
                    shard_id,
                )
                await asyncio.sleep(0.3)
        for asked in self._book.asked.values():
            if int(asked.text.partition(":")[0]) in self.numbers:
                asked.at_rest = True

    async def _is_at_rest(self, name: str) -> bool:
        try:
            told = await self._asked(
                DESCRIBE, 0, name, m.DescribeTransactionsRequest(transactional_ids=[name])
            )
        except NoAnswerError:
            self._places.pop((TRANSACTION_KEY, name), None)
            return False
        one = told.transaction_states[0]
        if one.error_code:
            self._places.pop((TRANSACTION_KEY, name), None)
        if one.error_code == code.TRANSACTIONAL_ID_NOT_FOUND:
            return True
        return not one.error_code and one.transaction_state in {"Empty", "CompleteCommit", "CompleteAbort"}

    # -- steps ----------------------------------------------------------------------------------------------------

    async def _begun(self, name: str, timeout_ms: int) -> _Producer:
        request = cm.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
        told = await self._step(INIT, name, request, version=4, tries=200)
        return _Producer(name, told.producer_id, told.producer_epoch, is_second=self._draw.random() < 0.5)

    async def _add(self, producer: _Producer, partitions: list[int]) -> None:
        topics = [PartitionsOfTopic(name=self._workload.topic, partitions=partitions)]
        request = m.AddPartitionsToTxnRequest(**producer.fields, topics=topics)
        await self._step(ADD, producer.name, request)

    async def _offset(self, producer: _Producer, asked: Asked) -> None:
        if not producer.is_second:
            request = m.AddOffsetsToTxnRequest(**producer.fields, group_id=self._group)
            await self._step(ADD_OFFSETS, producer.name, request)
        partition = m.TxnOffsetCommitPartition(
            partition_index=0, committed_offset=self._count, committed_metadata=asked.text
        )
        topics = [m.TxnOffsetCommitTopic(name=self._workload.topic, partitions=[partition])]
        commit = m.TxnOffsetCommitRequest(**producer.fields, group_id=self._group, topics=topics)
        version = 5 if producer.is_second else 3
        await self._step(OFFSETS, self._group, commit, version=version, key_type=GROUP_KEY)
        asked.offset = self._count
        await self._look_at_offset(asked)

    async def _look_at_offset(self, asked: Asked) -> None:
        """Nobody may hear of the offset yet."""
        wanted = [PartitionsOfTopic(name=self._workload.topic, partitions=[0])]
        request = gm.OffsetFetchRequest(
            groups=[gm.FetchOffsetsGroup(group_id=self._group, topics=wanted)],
            require_stable=self._draw.random() < 0.5,
        )
        with contextlib.suppress(NoAnswerError):
            told = await self._asked(OFFSET_FETCH, 8, self._group, request, GROUP_KEY)
            for found in (one for topic in told.groups[0].topics for one in topic.partitions):
                require(
                    found.metadata != asked.text,
                    "transaction-early",
                    f"the offset of {asked.text} was told before its transaction ended",
                    min(self._workload.shard_ids.values()),
                )

    async def _send(self, producer: _Producer, asked: Asked, partition: int, value: str) -> None:
        """Produce one record, again as long as it may be tried again."""
        asked.sent.add(value)
        at = producer.sequences.get(partition, 0)
        data = build_batch(
            [(None, value.encode(), (), system.wall_ms())],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=at,
        )
        data[22] |= TRANSACTIONAL_BIT
        seal(data)
        topic = self._workload.topic
        request = km.produce_one(topic, bytes(data), partition, transactional_id=producer.name)

        async def ask() -> Any:
            address, _epoch = await self._client.leader(topic, partition)
            return await self._client.ask(address, PRODUCE, 12 if producer.is_second else 9, request)

        await self._until_sure(ask, lambda: self._client.forget(topic, partition), TRIES)
        producer.sequences[partition] = at + 1
        asked.acknowledged.setdefault(partition, []).append(value)

    async def _step(
        self,
        key: int,
        name: str,
        request: Message,
        *,
        version: int = 3,
        key_type: int = TRANSACTION_KEY,
        tries: int = TRIES,
    ) -> Any:
        """The coordinator's answer without an error; raises _FailedError."""
        return await self._until_sure(
            lambda: self._asked(key, version, name, request, key_type),
            lambda: self._places.pop((key_type, name), None),
            tries,
        )

    async def _until_sure(
        self, ask: Callable[[], Awaitable[Any]], look_anew: Callable[[], object], tries: int
    ) -> Any:
        """The answer without an error; raises _FailedError. Asks again as long as it is told to, or hears nothing."""
        unknown = False
        for _ in range(tries):
            try:
                told = await ask()
                error = _error_of(told)
            except NoAnswerError:
                unknown, error = True, code.REQUEST_TIMED_OUT
            if not error:
                return told
            if error not in AGAIN:
                raise _FailedError(error, unknown=unknown)
            if error in {code.REQUEST_TIMED_OUT, code.COORDINATOR_NOT_AVAILABLE}:
                unknown = True
            look_anew()
            await self._client.back_off()
        raise _FailedError(code.REQUEST_TIMED_OUT, unknown=True)

    async def _asked(
        self, key: int, version: int, name: str, request: Message, key_type: int = TRANSACTION_KEY
    ) -> Any:
        """One try at the coordinator; raises NoAnswerError."""
        address = self._places.get((key_type, name))
        if address is None:
            find = cm.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[name])
            found = (await self._client.ask(self._client.any_node(), FIND, 4, find, 6.0)).coordinators[0]
            if found.error_code:
                raise NoAnswerError("nobody coordinates it now")
            address = self._places[key_type, name] = (found.host, found.port)
        return await self._client.ask(address, key, version, request)

    # -- reading --------------------------------------------------------------------------------------------------

    async def read_committed(self, partition: int) -> list[str]:
        """All committed records of a partition, as a consumer finds them."""
        found: list[str] = []
        aborted: list[km.AbortedTransaction] = []
        offset = 0
        while offset < self._workload.end_of(partition):
            told = await self._fetched(partition, offset)
            if told is None:
                await self._client.back_off()
                continue
            aborted.extend(one for one in told.aborted or [] if one not in aborted)
            start = offset
            for header, data in iter_batches(told.records or b""):
                if header.base_offset < offset:
                    continue
                offset = header.next_offset
                if header.is_control:
                    gone = [one for one in aborted if one.producer_id == header.producer_id]
                    aborted = [
                        one for one in aborted if one not in gone or one.first_offset > header.base_offset
                    ]
                    continue
                dropped = any(
                    one.producer_id == header.producer_id and one.first_offset <= header.base_offset
                    for one in aborted
                )
                if not dropped:
                    found.extend(bytes(record.value or b"").decode() for record in decode_records(data))
            if offset == start:
                await self._client.back_off()
        return found

    async def _fetched(self, partition: int, offset: int) -> km.FetchedPartition | None:
        topic = self._workload.topic
        address, _ = await self._client.leader(topic, partition)
        request = km.fetch_one(
            topic, partition, offset, 1 << 16, total_bytes=1 << 16, wait_ms=200, isolation=1
        )
        with contextlib.suppress(NoAnswerError):
            told = (await self._client.ask(address, FETCH, 11, request)).topics[0].partitions[0]
            if not told.error_code:
                return told  # type: ignore[no-any-return]
        self._client.forget(topic, partition)
        return None


def _error_of(told: Any) -> int:
    """The error of an answer; the first one where there are many."""
    if isinstance(told, m.AddPartitionsToTxnResponse):
        errors = [one.error_code for topic in told.results_by_topic for one in topic.partitions]
    elif isinstance(told, m.TxnOffsetCommitResponse | km.ProduceResponse):
        errors = [one.error_code for topic in told.topics for one in topic.partitions]
    else:
        errors = [told.error_code]
    return next((error for error in errors if error), code.NONE)
