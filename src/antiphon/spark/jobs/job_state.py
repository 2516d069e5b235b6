"""What jobs remember in the cluster itself: what a named job was told, and which of its parts are done.

A job that may be killed and started again keeps three things under its name, rows of the internal table `__jobs`: its *plan*
(everything that decides what it writes: offsets, how rows are cut), which the first run fixes and every later run takes
over; a row for each *part* that is through; and its *end*. Writing the plan is a compare-and-set, so of two runs of one name
that start at the same time both have the plan of one.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.blocking_topics import created
from antiphon.errors import (
    UNDECODABLE,
    CorruptBatchError,
    InvalidRequestError,
    UnknownTopicError,
)
from antiphon.model import internal
from antiphon.model.metadata import KeyRanges, Kind
from antiphon.model.requests import CreateTopic, OpStatus, Put, TableGet, TableWrite, TableWritten

JOBS_TABLE: Final = internal.JOBS_TABLE
NAME_LENGTH_MAX: Final = 1_000
_ABSENT: Final = -1


class JobState:
    """The rows of one job. `cluster` is used by nobody else at the same time."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Raises InvalidRequestError for a name that cannot be one."""
        if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
            raise InvalidRequestError(
                f"a job's name has 1 to {NAME_LENGTH_MAX} printable characters, not {name[:50]!r}"
            )
        self.name = name
        self._cluster = cluster
        self._ranges: KeyRanges | None = None

    def plan(self) -> dict[str, Any] | None:
        """What the job was told; None: nobody began it."""
        return self._read("plan")

    def begin(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Fix the plan, unless that is done; returns the one that holds."""
        self._create()
        return self._put_once("plan", plan)

    def part(self, number: int) -> dict[str, Any] | None:
        """What a part that is through came to."""
        return self._read(f"part/{number:08}")

    def part_done(self, number: int, result: Mapping[str, Any]) -> None:
        """A part is through."""
        self._put_once(f"part/{number:08}", result)

    def end(self) -> dict[str, Any] | None:
        """What the job came to; None: it is not through."""
        return self._read("end")

    def ended(self, result: Mapping[str, Any]) -> None:
        """The job is through."""
        self._put_once("end", result)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _key(self, what: str) -> bytes:
        return f"{self.name}\x00{what}".encode()

    def _shard_id(self, key: bytes) -> int:
        if self._ranges is None:
            self._ranges = KeyRanges(self._cluster.topic(JOBS_TABLE, table=True).shards)
        return self._ranges.shard_of(key).shard_id

    def _read(self, what: str) -> dict[str, Any] | None:
        key = self._key(what)
        try:
            shard_id = self._shard_id(key)
        except UnknownTopicError:
            return None
        (row,) = self._cluster.call(ShardCall(shard_id, TableGet(shard_id, (key,)))).body.rows
        if row is None:
            return None
        return decode_job_row(key, row.value or b"")

    def _put_once(self, what: str, value: Mapping[str, Any]) -> dict[str, Any]:
        key = self._key(what)
        shard_id = self._shard_id(key)
        request = TableWrite(shard_id, (Put(key, msgspec.json.encode(dict(value)), _ABSENT),), internal=True)
        written: TableWritten = self._cluster.call(ShardCall(shard_id, request)).body
        if written.results[0].status == OpStatus.OK:
            return dict(value)
        # Somebody was faster, or an earlier try of this very request was carried out and its answer lost.
        return self._read(what) or dict(value)

    def _create(self) -> None:
        """Make the table unless it is there."""
        with suppress(UnknownTopicError):
            self._shard_id(b"")
            return
        created(self._cluster, CreateTopic(JOBS_TABLE, Kind.TABLE, 1, internal=True))


def decode_job_row(key: bytes, value: bytes) -> dict[str, Any]:
    """What a row of `__jobs` says; raises CorruptBatchError."""
    try:
        found: dict[str, Any] = msgspec.json.decode(value, type=dict[str, Any])
    except UNDECODABLE as error:
        raise CorruptBatchError(f"row {key!r} of {JOBS_TABLE} is not a job's: {error}") from error
    return found


def same_or_refuse(stored: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> None:
    """Raise InvalidRequestError where a job of that name was told something else in what `wanted` says."""
    for what, value in wanted.items():
        if stored.get(what) != value:
            raise InvalidRequestError(
                f"a job named {name!r} was begun with {what} = {stored.get(what)!r}, now it is {value!r}: give this one "
                "another name, or the first one's values to complete that"
            )
