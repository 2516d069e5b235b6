"""Writes to one table shard: operations of many callers in one `TableWrite`.

A table producer's sequences only have to rise. So a request that the shard never took, though a later one is in its log
(the leader refused it for a moment, or all of its operations were refused and left no trace), can simply be sent under a new
sequence: the node's answer "out of order" says that it is not in the log, and makes sure that it never will be.
"""

from collections.abc import Sequence
from typing import Any, Final

from antiphon.client.cluster import Cluster
from antiphon.client.pipeline import Item, Request, ShardPipeline
from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InvalidRequestError,
    KeyNotFoundError,
    OutOfOrderSequenceError,
    ProtocolViolationError,
    VersionMismatchError,
)
from antiphon.records.changes import TABLE_PRODUCER_BIT
from antiphon.wire.frames import Buffer
from antiphon.wire.requests import Delete, OpResult, OpStatus, Put, TableWrite, TableWritten

OPS_PER_REQUEST: Final = 512
BYTES_PER_REQUEST: Final = 256 * 1024
SEQUENCE_MAX: Final = (1 << 31) - 1


class TableWriter(ShardPipeline):
    """Items are `TableOp`s; futures get the put's Version, or None for deletes."""

    in_flight_max = 2  # fewer and larger requests: the nodes' work is per request more than per operation

    def __init__(self, cluster: Cluster, shard_id: int, request_bytes_max: int = BYTES_PER_REQUEST) -> None:
        super().__init__(cluster, shard_id)
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
        ops = tuple([item.what for item in request.items])
        return TableWrite(self._shard_id, ops, self.producer_id, 0, request.sequence, left_ms), ()

    def _resolve(self, request: Request, reply: Any) -> None:
        if type(reply) is not TableWritten or len(reply.results) != len(request.items):
            request.fail(ProtocolViolationError("the answer to a table write does not fit what was asked"))
            return
        for item, result in zip(request.items, reply.results, strict=True):
            future = item.future
            if future.done():
                continue
            if result.status == OpStatus.OK:
                future.set_result(result.version)
            else:
                future.set_exception(refusal(item.what, result))

    def _refused(self, request: Request, error: AntiphonError) -> bool:  # noqa: ARG002 - every request alike
        return isinstance(error, OutOfOrderSequenceError)

    def _split(self, request: Request, error: AntiphonError) -> bool:
        """What one caller asked for must not fail what others did: find out whose it was."""
        if len(request.items) == 1 or not isinstance(error, InvalidRequestError | BatchTooLargeError):
            return False
        for item in reversed(request.items):
            item.alone = True
            self._queue.appendleft(item)
            self._queue_bytes += item.size_bytes
        return True

    def _before_resend(self) -> bool:
        fresh, self._fresh_id = self._fresh_id, False
        for request in [request for request in self._sent if request.failure is not None]:
            request.sequence = self._next_sequence
            self._next_sequence += 1
            self._sent.remove(request)
            self._sent.append(request)
        return fresh

    def _restart(self, producer_id: int) -> None:
        super()._restart(producer_id | TABLE_PRODUCER_BIT)


def refusal(op: Any, result: OpResult) -> AntiphonError:
    """The error for an operation that was refused."""
    if result.status == OpStatus.UNEXPECTED_VERSION and isinstance(op, Put | Delete):
        actual = -1 if result.version is None else result.version.id
        found = "it is not there" if result.version is None else f"it has version {actual}"
        wanted = "to be absent" if op.expected_version == -1 else f"to have version {op.expected_version}"
        return VersionMismatchError(
            f"key {op.key!r} was expected {wanted}; {found}", expected=op.expected_version, actual=actual
        )
    if result.status == OpStatus.KEY_NOT_FOUND and isinstance(op, Delete):
        return KeyNotFoundError(f"key {op.key!r} is not in the table")
    return ProtocolViolationError(f"a table operation was answered with status {result.status}")
