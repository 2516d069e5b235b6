"""Puts under sessions and of rows with attributes, judged: who they belong to, what leads to them, keys of sequences.

The next numbers of a sequence (`records.sequences`) follow from the last key of it that there is, appended ones included,
and are never below one that this leader has given before. Keys that only look alike (`PREFIX-x`, `PREFIX-1`) are none of the
sequence's and are passed over, `FOREIGN_MAX` of them.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

from antiphon.errors import InvalidRequestError
from antiphon.model.attributes import DELTAS_MAX, PutAttributed
from antiphon.model.requests import Check, OpResult, TableOp
from antiphon.model.rows import Version
from antiphon.model.sessions import PutEphemeral
from antiphon.records.attributes import INDEXES_MAX, TEXT_BYTES_MAX, pack
from antiphon.records.changes import (
    ATTRIBUTES_HEADER,
    SEQUENCE_HEADER,
    SESSION,
    SESSION_HEADER,
    VersionTuple,
)
from antiphon.records.sequences import NUMBER_MAX, Numbers, key_of, last_before, numbers_in
from antiphon.table import indexes, pending_entries
from antiphon.table.evaluation import NO_SESSION, Evaluation, Header, Known, Pending, Steps, effects_in
from antiphon.table.neighbours import LOWER
from antiphon.table.prepared_writes import PreparedWrites
from antiphon.table.ranges import OwnedRange
from antiphon.table.sessions import OpenSessions
from antiphon.table.state import TableState

_ABSENT: Final = -1
FOREIGN_MAX: Final = 1_000  # keys that look like a sequence's, and are looked at to find its last one
KNOWN_MAX: Final = 10_000  # sequences whose last numbers are remembered


def last_stored(state: TableState, prefix: bytes) -> Numbers:
    """The numbers of the last key of a sequence that is in the store; none: there is no such key.

    Raises InvalidRequestError where too many other keys look like its keys.
    """
    at = last_before(prefix)
    for _ in range(FOREIGN_MAX):
        row = state.find(at, LOWER, include_value=False)
        if row is None or not row.key.startswith(prefix + b"-"):
            return ()
        found = numbers_in(row.key, prefix)
        if found is not None:
            return found
        at = row.key
    raise InvalidRequestError(
        f"more than {FOREIGN_MAX} keys look like keys of the sequence {prefix!r} and are none: give it another key"
    )


class Sequences:
    """The last numbers of sequences as the leader sees them: with what is appended and not committed."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self._known: dict[bytes, tuple[Numbers, int]] = {}  # last numbers, and the end of the entry with them

    def next(self, op: PutAttributed, now: dict[bytes, Numbers]) -> bytes:
        """The key that a put gets. `now`: what the same request has given so far, which is brought up to date.

        Raises InvalidRequestError.
        """
        prefix, deltas = op.key, op.sequence
        last = now.get(prefix)
        if last is None:
            known = self._known.get(prefix)
            last = known[0] if known is not None else ()
            last = max(last, last_stored(self._state, prefix))
        _check(op, last)
        padded = last + (0,) * (len(deltas) - len(last))
        numbers = tuple(before + delta for before, delta in zip(padded, deltas, strict=True))
        if max(numbers) > NUMBER_MAX:
            raise InvalidRequestError(f"the sequence {prefix!r} is at its end: its numbers have 64 bits")
        now[prefix] = numbers
        return key_of(prefix, numbers)

    def appended(self, given: dict[bytes, Numbers], end: int) -> None:
        """What a request was given is in the log, up to `end`."""
        for prefix, numbers in given.items():
            self._known.pop(prefix, None)
            self._known[prefix] = (numbers, end)

    def committed(self, end: int) -> None:
        """The store has everything up to `end`: sequences that were not used for long are found there."""
        while len(self._known) > KNOWN_MAX:
            prefix, (_, entry_end) = next(iter(self._known.items()))
            if entry_end > end:
                return
            del self._known[prefix]


def _check(op: PutAttributed, last: Numbers) -> None:
    if op.expected_version is not None:
        raise InvalidRequestError("a key of a sequence is new: no version can be expected of it")
    if op.attributes.partition_key is None:
        raise InvalidRequestError(
            "a key of a sequence needs a partition key, so that all of them are in one shard"
        )
    if not 0 < len(op.sequence) <= DELTAS_MAX or op.sequence[0] <= 0 or min(op.sequence) < 0:
        raise InvalidRequestError(
            f"a sequence takes 1 to {DELTAS_MAX} numbers to add, the first above 0, not {op.sequence}"
        )
    if len(last) > len(op.sequence):
        raise InvalidRequestError(
            f"the keys of the sequence {op.key!r} have {len(last)} numbers, and {len(op.sequence)} are to be added"
        )


def check_attributes(op: PutAttributed) -> None:
    """Raise InvalidRequestError where there is more than a row may say."""
    attributes = op.attributes
    if len(attributes.indexes) > INDEXES_MAX:
        raise InvalidRequestError(
            f"{INDEXES_MAX} entries of indexes lead to a row at most, not {len(attributes.indexes)}"
        )
    sizes = [len(attributes.identity or ""), len(attributes.partition_key or b"")]
    sizes += [len(name) + len(secondary) for name, secondary in attributes.indexes]
    if max(sizes) > TEXT_BYTES_MAX:
        raise InvalidRequestError(
            f"an identity, a partition key and an entry of an index have {TEXT_BYTES_MAX} bytes at most, not {max(sizes)}"
        )


def put_attributed(
    to: Evaluation, op: PutAttributed | PutEphemeral, key: bytes, index: int, current: VersionTuple | None
) -> None:
    """Add a put that is in order, under a session or with attributes, to an evaluation."""
    version_id, now_ms = to.next_version_id, to.now_ms
    version: VersionTuple = (
        (version_id, 0, now_ms, now_ms)
        if current is None
        else (version_id, current[1] + 1, current[2], now_ms)
    )
    to.next_version_id += 1
    headers: list[Header] = []
    made: bytes | None = None
    if op.session_id is not None:
        headers.append((SESSION_HEADER, SESSION.pack(op.session_id)))
        if to.owned is None:
            to.owned = []
        to.owned.append((op.session_id, key, version_id))
    if isinstance(op, PutAttributed):
        headers.append((ATTRIBUTES_HEADER, pack(op.attributes)))
        to.attributed = True
        to.indexed = to.indexed or bool(op.attributes.indexes)
        if op.sequence:
            headers.append((SEQUENCE_HEADER, b""))
            made = key
    to.put(index, key, op.value, version, headers)
    to.results.append(OpResult(0, Version(*version), made))


class AttributedPuts(PreparedWrites):
    """The judging of such puts; of a `TableEvaluator`, which has the rest of it.

    Attributes:
        has_indexes: may indexes lead to rows of the shard, with what is appended and not committed?
    """

    sessions: OpenSessions
    owned: OwnedRange
    _appended_end: int
    _pending: deque[Pending]

    def __init__(self, state: TableState) -> None:
        super().__init__(state)
        self._sequences = Sequences(state)
        self.has_indexes = state.has_indexes

    @property
    def has_strays(self) -> bool:
        """May rows be in the store that a split took away?"""
        stored = self.state.owned
        return self.owned.purging and (stored.purging or stored.last != self.owned.last)

    @abstractmethod
    def _view(self, ops: Sequence[TableOp], changed: Known) -> Known:
        """Versions of the keys that operations name."""

    @abstractmethod
    def _refuse(self, to: Evaluation, key: bytes, expected: int, found: VersionTuple | None) -> None:
        """Refuse an operation because of the version that was found."""

    def _put_attributed(self, to: Evaluation, index: int, op: PutAttributed | PutEphemeral) -> None:
        key, current = op.key, to.view[op.key]
        if isinstance(op, PutAttributed):
            check_attributes(op)
            if op.sequence:
                key, current = self._next_key(to, op), None
        owner, expected = op.session_id, op.expected_version
        if owner is not None and not self.sessions.may_own(owner, key, to.owned or ()):
            to.results.append(NO_SESSION)
            to.wait_for = self._appended_end
        elif expected is not None and expected != (_ABSENT if current is None else current[0]):
            self._refuse(to, key, expected, current)
        else:
            put_attributed(to, op, key, index, current)

    def _next_key(self, to: Evaluation, op: PutAttributed) -> bytes:
        """A key of the sequence that nobody has put."""
        if to.known is not None:
            raise InvalidRequestError("in one request keys of sequences are put before ranges are removed")
        if to.sequences is None:
            to.sequences = {}
        for _ in range(FOREIGN_MAX):
            key = self._sequences.next(op, to.sequences)
            if self._view([Check(key, _ABSENT)], to.changed)[key] is None:
                to.made.append(key)
                return key
        raise InvalidRequestError(
            f"others have put {FOREIGN_MAX} keys of the sequence {op.key!r} that are not committed"
        )

    def preparing(self, evaluation: Evaluation, piece: int) -> Steps[None]:
        """Make what the store is to take of an evaluation, which is not appended yet, in steps of `piece` effects."""
        records, state = evaluation.records, self.state
        batch, now = state.batch(), None
        if self.has_indexes or evaluation.indexed:
            now = yield from pending_entries.pending_entries(self._pending, evaluation, piece)
        for at in range(0, len(records), piece):
            if at:
                yield records
            effects = effects_in(records[at : at + piece])
            state.add_effects(batch, effects)
            if now is not None:
                indexes.add_changes(state.store, batch, effects, now)
        evaluation.prepared, evaluation.entries = batch, now

    def note_attributed(self, evaluation: Evaluation, end: int) -> None:
        """An evaluation with such puts is in the log up to `end`."""
        self.has_indexes = self.has_indexes or evaluation.indexed
        if evaluation.sequences:
            self._sequences.appended(evaluation.sequences, end)
            self._sequences.committed(self.state.applied_offset)
