"""How a table's leader judges the removal of a range of keys: a part of `table.evaluator`, whose text says what is when."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from antiphon.errors import InvalidRequestError
from antiphon.invariants import unreachable
from antiphon.model.attributes import PutAttributed
from antiphon.model.requests import DeleteRange, Put, TableOp
from antiphon.model.sessions import PutEphemeral
from antiphon.records.changes import VersionTuple
from antiphon.table.evaluation import DONE, Evaluation, Steps
from antiphon.table.known_keys import KnownKeys
from antiphon.table.state import TableState

RANGE_KEYS_MAX: Final = 100_000


class RangeRemovals(ABC):
    """See the module's text; of a `TableEvaluator`, which has the rest of it."""

    state: TableState
    _overlay: dict[bytes, VersionTuple | None]
    _appended_end: int

    @abstractmethod
    def _remove(
        self,
        to: Evaluation,
        view: dict[bytes, VersionTuple | None],
        index: int,
        key: bytes,
        removed: VersionTuple,
        now_ms: int,
    ) -> None:
        """Add the removal of a key that has this version."""

    def _delete_range(
        self,
        to: Evaluation,
        view: dict[bytes, VersionTuple | None],
        index: int,
        ops: Sequence[TableOp],
        now_ms: int,
        piece: int,
    ) -> Steps[None]:
        op = ops[index]
        if not isinstance(op, DeleteRange):
            unreachable("only a range is looked through")
        known = to.known
        if known is None:
            named = (other.key for other in ops if isinstance(other, Put | PutEphemeral | PutAttributed))
            known = to.known = KnownKeys([*self._overlay, *named, *to.made])
            while known.sort(piece):
                yield to.records
        start: bytes | None = op.start
        while start is not None:
            stored, following = self.state.versions_in(start, op.end, min(piece, RANGE_KEYS_MAX + 1))
            end = op.end if following is None else following
            found = self._in_range(to, known, stored, start, end)
            to.looked_at += max(len(stored), len(found))
            if to.looked_at > RANGE_KEYS_MAX:
                raise InvalidRequestError(
                    f"the ranges hold more than {RANGE_KEYS_MAX} keys: delete them in smaller ranges",
                    limit=RANGE_KEYS_MAX,
                )
            for key in sorted(found):
                self._remove(to, view, index, key, found[key], now_ms)
            start = following
            if start is not None:
                yield to.records
        to.results.append(DONE)

    def _in_range(
        self,
        to: Evaluation,
        known: KnownKeys,
        stored: Iterable[tuple[bytes, VersionTuple]],
        start: bytes,
        end: bytes,
    ) -> dict[bytes, VersionTuple]:
        """The keys from `start` to before `end` with their versions. The overlay may have changed what is `stored`."""
        overlay, changed = self._overlay, to.changed
        found = {key: version for key, version in stored if key not in changed and key not in overlay}
        for key in known.between(start, end):
            version = changed[key] if key in changed else overlay.get(key)
            if version is not None:
                found[key] = version
            if key in overlay:
                to.wait_for = self._appended_end
        return found
