"""The sessions of a table's shard as its leader sees them: with what is appended and not committed.

A session is opened in a shard by an entry of its log, has rows that were put under it, and is ended by one entry that
removes those rows. When it ends is not decided here: `table.session_clock` says when it is due, `partition.sessions` ends
it.

A row belongs to the session as long as it has the version that it got when it was put under the session. So a put by
anybody else, a removal or a put under another session takes it away without a word to this module, and the session's end
leaves that row alone.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from antiphon.errors import InvalidRequestError
from antiphon.model.requests import Check, TableOp
from antiphon.records.changes import SESSION, SESSION_HEADER
from antiphon.table.evaluation import Evaluation, Known
from antiphon.table.ranges import OwnedRange
from antiphon.table.session_rows import ENDED, SessionChange
from antiphon.table.state import TableState

SESSION_KEYS_MAX: Final = 1_000  # that were put under one session in one shard
SESSION_KEYS_BYTES_MAX: Final = 256 * 1024  # of those keys together: the end of a session is one batch

View = Callable[[Sequence[TableOp], Known], Known]
"""`TableEvaluator._view`: versions of the keys that operations name."""


class OpenSession:
    """One of them. `keys`: what was put under it, with version ids; None until somebody asks.

    `since_s`: since when a clock has known it; None until then.
    """

    __slots__ = ("keys", "since_s", "size_bytes", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.keys: dict[bytes, int] | None = None
        self.since_s: float | None = None
        self.size_bytes = 0


class OpenSessions:
    """See the module's text; for one term of leadership.

    Attributes:
        by_id: those that are open.
        fresh: of these, those that were opened (or found) since somebody last took them out of here.
    """

    def __init__(self, state: TableState) -> None:
        self._state = state
        self.by_id = {session_id: OpenSession(ms) for session_id, ms in state.sessions().items()}
        self.fresh = list(self.by_id)

    def changed(self, change: SessionChange) -> None:
        """A session was opened or ended in the log."""
        if change.timeout_ms == ENDED:
            self.by_id.pop(change.session_id, None)
            return
        self.by_id[change.session_id] = OpenSession(change.timeout_ms)
        self.fresh.append(change.session_id)

    def may_own(self, session_id: int, key: bytes, now_owned: Sequence[tuple[int, bytes, int]]) -> bool:
        """Is the session open? `now_owned`: what the same request has put under sessions so far.

        Raises InvalidRequestError where it has too many keys for one more.
        """
        session = self.by_id.get(session_id)
        if session is None:
            return False
        keys = self._loaded(session_id, session)
        if key not in keys:
            mine = [other for owner, other, _ in now_owned if owner == session_id]
            size_bytes = session.size_bytes + len(key) + sum(map(len, mine))
            if len(keys) + len(mine) >= SESSION_KEYS_MAX or size_bytes > SESSION_KEYS_BYTES_MAX:
                raise InvalidRequestError(
                    f"a session has at most {SESSION_KEYS_MAX} keys and {SESSION_KEYS_BYTES_MAX} bytes of keys in a "
                    f"shard of a table, this one has {len(keys)}: put the others under another session",
                    limit=SESSION_KEYS_MAX,
                )
        return True

    def own(self, rows: Iterable[tuple[int, bytes, int]]) -> None:
        """Rows were put under sessions, in the log."""
        for session_id, key, version_id in rows:
            session = self.by_id[session_id]
            keys = self._loaded(session_id, session)
            if key not in keys:
                session.size_bytes += len(key)
            keys[key] = version_id

    def ending(self, session_id: int, to: Evaluation, view: View, owned: OwnedRange) -> Evaluation:
        """Make `to` the end of the session: the removal of those of its keys that still have their versions."""
        keys = self._loaded(session_id, self.by_id[session_id])
        mine = sorted(filter(owned.holds, keys))
        versions = view([Check(key, 0) for key in mine], {})
        owner = (SESSION_HEADER, SESSION.pack(session_id))
        for key in mine:
            version = versions[key]
            if version is not None and version[0] == keys[key]:
                to.put(len(to.records), key, None, version, [owner])
                to.removes(key)
        to.session = SessionChange(session_id, ENDED)
        return to

    def _loaded(self, session_id: int, session: OpenSession) -> dict[bytes, int]:
        if session.keys is None:
            session.keys = self._state.session_keys(session_id)
            session.size_bytes = sum(map(len, session.keys))
        return session.keys
