"""The entries of sessions in a table's log: control batches, which consumers skip and every replica obeys.

- `SessionOpened`: from here on rows can belong to the session. Its time-out stands here, and no time: when a session expires
  is for the shard's leader to say.
- `SessionEnded`: the session is over, and no row belonged to it. The end of a session with rows is a batch of their
  tombstones (`antiphon.records.changes`, header `e`), so that those who follow the table see them go.
"""

import msgspec

from antiphon.records.batch import Buffer
from antiphon.records.builder import build_control, control_entry

SESSION_TYPE = 104


class _Entry(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the entries."""


class SessionOpened(_Entry, frozen=True, array_like=True, tag=1):
    """The session may have rows from here on; without a sign of its client it expires after `timeout_ms`."""

    session_id: int
    timeout_ms: int


class SessionEnded(_Entry, frozen=True, array_like=True, tag=2):
    """The session is over."""

    session_id: int


SessionEntry = SessionOpened | SessionEnded

_decoder: msgspec.msgpack.Decoder[SessionEntry] = msgspec.msgpack.Decoder(SessionEntry)
_encode = msgspec.msgpack.Encoder().encode


def build_session_entry(entry: SessionEntry, term: int, base_offset: int, timestamp_ms: int) -> bytearray:
    """The control batch of an entry: one record, one offset."""
    return build_control(SESSION_TYPE, _encode(entry), term, base_offset, timestamp_ms)


def session_entry_of(batch: Buffer) -> SessionEntry | None:
    """The entry in a control batch; None for every other batch. Raises CorruptBatchError where it cannot be read."""
    return control_entry(batch, SESSION_TYPE, _decoder, "session")
