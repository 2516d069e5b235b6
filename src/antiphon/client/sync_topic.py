"""Topics for programs that block: the face of `AsyncTopic`."""

from collections.abc import Iterable
from typing import Any, Generic, overload

from antiphon.client.loop_thread import LoopThread, Stream
from antiphon.client.on_unreadable import OnCorrupt
from antiphon.client.sync_arrow import TopicArrowCalls
from antiphon.client.topic import AsyncTopic, Message, TypedPair, Value
from antiphon.client.topic_reads import Where
from antiphon.client.topic_writer import Position
from antiphon.records.decode import Record
from antiphon.records.unreadable import FAIL
from antiphon.records.value_type import ValueT


class Topic(TopicArrowCalls, Generic[ValueT]):
    """A plain log, cut into shards; `client.topic(name)` makes one. See `AsyncTopic` for the details of each call."""

    def __init__(self, thread: LoopThread, topic: AsyncTopic[ValueT]) -> None:
        self._thread = thread
        self._topic = topic
        self.name = topic.name

    def __repr__(self) -> str:
        return self._topic.described("antiphon.Topic")

    def _repr_html_(self) -> str:
        return self._topic._repr_html_()

    @property
    def aio(self) -> AsyncTopic[ValueT]:
        """The asynchronous handle underneath."""
        return self._topic

    @property
    def shards(self) -> int:
        """Number of shards."""
        return self._topic.shards

    @overload
    def append(
        self: "Topic[bytes]",
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
    def append(
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

    def append(
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
        """Append one record; returns when it is durable and committed. See `AsyncTopic.append`.

        Raises OffsetMismatchError (expected, actual), UnknownTopicError, UnknownShardError, BatchTooLargeError,
        InvalidRequestError, TimedOutError (see `retry`).
        """
        return self._thread.call(
            self._topic.append(
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                shard=shard,
                expected_offset=expected_offset,
                timeout_s=timeout_s,
            )
        )

    @overload
    def append_batch(
        self: "Topic[bytes]",
        messages: Iterable[Message],
        *,
        shard: int | None = None,
        expected_offset: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Position]: ...

    @overload
    def append_batch(
        self,
        messages: Iterable[ValueT | TypedPair[ValueT] | None],
        *,
        shard: int | None = None,
        expected_offset: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Position]: ...

    def append_batch(
        self,
        messages: Any,
        *,
        shard: int | None = None,
        expected_offset: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Position]:
        """Append several records, as one durable batch per shard. See `AsyncTopic.append_batch`."""
        return self._thread.call(
            self._topic.append_batch(
                list(messages),
                shard=shard,
                expected_offset=expected_offset,
                timestamp_ms=timestamp_ms,
                timeout_s=timeout_s,
            )
        )

    def retry(self, error: BaseException, *, timeout_s: float | None = None) -> list[Position]:
        """Try an append again whose outcome is not known, without writing it twice. See `AsyncTopic.retry`."""
        return self._thread.call(self._topic.retry(error, timeout_s=timeout_s))

    def read(
        self,
        shard: int | None = None,
        start: Where = None,
        end: Where = None,
        *,
        isolation: str = "",
        follow: bool = False,
        on_corrupt: OnCorrupt = FAIL,
        timeout_s: float | None = None,
    ) -> Stream[Record[ValueT]]:
        """Records of all shards, or of one, in the order of each; `record.shard` says which. See `AsyncTopic.read`.

        With `follow` it waits for more until it is left, closed (also from another thread) or interrupted. It is a context
        manager too: `with topic.read(follow=True) as records`.

        A function for `on_corrupt` is called in the client's own thread, and must not call the client;
        `antiphon.dead_letters(topic)` needs none.
        """
        chunks = self._topic.read_chunks(
            shard, start, end, isolation=isolation, follow=follow, on_corrupt=on_corrupt, timeout_s=timeout_s
        )
        return self._thread.iterate(chunks)

    @property
    def unreadable_batches(self) -> int:
        """Batches that reads of this handle have passed over (`on_corrupt`)."""
        return self._topic.unreadable_batches

    def offsets(self, shard: int = 0) -> tuple[int, int]:
        """(first offset that is still there, end of what is committed) of a shard; the end is exclusive."""
        return self._thread.call(self._topic.offsets(shard))

    def offset_at(self, timestamp_ms: int, shard: int = 0) -> int:
        """First offset whose timestamp is at least `timestamp_ms`; the end where none is that late."""
        return self._thread.call(self._topic.offset_at(timestamp_ms, shard))
