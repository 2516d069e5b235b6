"""What a transactional id's coordinator decides: one row, requests and times in, the next row and an answer out.

A row is all that a coordinator knows of a transactional id. Each step is one function of the row and of what arrives. It
returns the row that is to be written in its place, on the condition that the row is still the one that was read, and the
answer that holds once that is committed. So two coordinators cannot both decide, and what is to be done next (`due`)
follows from the row alone.

The rules are Kafka's: who is fenced, when an epoch rises, when a client is told to ask again. What is added is the number
of the transaction, one more for each of an id: a shard refuses markers and batches by it (decision 0025).

A client of Kafka's second version of transactions (KIP-890) gets a new epoch with the end of each transaction. Whatever of
the old epoch is still on its way can then be no part of the next one.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from antiphon.invariants import invariant
from antiphon.model.transactions import OWN_IDS

# The largest that a batch can carry; a fence may use it, a producer is never given it
EPOCH_MAX: Final = 32_767
NOBODY: Final = -1  # a producer id or epoch that was not given
OWN_ID_EXPIRES_MS: Final = 3_600_000
"""For ids that clients make: they are many, and a client whose id was forgotten gets it anew."""
NUMBER_MAX: Final = 2**31 - 1  # a marker carries the number in 32 bits with a sign


class State(StrEnum):
    """Where an id's last transaction stands. The names are Kafka's."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
AT_REST: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
NEXT: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.ONGOING: frozenset({State.ONGOING, *PREPARED}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT}),
}
"""Which states may follow. A prepared transaction is decided: it can only be completed as it was decided.

From rest to PREPARE_ABORT: a client aborts what the coordinator has heard nothing of, and gets a new epoch for it.
"""


class Producer(NamedTuple):
    """What a client says that it is."""

    producer_id: int
    epoch: int


class Row(msgspec.Struct, frozen=True, array_like=True):
    """All that is known of a transactional id.

    Attributes:
        producer_id, epoch: what a batch, or a request, of the id's producer must carry. A fence raises the epoch to one that
            nobody was given.
        number: of the transaction that is under way or was the last one; 0 before the first.
        timeout_ms: after which a transaction is aborted, from `began_ms` on.
        changed_ms: when the row was written.
        last_producer_id, last_epoch: what the producer had before, by which a repeated InitProducerId is known.
        shards, groups: what takes part in the transaction that is under way.
        known_at: version of the metadata in which every one of `shards` exists.
        next_producer_id: the producer's from when the transaction is complete, as the epochs of `producer_id` are used up.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    changed_ms: int
    state: State = State.EMPTY
    number: int = 0
    began_ms: int = -1
    last_producer_id: int = NOBODY
    last_epoch: int = NOBODY
    shards: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    known_at: int = -1
    next_producer_id: int = NOBODY

    @property
    def producer(self) -> Producer:
        """What the client has from now on: the row's, or what follows it."""
        if self.next_producer_id != NOBODY:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.epoch)


class Refused(StrEnum):
    """Why a request is refused."""

    CONCURRENT = "another step of this transaction is under way: ask again"
    FENCED = "a newer producer has this transactional id"
    UNKNOWN_PRODUCER = "this transactional id does not belong to the producer id"
    STATE = "the transaction's state does not allow that"
    TIMEOUT = "the transaction's time-out is not within the bounds of this cluster"
    NOT_PART = "the partition is not part of a transaction that is under way"
    TOO_MANY = "too many partitions or groups take part in the transaction"


class Bounds(NamedTuple):
    """What an operator sets."""

    timeout_ms_max: int = 900_000
    participants_max: int = 5_000
    expire_ms: int = 7 * 86_400_000


class Step(NamedTuple):
    """What a request comes to.

    Attributes:
        row: to be written before anything is answered; None: nothing changes.
        refused: why the client gets nothing; the row is written all the same.
        needs_id: the step needs a fresh producer id, and is to be taken again with one.
    """

    row: Row | None = None
    refused: Refused | None = None
    needs_id: bool = False


class Ending(NamedTuple):
    """What each participant of a decided transaction is to be told."""

    producer_id: int
    epoch: int
    number: int
    commit: bool
    shards: tuple[int, ...]
    groups: tuple[str, ...]


_NO_CHANGE: Final = Step()


def init(
    row: Row | None, timeout_ms: int, expected: Producer | None, fresh_id: int, now_ms: int, bounds: Bounds
) -> Step:
    """InitProducerId: the id gets a producer, and whoever had it before is fenced.

    `expected` is what the client has already (KIP-360). A transaction that is under way is aborted first, with an epoch that
    nobody has, and the client asks again meanwhile. `fresh_id` is NOBODY until one is needed.
    """
    if not 0 < timeout_ms <= bounds.timeout_ms_max:
        return Step(refused=Refused.TIMEOUT)
    if row is None:
        if fresh_id == NOBODY:
            return Step(needs_id=True)
        return Step(Row(fresh_id, 0, timeout_ms, now_ms))
    if expected is not None and not _may_go_on(row, expected):
        return Step(refused=Refused.FENCED)
    if row.state in PREPARED:
        return Step(refused=Refused.CONCURRENT)
    if row.state is State.ONGOING:
        return Step(_fenced(row, now_ms), Refused.CONCURRENT)
    if _is_exhausted(row.epoch) and (expected is None or expected.epoch == row.epoch):
        if fresh_id == NOBODY:
            return Step(needs_id=True)
        last = row.epoch if expected is not None else NOBODY
        return Step(_renewed(row, Producer(fresh_id, 0), Producer(row.producer_id, last), timeout_ms, now_ms))
    if expected is None:
        return Step(_raised(row, NOBODY, timeout_ms, now_ms))
    if expected.epoch == row.epoch:
        return Step(_raised(row, row.epoch, timeout_ms, now_ms))
    if expected.epoch == row.last_epoch:
        return _NO_CHANGE  # a repeat: its first try raised the epoch
    return Step(refused=Refused.FENCED)


def join(
    row: Row | None,
    producer: Producer,
    shards: Sequence[int],
    groups: Sequence[str],
    known_at: int,
    now_ms: int,
    bounds: Bounds,
) -> Step:
    """AddPartitionsToTxn and AddOffsetsToTxn: what the transaction is to reach. It begins with the first of them."""
    refused = _refusal(row, producer)
    if refused is not None or row is None:
        return Step(refused=refused)
    if row.state in PREPARED:
        return Step(refused=Refused.CONCURRENT)
    ongoing = row.state is State.ONGOING
    had = row if ongoing else msgspec.structs.replace(row, shards=(), groups=())
    every_shard = tuple(sorted({*had.shards, *shards}))
    every_group = tuple(sorted({*had.groups, *groups}))
    if ongoing and every_shard == row.shards and every_group == row.groups:
        return _NO_CHANGE
    if len(every_shard) + len(every_group) > bounds.participants_max:
        return Step(refused=Refused.TOO_MANY)
    invariant(ongoing or row.number < NUMBER_MAX, "a transactional id has used up its numbers")
    return Step(
        _moved(
            row,
            State.ONGOING,
            now_ms,
            shards=every_shard,
            groups=every_group,
            known_at=max(known_at, row.known_at),
            number=row.number if ongoing else row.number + 1,
            began_ms=row.began_ms if ongoing else now_ms,
        )
    )


def check(row: Row | None, producer: Producer, shard_id: int | None, group: str | None) -> Refused | None:
    """Does this shard, or group, take part in the producer's transaction? Its number is then the row's."""
    refused = _refusal(row, producer)
    if refused is not None or row is None:
        return refused
    if row.state in PREPARED:
        return Refused.CONCURRENT
    is_part = shard_id in row.shards if shard_id is not None else group in row.groups
    return None if row.state is State.ONGOING and is_part else Refused.NOT_PART


def end(row: Row | None, producer: Producer, *, commit: bool, now_ms: int) -> Step:
    """EndTxn. From the step on, when it is committed, the transaction is decided; a repeat is answered alike."""
    refused = _refusal(row, producer)
    if refused is not None or row is None:
        return Step(refused=refused)
    if row.state is State.ONGOING:
        return Step(_moved(row, _prepared(commit=commit), now_ms))
    return _ended(row, commit=commit)


def end_and_raise(row: Row | None, producer: Producer, fresh_id: int, *, commit: bool, now_ms: int) -> Step:
    """EndTxn of KIP-890's second version: the same, and the producer has a new epoch, which the row's `producer` says.

    Markers carry the new epoch, so that a partition refuses what comes late of the old one. Where the epochs are used up,
    the producer gets `fresh_id` (NOBODY until it is needed), and markers carry the largest epoch, which nobody is given. An
    abort may come where nothing is under way: the client cannot know whether the coordinator has heard of what it sent. That
    is a transaction without parts.
    """
    if row is not None and _is_before_end(row, producer):
        return _ended(row, commit=commit)
    refused = _refusal(row, producer)
    if refused is not None or row is None:
        return Step(refused=refused)
    if row.state in PREPARED:
        return Step(refused=Refused.CONCURRENT)
    if row.state is not State.ONGOING and commit:
        return Step(refused=Refused.STATE)
    is_last, is_empty = _is_exhausted(row.epoch), row.state is not State.ONGOING
    if is_last and fresh_id == NOBODY:
        return Step(needs_id=True)
    invariant(not is_empty or row.number < NUMBER_MAX, "a transactional id has used up its numbers")
    return Step(
        _moved(
            row,
            _prepared(commit=commit),
            now_ms,
            epoch=row.epoch + 1,
            number=row.number + is_empty,
            last_producer_id=row.producer_id,
            last_epoch=row.epoch,
            next_producer_id=fresh_id if is_last else NOBODY,
        )
    )


def _is_before_end(row: Row, producer: Producer) -> bool:
    """Is that what the producer was before the transaction ended that is the last one? The end is asked for again."""
    was = Producer(row.last_producer_id, row.last_epoch)
    is_over = row.state in PREPARED or row.state in {State.COMPLETE_COMMIT, State.COMPLETE_ABORT}
    return is_over and row.last_epoch != NOBODY and producer == was


def _prepared(*, commit: bool) -> State:
    return State.PREPARE_COMMIT if commit else State.PREPARE_ABORT


def _ended(row: Row, *, commit: bool) -> Step:
    """What is said of a transaction that is decided: the decision stands, whoever asks for it again."""
    if row.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT):
        return _NO_CHANGE
    if row.state is _prepared(commit=commit):
        return Step(refused=Refused.CONCURRENT)
    return Step(refused=Refused.STATE)


def abort(row: Row | None, now_ms: int, *, only_overdue: bool) -> Step:
    """The coordinator itself aborts, because of the time-out or for an operator; the producer is fenced."""
    if row is None:
        return Step(refused=Refused.UNKNOWN_PRODUCER)
    if row.state is not State.ONGOING or (only_overdue and now_ms < row.began_ms + row.timeout_ms):
        return Step(refused=Refused.STATE)
    return Step(_fenced(row, now_ms))


def complete(row: Row, now_ms: int) -> Step:
    """Every participant of the decided transaction has its marker."""
    if row.state not in PREPARED:
        return Step(refused=Refused.STATE)
    state = State.COMPLETE_COMMIT if row.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
    done = _moved(row, state, now_ms, shards=(), groups=(), began_ms=-1)
    if row.next_producer_id != NOBODY:
        now = row.producer
        done = msgspec.structs.replace(
            done, producer_id=now.producer_id, epoch=now.epoch, next_producer_id=NOBODY
        )
    return Step(done)


def due(row: Row) -> Ending | None:
    """What participants are to be told now, whoever wrote the row."""
    if row.state not in PREPARED:
        return None
    commit = row.state is State.PREPARE_COMMIT
    return Ending(row.producer_id, row.epoch, row.number, commit, row.shards, row.groups)


def is_expired(name: str, row: Row, now_ms: int, bounds: Bounds) -> bool:
    """Was nothing heard of the id for so long that it is forgotten?"""
    after_ms = bounds.expire_ms
    if name.startswith(OWN_IDS):
        after_ms = min(after_ms, OWN_ID_EXPIRES_MS)
    return row.state in AT_REST and now_ms >= row.changed_ms + after_ms


def deadline_ms(row: Row) -> int | None:
    """When the transaction under way is aborted."""
    return row.began_ms + row.timeout_ms if row.state is State.ONGOING else None


def _refusal(row: Row | None, producer: Producer) -> Refused | None:
    if row is not None and row.next_producer_id != NOBODY and producer == row.producer:
        return Refused.CONCURRENT  # its last transaction is not complete under the former id
    if row is None or row.producer_id != producer.producer_id:
        return Refused.UNKNOWN_PRODUCER
    return Refused.FENCED if row.epoch != producer.epoch else None


def _may_go_on(row: Row, expected: Producer) -> bool:
    """Is that the id's producer, or what it was before a try whose answer was lost?

    While a transaction is under way there was none: whoever began it has what the row says. Without that, a producer that
    was fenced would end the transaction of the one that fenced it.
    """
    if expected.producer_id == row.producer_id and expected.epoch == row.epoch:
        return True
    if row.state is State.ONGOING:
        return False
    if expected.producer_id == row.producer_id:
        return expected.epoch == row.last_epoch
    return expected.producer_id == row.last_producer_id and _is_exhausted(expected.epoch)


def _is_exhausted(epoch: int) -> bool:
    return epoch >= EPOCH_MAX - 1


def _fenced(row: Row, now_ms: int) -> Row:
    invariant(row.epoch < EPOCH_MAX, "a producer was given the largest epoch")
    return _moved(row, State.PREPARE_ABORT, now_ms, epoch=row.epoch + 1, last_epoch=NOBODY)


def _raised(row: Row, last_epoch: int, timeout_ms: int, now_ms: int) -> Row:
    return _renewed(
        row,
        Producer(row.producer_id, row.epoch + 1),
        Producer(row.last_producer_id, last_epoch),
        timeout_ms,
        now_ms,
    )


def _renewed(row: Row, now: Producer, last: Producer, timeout_ms: int, now_ms: int) -> Row:
    return _moved(
        row,
        State.EMPTY,
        now_ms,
        producer_id=now.producer_id,
        epoch=now.epoch,
        last_producer_id=last.producer_id,
        last_epoch=last.epoch,
        timeout_ms=timeout_ms,
    )


def _moved(row: Row, state: State, now_ms: int, **changes: object) -> Row:
    invariant(state in NEXT[row.state], f"a transaction does not go from {row.state} to {state}")
    return msgspec.structs.replace(row, state=state, changed_ms=now_ms, **changes)
