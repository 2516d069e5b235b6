"""Writes to one table shard: operations of many callers in one `TableWrite`.

Requests are carried out in their order. Each one names the previous request that has no answer yet, and the shard
refuses a request until it has handled that previous one (`antiphon.partition.write_order`). So if one is refused, those
after it are too.

A table producer's sequences only have to rise. Suppose that all operations of a request were refused, so that it left
nothing in the log, that this answer was lost, and that a later request is in the log. Then the request can simply be
sent under a new sequence: the node's answer "out of order" says that it is not in the log, and makes sure that it never
will be.

`antiphon.client.handover` describes what happens if the shard is split meanwhile.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from antiphon.client.cluster import Cluster
from antiphon.client.pipeline import Item, Request, ShardPipeline
from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InvalidRequestError,
    KeyNotFoundError,
    OutOfOrderSequenceError,
    ProtocolViolationError,
    SessionNotFoundError,
    VersionMismatchError,
    WrongShardError,
)
from antiphon.model.requests import Check, Delete, OpResult, OpStatus, Put, TableOp, TableWrite, TableWritten
from antiphon.model.sessions import PutEphemeral
from antiphon.records.changes import TABLE_PRODUCER_BIT
from antiphon.wire.frames import Buffer

OPS_PER_REQUEST: Final = 512
OP_OVERHEAD_BYTES: Final = 64
BYTES_PER_REQUEST: Final = 256 * 1024
SEQUENCE_MAX: Final = (1 << 31) - 1


class Together(NamedTuple):
    """Operations that are a request of their own; the item's future gets all results."""

    ops: tuple[TableOp, ...]
    atomic: bool = False
    hashes: tuple[int, ...] = ()  # what the shard holds as far as is known, where the table was ever split


Route = Callable[[TableOp], int | None]
"""The shard that an operation is for by what is known of the table now; None: there is no one shard."""


class TableWriter(ShardPipeline):
    """Items are `TableOp`s, whose futures get the put's Version, or None for deletes, and `Together`s."""

    in_flight_max = 2  # fewer and larger requests: the nodes' work is per request more than per operation

    def __init__(
        self,
        cluster: Cluster,
        shard_id: int,
        route: Route,
        deliver: Callable[[Item], None],
        settled: Callable[[Request], None],
        request_bytes_max: int = BYTES_PER_REQUEST,
    ) -> None:
        """`deliver` takes an item that turned out to be another shard's; `settled` hears of requests that this one is done
        with, after what is delivered of them.
        """
        super().__init__(cluster, shard_id)
        self._route = route
        self._deliver = deliver
        self._tell_settled = settled
        self._request_bytes_max = min(BYTES_PER_REQUEST, request_bytes_max)
        self._fresh_id = False

    def _take(self) -> Request | None:
        queue = self._queue
        if self._next_sequence >= SEQUENCE_MAX:
            if not self._sent:
                self._fresh_id = True
                self._recover()
            return None
        items: list[Item] = []
        size_bytes, popped = 0, 0
        while queue and len(items) < OPS_PER_REQUEST:
            item = queue[0]
            if items and (
                item.alone or items[0].alone or size_bytes + item.size_bytes > self._request_bytes_max
            ):
                break
            queue.popleft()
            popped += item.size_bytes
            if not item.future.done():  # its caller gave up
                items.append(item)
                size_bytes += item.size_bytes
        self._popped(popped)
        if not items:
            return None
        sequence = self._next_sequence
        self._next_sequence = sequence + 1
        return Request(items, sequence, 1)

    def _encode(self, request: Request) -> tuple[Any, Sequence[Buffer]]:
        left_ms = max(1, int((request.deadline - self._loop.time()) * 1000))
        first = request.items[0].what
        if type(first) is not Together:
            first = Together(tuple([item.what for item in request.items]))
        write = TableWrite(
            self._shard_id,
            first.ops,
            self.producer_id,
            0,
            request.sequence,
            left_ms,
            first.atomic,
            first.hashes,
            after=request.after,
        )
        return write, ()

    def _resolve(self, request: Request, reply: Any) -> None:
        first = request.items[0]
        asked = len(first.what.ops) if type(first.what) is Together else len(request.items)
        if type(reply) is not TableWritten or len(reply.results) != asked:
            request.fail(ProtocolViolationError("the answer to a table write does not fit what was asked"))
            return
        if type(first.what) is Together:
            if not first.future.done():
                first.future.set_result(reply.results)
            return
        for item, result in zip(request.items, reply.results, strict=True):
            future = item.future
            if future.done():
                continue
            if result.status == OpStatus.OK:
                future.set_result(result.version)
            else:
                future.set_exception(refusal(item.what, result))

    def _refused(self, request: Request, error: AntiphonError) -> bool:
        if isinstance(error, InvalidRequestError | BatchTooLargeError):
            return len(request.items) > 1 and request.wanted
        return isinstance(error, OutOfOrderSequenceError | WrongShardError)

    def _before_resend(self) -> bool:
        for request in [request for request in self._sent if isinstance(request.failure, WrongShardError)]:
            self._hand_over(request)
        for request in self._sent:
            if isinstance(request.failure, InvalidRequestError | BatchTooLargeError):
                self._take_back(request)
                break
        fresh, self._fresh_id = self._fresh_id, False
        for request in [request for request in self._sent if request.failure is not None]:
            request.sequence = self._next_sequence
            self._next_sequence += 1
            self._give_number(request)
            self._sent.remove(request)
            self._sent.append(request)
        return fresh

    def _take_back(self, refused: Request) -> None:
        """Queue what a request was made of again, each by itself, and all that was sent behind it.

        What one caller asked for must not fail what others did. Those behind it were not and will not be carried out under
        the sequences that they had: they come after this one, for which somebody waits and waited, and which never is.
        """
        for item in refused.items:
            item.alone = True
        back: list[Item] = []
        for request in list(self._sent)[self._sent.index(refused) :]:
            self._sent.remove(request)
            back += self._part(request)
            self._settled(request)
        self._queue.extendleft(reversed(back))
        self._queue_bytes += sum(item.size_bytes for item in back)

    # -- a split ------------------------------------------------------------------------------------------------

    def leave(self) -> tuple[list[Request], list[Item]]:
        """Keys of this shard are others' now: what it may still carry out, and what was to follow and is theirs."""
        keep: deque[Item] = deque()
        moved: list[Item] = []
        for item in self._queue:
            (keep if self._goes_to(item) == self._shard_id else moved).append(item)
        self._queue = keep
        self._popped(sum(item.size_bytes for item in moved))
        return list(self._sent), moved

    def _hand_over(self, request: Request) -> None:
        """The shard refused the request for good. Raises that refusal as long as nothing says where to go instead.

        What is left of it goes under the same sequence: the shard refuses older copies as it did this one.
        """
        if request.failure is not None and all(
            self._goes_to(item) == self._shard_id for item in request.items
        ):
            raise request.failure
        request.items = self._part(request)
        request.failure = None
        if not request.items:
            self._sent.remove(request)
        self._settled(request)

    def _part(self, request: Request) -> list[Item]:
        """Send on what is another shard's of a request that is not carried out here; returns what is this one's."""
        keep: list[Item] = []
        for item in request.items:
            if self._goes_to(item) == self._shard_id:
                keep.append(item)
            else:
                self._deliver(item)
        return keep

    def _goes_to(self, item: Item) -> int | None:
        if type(item.what) is not Together:
            return self._route(item.what)
        shards = {self._route(op) for op in item.what.ops}
        return shards.pop() if len(shards) == 1 else None

    def _settled(self, request: Request) -> None:
        self._tell_settled(request)

    def _restart(self, producer_id: int) -> None:
        super()._restart(producer_id | TABLE_PRODUCER_BIT)


def refusal(op: Any, result: OpResult) -> AntiphonError:
    """The error for an operation that was refused."""
    if result.status == OpStatus.UNEXPECTED_VERSION and isinstance(op, Put | Delete | Check | PutEphemeral):
        actual = -1 if result.version is None else result.version.id
        found = "it is not there" if result.version is None else f"it has version {actual}"
        wanted = "to be absent" if op.expected_version == -1 else f"to have version {op.expected_version}"
        return VersionMismatchError(
            f"key {op.key!r} was expected {wanted}; {found}", expected=op.expected_version, actual=actual
        )
    if result.status == OpStatus.KEY_NOT_FOUND and isinstance(op, Delete):
        return KeyNotFoundError(f"key {op.key!r} is not in the table")
    if result.status == OpStatus.SESSION_NOT_FOUND and isinstance(op, PutEphemeral):
        return SessionNotFoundError(
            f"session {op.session_id} has ended: key {op.key!r} was not put", session_id=op.session_id
        )
    return ProtocolViolationError(f"a table operation was answered with status {result.status}")


def size_of_op(op: TableOp) -> int:
    """About what it adds to a request."""
    if isinstance(op, Put | PutEphemeral):
        return OP_OVERHEAD_BYTES + len(op.key) + len(op.value)
    return OP_OVERHEAD_BYTES
