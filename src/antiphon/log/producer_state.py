"""The producers that a shard remembers, so that a repeated batch is recognised: from the header alone, per batch.

There are three classes of producers, distinguished by id:

- **normal** (id < 2^61): Kafka's rules. Sequences follow each other without gaps; the last 5 batches are recognised.
- **table** (2^61 <= id < 2^62, the table client's): sequences only have to rise; the last 64 are recognised.
- **job** (id >= 2^62, Spark's): the epoch is Spark's, modulo 2^15 and compared by serial-number arithmetic; the
  sequence is the row's place within the epoch. A repeated batch must be equal byte for byte (by its CRC). The current
  epoch's last 4,096 batches are recognised.

A *table's* log does not hold what its producer sent: a request of ten operations may have twenty effects, or none, and
they carry versions and times of the leader. So on a table (`check(..., table=True)`) neither the number of records nor
the CRC says anything: sequences only rise, and a repeated request is recognised by exactly its sequence. For jobs that
holds within an epoch, which may begin with any sequence. A job whose id also has bit 61 set puts a checksum of its
request in the lower 16 bits of the sequence, and the request's number above: the same number with another checksum is a
conflict.

Jobs are remembered apart from the other producers, and for good: the last epoch of a forgotten job could be appended
again. Where a shard knows `JOBS_MAX` of them, `check` refuses a new job. Of the other producers the one that was silent for
longest is forgotten beyond `PRODUCERS_MAX`.

What is remembered follows from the log alone, so that all replicas remember the same. So a node whose shards remember too
many producers together forgets none: it refuses new ones as a leader, at shards with `SHARE` of them and more.

A producer with a transaction under way is never forgotten; what is known of transactions is in `transactions`.

`check` is called before the append, `update` records an appended batch: on the leader, on followers and at recovery
alike, so that a fail-over forgets nothing. `truncate` removes batches of uncommitted entries again.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from antiphon.errors import (
    UNDECODABLE,
    CorruptBatchError,
    OutOfOrderSequenceError,
    OverloadedError,
    ProducerFencedError,
    ReplayConflictError,
)
from antiphon.log.transactions import Aborted, Known, TransactionState
from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, Buffer
from antiphon.records.known_producer import KnownProducer

TABLE_ID_MIN: Final = 1 << 61
JOB_ID_MIN: Final = 1 << 62
NORMAL_WINDOW: Final = 5
TABLE_WINDOW: Final = 64
JOB_WINDOW: Final = 4096
CONTENT_BITS: Final = 16  # of a sequence, in a job's requests to a table: a checksum of the content
# Kept beyond the window, so that cutting off a few uncommitted batches needs no reading
UNDO_BATCHES: Final = 64
PRUNED_FROM: Final = NORMAL_WINDOW + 2 * UNDO_BATCHES  # a list of at most so many is left as it is
PRODUCERS_MAX: Final = 50_000  # of a shard, jobs aside
JOBS_MAX: Final = 100_000  # of a shard
SHARE: Final = 1_000  # of a shard, which has room for so many on a node that has no more
UNKNOWN: Final = -1  # of a producer of whom only something else is known
_EPOCH_MODULUS: Final = 1 << 15
_SEQUENCE_MASK: Final = 0x7FFF_FFFF
_THREE_PARTS: Final = b"\x93"  # msgpack's first byte of an array of three


class Duplicate(NamedTuple):
    """The batch is already in the log, here. `timestamp`: its largest, in ms; -1 where nobody asks for it."""

    base_offset: int
    next_offset: int
    timestamp: int = -1


class ProducerBatch(NamedTuple):
    """One appended batch of a producer. `timestamp` is the batch's largest, in ms."""

    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    next_offset: int
    crc: int
    timestamp: int


def window_of(producer_id: int) -> int:
    """How many of its last batches are recognised if they are sent again."""
    if producer_id >= JOB_ID_MIN:
        return JOB_WINDOW
    return TABLE_WINDOW if producer_id >= TABLE_ID_MIN else NORMAL_WINDOW


def is_newer_job_epoch(epoch: int, current: int) -> bool:
    """Serial-number comparison modulo 2^15: is `epoch` the later one?"""
    return 0 < (epoch - current) % _EPOCH_MODULUS < _EPOCH_MODULUS // 2


class Needed(NamedTuple):
    """Batches that what is known of producers needs, by their first offsets.

    `headers`: what they say in front, for the sequences of producers. `whole`: every byte, for jobs, whose repeated
    batches are known by their CRC.
    """

    headers: frozenset[int]
    whole: frozenset[int]


class ProducerState:
    """Producers of one shard, least recently active first; the module docstring says how many.

    Attributes:
        transactions: those of the shard.
    """

    def __init__(self) -> None:
        self.transactions = TransactionState()
        self._producers: dict[int, list[ProducerBatch]] = {}  # without jobs
        self._jobs: dict[int, list[ProducerBatch]] = {}
        self._exact_from = 0  # cutting the log at or above this offset needs nothing that was forgotten

    def __len__(self) -> int:
        return len(self._producers) + len(self._jobs)

    def _of(self, producer_id: int) -> list[ProducerBatch] | None:
        return (self._jobs if producer_id >= JOB_ID_MIN else self._producers).get(producer_id)

    def knows(self, producer_id: int) -> bool:
        """Is any batch of this producer remembered?"""
        return self._of(producer_id) is not None

    @property
    def jobs_known(self) -> int:
        """How many of them are jobs."""
        return len(self._jobs)

    def check(self, header: BatchHeader, *, table: bool = False, full: bool = False) -> Duplicate | None:
        """May this batch be appended? None: yes. Duplicate: it is in the log already.

        `table`: the header stands for a request to a table, whose batch is not made yet. `full`: the node remembers too
        many producers.

        Raises:
            ProducerFencedError: a newer epoch of the producer is known.
            OutOfOrderSequenceError: not the sequence that comes next; `details` has expected and actual.
            ReplayConflictError: a job's batch differs from the one that stands in its place.
            OverloadedError: a new job, or one where the node is `full`, and there is no room for it.
        """
        if header.producer_id < 0:
            return None
        if header.producer_id >= JOB_ID_MIN:
            batches = self._jobs.get(header.producer_id)
            if batches is None and (len(self._jobs) >= JOBS_MAX or (full and len(self._jobs) >= SHARE)):
                raise _too_many_jobs(header, len(self._jobs))
            return _check_table_job(header, batches) if table else _check_job(header, batches)
        batches = self._producers.get(header.producer_id)
        if batches is None:
            if full and SHARE <= len(self._producers) < PRODUCERS_MAX:
                raise _too_many_producers(header, len(self._producers))
            return None
        current = batches[-1].epoch
        if header.producer_epoch < current:
            raise _fenced(header, current)
        if table or header.producer_id >= TABLE_ID_MIN:
            return _check_table(header, batches)
        return _check_normal(header, batches)

    def learn(self, header: BatchHeader, batch: Buffer) -> Aborted | None:
        """Record a batch of the log, and what it says of a transaction; returns the one that it aborted, if it did."""
        self.update(header)
        if header.producer_id >= 0 and header.attributes & TRANSACTIONAL_BIT:
            return self.transactions.took(header, batch)
        return None

    def update(self, header: BatchHeader) -> None:
        """Record an appended batch; batches without a producer and control batches are ignored."""
        producer_id, base_offset, delta = header.producer_id, header.base_offset, header.last_offset_delta
        if producer_id < 0 or header.attributes & CONTROL_BIT:
            return
        is_job = producer_id >= JOB_ID_MIN
        known = self._jobs if is_job else self._producers
        batches = known.pop(producer_id, None)
        if batches is None:
            batches = []
            if not is_job and len(known) >= PRODUCERS_MAX:
                self._forget_oldest(known, base_offset)
        known[producer_id] = batches  # the most recently active stands last
        first = header.base_sequence
        batches.append(
            ProducerBatch(
                header.producer_epoch,
                first,
                (first + delta) & _SEQUENCE_MASK if first >= 0 else -1,
                base_offset,
                base_offset + delta + 1,
                header.crc,
                header.max_timestamp,
            )
        )
        if len(batches) > PRUNED_FROM:
            self._prune(producer_id, batches)

    def _forget_oldest(self, known: dict[int, list[ProducerBatch]], at: int) -> None:
        """Whoever replays a log forgets what its leader forgot."""
        has_open = self.transactions.open
        oldest = next(producer_id for producer_id in known if producer_id not in has_open)
        del known[oldest]
        self._exact_from = at

    def _prune(self, producer_id: int, batches: list[ProducerBatch]) -> None:
        window = window_of(producer_id)
        if producer_id >= JOB_ID_MIN:
            # Batches of older epochs are never compared with again; they only matter to undo an epoch's start.
            first = _first_of_epoch(batches)
            if first > UNDO_BATCHES:
                self._exact_from = max(self._exact_from, batches[first].next_offset)
                del batches[: first - UNDO_BATCHES // 2]
        if len(batches) > window + 2 * UNDO_BATCHES:
            del batches[: len(batches) - window - UNDO_BATCHES]
            self._exact_from = max(self._exact_from, batches[window - 1].next_offset)

    def truncate(self, to_offset: int) -> bool:
        """Forget the batches from `to_offset` on.

        Returns False if the truncation goes deeper than the remembered batches: the state must then be rebuilt from the
        log.
        """
        if to_offset < self._exact_from or not self.transactions.truncate(to_offset):
            return False
        for known in (self._producers, self._jobs):
            for producer_id, batches in list(known.items()):
                while batches and batches[-1].next_offset > to_offset:
                    batches.pop()
                if not batches:
                    del known[producer_id]
        return True

    def expire(self, before_ms: int) -> int:
        """Forget normal and table producers whose last batch is older than `before_ms`; returns how many."""
        old = [
            producer_id
            for producer_id, batches in self._producers.items()
            if batches[-1].timestamp < before_ms and producer_id not in self.transactions.open
        ]
        for producer_id in old:
            self._exact_from = max(self._exact_from, self._producers.pop(producer_id)[-1].next_offset)
        return len(old)

    def known(self) -> Iterator[KnownProducer]:
        """Each producer, in no order. Others may change the state meanwhile: who is forgotten is left out then."""
        transactions = self.transactions
        numbers = {*self._producers, *self._jobs, *transactions.markers, *transactions.open}
        return (found for number in numbers if (found := self._known(number)) is not None)

    def _known(self, producer_id: int) -> KnownProducer | None:
        last, transactions = self.last_batch(producer_id), self.transactions
        marker, opened = transactions.markers.get(producer_id), transactions.open.get(producer_id)
        if last is None and marker is None and opened is None:
            return None
        epochs = [one.epoch for one in (last, opened) if one is not None]
        epoch = max(epochs, default=UNKNOWN)
        if marker is not None and marker.epoch > epoch:  # a sequence of an epoch that was ended says nothing
            epoch, last = marker.epoch, None
        return KnownProducer(
            producer_id,
            epoch,
            UNKNOWN if last is None else last.last_sequence,
            UNKNOWN if last is None else last.timestamp,
            UNKNOWN if marker is None else marker.number,
            UNKNOWN if opened is None else opened.first_offset,
        )

    def needed(self, silent_before: int) -> Callable[[], Needed]:
        """Which batches a compacted log has to keep for those who learn from it; to be called in any thread.

        A job whose newest batch ends at or below `silent_before` sends nothing again, so its batches need not stay whole.
        """
        producers, jobs = list(self._producers.items()), list(self._jobs.items())

        def found() -> Needed:  # others go on to change the lists: a slice is as it was at one moment
            headers = {one.base_offset for number, known in producers for one in known[-window_of(number) :]}
            whole: set[int] = set()
            for _, batches in jobs:
                known = batches[-JOB_WINDOW:]
                headers.update(one.base_offset for one in known[-1:])
                if known and known[-1].next_offset > silent_before:
                    whole.update(one.base_offset for one in known[_first_of_epoch(known) :])
            return Needed(frozenset(headers), frozenset(whole))

        return found

    def last_batch(self, producer_id: int) -> ProducerBatch | None:
        """The newest batch of a producer."""
        batches = self._of(producer_id)
        return batches[-1] if batches else None

    def encode(self, before: int | None = None) -> bytes:
        """The state as bytes, for a snapshot file; `before`: without the batches that reach beyond this offset.

        A replica that takes over the state before an offset and then records what follows reaches this state: missing
        batches were displaced by newer ones, which displace them there as well.
        """
        items, exact_from = [*self._producers.items(), *self._jobs.items()], self._exact_from
        if before is not None:
            exact_from = min(exact_from, before)
            cut = [
                (number, [batch for batch in batches if batch.next_offset <= before])
                for number, batches in items
            ]
            items = [(number, batches) for number, batches in cut if batches]
        known = self.transactions.known(before)
        return msgspec.msgpack.encode((exact_from, items) if known is None else (exact_from, items, known))

    def jobs(self, before: int, inherited: bytes = b"") -> bytes:
        """The known jobs as of offset `before`, encoded, for the shard that a part of this one becomes.

        `inherited` is what this shard inherited itself; its own memory of a job is the newer one. Empty: no jobs.
        """
        items = dict(_decode_items(inherited)[1]) if inherited else {}
        for producer_id, batches in self._jobs.items():
            known = [batch for batch in batches if batch.next_offset <= before]
            if known:
                items[producer_id] = known
        return msgspec.msgpack.encode((0, list(items.items()))) if items else b""

    @classmethod
    def decode(cls, data: bytes) -> "ProducerState":
        """Undo `encode`; CorruptBatchError where the bytes are something else."""
        state = cls()
        exact_from, items, known = _decode_items(data)
        state._exact_from = exact_from
        if known is not None:
            state.transactions = TransactionState.of(known)
        state._producers = {number: batches for number, batches in items if number < JOB_ID_MIN}
        state._jobs = {number: batches for number, batches in items if number >= JOB_ID_MIN}
        return state


class _Encoded(NamedTuple):
    exact_from: int
    items: list[tuple[int, list[ProducerBatch]]]
    transactions: Known | None = None


def has_transactions(encoded: bytes) -> bool:
    """Does an encoded state say anything of transactions? An older program cannot decode it then."""
    return encoded[:1] == _THREE_PARTS


def _decode_items(data: bytes) -> _Encoded:
    try:
        found = msgspec.msgpack.decode(data, type=_Encoded)
    except UNDECODABLE as error:
        raise CorruptBatchError(f"not a producer snapshot: {error}") from error
    if not all(batches for _, batches in found.items):
        raise CorruptBatchError("not a producer snapshot: a producer without a batch")
    return found


def _too_many_jobs(header: BatchHeader, count: int) -> OverloadedError:
    return OverloadedError(
        f"job {header.producer_id} is new, and the shard remembers the last writes of {count} Spark jobs already, which it "
        "never forgets, as one that runs again would write again: write with one stream rather than many batch writes, with "
        "fewer partitions, or to another topic"
    )


def _too_many_producers(header: BatchHeader, count: int) -> OverloadedError:
    return OverloadedError(
        f"producer {header.producer_id} is new, the shard remembers {count} producers already, and the node more than "
        "`limits.producers`: write with fewer producers, or raise that (`antiphon node settings`)"
    )


def _fenced(header: BatchHeader, current: int) -> ProducerFencedError:
    return ProducerFencedError(
        f"producer {header.producer_id} has epoch {header.producer_epoch}, a newer one ({current}) is known",
        epoch=header.producer_epoch,
        current=current,
    )


def _out_of_order(header: BatchHeader, expected: int) -> OutOfOrderSequenceError:
    return OutOfOrderSequenceError(
        f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence {header.base_sequence}, "
        f"expected {expected}",
        expected=expected,
        actual=header.base_sequence,
    )


def _check_normal(header: BatchHeader, batches: list[ProducerBatch]) -> Duplicate | None:
    last = batches[-1]
    if header.producer_epoch > last.epoch:
        if header.base_sequence != 0:
            raise _out_of_order(header, 0)
        return None
    first = header.base_sequence
    ends = (first, (first + header.last_offset_delta) & _SEQUENCE_MASK if first >= 0 else -1)
    for seen in batches[-NORMAL_WINDOW:]:
        if seen.epoch == header.producer_epoch and (seen.first_sequence, seen.last_sequence) == ends:
            return Duplicate(seen.base_offset, seen.next_offset, seen.timestamp)
    expected = (last.last_sequence + 1) & _SEQUENCE_MASK
    if header.base_sequence != expected:
        raise _out_of_order(header, expected)
    return None


def _check_table(header: BatchHeader, batches: list[ProducerBatch]) -> Duplicate | None:
    last = batches[-1]
    if header.producer_epoch > last.epoch or header.base_sequence > last.first_sequence:
        return None
    for seen in reversed(batches[-TABLE_WINDOW:]):
        if seen.epoch == header.producer_epoch and seen.first_sequence == header.base_sequence:
            return Duplicate(seen.base_offset, seen.next_offset)
    raise _out_of_order(header, last.first_sequence + 1)


def _first_of_epoch(batches: list[ProducerBatch]) -> int:
    """Where the current epoch's batches start in the list."""
    epoch = batches[-1].epoch
    return bisect_left(batches, True, key=lambda seen: seen.epoch == epoch)


def _check_job(header: BatchHeader, batches: list[ProducerBatch] | None) -> Duplicate | None:
    if batches is None or is_newer_job_epoch(header.producer_epoch, batches[-1].epoch):
        if header.base_sequence != 0:
            raise _out_of_order(header, 0)
        return None
    last = batches[-1]
    if header.producer_epoch != last.epoch:
        raise _fenced(header, last.epoch)
    if header.base_sequence == last.last_sequence + 1:
        return None
    if header.base_sequence > last.last_sequence:
        raise _out_of_order(header, last.last_sequence + 1)
    low = max(_first_of_epoch(batches), len(batches) - JOB_WINDOW)
    at = bisect_left(batches, header.base_sequence, lo=low, key=lambda seen: seen.first_sequence)
    if at < len(batches):
        seen = batches[at]
        same_ends = (seen.first_sequence, seen.last_sequence) == (header.base_sequence, header.last_sequence)
        if same_ends and seen.crc == header.crc:
            return Duplicate(seen.base_offset, seen.next_offset)
    raise ReplayConflictError(
        f"job {header.producer_id} sent rows {header.base_sequence}..{header.last_sequence} of epoch "
        f"{header.producer_epoch} again with other content",
        first=header.base_sequence,
        last=header.last_sequence,
    )


def _check_table_job(header: BatchHeader, batches: list[ProducerBatch] | None) -> Duplicate | None:
    if batches is None or is_newer_job_epoch(header.producer_epoch, batches[-1].epoch):
        return None
    last, sequence = batches[-1], header.base_sequence
    if header.producer_epoch != last.epoch:
        raise _fenced(header, last.epoch)
    low = max(_first_of_epoch(batches), len(batches) - JOB_WINDOW)
    at = bisect_left(batches, sequence, lo=low, key=lambda seen: seen.first_sequence)
    if at < len(batches) and batches[at].first_sequence == sequence:
        return Duplicate(batches[at].base_offset, batches[at].next_offset)
    if header.producer_id & TABLE_ID_MIN:
        number = sequence >> CONTENT_BITS
        if any(seen.first_sequence >> CONTENT_BITS == number for seen in batches[max(low, at - 1) : at + 1]):
            raise ReplayConflictError(
                f"job {header.producer_id} sent request {number} of epoch {header.producer_epoch} again with other content",
                first=sequence,
                last=sequence,
            )
    if at < len(batches):
        raise _out_of_order(header, last.first_sequence + 1)
    return None
