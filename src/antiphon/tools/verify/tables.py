"""Is what the table's clients saw linearizable? Keys share no state, so each is judged by itself.

Values are unique and versions rise within a shard, which keeps the search small: an acknowledged put says where in the order
of puts it stands, and a put of unknown outcome is either in the log, with its version, or was never carried out.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from antiphon.records.changes import Change, decode_changes
from antiphon.simulation.linearizability import NO, Operation, Verdict, check_object
from antiphon.tools.verify.history import Outcome, TableCall
from antiphon.tools.verify.logs import ShardCopy

STEPS_MAX: Final = 2_000_000


class Cell(NamedTuple):
    """State of a key: its value and version (-1: not there), and the highest version it ever had."""

    value: bytes | None
    version: int
    newest: int


EMPTY: Final = Cell(None, -1, -1)


def judge(calls: Sequence[TableCall], copies: Iterable[ShardCopy]) -> tuple[list[str], int]:
    """Problems, and the number of keys whose search was cut off before it could tell."""
    changes = [change for copy in copies for change in decode_changes(copy.batches)]
    puts: dict[bytes | None, Change] = {c.value: c for c in changes if c.value is not None}
    problems = list(_against_the_log(calls, puts))
    by_key: dict[bytes, list[TableCall]] = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
    cut_off = 0
    for key, found in sorted(by_key.items()):
        verdict = check_object(_operations(found, puts), _step, EMPTY, STEPS_MAX)
        if verdict is Verdict.NOT_LINEARIZABLE:
            problems.append(f"the {len(found)} operations on key {key!r} are not linearizable")
        elif verdict is Verdict.UNKNOWN:
            cut_off += 1
    return problems, cut_off


def _against_the_log(calls: Sequence[TableCall], puts: dict[bytes | None, Change]) -> Iterator[str]:
    """Acknowledged puts are in the log with their version, refused ones are not, and reads are of what it holds."""
    for call in calls:
        change = puts.get(call.value) if call.value is not None else None
        what = f"{call.what} {call.value!r} of key {call.key!r}"
        if call.what == "put" and call.outcome is Outcome.OK:
            if change is None:
                yield f"LOST: {what} was acknowledged with version {call.version}"
            elif change.version_id != call.version:
                yield f"{what} was acknowledged with version {call.version}, has {change.version_id}"
        elif call.what == "put" and call.outcome is Outcome.REFUSED and change is not None:
            yield f"{what} was refused, yet is at offset {change.offset}"
        elif (
            call.what == "get"
            and call.outcome is Outcome.OK
            and call.value is not None
            and (change is None or (change.version_id, change.key) != (call.version, call.key))
        ):
            yield f"{what}, version {call.version}, is not in the log"


def _operations(calls: Sequence[TableCall], puts: dict[bytes | None, Change]) -> list[Operation]:
    """What bears on the state: not the gets of unknown outcome, nor puts that never came to be."""
    operations = []
    for call in calls:
        known = call
        if call.outcome is Outcome.UNKNOWN:
            change = puts.get(call.value)
            if call.what == "get" or (call.what == "put" and change is None):
                continue
            if change is not None:
                known = replace(call, version=change.version_id)
        elif call.outcome is Outcome.REFUSED and call.version is None and call.expected is None:
            continue  # it was never sent
        operations.append(
            Operation(call.client, call.what, known, call.outcome, call.invoked_ns, call.returned_ns)
        )
    return operations


def _step(state: Hashable, operation: Operation) -> Hashable:
    call: TableCall | object = operation.argument
    if not isinstance(state, Cell) or not isinstance(call, TableCall):
        return NO
    if call.what == "get":
        return state if (state.value, state.version) == (call.value, call.version) else NO
    if call.outcome is Outcome.REFUSED:
        # Not sent in time (nothing is told), or judged against this version.
        return state if call.version is None or call.version == state.version else NO
    fits = call.expected is None or call.expected == state.version
    if call.what == "put":
        if not fits or call.version is None or call.version <= state.newest:
            return NO
        return Cell(call.value, call.version, call.version)
    if fits and state.version >= 0:
        return Cell(None, -1, state.newest)
    return state if call.outcome is Outcome.UNKNOWN else NO
