"""Spans of a replica: from the append of an entry to its sync, its commit and its application, for entries with a trace.

Made when the first such entry comes: a replica that nobody traces has none. Of what is appended at once one entry is traced.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon import tracing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from antiphon.partition.log_writer import LogWriter
    from antiphon.replication.actions import AppendLog

OPEN_MAX: Final = 1_000  # entries of one replica


class Traced(NamedTuple):
    """An entry that ends at `end`, written with `write_id`."""

    end: int
    write_id: int
    append: tracing.Span
    sync: tracing.Span | None
    commit: tracing.Span | None


class ShardTraces:
    """See the module's text; of one replica."""

    def __init__(self, node_id: int, shard_id: int) -> None:
        self._about: dict[str, Any] = {"node": node_id, "shard": shard_id}
        self._open: deque[Traced] = deque()
        self._unsynced: deque[Traced] = deque()

    def appended(self, action: "AppendLog", parent: str, role: str) -> None:
        """Entries were staged for what `parent` says."""
        tracer = tracing.tracer
        end = action.entries[-1].next_offset
        append = (
            None if tracer is None else tracer.within("append", parent, role=role, offset=end, **self._about)
        )
        if tracer is None or append is None:
            return
        sync = tracer.within("sync", append.traceparent, **self._about)
        commit = tracer.within("commit", append.traceparent, **self._about)
        one = Traced(end, action.write_id, append, sync, commit)
        self._open.append(one)
        self._unsynced.append(one)
        if len(self._open) > OPEN_MAX:
            _end(self._open.popleft(), "too many are open: it is followed no further")

    def parent_of(self, entries: "Sequence[Any]") -> str | None:
        """The trace of the first of these entries that has one: it goes to the follower with them."""
        first, last = entries[0].base_offset, entries[-1].next_offset
        return next((one.append.traceparent for one in self._open if first < one.end <= last), None)

    def synced(self, writer: "LogWriter") -> None:
        """Everything up to the last of its writes is durable here."""
        while self._unsynced and self._unsynced[0].write_id <= writer.written_id:
            sync = self._unsynced.popleft().sync
            if sync is not None:
                sync.end()

    def applying(self, high_watermark: int) -> "Sequence[tracing.Span]":
        """Entries up to there are committed, and are about to be applied to a table."""
        tracer = tracing.tracer
        if tracer is None:
            return []
        parents = [one.append.traceparent for one in self._open if one.end <= high_watermark]
        spans = [tracer.within("apply", parent, **self._about) for parent in parents]
        return [one for one in spans if one is not None]

    def committed(self, high_watermark: int, applied: "Sequence[tracing.Span]") -> None:
        """Entries up to there are committed, and applied."""
        for span in applied:
            span.end()
        while self._open and self._open[0].end <= high_watermark:
            _end(self._open.popleft())

    def give_up(self, why: str) -> None:
        """Nobody follows what is open any further."""
        while self._open:
            _end(self._open.popleft(), why)
        while self._unsynced:
            sync = self._unsynced.popleft().sync
            if sync is not None:
                sync.end(why)


def _end(one: Traced, error: str = "") -> None:
    if one.commit is not None:
        one.commit.end(error)
    one.append.end(error)
