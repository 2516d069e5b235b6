"""Appends of clients on their way to a shard: each batch's records are looked at first, in the order of their arrival.

Most batches are judged at once, and packed anew where the topic wants another codec (`recompression`): nothing is done for
that where it wants none. Where the topic asks for it, a header of the records makes an append conditional (`expected`).

A batch that takes long is left to a thread, and what arrives for the same shard meanwhile waits behind it, so a producer's
batches keep their order. Where one of them is refused and may be sent again, so are those of its producer that wait behind
it: of a producer that it does not know a log takes any sequence. What waits is kept as a copy, and counts as bytes in
flight.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from antiphon.errors import (
    AntiphonError,
    CorruptBatchError,
    InternalError,
    InvalidRecordError,
    TimedOutError,
)
from antiphon.gateway.answers import Done
from antiphon.log.producer_state import JOB_ID_MIN
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.records import expected
from antiphon.records.batch import BatchHeader, Buffer, read_header
from antiphon.records.intake import AS_SENT, IntakeRules, RecordWalker, check_outside
from antiphon.records.recompression import is_other, recompressed, recompressed_now

if TYPE_CHECKING:
    from antiphon.node.local_replicas import LocalReplicas
    from antiphon.partition.partition import Partition


class _Waiting:
    """A batch that waits for its own judgement, or for those before it."""

    __slots__ = (
        "batch",
        "deadline_s",
        "done",
        "expected_offset",
        "is_judged",
        "number",
        "problem",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        batch: Buffer,
        expected_offset: int | None,
        deadline_s: float,
        done: Done,
        number: int | None,
    ) -> None:
        self.producer_id = producer_id  # negative: none
        self.batch = batch
        self.expected_offset = expected_offset
        self.deadline_s = deadline_s
        self.done = done
        self.number = number
        self.is_judged = False
        self.problem: AntiphonError | None = None


class _Work(NamedTuple):
    """What a thread does for a batch: look at every record, pack it anew, or both."""

    walker: RecordWalker
    header: BatchHeader
    batch: Buffer
    rules: IntakeRules
    changes: bool
    looks: bool
    asks: bool  # where its records must be written
    told: int | None  # where the sender says that

    def done(self) -> tuple[Buffer, int | None]:
        """The batch as it is to be stored, and the offset that it must have. Raises what makes it none."""
        asked = both(self.told, _asked(self.header, self.batch, self.rules)) if self.asks else self.told
        if self.changes:
            made = recompressed(self.walker, self.header, self.batch, self.rules, looks=self.looks)
            return made, asked
        if self.looks:
            self.walker.walk(self.header, self.batch, self.rules)
        return self.batch, asked


def _asked(header: BatchHeader, batch: Buffer, rules: IntakeRules) -> int | None:
    return expected.expected_offset_of(header, batch, rules.plain_bytes_max)


def both(told: int | None, asked: int | None) -> int | None:
    """The one condition that the sender's and the records' own come to. Raises InvalidRecordError where they differ."""
    if told is not None and asked is not None and told != asked:
        raise InvalidRecordError(
            f"the append is to land at {told}, and a header of its records asks for {asked}"
        )
    return asked if told is None else told


def _in_thread(work: Callable[[], None]) -> None:
    asyncio.get_running_loop().run_in_executor(None, work)


class RecordIntake:
    """The way of all clients' appends to this node's replicas."""

    def __init__(self, replicas: "LocalReplicas") -> None:
        self._replicas = replicas
        self._walker = RecordWalker(_in_thread)
        self._lines: dict[int, deque[_Waiting]] = {}
        self._refused: dict[int, dict[int, AntiphonError]] = {}  # of a line: by producer

    def append(
        self,
        shard_id: int,
        batch: Buffer,
        expected_offset: int | None,
        timeout_s: float,
        done: Done,
        number: int | None = None,
    ) -> None:
        """Append a batch if its records can be read. Raises what is known at once; else `done` gets the result.

        `number`: of the transaction that it is part of, see Gateway.
        """
        host = self._replicas.hosts.get(shard_id) or self._replicas.host(shard_id)
        settings = host.state.settings
        if (
            settings is None
            or host.table is not None
            or shard_id == CLUSTER_SHARD_ID
            or len(batch) > settings.max_message_bytes
        ):
            host.clients.append(batch, expected_offset, timeout_s, done)  # which refuses
            return
        header, rules = read_header(batch), settings.intake
        changes, asks = False, rules.expects
        try:
            check_outside(header, batch, rules)
            is_walked = is_judged = self._walker.walk_now(header, batch, rules)
            if asks and is_walked and expected.is_quick(header, batch):
                expected_offset, asks = both(expected_offset, _asked(header, batch, rules)), False
            if rules.codec != AS_SENT:
                changes = is_other(header, rules) and header.producer_id < JOB_ID_MIN  # see `ProducerState`
                at_once = changes and is_walked and not asks
                made = recompressed_now(self._walker, header, batch, rules) if at_once else None
                if made is not None:
                    batch, header = made, read_header(made)
                else:
                    is_judged = is_walked and not changes
            is_judged = is_judged and not asks
        except CorruptBatchError:
            host.state.check_writable()  # where another node leads, that is what is said
            raise
        if is_judged and shard_id not in self._lines:
            host.clients.append(batch, expected_offset, timeout_s, done, header, number)
            return
        host.state.check_writable()
        deadline_s = host.services.now_s() + timeout_s
        one = _Waiting(header.producer_id, bytes(batch), expected_offset, deadline_s, done, number)
        self._lines.setdefault(shard_id, deque()).append(one)
        host.services.in_flight(len(one.batch))
        if is_judged:
            one.is_judged = True
        else:
            work = _Work(
                self._walker, header, one.batch, rules, changes, not is_walked, asks, expected_offset
            )
            self._judge(host, one, work)

    def _judge(self, host: "Partition", one: _Waiting, work: "_Work") -> None:
        """Have a thread look at one that is in line, or pack it anew."""

        def judged(future: "asyncio.Future[tuple[Buffer, int | None]]") -> None:
            one.is_judged = True
            error = asyncio.CancelledError() if future.cancelled() else future.exception()
            if isinstance(error, AntiphonError):
                one.problem = error
            elif error is not None:
                one.problem = InternalError(f"the records could not be looked at: {error!r}")
            else:
                made, one.expected_offset = future.result()
                host.services.in_flight(len(made) - len(one.batch))
                one.batch = made
            self._go_on(host)

        asyncio.get_running_loop().run_in_executor(None, work.done).add_done_callback(judged)

    def _go_on(self, host: "Partition") -> None:
        """Append what is judged, from the front of the line."""
        line = self._lines[host.shard_id]
        while line and line[0].is_judged:
            one = line.popleft()
            host.services.in_flight(-len(one.batch))
            try:
                self._append(host.shard_id, one, one.deadline_s - host.services.now_s())
            except AntiphonError as error:
                if error.retriable and one.producer_id >= 0:
                    self._refused.setdefault(host.shard_id, {})[one.producer_id] = error
                one.done(error)
            except Exception as error:  # noqa: BLE001 - a bug: it is not the trouble of those who wait behind
                one.done(InternalError(f"the batch could not be appended: {error!r}"))
        if not line:
            del self._lines[host.shard_id]
            self._refused.pop(host.shard_id, None)

    def _append(self, shard_id: int, one: _Waiting, left_s: float) -> None:
        if one.problem is not None:
            raise one.problem
        before = self._refused.get(shard_id, {}).get(one.producer_id)
        if before is not None:
            raise before
        if left_s <= 0:
            raise TimedOutError(
                "the time was over before the batch's records were looked at: nothing was appended"
            )
        self._replicas.host(shard_id).clients.append(
            one.batch, one.expected_offset, left_s, one.done, None, one.number
        )
