"""Where a replay ends: an exclusive offset for each shard, from offsets or a time, checked against what there is.

A cut is fixed before anything is read, so all tasks, and a run that is started again, replay the same. What was archived
counts as there (`antiphon.archive.catalog`).

Offsets have to name every shard, for a state of which a part is missing is no state. Shards that were split off a table's
shard later than its offset here may be left out: their keys were the other shard's then.
"""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.archive.catalog import archived_offset_at, archived_rows, archived_start
from antiphon.client.blocking import Cluster, ShardCall, list_offsets
from antiphon.client.log_reader import committed_end
from antiphon.errors import DataLossError, InvalidRequestError, UnknownShardError
from antiphon.model.metadata import Kind, is_multi
from antiphon.model.requests import ListOffset, OffsetReply
from antiphon.spark.jobs.split_cuts import settle

if TYPE_CHECKING:
    from antiphon.model.metadata import ShardMeta, TopicMeta

LIST_LATEST: Final = -1
TIME_MS_MAX: Final = 253_402_300_799_000  # the end of the year 9999

AsOfOffset = int | str | Mapping[str, Any] | None


class Bounds(NamedTuple):
    """Of one shard: what can be read, and where its log on the nodes begins."""

    start: int
    end: int
    log_start: int


class Cut(NamedTuple):
    """The end of a replay.

    Attributes:
        name: of the topic or table; `topic_id` as hex.
        starts: first offset that each shard's replay has to read.
        ends: exclusive; shards that did not exist then are missing from both.
    """

    name: str
    topic_id: str
    is_table: bool
    starts: dict[int, int]
    ends: dict[int, int]

    @property
    def records(self) -> int:
        """Offsets that are to be read; at least the number of records."""
        return sum(end - self.starts[shard] for shard, end in self.ends.items())

    def offsets_json(self) -> str:
        """As an option of the Spark source takes it."""
        return _json(self.name, self.ends)

    def starts_json(self) -> str:
        """The same for where it begins."""
        return _json(self.name, self.starts)


def _json(name: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({name: {str(shard): offset for shard, offset in sorted(offsets.items())}})


def find_cut(
    cluster: Cluster,
    topic: "TopicMeta",
    as_of_offset: AsOfOffset = None,
    as_of_timestamp_ms: int | None = None,
) -> Cut:
    """Where a replay of `topic` ends; by default at what is committed now.

    Raises InvalidRequestError, UnknownShardError, and DataLossError where the past that is asked for is gone.
    """
    if as_of_offset is not None and as_of_timestamp_ms is not None:
        raise InvalidRequestError("give an offset or a time to replay up to, not both")
    if is_multi(topic):
        raise InvalidRequestError(
            f"every replica of {topic.name} takes writes, so there is no one order of its records to replay: read its "
            'state of now, spark.read.format("antiphon"), and load that'
        )
    bounds = bounds_of(cluster, topic)
    shards = {shard.index: shard for shard in topic.shards}
    if as_of_timestamp_ms is not None:
        ends = _ends_at(cluster, topic, bounds, as_of_timestamp_ms)
    elif as_of_offset is not None:
        ends = _ends_given(topic, bounds, as_of_offset)
    else:
        ends = {index: bound.end for index, bound in bounds.items()}
    if topic.kind is Kind.TABLE:
        ends = settle(cluster, topic, ends, exact=as_of_offset is not None)
    elif missing := [index for index in bounds if index not in ends]:
        raise InvalidRequestError(
            f"no offset is given for shard {missing[0]} of {topic.name}: name all of its {len(bounds)} shards"
        )
    starts = {}
    for index, end in ends.items():
        start = bounds[index].start
        starts[index] = min(max(start, shards[index].own_start), end)
        if start > 0 and topic.kind is Kind.TABLE:
            raise DataLossError(
                f"table {topic.name} shard {index} has its changes from offset {start} on only, in its log and the archive: "
                "its past cannot be rebuilt, only its state now can be read"
            )
    return Cut(topic.name, topic.topic_id.hex(), topic.kind is Kind.TABLE, starts, ends)


def bounds_of(cluster: Cluster, topic: "TopicMeta") -> dict[int, Bounds]:
    """Bounds of every shard, archived ranges included."""
    replies = list_offsets(cluster, {shard.shard_id: LIST_LATEST for shard in topic.shards})
    found = {}
    for shard, reply in zip(topic.shards, replies.values(), strict=True):
        start = archived_start(cluster, topic.name, shard.index, reply.log_start, reply.deleted_before)
        found[shard.index] = Bounds(start, committed_end(reply), reply.log_start)
    return dict(sorted(found.items()))


# -- by time --------------------------------------------------------------------------------------------------------


def _ends_at(
    cluster: Cluster, topic: "TopicMeta", bounds: Mapping[int, Bounds], time_ms: int
) -> dict[int, int]:
    """What happened at the time belongs to it."""
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise InvalidRequestError(f"{time_ms} is no time in ms since 1970")
    if time_ms > time.time_ns() // 1_000_000:
        raise InvalidRequestError(
            f"{iso_time(time_ms)} is in the future: records up to then can still be written"
        )
    ends = {
        shard.index: _first_at(cluster, topic, shard, bounds[shard.index], time_ms + 1)
        for shard in topic.shards
    }
    if all(end <= bounds[index].start for index, end in ends.items()):
        earliest_ms = earliest_time(cluster, topic, bounds)
        if earliest_ms is not None and earliest_ms > time_ms:
            lost = any(bound.start > 0 for bound in bounds.values())
            why = "what was before is gone" if lost else "there was nothing before"
            raise InvalidRequestError(
                f"{topic.name} begins at {iso_time(earliest_ms)}, the earliest time that can be replayed to; "
                f"{iso_time(time_ms)} is before ({why})"
            )
    return ends


def _first_at(cluster: Cluster, topic: "TopicMeta", shard: "ShardMeta", bound: Bounds, time_ms: int) -> int:
    """The first offset whose timestamp is that late, or the end."""
    if bound.start < bound.log_start:
        archived = archived_offset_at(cluster, topic.name, shard.index, time_ms, bound.log_start, bound.start)
        if archived is not None:
            return archived
    reply: OffsetReply = cluster.call(ShardCall(shard.shard_id, ListOffset(shard.shard_id, time_ms))).body
    return bound.end if reply.offset < 0 else min(max(reply.offset, bound.start), bound.end)


def earliest_time(cluster: Cluster, topic: "TopicMeta", bounds: Mapping[int, Bounds]) -> int | None:
    """Timestamp of the first record that there is, in ms; None where there is none."""
    found = []
    for shard in topic.shards:
        bound = bounds[shard.index]
        if bound.start < bound.log_start:
            first = next(
                iter(archived_rows(cluster, topic.name, shard.index, bound.start, bound.log_start)), None
            )
            if first is not None and first.num_rows:
                found.append(int(first.column("timestamp")[0].as_py().timestamp() * 1000))
                continue
        reply: OffsetReply = cluster.call(ShardCall(shard.shard_id, ListOffset(shard.shard_id, 0))).body
        if reply.offset >= 0:
            found.append(reply.timestamp_ms)
    return min(found, default=None)


def iso_time(time_ms: int) -> str:
    """In UTC, with milliseconds."""
    return (
        datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def parse_time(text: str) -> int:
    """ISO 8601 as ms since 1970; a time without a zone is UTC. Raises InvalidRequestError."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRequestError(
            f"{text!r} is no time: write it as 2026-03-01T12:00:00Z (ISO 8601)"
        ) from None
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)


# -- by offset ------------------------------------------------------------------------------------------------------


def _ends_given(topic: "TopicMeta", bounds: Mapping[int, Bounds], given: AsOfOffset) -> dict[int, int]:
    wanted = parse_offsets(topic.name, given, len(bounds))
    for index, offset in wanted.items():
        bound = bounds.get(index)
        if bound is None:
            raise UnknownShardError(f"{topic.name} has shards 0 to {len(bounds) - 1}, not {index}")
        if offset > bound.end:
            raise InvalidRequestError(
                f"{topic.name} shard {index} ends at offset {bound.end}, {offset} is beyond: it cannot be replayed yet"
            )
        if offset < bound.start:
            raise DataLossError(
                f"{topic.name} shard {index} begins at offset {bound.start}, {offset} is before: what was there is gone"
            )
    return wanted


def parse_offsets(name: str, given: AsOfOffset, shards: int) -> dict[int, int]:
    """A number (of a topic with one shard), `{"0": 17}` or `{"NAME": {"0": 17}}`, as a mapping or JSON, by shard."""
    wrong = InvalidRequestError(
        f'offsets are JSON such as {{"0": 17, "1": 4}}, an exclusive end for each shard of {name}, not {given!r}'
    )
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            raise wrong from None
    if isinstance(given, int) and not isinstance(given, bool):
        if shards != 1:
            raise InvalidRequestError(
                f"{name} has {shards} shards: give an offset for each, such as "
                + _json(name, dict.fromkeys(range(shards), given))
            )
        given = {"0": given}
    if not isinstance(given, Mapping):
        raise wrong
    if list(given) == [name] and isinstance(given[name], Mapping):
        given = {shard: offset for shard, offset in given[name].items() if shard != "id"}
    found = {}
    for shard, offset in given.items():
        plain = not isinstance(offset, bool) and isinstance(offset, int) and offset >= 0
        if not str(shard).isdigit() or not plain:
            raise wrong
        found[int(shard)] = int(offset)
    return found
