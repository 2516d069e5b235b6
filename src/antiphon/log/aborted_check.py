"""Compares the indexes of aborted transactions beside a log's segments with what is known here of them.

What is known was made from the log itself, or from files that were whole when the log was opened. A file counts for as much
as the newest snapshot on the disk stands for: what ended later may not be written yet, and nobody relies on it.

A piece is one file. It is planned on the event loop and may run in any thread, as the pieces of `log_check`. A file that is
not as it should be is made anew from what is known (`made_anew`), which needs no other replica.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from antiphon.errors import NewerFormatError
from antiphon.log.aborted import AbortedIndex, load_aborted
from antiphon.log.disk import replace_file
from antiphon.log.layout import newest_snapshot
from antiphon.log.log_check import Checked
from antiphon.log.operations import CallStep, LogOp
from antiphon.log.recovery import DamageReport

if TYPE_CHECKING:
    from antiphon.log.reader import AbortedView
    from antiphon.log.shard_log import ShardLog
    from antiphon.log.snapshot import Snapshot


class AbortedCheck:
    """One pass over the files of a log. `offset`: the segments before it were looked at."""

    def __init__(self, log: "ShardLog") -> None:
        self.offset = 0
        self._log = log
        self._snapshot: Snapshot | None = None
        self._removals = -1  # of the log, when the snapshot was read

    def plan(self) -> Callable[[], Checked] | None:
        """The next piece, to be called in any thread; None when there are no more files."""
        log = self._log
        view = log.reader.aborted_from(self.offset)
        if view is None:
            return None
        removals = log.reader.removals
        end = min(log.durable_end, log.log_end)

        def run() -> Checked:
            if self._removals != removals:
                self._snapshot, self._removals = _snapshot_of(log, end), removals
            found = _compare(log, view, self._snapshot)
            # What a cut or a trim ran into counts for nothing.
            return found if log.reader.removals == removals else Checked(self.offset)

        return run


def _snapshot_of(log: "ShardLog", end: int) -> "Snapshot | None":
    try:
        return newest_snapshot(log.disk, log.path, end)
    except NewerFormatError:
        return None


def _compare(log: "ShardLog", view: "AbortedView", snapshot: "Snapshot | None") -> Checked:
    counted = () if snapshot is None else zip(snapshot.segments, snapshot.aborted, strict=False)
    if snapshot is None or not any(count and one.base_offset == view.base_offset for one, count in counted):
        return Checked(view.next_offset)
    wanted = view.known.ended_before(snapshot.offset)
    found: AbortedIndex | None = None
    try:
        found = load_aborted(log.disk, view.path, snapshot.offset)
    except NewerFormatError as error:
        reason = error.message
    else:
        reason = "the index of aborted transactions is missing or not whole"
    if found is not None:
        if found.ended_before(snapshot.offset) == wanted:
            return Checked(view.next_offset, len(wanted) * 16)
        reason = "the index of aborted transactions names others than the log"
    return Checked(view.base_offset, damage=DamageReport(view.base_offset, view.path, 0, reason))


def made_anew(log: "ShardLog", base_offset: int) -> LogOp:
    """Write the file of the segment that begins there anew, from what is known; nothing where the segment is gone."""
    view = log.reader.aborted_from(base_offset)
    if view is None or view.base_offset != base_offset:
        return LogOp(log.queue, [])
    write = functools.partial(replace_file, log.disk, view.path, view.known.encode())
    return LogOp(log.queue, [CallStep(write)])
