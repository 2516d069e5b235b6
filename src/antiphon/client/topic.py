"""A topic, asynchronously: append and read."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, Generic, NamedTuple, overload

from antiphon.client.append_again import Attempt, Part, Unsettled, attempt_of, carrying
from antiphon.client.arrow_calls import BATCH_BYTES_MAX, TopicArrow
from antiphon.client.cluster import Cluster
from antiphon.client.given import check_whole
from antiphon.client.hashing import as_bytes
from antiphon.client.on_unreadable import OnCorrupt, RecordPieces
from antiphon.client.pipeline import Item
from antiphon.client.topic_reads import Wanted, Where
from antiphon.client.topic_writer import Append, Position, RecordInput, TopicWriter, now_ms
from antiphon.client.values import Values
from antiphon.errors import InvalidRequestError, TimedOutError, WrongKindError
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.topic_keys import shard_of_topic_key
from antiphon.records.decode import Record
from antiphon.records.unreadable import FAIL
from antiphon.records.value_type import ValueT

RECORD_OVERHEAD_BYTES: Final = 24

Value = bytes | str | None
Message = Value | tuple[Value, Value] | tuple[Value, Value, Iterable[tuple[str, bytes | None]]]
"""A record to append: a value, (key, value) or (key, value, headers)."""
TypedPair = tuple[Value, ValueT | None] | tuple[Value, ValueT | None, Iterable[tuple[str, bytes | None]]]
"""The last two for a topic with a codec. A value that is a tuple itself stands in one: (None, value)."""


class Placed(NamedTuple):
    """A record, its size, its shard in the topic and in the cluster, and how large a batch may be there, about."""

    record: RecordInput
    size_bytes: int
    shard: int
    shard_id: int
    batch_bytes_max: int


def record_bytes(record: RecordInput) -> int:
    """How large a record is in a batch, about."""
    key, value, headers, _ = record
    size_bytes = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    return size_bytes + sum(len(name) + (len(data) if data else 0) + 4 for name, data in headers)


class AsyncTopic(TopicArrow, Generic[ValueT]):
    """A plain log, cut into shards. `await client.topic(name)` checks that it exists.

    `AsyncTopic` has values of bytes. A topic with a codec, `client.topic(name, type=Order)`, is an `AsyncTopic[Order]`:
    appends take an Order, and records have one. BadRecordError says shard, offset, key and type where a value cannot be
    decoded. None stands for a record without a value.
    """

    kind: Kind | None = Kind.TOPIC

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        timeout_s: float,
        writers: dict[int, TopicWriter],
        *,
        any_kind: bool = False,
        compression: str = "none",
        values: Values[ValueT] | None = None,
    ) -> None:
        """`writers` are the client's, by shard id: all its handles of a topic share them, as they share a producer id.

        `values` of None: values are bytes.
        """
        super().__init__(cluster, name, timeout_s)
        if any_kind:
            self.kind = None
        self._compression = compression
        self.values = values
        self._writers = writers
        self._next_shard = 0

    def _writer(self, meta: TopicMeta, index: int) -> TopicWriter:
        shard_id = self._shard_id(meta, index)
        writer = self._writers.get(shard_id)
        if writer is None:
            limit = int(meta.config.get("max.message.bytes", str(BATCH_BYTES_MAX)))
            writer = self._writers[shard_id] = TopicWriter(self._cluster, shard_id, limit // 2)
        return writer

    # -- appending ----------------------------------------------------------------------------------------------

    @overload
    async def append(
        self: "AsyncTopic[bytes]",
        value: Value,
        *,
        key: Value = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        shard: int | None = None,
        expected_offset: int | None = None,
        timeout_s: float | None = None,
    ) -> Position: ...

    @overload
    async def append(
        self,
        value: ValueT | None,
        *,
        key: Value = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        shard: int | None = None,
        expected_offset: int | None = None,
        timeout_s: float | None = None,
    ) -> Position: ...

    async def append(
        self,
        value: Any,
        *,
        key: Value = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        shard: int | None = None,
        expected_offset: int | None = None,
        timeout_s: float | None = None,
    ) -> Position:
        """Append one record; returns when it is durable and committed.

        Without `shard` the key decides, as in Kafka's clients; records without a key are spread. With `expected_offset`
        (and `shard`) the record is written at exactly that offset or not at all. The node recognises repeats after lost
        connections or fail-overs: a record is never appended twice.

        Raises OffsetMismatchError (expected, actual), UnknownTopicError, UnknownShardError, BatchTooLargeError,
        InvalidRequestError, and TimedOutError after `timeout_s`. Where its `outcome_unknown` is true, `retry` tries the same
        append again without writing it twice; another `append` could.
        """
        record = self._record(key, value, headers, timestamp_ms)
        deadline = self._deadline(timeout_s)
        meta = self._known() or await self._resolved()
        index = self._shard_for(meta, record[0], shard)
        if expected_offset is not None:
            _check_expected(expected_offset, shard)
        append = Append([record], expected_offset, expected_offset is not None, self._compression)
        try:
            offset, term = await self._add(index, append, deadline)
        except TimedOutError as error:
            if error.outcome_unknown:
                error.attempt = Attempt.of_one(self.name, index, append, error)
            raise
        return Position(index, offset, term)

    @overload
    async def append_batch(
        self: "AsyncTopic[bytes]",
        messages: Iterable[Message],
        *,
        shard: int | None = None,
        expected_offset: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Position]: ...

    @overload
    async def append_batch(
        self,
        messages: Iterable[ValueT | TypedPair[ValueT] | None],
        *,
        shard: int | None = None,
        expected_offset: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Position]: ...

    async def append_batch(
        self,
        messages: Any,
        *,
        shard: int | None = None,
        expected_offset: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Position]:
        """Append several records, as one durable batch per shard; returns their positions in order.

        A message is a value, `(key, value)` or `(key, value, headers)`. Without `shard`, keys decide; records without a
        key go to one shard together. A batch is completely in the log or not at all. Batches of different shards may
        fail independently; the first error is then raised. See `append` for the rest.
        """
        now = now_ms() if timestamp_ms is None else timestamp_ms
        records = [self._message(message, now) for message in messages]
        deadline = self._deadline(timeout_s)
        meta = self._known() or await self._resolved()
        if expected_offset is not None:
            _check_expected(expected_offset, shard)
        spread = self._shard_for(meta, None, shard)
        groups: dict[int, list[int]] = {}
        for at, record in enumerate(records):
            index = spread if record[0] is None else self._shard_for(meta, record[0], shard)
            groups.setdefault(index, []).append(at)
        parts = [
            Part(
                index,
                Append([records[at] for at in places], expected_offset, True, self._compression),
                places,
            )
            for index, places in groups.items()
        ]
        return await Attempt(self.name, parts).run(self._add, deadline)

    def _record(
        self, key: Value, value: Any, headers: Iterable[tuple[str, bytes | None]], timestamp_ms: int | None
    ) -> RecordInput:
        name = None if key is None else as_bytes(key, "key")
        if timestamp_ms is not None:
            check_whole(timestamp_ms=timestamp_ms)
        if value is not None:
            value = as_bytes(value, "value") if self.values is None else self.values.encode(name, value)
        return name, value, tuple(headers), now_ms() if timestamp_ms is None else timestamp_ms

    def _message(self, message: Any, timestamp_ms: int) -> RecordInput:
        if not isinstance(message, tuple):
            return self._record(None, message, (), timestamp_ms)
        if len(message) == 3:
            return self._record(message[0], message[1], message[2], timestamp_ms)
        if len(message) != 2:
            raise InvalidRequestError("a message is a value, (key, value) or (key, value, headers)")
        return self._record(message[0], message[1], (), timestamp_ms)

    async def retry(self, error: BaseException, *, timeout_s: float | None = None) -> list[Position]:
        """Try an append again whose outcome is not known: `error` is the TimedOutError of an `append` or `append_batch` of
        this client to this topic. Returns the positions of its records, which are in the log once.

        Each shard recognises the batch by its producer id and sequence, as it does for the client's own repeats: as long as
        it remembers that producer, and this client is open. Records may come behind some that were appended later. Raises
        what `append` raises; a TimedOutError can be tried again as before. InvalidRequestError for any other error.
        """
        attempt = attempt_of(error, self.name)
        await self._resolved()
        return await attempt.run(self._add, self._deadline(timeout_s))

    async def _add(self, index: int, append: Append, deadline: float) -> tuple[int, int]:
        meta = self._known() or await self._resolved()
        if meta.kind is Kind.TABLE:
            raise WrongKindError(f"{self.name!r} is a table: its log is written by puts and deletes only")
        writer = self._writer(meta, index)
        size_bytes = sum(map(record_bytes, append.records))
        item = Item(append, size_bytes, deadline, self._loop.create_future())
        try:
            await writer.enter(item)
            place: tuple[int, int] = await item.future
        except TimedOutError as error:
            raise carrying(error, Unsettled(writer, item)) from error.__cause__
        return place

    async def placed(
        self,
        value: Value,
        key: Value,
        headers: Iterable[tuple[str, bytes | None]],
        timestamp_ms: int | None,
        shard: int | None,
    ) -> "Placed":
        """A record with where it belongs, for writers with batches of their own. Raises what `append` raises of that."""
        record = self._record(key, value, headers, timestamp_ms)
        meta = self._known() or await self._resolved()
        if meta.kind is Kind.TABLE:
            raise WrongKindError(f"{self.name!r} is a table: its log is written by puts and deletes only")
        index = self._shard_for(meta, record[0], shard)
        limit_bytes = int(meta.config.get("max.message.bytes", str(BATCH_BYTES_MAX))) // 2
        return Placed(record, record_bytes(record), index, self._shard_id(meta, index), limit_bytes)

    def _shard_for(self, meta: TopicMeta, key: bytes | None, shard: int | None) -> int:
        if shard is not None:
            self._shard_id(meta, shard)
            return shard
        if key is not None:
            return shard_of_topic_key(key, len(meta.shards))
        self._next_shard += 1
        return self._next_shard % len(meta.shards)

    # -- reading ------------------------------------------------------------------------------------------------

    async def read(
        self,
        shard: int | None = None,
        start: Where = None,
        end: Where = None,
        *,
        isolation: str = "",
        follow: bool = False,
        on_corrupt: OnCorrupt = FAIL,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Record[ValueT], None]:
        """Records of all shards, or of one; each says its shard (`record.shard`).

        Records of a shard come in its order. Shards take turns, each as it has something: the order between them is not
        specified. By default a read begins with the first record that is there, and stops at the end of what is committed
        (with isolation "uncommitted" of what is written) at the time of the call.

        `start` and `end` (exclusive) are offsets, so a number needs `shard`, or a topic with one shard. For several it is a
        mapping from shard to offset; shards that it leaves out are read from their first record, or to their end. A `start`
        of -1 (from now on) or -2 (from the first that is there) is taken for all. A read whose `end` is not there yet waits
        for it, and raises TimedOutError when nothing came for `timeout_s`, which also bounds each request.

        With `follow` it waits for more, for ever (or up to `end`). Without `shard` it follows shards that are added to the
        topic as well, from their first records, within some seconds.

        Without an isolation the topic's default holds: committed, but for topics with `isolation=uncommitted` and those of
        the `fluvio` profile. What is read uncommitted may vanish in a fail-over. `committed` means transactions, too: the
        read ends before those that are under way, and leaves out what was aborted; `read_uncommitted` has all of it.

        Records that were archived come from the archive, and are the first that are there; that needs the libraries of
        `antiphon[archive]`, and access to the files (fsspec's options: ANTIPHON_ARCHIVE_OPTIONS, a JSON object).

        A batch that cannot be read (`on_corrupt`): `fail` raises CorruptBatchError that names topic, shard and offset;
        `skip` goes on behind the batch; `antiphon.dead_letters("bad")` appends it to the topic `bad` first; a function is
        called with the batch (`antiphon.UnreadableBatch`), awaited if it returns something to await, and then the read goes
        on: what it raises ends the read before the batch. A read calls it once a batch. `unreadable_batches` counts those
        that were passed over.

        Raises OffsetOutOfRangeError when a `start` that was given is neither in the log nor in the archive (any more),
        ArchiveError for a file that is missing or damaged, UnknownTopicError, UnknownShardError.
        """
        chunks = self.read_chunks(
            shard, start, end, isolation=isolation, follow=follow, on_corrupt=on_corrupt, timeout_s=timeout_s
        )
        async with aclosing(chunks):  # what is fetched ahead ends when the reader does
            async for records in chunks:
                for record in records:
                    yield record

    async def read_chunks(
        self,
        shard: int | None = None,
        start: Where = None,
        end: Where = None,
        *,
        isolation: str = "",
        follow: bool = False,
        on_corrupt: OnCorrupt = FAIL,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Sequence[Record[ValueT]], None]:
        """The same as `read`, as lists of records as they come from the node: fewer steps for large reads."""
        wanted = Wanted(shard, start, end, isolation, follow)
        chunks = self._pieces(RecordPieces, wanted, on_corrupt, timeout_s)
        values = self.values
        async with aclosing(chunks):
            async for records in chunks:
                if values is None:
                    plain: Any = records
                    yield plain
                    continue
                found, bad = values.records(records)
                if found:
                    yield found
                if bad is not None:
                    raise bad


def _check_expected(expected_offset: int, shard: int | None) -> None:
    check_whole(expected_offset=expected_offset)
    if shard is None:
        raise InvalidRequestError("expected_offset needs shard: offsets belong to a shard")
    if expected_offset < 0:
        raise InvalidRequestError(f"expected_offset is an offset, not {expected_offset}")
