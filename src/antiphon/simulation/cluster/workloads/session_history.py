"""What the committed logs of a table say of sessions: who opened, who owned what, and what each end took away.

Read as the records are written, without the code that writes them. A shard's log is judged by itself; one that was split off
begins with copies, and with the sessions that it took over.

- `session-order`: a session is opened once and ended once, and rows are put under it in between.
- `session-end`: what the end of a session removes is each row that belongs to it then, and no other, in one entry.
- `session-inherited`: a shard that takes rows over takes over the sessions that they belong to.
"""

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from antiphon.model.metadata import key_hash
from antiphon.records.batch import iter_batches
from antiphon.records.decode import decode_records
from antiphon.records.session_entries import SessionEnded, SessionOpened, session_entry_of
from antiphon.records.split_entries import Inherit, Release, split_entry_of
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.records.decode import Record
    from antiphon.simulation.cluster.cluster import SimulatedCluster

ID: Final = struct.Struct(">q")
OWN: Final = b"own "  # keys that begin so are put under one session, and by nobody else


class Row:
    """A row as it is in the log: its value, its version id, whose it is."""

    __slots__ = ("owner", "value", "version_id")

    def __init__(self, value: bytes, version_id: int, owner: int | None) -> None:
        self.value = value
        self.version_id = version_id
        self.owner = owner


class ShardSessions:
    """One shard's log, folded batch by batch."""

    def __init__(self, shard_id: int, *, is_child: bool) -> None:
        self.shard_id = shard_id
        self.rows: dict[bytes, Row] = {}
        self.open: dict[int, int] = {}  # with their time-outs in ms
        self.values: set[bytes] = set()  # of all puts, ever
        self.children: list[int] = []
        self._ended: set[int] = set()
        self.copies = is_child  # is what comes a copy of the parent's rows?

    def take(self, data: Any) -> None:
        """The next committed batch."""
        for header, batch in iter_batches(data):
            if header.is_control:
                self._control(batch)
            else:
                records = list(decode_records(batch))
                self._data(records)
                self.seen(records)

    def seen(self, records: "list[Record]") -> None:
        """For judges that look at more than sessions."""

    def _control(self, batch: Any) -> None:
        said, entry = session_entry_of(batch), split_entry_of(batch)
        if isinstance(said, SessionOpened):
            self._require(
                said.session_id not in self.open, "session-order", f"{said.session_id} is opened twice"
            )
            self.open[said.session_id] = said.timeout_ms
        elif isinstance(said, SessionEnded):
            self._ends(said.session_id, [])
        elif isinstance(entry, Inherit):
            self.copies = False
            self.open = dict(entry.sessions)
            owners = {row.owner for row in self.rows.values()} - {None}
            self._require(
                owners <= set(self.open),
                "session-inherited",
                f"rows of sessions {sorted(map(str, owners - set(self.open)))} were taken over without them",
            )
        elif isinstance(entry, Release):
            self.children.append(entry.child)
            self.rows = {key: row for key, row in self.rows.items() if key_hash(key) < entry.first}

    def _data(self, records: "list[Record]") -> None:
        first = _owner(records[0]) if records else None
        if first is not None and records[0].value is None:
            self._ends(first, records)
            return
        for record in records:
            key, owner = record.key or b"", _owner(record)
            if record.value is None:
                row = self.rows.pop(key, None)
                self._require(
                    self.copies or row is None or row.owner is None or not key.startswith(OWN),
                    "session-end",
                    f"{key!r} is removed, which nobody does but the end of its session",
                )
                continue
            self._require(
                owner is None or owner in self.open or self.copies,
                "session-order",
                f"{key!r} = {record.value!r} is put under session {owner}, which is not open",
            )
            self.values.add(record.value)
            self.rows[key] = Row(record.value, version_of(record), owner)

    def _ends(self, session_id: int, records: "list[Record]") -> None:
        self._require(session_id in self.open, "session-order", f"{session_id} ends, and is not open")
        self.open.pop(session_id)
        mine = {key for key, row in self.rows.items() if row.owner == session_id}
        removed = {record.key or b"" for record in records if record.value is None}
        self._require(
            mine == removed and len(records) == len(removed),
            "session-end",
            f"session {session_id} ends with rows {sorted(mine)}, and its end removes {sorted(removed)}",
        )
        for key in mine:
            del self.rows[key]

    def _require(self, holds: bool, name: str, text: str) -> None:
        require(holds, name, text, self.shard_id)


def version_of(record: "Record") -> int:
    """The version id that a put got."""
    return int(ID.unpack_from(dict(record.headers)["v"] or b"")[0])


def _owner(record: "Record") -> int | None:
    packed = dict(record.headers).get("e")
    return None if packed is None else int(ID.unpack(packed)[0])


class SessionHistory:
    """All shards of a table, as far as their logs are committed by now. `read` may be called again and again."""

    def __init__(self, cluster: "SimulatedCluster", shard_ids: Iterable[int]) -> None:
        self._cluster = cluster
        self.shards = {shard_id: self.fold(shard_id, is_child=False) for shard_id in shard_ids}
        self._read: dict[int, int] = {}  # batches, by shard

    def fold(self, shard_id: int, *, is_child: bool) -> ShardSessions:
        """What folds one shard's log."""
        return ShardSessions(shard_id, is_child=is_child)

    def read(self) -> None:
        """Take what is committed since the last time. Raises ViolationError."""
        waiting = list(self.shards)
        while waiting:
            shard_id = waiting.pop(0)
            shard = self.shards[shard_id]
            batches = self._cluster.evidence.truth(shard_id).batches
            for batch in batches[self._read.get(shard_id, 0) :]:
                shard.take(batch.data)
            self._read[shard_id] = len(batches)
            for child in shard.children:
                if child not in self.shards:
                    self.shards[child] = self.fold(child, is_child=True)
                    waiting.append(child)

    @property
    def open(self) -> set[int]:
        """Sessions that are open in some shard."""
        return {session_id for shard in self.shards.values() for session_id in shard.open}

    @property
    def values(self) -> set[bytes]:
        """Values of all puts."""
        return {value for shard in self.shards.values() for value in shard.values}
