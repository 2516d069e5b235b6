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
   `evaluating` does the same in pieces. Between two of them commits may be applied, which changes where a version is found
   and not which one. Nothing else may be appended until the evaluation is, or is forgotten: other writes wait.
3. If `evaluation.records` is not empty: `build_batch(evaluation.records, producer_id=..., base_sequence=...)`, make the
   checks that can refuse an append (size, disk full), append at `base_offset` and at once call
   `appended(evaluation, base_offset)`: no other `evaluate` in between. If the append is refused, forget the evaluation.
4. On `Commit(high_watermark)`: call `committed(high_watermark)`. It applies the effects to the store, in write batches that
   each end with a request.
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
from typing import Final

from antiphon.errors import InvalidRequestError, OverloadedError
from antiphon.invariants import unreachable
from antiphon.model.attributes import PutAttributed
from antiphon.model.requests import OPS_MAX, Check, Delete, OpResult, OpStatus, Put, TableOp
from antiphon.model.rows import Version
from antiphon.model.sessions import PutEphemeral
from antiphon.records.changes import (
    INDEX,
    INDEX_HEADER,
    VERSION,
    VERSION_HEADER,
    VersionTuple,
    has_attributes,
)
from antiphon.records.split_entries import Inherit, SplitEntry
from antiphon.table.attributed import AttributedPuts
from antiphon.table.bulk_puts import Loads
from antiphon.table.evaluation import (
    AT_ONCE,
    DONE,
    KEY_BYTES_MAX,
    NOT_CARRIED_OUT,
    NOT_FOUND,
    OVERLAY_KEYS_MAX,
    Evaluation,
    Header,
    Known,
    Pending,
    RecordInput,
    Steps,
    effects_in,
    finished,
    note_outcomes,
    too_many,
)
from antiphon.table.indexes import is_indexed
from antiphon.table.ranges import RANGES, advance
from antiphon.table.session_rows import SessionChange
from antiphon.table.sessions import OpenSessions
from antiphon.table.state import TableState
from antiphon.table.store import Batch

ABSENT: Final = -1
SETTLED_KEYS_MAX: Final = 32_768

_GONE: Final = object()


class TableEvaluator(AttributedPuts):
    """Evaluates operations for one table shard in one term of leadership; see the module docstring."""

    def __init__(self, state: TableState) -> None:
        super().__init__(state)
        self.owned = state.shown  # with what is appended and not committed, as all here
        self.sessions = OpenSessions(state)
        self._next_version_id = state.next_version_id
        self._appended_end = state.applied_offset
        self._generation = 0
        self._pending: deque[Pending] = deque()
        self._overlay: Known = {}
        # Versions of recently committed keys, in two generations: saves the look-up in the store, memory is bounded.
        self._settled: Known = {}
        self._settled_before: Known = {}
        self.loads = Loads(
            self,
            lambda: (self._settled_before, self._settled, self._overlay),
            lambda: (self._next_version_id, self._generation),
            self._append,
        )

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
            InvalidRequestError: no or too many operations, a key above 64 KiB, an impossible expected version, ranges that
                hold more than 100,000 keys together. The whole request is refused then.
            OverloadedError: too much is waiting for its commit.
        """
        return self.at_once(ops, now_ms, atomic=atomic) or finished(
            self.evaluating(ops, now_ms, AT_ONCE, atomic=atomic)
        )

    def at_once(self, ops: Sequence[TableOp], now_ms: int, *, atomic: bool = False) -> Evaluation | None:
        """`evaluate`, or None if there is a range among `ops`: nobody knows how much that is."""
        if not 0 < len(ops) <= OPS_MAX:
            raise too_many(ops)
        evaluation = Evaluation(self._generation, self._next_version_id, now_ms)
        evaluation.view = self._view(ops, evaluation.changed)
        at, end = 0, len(ops)
        while at < end:  # nearly all operations are puts
            if type(ops[at]) is Put:
                at = self._puts(evaluation, at, ops, end)
            elif type(ops[at]) in RANGES:
                return None
            else:
                self._judge(evaluation, at, ops[at])
                at += 1
        return self._judged(evaluation, atomic=atomic)

    def evaluating(
        self, ops: Sequence[TableOp], now_ms: int, piece: int, *, atomic: bool = False
    ) -> Steps[Evaluation]:
        """`evaluate` in steps of `piece` operations, keys or rows; see the module's text for what may happen between two."""
        if not 0 < len(ops) <= OPS_MAX:
            raise too_many(ops)
        evaluation = Evaluation(self._generation, self._next_version_id, now_ms)
        at = 0
        for end in range(piece, len(ops) + piece, piece):
            if at:
                yield evaluation.records
            end = min(len(ops), end)
            evaluation.view = self._view(ops[at:end], evaluation.changed)
            while at < end:
                if type(ops[at]) is Put:
                    at = self._puts(evaluation, at, ops, end)
                    continue
                if type(ops[at]) in RANGES:
                    yield from self._delete_range(evaluation, at, ops, piece)
                else:
                    self._judge(evaluation, at, ops[at])
                at += 1
        return self._judged(evaluation, atomic=atomic)

    def _judged(self, evaluation: Evaluation, *, atomic: bool) -> Evaluation:
        """What a request comes to, once each of its operations is judged."""
        if atomic and any(result.status != OpStatus.OK for result in evaluation.results):
            return self._none_of_it(evaluation)
        records = evaluation.records
        # Without an index header each record stands at the place of its operation; as many of both is one for each.
        is_plain = len(records) == len(evaluation.results) and all(len(record[2]) == 1 for record in records)
        if records and not is_plain:
            note_outcomes(evaluation)
        return evaluation

    def _judge(self, to: Evaluation, at: int, op: TableOp) -> None:
        if isinstance(op, Delete):
            self._delete(to, at, op)
        elif isinstance(op, Check):
            self._check(to, op)
        elif isinstance(op, PutEphemeral | PutAttributed):
            self._put_attributed(to, at, op)
        else:
            unreachable(f"{type(op).__name__} is judged elsewhere")

    def _none_of_it(self, judged: Evaluation) -> Evaluation:
        """The evaluation of an atomic request with a refused operation."""
        refused = Evaluation(self._generation, self._next_version_id, judged.now_ms)
        refused.results = [
            NOT_CARRIED_OUT if result.status == OpStatus.OK else result for result in judged.results
        ]
        # Operations see each other's effects: whatever was looked at, none of it is answered before it is committed.
        refused.wait_for = self._appended_end if self._overlay else 0
        return refused

    def _view(self, ops: Sequence[TableOp], changed: Known) -> Known:
        """Versions of all keys that `ops` name, as of now; `changed` are those that the same request has made before."""
        overlay, settled, before = self._overlay, self._settled, self._settled_before
        if len(overlay) > OVERLAY_KEYS_MAX:
            raise OverloadedError(f"{len(overlay)} keys wait for their commit")
        if self.transactions.locked:
            self.transactions.check_ops(ops)
        view: Known = {}
        unknown: list[bytes] = []
        for op in ops:
            if type(op) is not Put and type(op) in RANGES:
                continue
            key = op.key  # type: ignore[union-attr]  # mypy does not narrow on `type(op) is`
            if len(key) > KEY_BYTES_MAX:
                raise InvalidRequestError(
                    f"a key has at most {KEY_BYTES_MAX} bytes, got {len(key)}", size_bytes=len(key)
                )
            if key in changed:
                view[key] = changed[key]
            elif key in overlay:
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

    def _puts(self, to: Evaluation, start: int, ops: Sequence[TableOp], end: int) -> int:
        """The puts from place `start` up to the next operation of another kind, or to `end`, whose place is returned.

        Nearly all operations are puts, so this is one loop without calls: it costs two thirds of a call for each.
        """
        records, results, changed = to.records, to.results, to.changed
        view, now_ms, version_id, pack = to.view, to.now_ms, to.next_version_id, VERSION.pack
        at = start
        for at in range(start, end):
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
            headers: list[Header] = [(VERSION_HEADER, pack(*version))]
            if len(records) != at:
                headers.append((INDEX_HEADER, INDEX.pack(at)))
            records.append((key, op.value, headers, now_ms))
            view[key] = changed[key] = version
            results.append(OpResult(0, Version(*version)))
        else:
            at += 1
        to.next_version_id = version_id
        return at

    def _delete(self, to: Evaluation, index: int, op: Delete) -> None:
        current = to.view[op.key]
        expected = op.expected_version
        if expected is not None and expected != (ABSENT if current is None else current[0]):
            self._refuse(to, op.key, expected, current)
        elif current is None:
            to.results.append(NOT_FOUND)
            self._looked_at(to, op.key)
        else:
            self._remove(to, index, op.key, current)
            to.results.append(DONE)

    def _check(self, to: Evaluation, op: Check) -> None:
        current = to.view[op.key]
        if op.expected_version != (ABSENT if current is None else current[0]):
            self._refuse(to, op.key, op.expected_version, current)
        else:
            to.results.append(DONE)
            self._looked_at(to, op.key)

    def ending(self, session_id: int, now_ms: int) -> Evaluation:
        """The end of an open session: the removal of its rows. Without any, no effects: its end is an entry then."""
        to = Evaluation(self._generation, self._next_version_id, now_ms)
        return self.sessions.ending(session_id, to, self._view, self.owned)

    def _remove(self, to: Evaluation, index: int, key: bytes, removed: VersionTuple) -> None:
        to.put(index, key, None, removed)
        to.removes(key)

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
        prepared, changed = evaluation.prepared, evaluation.changed
        alone = evaluation.attributed or (self.has_indexes and evaluation.owned is not None)
        if evaluation.owned is not None or evaluation.session is not None:
            prepared = self._of_sessions(evaluation, alone=alone)
        if alone:
            self.note_attributed(evaluation, end)
        records = evaluation.records if prepared is None else []
        self._generation += 1
        self._next_version_id = evaluation.next_version_id
        self._appended_end = evaluation.wait_for = end
        if evaluation.removed is not None:
            self.removals.note(evaluation.removed, end)
        self._overlay.update(changed)
        newest, session = evaluation.next_version_id, evaluation.session
        said = evaluation.attributed, evaluation.entries
        self._pending.append(
            Pending(end, records, changed, newest, None, prepared, session, None, alone, *said)
        )

    def _of_sessions(self, evaluation: Evaluation, *, alone: bool) -> Batch | None:
        """Note what an evaluation does to sessions; returns what the store is to take, unless it is the end of one."""
        if evaluation.session is not None:
            self.sessions.changed(evaluation.session)
            return None
        self.sessions.own(evaluation.owned or ())
        if evaluation.prepared is None and not alone:
            finished(self.preparing(evaluation, AT_ONCE))
        return evaluation.prepared

    def appended_session(self, change: SessionChange, base_offset: int) -> None:
        """An entry of a session is in the log at `base_offset`."""
        self._append(base_offset, Pending(base_offset + 1, [], {}, self._next_version_id, session=change))
        self.sessions.changed(change)

    def imported(self, records: list[RecordInput], base_offset: int) -> None:
        """A batch of rows that were copied from another shard, with their versions, is in the log at `base_offset`."""
        changed: Known = {}
        newest = -1
        for key, value, headers, _ in records:
            version: VersionTuple = VERSION.unpack(headers[0][1] or b"")
            changed[key] = None if value is None else version
            newest = max(newest, version[0])
        next_version_id = max(self._next_version_id, newest + 1)
        effects, end = effects_in(records), base_offset + len(records)
        alone = any(has_attributes(version) for _, _, version in effects)
        self.has_indexes = self.has_indexes or (alone and is_indexed(effects))
        if alone or self.has_indexes:
            self._append(base_offset, Pending(end, records, changed, next_version_id, alone=True))
            return
        prepared = self.state.batch()
        self.state.add_effects(prepared, effects)
        self._append(base_offset, Pending(end, [], changed, next_version_id, None, prepared))

    def appended_entry(self, entry: SplitEntry, base_offset: int) -> None:
        """An entry of a split is in the log at `base_offset`; later operations are evaluated under it."""
        inherited = entry.next_version_id if isinstance(entry, Inherit) else 0
        next_version_id = max(self._next_version_id, inherited)
        self._append(base_offset, Pending(base_offset + 1, [], {}, next_version_id, (entry, base_offset)))
        self.owned = advance(self.owned, entry, base_offset)
        if self.owned.purging:  # what is known of rows that have gone would outlive them
            self._settled, self._settled_before = {}, {}
        for session in entry.sessions if isinstance(entry, Inherit) else ():
            self.sessions.changed(SessionChange(*session))

    def _append(self, base_offset: int, pending: Pending) -> None:
        if base_offset < self._appended_end:
            unreachable(f"the log grows: {self._appended_end} is appended, then {base_offset}")
        self._generation += 1
        self._next_version_id = pending.next_version_id
        self._appended_end = pending.end
        self._overlay.update(pending.changed)
        self._pending.append(pending)

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
        state, pending = self.state, self._pending
        released: list[Pending] = []
        while state.applied_offset < high_watermark:
            done: list[Pending] = []  # what is applied together: all up to one that is applied by itself
            while pending and pending[0].end <= high_watermark:
                first = pending[0]
                if first.alone or first.prepared is not None or first.session or first.transaction:
                    break
                done.append(pending.popleft())
            large = pending.popleft() if pending and pending[0].end <= high_watermark else None
            if done or large is None:
                effects = [
                    (key, value, headers[0][1] or b"")  # the version comes first, and is never None
                    for item in done
                    for key, value, headers, _ in item.records
                ]
                next_version_id = done[-1].next_version_id if done else state.next_version_id
                entries = [item.entry for item in done if item.entry is not None]
                end = high_watermark if large is None else done[-1].end
                state.apply_effects(effects, end, next_version_id, entries)
            released += done
            if large is not None:
                self._apply_alone(large)
                released.append(large)
        self._appended_end = max(self._appended_end, high_watermark)
        self._release(released)

    def _apply_alone(self, large: Pending) -> None:
        state, end = self.state, large.end
        if large.prepared is not None:
            puts = [(key, b"", b"") for key in large.changed] if large.unordered and state.ordered else ()
            state.apply_prepared(
                large.prepared,
                end,
                large.next_version_id,
                attributed=large.attributed,
                indexed=large.entries is not None,
                unordered=puts,
            )
        elif large.transaction is not None:
            state.apply_transaction(large.transaction, end, large.next_version_id)
        else:
            effects = effects_in(large.records)
            state.apply_effects(effects, end, large.next_version_id, (), large.session)

    def _release(self, done: Iterable[Pending]) -> None:
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
