"""What a request to a table comes to: made by `table.evaluator`, in pieces where it is large."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from antiphon.errors import InvalidRequestError
from antiphon.model.requests import OPS_MAX, OpResult, OpStatus, TableOp
from antiphon.model.rows import Version
from antiphon.records.attributes import Entry
from antiphon.records.changes import (
    INDEX,
    INDEX_HEADER,
    OUTCOMES_HEADER,
    VERSION,
    VERSION_HEADER,
    Effect,
    Outcome,
    VersionTuple,
    pack_outcomes,
    version_for_store,
)
from antiphon.records.split_entries import SplitEntry
from antiphon.table.prepared import TransactionChange
from antiphon.table.session_rows import SessionChange
from antiphon.table.store import Batch

if TYPE_CHECKING:
    from antiphon.table.known_keys import KnownKeys

Result = TypeVar("Result")
Header = tuple[str, bytes | None]
RecordInput = tuple[bytes, bytes | None, list[Header], int]
Known = dict[bytes, VersionTuple | None]
"""Versions by key; None: the key is not there."""
Steps = Generator[list[RecordInput], None, Result]
"""Work in pieces, each of which gives the effects so far; its result comes at the end."""

KEY_BYTES_MAX: Final = 64 * 1024
OVERLAY_KEYS_MAX: Final = 1_000_000  # with effects that are not committed
AT_ONCE: Final = 1 << 30  # a piece that holds every request
DONE: Final = OpResult(OpStatus.OK)
NOT_FOUND: Final = OpResult(OpStatus.KEY_NOT_FOUND)
NO_SESSION: Final = OpResult(OpStatus.SESSION_NOT_FOUND)
NOT_CARRIED_OUT: Final = OpResult(OpStatus.NOT_CARRIED_OUT)


class Evaluation:
    """What a request comes to. `records` are for `build_batch`; `table.evaluator` says how to go on.

    Attributes:
        now_ms: when it is judged, in ms since 1970.
        view: the versions of the keys that its operations name, with what it has changed so far.
        results: one `OpResult` per operation, in order.
        records: the effects with their headers, empty if there are none.
        wait_for: nothing may be answered before the log is committed and applied up to this offset (exclusive).
        prepared: the effects as the store takes them, where that was made beforehand (`preparing`).
        entries: what indexes lead to the rows that it leaves, by key, where `prepared` says what they lose.
        owned: rows that are put under sessions: (session, key, version id).
        session: that it ends, if that is what this is.
        removed: keys that it removes; None where it removes none.
        attributed: does it put rows with attributes?
        indexed: do indexes lead to any of them?
        sequences: the last numbers that it gives of each sequence, and the keys that it has `made` so.
    """

    __slots__ = (
        "attributed",
        "changed",
        "entries",
        "generation",
        "indexed",
        "known",
        "looked_at",
        "made",
        "next_version_id",
        "now_ms",
        "owned",
        "prepared",
        "records",
        "removed",
        "results",
        "sequences",
        "session",
        "view",
        "wait_for",
    )

    def __init__(self, generation: int, next_version_id: int, now_ms: int) -> None:
        self.now_ms = now_ms
        self.view: Known = {}
        self.results: list[OpResult] = []
        self.records: list[RecordInput] = []
        self.wait_for = 0
        self.changed: Known = {}  # key -> version after the request, None: removed
        self.next_version_id = next_version_id
        self.generation = generation
        self.prepared: Batch | None = None
        self.entries: dict[bytes, tuple[Entry, ...]] | None = None
        self.known: dict[str, KnownKeys] | None = None  # by order; made for the first range
        self.looked_at = 0  # rows, for all ranges
        self.owned: list[tuple[int, bytes, int]] | None = None
        self.session: SessionChange | None = None
        self.removed: list[bytes] | None = None
        self.attributed = self.indexed = False
        self.sequences: dict[bytes, tuple[int, ...]] | None = None
        self.made: list[bytes] = []

    def put(
        self, index: int, key: bytes, value: bytes | None, version: VersionTuple, more: Iterable[Header] = ()
    ) -> None:
        """Add what operation `index` writes: the row with its new version, or its removal (`value` None)."""
        headers: list[Header] = [(VERSION_HEADER, VERSION.pack(*version)), *more]
        if len(self.records) != index:
            headers.append((INDEX_HEADER, INDEX.pack(index)))
        self.records.append((key, value, headers, self.now_ms))
        self.view[key] = self.changed[key] = None if value is None else version

    def removes(self, key: bytes) -> None:
        """Note that it removes a key."""
        if self.removed is None:
            self.removed = []
        self.removed.append(key)


class Pending(NamedTuple):
    """An appended evaluation that is not known to be committed."""

    end: int
    records: list[RecordInput]
    changed: Known
    next_version_id: int
    entry: tuple[SplitEntry, int] | None = None  # of a split, with its offset
    prepared: Batch | None = None
    session: SessionChange | None = None
    transaction: TransactionChange | None = None
    alone: bool = False  # `records` say more than versions: it is applied by itself
    attributed: bool = False  # see Evaluation
    entries: Mapping[bytes, tuple[Entry, ...]] | None = None  # see Evaluation
    unordered: bool = False  # `prepared` puts what is `changed`, and has no entries of the order of keys


def too_many(ops: Sequence[TableOp]) -> InvalidRequestError:
    """The error for no or too many operations."""
    return InvalidRequestError(f"a write has 1 to {OPS_MAX} operations, got {len(ops)}", found=len(ops))


def finished(steps: Generator[Any, None, Result]) -> Result:
    """The result of work in pieces, all of which are done now."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def effects_in(records: Iterable[RecordInput]) -> list[Effect]:
    """Effects as a store takes them."""
    effects = []
    for key, value, headers, _ in records:
        version = headers[0][1] or b""
        if len(headers) > 1:
            version = version_for_store(version, headers)
        effects.append((key, value, version))
    return effects


def note_outcomes(to: Evaluation) -> None:
    """Record the outcomes of operations that the records alone do not tell."""
    outcomes: list[Outcome] = []
    for result in to.results:
        refused = result.status == OpStatus.UNEXPECTED_VERSION
        outcomes.append((result.status, _tuple(result.version) if refused and result.version else None))
    to.records[0][2].append((OUTCOMES_HEADER, pack_outcomes(outcomes)))


def _tuple(version: Version) -> VersionTuple:
    return (version.id, version.modifications, version.created_ms, version.modified_ms)
