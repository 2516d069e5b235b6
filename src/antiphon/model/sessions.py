"""Sessions in the native protocol: of clients whose rows are removed when they fall silent."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.model.body import Body, OfShard

LISTED_MAX: Final = 500  # sessions of one answer
HASHES_MAX: Final = 16  # numbers that a request may name as the hashes of a shard


class PutEphemeral(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True, tag=4):
    """Set a key as `Put` does; the row is removed when the session ends, unless it was put again since.

    `session_not_found` if the session is not open in this shard.
    """

    key: bytes
    value: bytes
    session_id: int
    expected_version: int | None = None


class OpenSession(OfShard, frozen=True, array_like=True, tag=True):
    """Open a session in a shard of a table: `Done`, also where it is open already with the same time-out.

    The sender draws `session_id`, at random from 1 to 2^63 - 1, and opens the session in each shard in which it puts rows.
    `hashes` is the range of key hashes that it takes for this shard's, where the table was ever split.
    """

    session_id: int
    timeout_ms: int
    hashes: Annotated[tuple[int, ...], Meta(max_length=HASHES_MAX)] = ()
    wait_ms: int = 10_000


class KnownSession(OfShard, frozen=True, array_like=True, tag=True):
    """Base of what is asked of a session that is taken for open."""

    session_id: int
    hashes: Annotated[tuple[int, ...], Meta(max_length=HASHES_MAX)] = ()
    wait_ms: int = 10_000


class KeepSession(KnownSession, frozen=True, array_like=True, tag=True):
    """A sign of life. `Done`: the session is open, and does not expire within its time-out from when this was sent.

    `session_not_found`: it has ended. `hashes` as for `OpenSession`: the shard refuses with `wrong_shard` when it has fewer,
    for the session has to be kept in the shard that has the others, too.
    """


class CloseSession(KnownSession, frozen=True, array_like=True, tag=True):
    """End a session in a shard now; its rows are removed. `session_not_found` if it is not open. `hashes` as above."""


class ListSessions(OfShard, frozen=True, array_like=True, tag=True):
    """The sessions that are open in a shard of a table, in the order of their ids: at most `limit`, after `after`."""

    after: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=LISTED_MAX)] = LISTED_MAX


class SessionState(msgspec.Struct, frozen=True, array_like=True):
    """An open session in one shard, as its leader knows it.

    Attributes:
        keys: that were put under it, whoever has put them since; -1: there were too many to count in one answer.
        age_ms: since it was opened, or since this leader took over, which knows no more.
        left_ms: until it expires, if its client stays silent.
    """

    session_id: int
    timeout_ms: int
    keys: int
    age_ms: int
    left_ms: int


class SessionsReply(Body, frozen=True, array_like=True, tag=True):
    """`total`: sessions that are open in the shard; `more`: ask again, after the last one."""

    rows: tuple[SessionState, ...]
    total: int = 0
    more: bool = False


SessionRequest = OpenSession | KeepSession | CloseSession
