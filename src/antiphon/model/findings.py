"""What is wrong on a node and since when, and how far its scrub is: for status pages, monitors and operators."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.model.body import Body

DEGRADED = "degraded"  # everything here is served; something is lost, or refused, until somebody acts
UNHEALTHY = "unhealthy"  # a replica here does not take part
OF_NODE = -1  # in the place of a shard's id
KINDS: Final = (
    "ahead_of_leader", "audit_differs", "damage_found", "disk_full", "log_damaged", "log_not_written", "not_joined",
    "not_readable", "replica_closed", "replica_stopped", "split_brain",
)  # fmt: skip


AUDIT_TEXT_MAX: Final = 1_000
AUDITED_MAX: Final = 5_000  # shards of a NoteAudit


class AuditNote(msgspec.Struct, frozen=True, array_like=True):
    """What an audit has found in a node's replica of a shard, in words."""

    shard_id: int
    what: Annotated[str, Meta(max_length=AUDIT_TEXT_MAX)]


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """One thing that is wrong, or was: `mended_ms` is above 0 then. Times are in ms since 1970 by the node's clock.

    `kind` is a name that does not change, for programs. `shard_id`: OF_NODE where it is not about one replica. `what` says
    what was found, with the file; `do` what a person is to do; empty: nothing, the node mends it.
    """

    kind: str
    shard_id: int
    level: str
    since_ms: int
    what: str
    do: str = ""
    mended_ms: int = 0


class ScrubStatus(msgspec.Struct, frozen=True, array_like=True):
    """How far a node's scrub is. `shard_id`: what it reads now; OF_NODE: nothing. `done_bytes` of `total_bytes` of it.

    `waiting`: shards that are due. `completed_ms`: since when all that is here has been read; 0: not yet.
    `bytes_per_s` 0: only on request.
    """

    bytes_per_s: int
    interval_s: int
    shard_id: int = OF_NODE
    done_bytes: int = 0
    total_bytes: int = 0
    waiting: int = 0
    completed_ms: int = 0
    read_bytes: int = 0  # since the node's start
    errors: int = 0


class StartScrub(Body, frozen=True, array_like=True, tag=True):
    """Have the asked node read what is on its disk of a shard, or of all (-1), now."""

    shard_id: int = OF_NODE


class NoteAudit(Body, frozen=True, array_like=True, tag=True):
    """Tell the asked node what an audit has found in its replicas. What was found before in `shards` is so no more."""

    shards: Annotated[tuple[int, ...], Meta(max_length=AUDITED_MAX)]
    found: Annotated[tuple[AuditNote, ...], Meta(max_length=AUDITED_MAX)] = ()
