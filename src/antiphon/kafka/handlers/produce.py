"""Produce: check each batch's outside, append it, answer when everything is committed.

Batches of one connection are handed to the gateway in the order in which they came, each as its own append, before the
next request is looked at; so pipelined requests of one producer keep their order. There is no task per request: an
answer is put together by the callback of its last append.

The base offset of a produced batch carries the condition of a conditional append (KIP-27): 0, which every client sends, is
no condition; `~expected` (that is -1 - expected) asks for exactly that offset. Kafka itself refuses anything but 0.
"""

import asyncio
import functools
from collections.abc import Awaitable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from antiphon import tracing
from antiphon.coordination.transactions import Producer
from antiphon.errors import AntiphonError, InvalidRecordError, NotLeaderError
from antiphon.gateway.interface import Gateway
from antiphon.gateway.quotas import Quotas, Use, payer_of
from antiphon.kafka import error_codes as code
from antiphon.kafka.connection import Answer
from antiphon.kafka.framing import RequestHeader
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.handlers.rights import may
from antiphon.kafka.handlers.transactions import may_transact
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.produce_codec import (
    NodeEndpoint,
    PartitionBatch,
    PartitionProduced,
    ProduceRequest,
    encode_produce,
)
from antiphon.kafka.traces import submit_traced
from antiphon.kafka.transaction_codes import produce_code_of
from antiphon.model.access import Operation
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.records.batch import HEADER_BYTES, MAGIC, Buffer, read_header
from antiphon.transactions.asking import Numbered, TransactionAsker

if TYPE_CHECKING:
    from antiphon.gateway.answers import Done
    from antiphon.model.results import AppendResult

ALL_REPLICAS: Final = -1
NO_ANSWER: Final = 0
MIN_SERVED: Final = 3  # older versions are advertised, and refused
FIRST_ZSTD: Final = 7  # Produce version from which clients that cannot read zstd are out of the game
FIRST_JOINING: Final = (
    12  # Produce version from which a batch has its partition take part in its transaction (KIP-890)
)
ZSTD: Final = 4
OWN_PRODUCER_IDS: Final = 1 << 61  # ids from here on are for the native client's tables and jobs
TIMEOUT_S_MAX: Final = 300.0
PIECE: Final = 64  # batches and topics that are begun in one turn of the event loop
PIECE_BYTES: Final = 1024 * 1024  # of batches, about, in one turn
ENCODED_INLINE: Final = 256  # outcomes; the answer with more is encoded in a thread
OPEN_MAX: Final = 512  # batches of one request that may wait for their commit before more are begun
TIMEOUT_S_MIN: Final = 0.1

Outcomes = list[tuple[str, list[PartitionProduced]]]


class ProduceHandler:
    """Carries out Produce requests."""

    def __init__(
        self, gateway: Gateway, cache: MetadataCache, quotas: Quotas, asker: TransactionAsker
    ) -> None:
        self._gateway = gateway
        self._cache = cache
        self._quotas = quotas
        self._asker = asker

    def start(self, header: RequestHeader, request: ProduceRequest, answer: Answer) -> Awaitable[None] | None:
        """Begin every append of the request; `answer` is sent when the last one is committed or refused.

        Many batches, or many bytes, are begun in several turns of the event loop. The connection's next requests wait until
        all are begun, so that no batch overtakes another one of its producer.
        """
        if self._quotas.all:
            payer = payer_of(answer.connection.session.rights.principal, header.client_id)
            self._quotas.charge(Use.PRODUCE, payer, answer.request_bytes, answer)
        work = _Work(self, header, request.acks, answer)
        steps = self._steps(header, request, answer, work)
        count = len(request.topics) + sum(len(batches) for _, batches in request.topics)
        if count > PIECE or answer.request_bytes > PIECE_BYTES:
            answer.connection.hold(answer)
            return self._in_pieces(steps, work, answer)
        for _ in steps:
            pass
        work.all_begun()
        return None

    async def _in_pieces(self, steps: Iterator[int], work: "_Work", answer: Answer) -> None:
        """Begin some batches in each turn of this connection, and no more before earlier ones are done."""
        try:
            count = size_bytes = 0
            for step_bytes in steps:
                count, size_bytes = count + 1, size_bytes + step_bytes
                if count >= PIECE or size_bytes >= PIECE_BYTES:
                    count = size_bytes = 0
                    await work.until_waiting(OPEN_MAX)
                    await answer.next_turn()
        finally:
            answer.connection.go_on(answer)
        await work.until_waiting(1)
        encode, *facts = work.encoding()
        if work.outcomes_count <= ENCODED_INLINE:
            work.send(encode(*facts))
        else:
            work.send(await asyncio.get_running_loop().run_in_executor(None, encode, *facts))

    def _steps(
        self, header: RequestHeader, request: ProduceRequest, answer: Answer, work: "_Work"
    ) -> Iterator[int]:
        """Begin one batch after the other; gives the bytes of each."""
        problem = _refuse_request(header, request, answer)
        for name, batches in request.topics:
            work.begin_topic(name)
            refusal = problem or self._denied(name, answer)
            yield 0
            for batch in batches:
                if refusal is not None:
                    work.outcome(PartitionProduced(batch.partition, *refusal))
                    yield 0
                    continue
                try:
                    self._append(header, request, name, batch, work)
                except AntiphonError as error:
                    work.refused(batch, self.refused(name, batch.partition, error))
                except RefusedError as refused:
                    work.refused(batch, _produced(batch.partition, refused.error_code, refused.reason))
                yield len(batch.records or b"")

    def _denied(self, name: str, answer: Answer) -> tuple[int, int, int, str] | None:
        if may(self._gateway, answer.connection.session.rights, Operation.WRITE, name):
            return None
        return code.TOPIC_AUTHORIZATION_FAILED, -1, -1, f"{name} may not be written to"

    def _append(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        name: str,
        batch: PartitionBatch,
        work: "_Work",
    ) -> None:
        """Begin the append of a batch, whose outcome `work` waits for; raises what is known at once."""
        topic = self._gateway.topic(name)
        shard = self._cache.shard_at(topic, batch.partition)
        if shard is None:
            raise RefusedError(code.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has no partition {batch.partition}")
        _refuse_topic(topic)
        outside = _check_batch(header.version, request, batch.records)
        refused = work.refused_sequences
        if refused:  # hardly ever
            refused.check(name, batch, functools.partial(self._gateway.knows_producer, shard.shard_id))
        timeout_s = min(max(request.timeout_ms / 1000, TIMEOUT_S_MIN), TIMEOUT_S_MAX)
        records = batch.records or b""
        asking = None
        if outside.producer is not None:
            name_of_id = request.transactional_id or ""
            joins = header.version >= FIRST_JOINING
            asking = self._asker.before_append(name_of_id, outside.producer, shard.shard_id, joins=joins)
        if asking is not None:
            work.wait_in_task(batch, self._append_part(asking, shard.shard_id, records, timeout_s))
        else:
            gateway = self._gateway
            submit = (
                gateway.submit_append if tracing.tracer is None else functools.partial(submit_traced, gateway)
            )
            done = work.wait_for(batch)
            try:
                submit(shard.shard_id, records, outside.expected_offset, timeout_s, done)
            except Exception as error:  # noqa: BLE001 - a bug, too, is the trouble of this batch only
                done(error)

    async def _append_part(
        self, asking: "asyncio.Task[Numbered]", shard_id: int, records: Buffer, timeout_s: float
    ) -> "AppendResult":
        """Append a first part of a transaction, once its coordinator has said that it is one."""
        number, refused = await asyncio.shield(asking)
        if refused is not None:
            raise RefusedError(produce_code_of(refused), refused.value)
        return await self._gateway.append(shard_id, records, timeout_s=timeout_s, transaction_number=number)

    def refused(self, topic: str, partition: int, error: BaseException) -> PartitionProduced:
        """The outcome that an error stands for."""
        if isinstance(error, RefusedError):
            return _produced(partition, error.error_code, error.reason)
        if not isinstance(error, AntiphonError):
            structlog.get_logger().error("append failed", topic=topic, partition=partition, exc_info=error)
            return _produced(partition, code.UNKNOWN_SERVER_ERROR, "the node failed; its log says how")
        hint = self._cache.hint(topic, partition) if isinstance(error, NotLeaderError) else None
        done = _produced(partition, code.code_of(error), error.message, hint)
        if isinstance(error, InvalidRecordError) and (places := error.places):
            first, *others = places
            wrong = ((first, str(error.details["reason"])), *((place, None) for place in others))
            done = done._replace(record_errors=wrong)
        return done

    def endpoints(self, outcomes: Outcomes) -> list[NodeEndpoint]:
        """The nodes that hints name."""
        hints = [done.leader for _, parts in outcomes for done in parts if done.leader is not None]
        return self._cache.endpoints_of(hints) if hints else []


class _Work:
    """One request under way: a place for each partition's outcome, filled as appends end.

    Whoever begins it in pieces waits with `until_waiting`; else the last outcome has the answer sent.
    """

    __slots__ = (
        "_acks", "_answer", "_fewer", "_fewer_at", "_handler", "_header", "_outcomes", "_waiting", "refused_sequences"
    )  # fmt: skip

    def __init__(self, handler: ProduceHandler, header: RequestHeader, acks: int, answer: Answer) -> None:
        self._handler = handler
        self._header = header
        self._acks = acks
        self._answer = answer
        self._outcomes: Outcomes = []
        self._waiting = 1  # `all_begun` is waited for, too
        self._fewer: asyncio.Future[None] | None = None
        self._fewer_at = 0
        self.refused_sequences = answer.connection.refused_sequences

    def begin_topic(self, name: str) -> None:
        self._outcomes.append((name, []))

    def outcome(self, done: PartitionProduced) -> None:
        self._outcomes[-1][1].append(done)

    def refused(self, batch: PartitionBatch, done: PartitionProduced) -> None:
        self.refused_sequences.note(self._outcomes[-1][0], batch, done.error_code)
        self.outcome(done)

    def wait_for(self, batch: PartitionBatch) -> "Done":
        """What to call with the batch's AppendResult, or with what went wrong."""
        name, places = self._outcomes[-1]
        at = len(places)
        places.append(PartitionProduced(batch.partition))
        self._waiting += 1

        def done(result: "AppendResult | BaseException") -> None:
            if isinstance(result, BaseException):
                places[at] = refused = self._handler.refused(name, batch.partition, result)
                self.refused_sequences.note(name, batch, refused.error_code)
            else:
                places[at] = PartitionProduced(
                    batch.partition,
                    base_offset=result.base_offset,
                    log_start_offset=result.log_start,
                    append_time_ms=result.append_time_ms,
                )
            self._end_one()

        return done

    def wait_in_task(self, batch: PartitionBatch, append: "Coroutine[Any, Any, AppendResult]") -> None:
        """The same for an append that has to wait for something else first."""
        done = self.wait_for(batch)

        def ended(task: "asyncio.Future[AppendResult]") -> None:
            done(asyncio.CancelledError() if task.cancelled() else task.exception() or task.result())

        asyncio.ensure_future(append).add_done_callback(ended)

    def all_begun(self) -> None:
        self._end_one()

    @property
    def outcomes_count(self) -> int:
        """How many there are, or will be."""
        return sum(len(places) for _, places in self._outcomes)

    async def until_waiting(self, count: int) -> None:
        """Return when so many outcomes are waited for at most, `all_begun` among them."""
        if self._waiting > count:
            self._fewer, self._fewer_at = asyncio.get_running_loop().create_future(), count
            await self._fewer

    def encoding(self) -> tuple[Any, ...]:
        """What makes the response frame, then its arguments."""
        outcomes = self._outcomes if self._acks != NO_ANSWER else []
        endpoints = self._handler.endpoints(outcomes)
        return encode_produce, self._header, outcomes, endpoints, self._answer.throttle_ms

    def _end_one(self) -> None:
        self._waiting -= 1
        if self._fewer is not None and self._waiting <= self._fewer_at and not self._fewer.done():
            self._fewer.set_result(None)
        if not self._waiting:
            encode, *facts = self.encoding()
            self.send(encode(*facts))

    def send(self, response: bytearray) -> None:
        """All outcomes are there: answer, if the client wants that."""
        if self._acks != NO_ANSWER:
            self._answer.send(response)
            return
        self._answer.send()
        if any(done.error_code for _, places in self._outcomes for done in places):
            # The only way to tell a client that wants no answer; it will look for the leader again.
            self._answer.connection.close()


def _produced(
    partition: int, error_code: int, message: str | None, leader: tuple[int, int] | None = None
) -> PartitionProduced:
    return PartitionProduced(partition, error_code, -1, -1, message, leader)


def _refuse_request(
    header: RequestHeader, request: ProduceRequest, answer: Answer
) -> tuple[int, int, int, str] | None:
    """What is wrong with the request as a whole: the rest of a PartitionProduced."""
    if header.version < MIN_SERVED:
        return code.UNSUPPORTED_VERSION, -1, -1, "message formats before RecordBatch v2 are not stored"
    if request.acks not in {-1, 0, 1}:
        return code.INVALID_REQUIRED_ACKS, -1, -1, f"acks={request.acks}; -1 (all), 0 and 1 are served"
    name = request.transactional_id
    if name is not None and not may_transact(answer.connection.session.rights, name):
        reason = f"transactional id {name!r} may not be used"
        return code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1, reason
    return None


def _refuse_topic(topic: TopicMeta) -> None:
    if is_internal(topic):
        raise RefusedError(code.INVALID_TOPIC_EXCEPTION, f"{topic.name} belongs to the cluster")
    if topic.kind is Kind.TABLE:
        raise RefusedError(
            code.POLICY_VIOLATION,
            f"{topic.name} is a table: its log is written by the table's own operations, and can be read here",
        )


class _Outside(NamedTuple):
    """What a batch asks for: an offset, in a conditional append; to be a part of this producer's transaction."""

    expected_offset: int | None = None
    producer: Producer | None = None


def _check_batch(version: int, request: ProduceRequest, records: memoryview | None) -> _Outside:
    """Check what Kafka checks of a batch before its content."""
    if records is None or len(records) < HEADER_BYTES:
        raise RefusedError(code.INVALID_RECORD, "a partition's records must be one whole record batch")
    header = read_header(records)
    if header.magic != MAGIC:
        raise RefusedError(
            code.INVALID_RECORD, f"record batch has magic {header.magic}, only {MAGIC} is stored"
        )
    if HEADER_BYTES <= header.size_bytes < len(records):
        raise RefusedError(code.INVALID_RECORD, "more than one record batch for one partition")
    if header.is_control:
        raise RefusedError(code.INVALID_RECORD, "clients cannot write control batches")
    if header.is_transactional and request.transactional_id is None:
        raise RefusedError(code.INVALID_RECORD, "a part of a transaction without a transactional id")
    if header.codec == ZSTD and version < FIRST_ZSTD:
        raise RefusedError(
            code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce version {FIRST_ZSTD} or newer"
        )
    if header.producer_id >= OWN_PRODUCER_IDS:
        raise RefusedError(
            code.INVALID_RECORD, f"producer id {header.producer_id} was not given out to clients"
        )
    producer = Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
    if header.base_offset == 0:
        return _Outside(producer=producer)
    return _Outside(_expected_offset(header.base_offset, request.acks, producer))


def _expected_offset(base_offset: int, acks: int, producer: Producer | None) -> int:
    """Where a conditional append asks to land."""
    if base_offset > 0:
        raise RefusedError(
            code.INVALID_RECORD,
            f"base offset {base_offset} must be 0, or ~expected (-1 - expected) for a conditional append",
        )
    if acks != ALL_REPLICAS:
        raise RefusedError(code.INVALID_RECORD, "a conditional append needs acks=all")
    if producer is not None:
        raise RefusedError(code.INVALID_RECORD, "a conditional append is no part of a transaction")
    return ~base_offset
