"""The judges of `antiphon verify`: what a history may look like, given what the logs hold at the end.

Each check gives the problems that it finds, as lines for a person; none is the good answer.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from antiphon.records.changes import decode_changes
from antiphon.tools.verify.history import Append, History, Outcome, Seen
from antiphon.tools.verify.load import KAFKA_TOPIC, TABLE, TOPIC
from antiphon.tools.verify.logs import ShardCopy

Check = Callable[[], Iterable[str]]


def of_topic(copies: Sequence[ShardCopy], topic: str) -> dict[int, ShardCopy]:
    """The shards of a topic, by index."""
    return {copy.index: copy for copy in copies if copy.topic == topic}


def contiguous(copies: Sequence[ShardCopy]) -> list[str]:
    """S0: offsets have no gap and no repeat."""
    return [problem for copy in copies for problem in copy.problems]


def appends_are_there(appends: Sequence[Append], shards: dict[int, ShardCopy]) -> Iterator[str]:
    """Acknowledged: at its offset, once. Refused: nowhere. Unknown: at most once. And nothing that nobody wrote."""
    places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for index, copy in shards.items():
        for record in copy.records:
            places[record.value or b""].append((index, record.offset))
    known = {append.value for append in appends}
    for append in appends:
        found = places.get(append.value, [])
        what = f"{append.value!r} to shard {append.shard}"
        if append.outcome is Outcome.OK and found != [(append.shard, append.offset)]:
            state = "LOST" if not found else "not where it was acknowledged"
            yield f"{state}: {what} was acknowledged at {append.offset}; (shard, offset) found: {found}"
        elif append.outcome is Outcome.REFUSED and found:
            yield f"{what} was refused, yet is at (shard, offset) {found}"
        elif len(found) > 1 or (found and found[0][0] != append.shard):
            yield f"{what} is at (shard, offset) {found}"
        if append.outcome is Outcome.OK and append.term >= 0 and found:
            term = shards[append.shard].terms.get(append.offset)
            # An append that was sent again is acknowledged by a later leader, in whose term it was found to be there.
            if term is not None and term > append.term:
                yield f"{what} was acknowledged in term {append.term}, the log says {term}"
    for value, found in places.items():
        if value not in known:
            yield f"{value!r} at {found} was written by nobody"


def conditions_hold(appends: Sequence[Append], shards: dict[int, ShardCopy]) -> Iterator[str]:
    """A conditional append is at the expected offset; a refusal tells another end, and one that was committed."""
    for append in appends:
        expected, actual = append.expected_offset, append.actual_offset
        if expected is None:
            continue
        if append.outcome is Outcome.OK and append.offset != expected:
            yield f"{append.value!r} was to be at {expected} and is at {append.offset}"
        if append.outcome is Outcome.REFUSED and actual is not None:
            if actual > shards[append.shard].end:
                yield (
                    f"{append.value!r} was refused since shard {append.shard} ended at {actual}, "
                    f"but {shards[append.shard].end} is all that was ever committed"
                )
            elif actual == expected:
                yield f"{append.value!r} was refused though the log ended at {expected}, as expected"


def appends_in_time_order(appends: Sequence[Append]) -> Iterator[str]:
    """An append that began after another one was acknowledged stands behind it."""
    by_shard: dict[int, list[Append]] = defaultdict(list)
    for append in appends:
        if append.outcome is Outcome.OK:
            by_shard[append.shard].append(append)
    for shard, done in sorted(by_shard.items()):
        returned = [(append.returned_ns or 0, append.offset) for append in done]
        heapq.heapify(returned)
        highest = -1
        for append in sorted(done, key=lambda one: one.invoked_ns):
            while returned and returned[0][0] < append.invoked_ns:
                highest = max(highest, heapq.heappop(returned)[1])
            if append.offset <= highest:
                yield f"{append.value!r} at {append.offset} of shard {shard} began after {highest} was acknowledged"


def producer_order(appends: Sequence[Append]) -> Iterator[str]:
    """An idempotent producer's values stand in the order in which it produced them, shard by shard."""
    last: dict[int, Append] = {}
    for append in appends:
        if append.outcome is not Outcome.OK:
            continue
        before = last.get(append.shard)
        if before is not None and append.offset <= before.offset:
            yield f"{append.value!r} at {append.offset} was produced after {before.value!r} at {before.offset}"
        last[append.shard] = append


def reads_are_of_the_log(
    seen: Sequence[Seen], shards: dict[int, ShardCopy], *, once: bool, complete: bool
) -> Iterator[str]:
    """Whatever a reader got stands in the log. `once`: in order, none twice, none left out; `complete`: up to the end."""
    at: dict[tuple[str, int], int] = {}  # (reader, shard) -> place in the shard's records of the next one
    number = {
        index: {record.offset: place for place, record in enumerate(copy.records)}
        for index, copy in shards.items()
    }
    for read in seen:
        copy = shards[read.shard]
        place = number[read.shard].get(read.offset)
        if place is None:
            yield f"{read.reader} got offset {read.offset} of shard {read.shard}, which holds no record"
            continue
        record = copy.records[place]
        if read.value != record.value or (read.key is not None and read.key != record.key):
            yield f"{read.reader} got {read.value!r} at {read.offset} of shard {read.shard}, the log has {record.value!r}"
        if once:
            expected = at.get((read.reader, read.shard), 0)
            if place != expected:
                yield (
                    f"{read.reader} got offset {read.offset} of shard {read.shard} when "
                    f"{copy.records[expected].offset if expected < len(copy.records) else 'nothing'} was next"
                )
            at[(read.reader, read.shard)] = place + 1
    if complete:
        got: dict[int, set[int]] = defaultdict(set)
        for read in seen:
            got[read.shard].add(read.offset)
        for index, copy in shards.items():
            missing = [record.offset for record in copy.records if record.offset not in got[index]]
            if missing:
                yield f"shard {index}: {len(missing)} records never came, the first at {missing[0]}"


def commits_are_kept(history: History, shards: dict[int, ShardCopy]) -> Iterator[str]:
    """The offset that a group has committed at the end is the last one that a member was told is kept."""
    for partition, offset in dict(history.commits).items():
        kept = history.committed_at_end.get(partition)
        if kept is not None and kept < offset:
            yield f"partition {partition}: committed up to {offset}, at the end it is {kept}"
        elif kept is not None and kept > shards[partition].end:
            yield f"partition {partition}: committed {kept}, the log ends at {shards[partition].end}"


def changes_fold(copies: Sequence[ShardCopy]) -> Iterator[str]:
    """A table's log is consistent in itself: versions rise, modifications count, tombstones name what they remove."""
    for copy in of_topic(copies, TABLE).values():
        rows: dict[bytes, tuple[int, int]] = {}
        newest = -1
        for change in decode_changes(copy.batches):
            where = f"{copy.name} offset {change.offset}, key {change.key!r}"
            before = rows.get(change.key)
            if change.value is None:
                if before is None or before[0] != change.version_id:
                    yield f"{where}: removes version {change.version_id}, the row was {before}"
                rows.pop(change.key, None)
                continue
            if change.version_id != newest + 1:
                yield f"{where}: version {change.version_id} follows {newest}"
            newest = max(newest, change.version_id)
            if change.modifications != (0 if before is None else before[1] + 1):
                yield f"{where}: modification {change.modifications} of {before}"
            rows[change.key] = (change.version_id, change.modifications)


def topic_checks(history: History, copies: Sequence[ShardCopy]) -> list[tuple[str, Check]]:
    """Named checks of topics and readers."""
    log, kafka, table = (of_topic(copies, name) for name in (TOPIC, KAFKA_TOPIC, TABLE))
    checks: list[tuple[str, Check]] = [
        ("offsets of every shard are contiguous", lambda: contiguous(copies)),
        (
            "every acknowledged append is at its offset once, refused ones nowhere",
            lambda: appends_are_there(history.appends, log),
        ),
        (
            "conditional appends landed where expected or nowhere",
            lambda: conditions_hold(history.appends, log),
        ),
        ("appends stand in the order of time", lambda: appends_in_time_order(history.appends)),
        (
            "followers of the topic got all of it in order, once",
            lambda: reads_are_of_the_log(history.followed, log, once=True, complete=True),
        ),
        (
            "the watcher got every change in order, once",
            lambda: reads_are_of_the_log(history.watched, table, once=True, complete=True),
        ),
        ("the table's log is consistent in itself", lambda: changes_fold(copies)),
        ("no client got an error that no fault explains", lambda: _tally(history.unexpected)),
    ]
    if history.kafka:
        checks += [
            (
                "every acknowledged Kafka record is at its offset once",
                lambda: appends_are_there(history.kafka, kafka),
            ),
            ("Kafka records stand in the order of production", lambda: producer_order(history.kafka)),
            (
                "the consumer group got every record",
                lambda: reads_are_of_the_log(history.consumed, kafka, once=False, complete=True),
            ),
            ("the group's committed offsets are kept", lambda: commits_are_kept(history, kafka)),
        ]
    return checks


def _tally(lines: Sequence[str]) -> list[str]:
    return [line if count == 1 else f"{line} ({count} times)" for line, count in Counter(lines).items()]
