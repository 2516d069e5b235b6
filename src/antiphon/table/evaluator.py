"""The leader's half of a table: what operations mean, judged once, written down as effects.

The leader judges each operation against its store *plus* what it has appended and not yet seen committed (the overlay), and
appends only the effects. Replicas apply effects blindly (`table.state`).

How the shell of a shard drives this, all on one event loop, on the leader only:

0. When the replica is ready (its term-start entry is committed), apply the log up to there with `state.apply(...)` and make
   a `TableEvaluator(state)`. Nothing may have been appended after the term start. Drop the evaluator when leadership is
   lost: the overlay goes with it, and from then on committed batches reach the store by `state.apply(...)` again.
1. For a `TableWrite`: first ask the log's producer state whether (producer id, epoch, sequence) is a duplicate. If so, wait
   until the original batch is committed and answer `results_from_batch(batch)`.
2. `evaluation = evaluate(ops, now_ms)`. This changes nothing. It raises InvalidRequestError or OverloadedError.
3. If `evaluation.records` is not empty: `build_batch(evaluation.records, producer_id=..., base_sequence=...)`, make the
   checks that can refuse an append (size, disk full), append at `base_offset` and at once call
   `appended(evaluation, base_offset)`: no other `evaluate` in between. If the append is refused, forget the evaluation.
4. On `Commit(high_watermark)`: call `committed(high_watermark)`. It applies the effects to the store, in one write batch.
   *Then* answer those requests whose `evaluation.wait_for` is at or below the high watermark, with
   `TableWritten(evaluation.results, offset=base_offset)`, and then wake those who follow the log (S0.20).
5. If `evaluation.records` is empty, every operation was refused or touched nothing, and nothing is appended. The answer is
   given when the state that was looked at is committed *and* leadership was confirmed after the request came in
   (`Replica.request_read`, then wait until the store is applied up to `max(wait_for, offset of ReadReady)`): an old leader's
   refusal could otherwise contradict what a newer leader has acknowledged. Its offset is -1. Such a request leaves no trace;
   when it is sent again it is judged again, which is harmless, for it did nothing.

Reads are served from the store, never from the overlay (S0.19): between append and commit a get returns the old value. A
linearizable read confirms leadership first (`request_read`) and waits until the store is applied up to that offset.

Operations of one request are carried out in order and see each other's effects; a refused one does not refuse the others. In
an atomic request it does: then nothing is written, and the results say which were refused.
Versions: an id per successful put, rising by one from 0 in each shard; deletes take none.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from antiphon.errors import CorruptBatchError, InvalidRequestError, OverloadedError
from antiphon.invariants import invariant, unreachable
from antiphon.model.requests import (
    OPS_MAX,
    Check,
    Delete,
    DeleteRange,
    OpResult,
    OpStatus,
    Put,
    TableOp,
    TableWritten,
    Version,
)
from antiphon.records.batch import Buffer, read_header
from antiphon.records.changes import (
    INDEX,
    INDEX_HEADER,
    OUTCOMES_HEADER,
    VERSION,
    VERSION_HEADER,
    Outcome,
    VersionTuple,
    pack_outcomes,
    unpack_outcomes,
)
from antiphon.records.decode import decode_records
from antiphon.records.split_entries import Inherit, SplitEntry
from antiphon.table.ranges import advance
from antiphon.table.state import TableState

ABSENT: Final = -1
KEY_BYTES_MAX: Final = 64 * 1024
RANGE_KEYS_MAX: Final = 100_000
OVERLAY_KEYS_MAX: Final = 1_000_000
SETTLED_KEYS_MAX: Final = 32_768

RecordInput = tuple[bytes, bytes | None, list[tuple[str, bytes | None]], int]

_GONE: Final = object()
_DONE: Final = OpResult(OpStatus.OK)
_NOT_FOUND: Final = OpResult(OpStatus.KEY_NOT_FOUND)
_NOT_CARRIED_OUT: Final = OpResult(OpStatus.NOT_CARRIED_OUT)


class Evaluation:
    """What a request comes to. `records` are for `build_batch`; see the module's text for how to go on.

    Attributes:
        results: one `OpResult` per operation, in order.
        records: the effects with their headers, empty if there are none.
        wait_for: nothing may be answered before the log is committed and applied up to this offset (exclusive).
    """

    __slots__ = ("changed", "generation", "next_version_id", "records", "results", "wait_for")

    def __init__(self, generation: int, next_version_id: int) -> None:
        self.results: list[OpResult] = []
        self.records: list[RecordInput] = []
        self.wait_for = 0
        self.changed: dict[bytes, VersionTuple | None] = {}  # key -> version after the request, None: removed
        self.next_version_id = next_version_id
        self.generation = generation


class _Pending(NamedTuple):
    """An appended evaluation that is not known to be committed."""

    end: int
    records: list[RecordInput]
    changed: dict[bytes, VersionTuple | None]
    next_version_id: int
    entry: tuple[SplitEntry, int] | None = None  # of a split, with its offset


class TableEvaluator:
    """Evaluates operations for one table shard in one term of leadership; see the module docstring."""

    def __init__(self, state: TableState) -> None:
        self.state = state
        self.owned = state.owned  # with what is appended and not committed
        self._next_version_id = state.next_version_id
        self._appended_end = state.applied_offset
        self._generation = 0
        self._pending: deque[_Pending] = deque()
        self._overlay: dict[bytes, VersionTuple | None] = {}
        # Versions of recently committed keys, in two generations: saves the look-up in the store, memory is bounded.
        self._settled: dict[bytes, VersionTuple | None] = {}
        self._settled_before: dict[bytes, VersionTuple | None] = {}

    @property
    def overlay_keys(self) -> int:
        """Keys with effects that are appended and not committed."""
        return len(self._overlay)

    # -- judging ------------------------------------------------------------------------------------------------

    def evaluate(self, ops: Sequence[TableOp], now_ms: int, *, atomic: bool = False) -> Evaluation:
        """Judge `ops` in order at time `now_ms` (ms since 1970). Changes nothing.

        `atomic`: all of them or none. One that is refused (an unexpected version, or a key to delete that is not there)
        refuses the others, whose status is then NOT_CARRIED_OUT.

        Raises:
            InvalidRequestError: no or too many operations, a key above 64 KiB, an impossible expected version, a range that
                holds more than 100,000 keys. The whole request is refused then.
            OverloadedError: too much is waiting for its commit.
        """
        if not 0 < len(ops) <= OPS_MAX:
            raise InvalidRequestError(
                f"a write has 1 to {OPS_MAX} operations, got {len(ops)}", found=len(ops)
            )
        if len(self._overlay) > OVERLAY_KEYS_MAX:
            raise OverloadedError(f"{len(self._overlay)} keys wait for their commit")
        evaluation = Evaluation(self._generation, self._next_version_id)
        view = self._view(ops)
        at = 0
        while at < len(ops):
            op = ops[at]
            if type(op) is Put:
                at = self._puts(evaluation, view, at, ops, now_ms)
                continue
            if type(op) is Delete:
                self._delete(evaluation, view, at, op, now_ms)
            elif isinstance(op, DeleteRange):
                self._delete_range(evaluation, view, at, op, now_ms)
            elif isinstance(op, Check):
                self._check(evaluation, view, op)
            at += 1
        if atomic and any(result.status != OpStatus.OK for result in evaluation.results):
            return self._none_of_it(evaluation)
        if evaluation.records:
            self._note_outcomes(evaluation)
        return evaluation

    def _none_of_it(self, judged: Evaluation) -> Evaluation:
        """The evaluation of an atomic request with a refused operation."""
        refused = Evaluation(self._generation, self._next_version_id)
        refused.results = [
            _NOT_CARRIED_OUT if result.status == OpStatus.OK else result for result in judged.results
        ]
        # Operations see each other's effects: whatever was looked at, none of it is answered before it is committed.
        refused.wait_for = self._appended_end if self._overlay else 0
        return refused

    def _view(self, ops: Sequence[TableOp]) -> dict[bytes, VersionTuple | None]:
        """Versions of all keys that `ops` name, as of now."""
        overlay, settled, before = self._overlay, self._settled, self._settled_before
        view: dict[bytes, VersionTuple | None] = {}
        unknown: list[bytes] = []
        for op in ops:
            if type(op) is DeleteRange:
                continue
            key = op.key  # type: ignore[union-attr]  # mypy does not narrow on `type(op) is`
            if len(key) > KEY_BYTES_MAX:
                raise InvalidRequestError(
                    f"a key has at most {KEY_BYTES_MAX} bytes, got {len(key)}", size_bytes=len(key)
                )
            if key in overlay:
                view[key] = overlay[key]
            elif key in settled:
                view[key] = settled[key]
            elif key in before:
                view[key] = before[key]
            else:
                unknown.append(key)
        if unknown:
            view.update(zip(unknown, self.state.versions(unknown), strict=True))
        return view

    def _puts(
        self,
        to: Evaluation,
        view: dict[bytes, VersionTuple | None],
        start: int,
        ops: Sequence[TableOp],
        now_ms: int,
        end: int | None = None,
    ) -> int:
        """The puts from place `start` up to the next operation of another kind (or to `end`), whose place is returned.

        Nearly all operations are puts, so this is one loop without calls: it costs two thirds of a call for each.
        """
        records, results, changed = to.records, to.results, to.changed
        version_id, pack = to.next_version_id, VERSION.pack
        at = start
        for at in range(start, len(ops) if end is None else end):
            op = ops[at]
            if type(op) is not Put:
                break
            key = op.key
            current = view[key]
            expected = op.expected_version
            if expected is not None and expected != (ABSENT if current is None else current[0]):
                self._refuse(to, key, expected, current)
                continue
            version = (
                (version_id, 0, now_ms, now_ms)
                if current is None
                else (version_id, current[1] + 1, current[2], now_ms)
            )
            version_id += 1
            headers: list[tuple[str, bytes | None]] = [(VERSION_HEADER, pack(*version))]
            if len(records) != at:
                headers.append((INDEX_HEADER, INDEX.pack(at)))
            records.append((key, op.value, headers, now_ms))
            view[key] = changed[key] = version
            results.append(OpResult(0, Version(*version)))
        else:
            at += 1
        to.next_version_id = version_id
        return at

    def _delete(
        self, to: Evaluation, view: dict[bytes, VersionTuple | None], index: int, op: Delete, now_ms: int
    ) -> None:
        current = view[op.key]
        expected = op.expected_version
        if expected is not None and expected != (ABSENT if current is None else current[0]):
            self._refuse(to, op.key, expected, current)
        elif current is None:
            to.results.append(_NOT_FOUND)
            self._looked_at(to, op.key)
        else:
            self._remove(to, view, index, op.key, current, now_ms)
            to.results.append(_DONE)

    def _check(self, to: Evaluation, view: dict[bytes, VersionTuple | None], op: Check) -> None:
        current = view[op.key]
        if op.expected_version != (ABSENT if current is None else current[0]):
            self._refuse(to, op.key, op.expected_version, current)
        else:
            to.results.append(_DONE)
            self._looked_at(to, op.key)

    def _delete_range(
        self, to: Evaluation, view: dict[bytes, VersionTuple | None], index: int, op: DeleteRange, now_ms: int
    ) -> None:
        start, end = op.start, op.end
        # Keys that this request or the overlay knows better than the store does; their rows in the store are ignored.
        known = {
            key: version
            for source in (self._overlay, to.changed)
            for key, version in source.items()
            if key >= start and (not end or key < end)
        }
        limit = RANGE_KEYS_MAX + 1 + len(known)
        stored = self.state.versions_in(start, end, limit)
        found = {key: version for key, version in stored if key not in known}
        found.update((key, version) for key, version in known.items() if version is not None)
        if len(found) > RANGE_KEYS_MAX:
            raise InvalidRequestError(
                f"the range holds more than {RANGE_KEYS_MAX} keys: delete it in smaller ranges",
                limit=RANGE_KEYS_MAX,
            )
        if not found and known:
            to.wait_for = self._appended_end
        for key in sorted(found):
            self._remove(to, view, index, key, found[key], now_ms)
        to.results.append(_DONE)

    def _remove(
        self,
        to: Evaluation,
        view: dict[bytes, VersionTuple | None],
        index: int,
        key: bytes,
        removed: VersionTuple,
        now_ms: int,
    ) -> None:
        headers: list[tuple[str, bytes | None]] = [(VERSION_HEADER, VERSION.pack(*removed))]
        if len(to.records) != index:
            headers.append((INDEX_HEADER, INDEX.pack(index)))
        to.records.append((key, None, headers, now_ms))
        view[key] = to.changed[key] = None

    def _refuse(self, to: Evaluation, key: bytes, expected: int, found: VersionTuple | None) -> None:
        if expected < ABSENT:
            raise InvalidRequestError(
                f"an expected version is a version id, or {ABSENT} for absent; got {expected}",
                expected=expected,
            )
        to.results.append(OpResult(OpStatus.UNEXPECTED_VERSION, None if found is None else Version(*found)))
        self._looked_at(to, key)

    def _looked_at(self, to: Evaluation, key: bytes) -> None:
        if key in self._overlay:
            to.wait_for = self._appended_end

    @staticmethod
    def _note_outcomes(to: Evaluation) -> None:
        """Record the outcomes if the records alone do not contain them."""
        results = to.results
        # Without an index header each record stands at the place of its operation; as many of both is one for each.
        if len(to.records) == len(results) and all(len(record[2]) == 1 for record in to.records):
            return
        outcomes: list[Outcome] = []
        for result in results:
            refused = result.status == OpStatus.UNEXPECTED_VERSION
            outcomes.append((result.status, _tuple(result.version) if refused and result.version else None))
        to.records[0][2].append((OUTCOMES_HEADER, pack_outcomes(outcomes)))

    # -- following the log --------------------------------------------------------------------------------------

    def appended(self, evaluation: Evaluation, base_offset: int) -> None:
        """The evaluation's batch is in the log at `base_offset`. Sets `evaluation.wait_for` to its end."""
        if not evaluation.records:
            unreachable("only an evaluation with effects is appended")
        if evaluation.generation != self._generation:
            unreachable(
                "an evaluation is appended before the next one is, else it was judged against an older state"
            )
        if base_offset < self._appended_end:
            unreachable(f"the log grows: {self._appended_end} is appended, then {base_offset}")
        end = base_offset + len(evaluation.records)
        self._generation += 1
        self._next_version_id = evaluation.next_version_id
        self._appended_end = evaluation.wait_for = end
        self._overlay.update(evaluation.changed)
        self._pending.append(
            _Pending(end, evaluation.records, evaluation.changed, evaluation.next_version_id)
        )

    def imported(self, records: list[RecordInput], base_offset: int) -> None:
        """A batch of rows that were copied from another shard, with their versions, is in the log at `base_offset`."""
        changed: dict[bytes, VersionTuple | None] = {}
        newest = -1
        for key, value, headers, _ in records:
            version: VersionTuple = VERSION.unpack(headers[0][1] or b"")
            changed[key] = None if value is None else version
            newest = max(newest, version[0])
        self._append(base_offset, base_offset + len(records), records, changed, newest + 1)

    def appended_entry(self, entry: SplitEntry, base_offset: int) -> None:
        """An entry of a split is in the log at `base_offset`; later operations are evaluated under it."""
        next_version_id = entry.next_version_id if isinstance(entry, Inherit) else 0
        self._append(base_offset, base_offset + 1, [], {}, next_version_id, (entry, base_offset))
        self.owned = advance(self.owned, entry, base_offset)

    def _append(
        self,
        base_offset: int,
        end: int,
        records: list[RecordInput],
        changed: dict[bytes, VersionTuple | None],
        next_version_id: int,
        entry: tuple[SplitEntry, int] | None = None,
    ) -> None:
        invariant(
            base_offset >= self._appended_end,
            f"the log grows: {self._appended_end} is appended, then {base_offset}",
        )
        self._generation += 1
        self._next_version_id = max(self._next_version_id, next_version_id)
        self._appended_end = end
        self._overlay.update(changed)
        self._pending.append(_Pending(end, records, changed, self._next_version_id, entry))

    @property
    def appended_end(self) -> int:
        """Everything that was evaluated is committed when the log is committed up to here."""
        return self._appended_end

    def committed(self, high_watermark: int) -> None:
        """The log is committed up to `high_watermark`: apply the effects up to there to the store.

        Raises StorageFailedError.
        """
        if high_watermark <= self.state.applied_offset:
            return
        pending = self._pending
        done: list[_Pending] = []
        while pending and pending[0].end <= high_watermark:
            done.append(pending.popleft())
        next_version_id = done[-1].next_version_id if done else self.state.next_version_id
        entries = [item.entry for item in done if item.entry is not None]
        self.state.apply_effects(_effects(done), high_watermark, next_version_id, entries)
        self._appended_end = max(self._appended_end, high_watermark)
        self._release(done)

    def _release(self, done: Iterable[_Pending]) -> None:
        overlay, settled = self._overlay, self._settled
        if not self._pending:  # nothing newer can be in the overlay
            for item in done:
                settled.update(item.changed)
            overlay.clear()
        else:
            for item in done:
                for key, version in item.changed.items():
                    settled[key] = version
                    if overlay.get(key, _GONE) is version and (
                        version is not None or not self._deleted_later(key)
                    ):
                        del overlay[key]
        if len(settled) > SETTLED_KEYS_MAX:
            self._settled_before, self._settled = settled, {}

    def _deleted_later(self, key: bytes) -> bool:
        """Does a later, pending request change `key`? Two removals look the same in the overlay."""
        return any(key in item.changed for item in self._pending)


def results_from_batch(batch: Buffer) -> TableWritten:
    """The answer to the request that became `batch`: for a request that is sent again.

    Raises CorruptBatchError if `TableEvaluator` did not make the batch.
    """
    header = read_header(batch)
    written: dict[int, OpResult] = {}
    outcomes: list[Outcome] | None = None
    for place, record in enumerate(decode_records(batch)):
        headers = dict(record.headers)
        packed, index_bytes = headers.get(VERSION_HEADER), headers.get(INDEX_HEADER)
        if packed is None or len(packed) != VERSION.size:
            raise CorruptBatchError(f"the record at offset {record.offset} is no effect of a table operation")
        if place == 0 and (told := headers.get(OUTCOMES_HEADER)) is not None:
            outcomes = unpack_outcomes(told)
        index = place if index_bytes is None else INDEX.unpack(index_bytes)[0]
        written[index] = _DONE if record.value is None else OpResult(0, Version(*VERSION.unpack(packed)))
    if outcomes is None:
        return TableWritten(tuple(written[index] for index in sorted(written)), header.base_offset)
    results = []
    for index, (status, found) in enumerate(outcomes):
        told_by_record = written.get(index)
        if status == OpStatus.OK and told_by_record is not None:
            results.append(told_by_record)
        else:
            results.append(OpResult(status, None if found is None else Version(*found)))
    return TableWritten(tuple(results), header.base_offset)


def _effects(done: Iterable[_Pending]) -> list[tuple[bytes, bytes | None, bytes]]:
    return [
        (key, value, headers[0][1] or b"")  # the version comes first, and is never None
        for item in done
        for key, value, headers, _ in item.records
    ]


def _tuple(version: Version) -> VersionTuple:
    return (version.id, version.modifications, version.created_ms, version.modified_ms)
