"""What audits have found in this node's replicas: the file `audit` of the node's directory.

An audit reads all replicas from outside and tells each node what it holds otherwise than the others. That is a finding of
the node until an audit has read the shard again and found nothing, over restarts too.
"""

import asyncio
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from antiphon.errors import UNDECODABLE, StorageFailedError
from antiphon.log.disk import read_whole, replace_file
from antiphon.model.findings import AUDIT_TEXT_MAX, AuditNote
from antiphon.node.findings import Noted

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from antiphon.log.disk import Disk
    from antiphon.node.findings import Findings

BOOK_NAME: Final = "audit"
KIND: Final = "audit_differs"
SHARDS_MAX: Final = 1_000  # of this node with something to be told
TO_DO: Final = (
    "look at what the audit said, docs/jobs.md tells how; an audit that finds nothing takes this back"
)


class AuditNotes:
    """See the module's text. It runs on the node's event loop; the file is written in a thread."""

    def __init__(self, disk: "Disk", directory: str, findings: "Findings", loop: "AbstractEventLoop") -> None:
        self._disk = disk
        self._path = os.path.join(directory, BOOK_NAME)
        self._findings = findings
        self._loop = loop
        self._notes = load_notes(disk, self._path)
        self._written: dict[int, str] | None = self._notes  # None: a write has failed, so nobody knows
        self._writing = asyncio.Lock()

    def start(self) -> None:
        """Tell what was known at the last stop."""
        for shard_id, what in self._notes.items():
            self._findings.note(Noted(KIND, shard_id, what, TO_DO))

    async def take(self, shards: Sequence[int], found: Iterable[AuditNote]) -> None:
        """An audit has read these shards, and found this; returns when it is on the disk. Raises StorageFailedError."""
        read = set(shards)
        notes = {shard_id: what for shard_id, what in self._notes.items() if shard_id not in read}
        for one in found:
            if len(notes) < SHARDS_MAX:
                notes.setdefault(one.shard_id, one.what)
        gone = self._notes.keys() - notes.keys()
        self._notes = notes
        for shard_id in sorted(gone):
            self._findings.take_back(shard_id, KIND)
        self.start()
        try:
            async with self._writing:  # one file, one writer; the last one has what all of them have told
                if self._written != self._notes:
                    notes, self._written = dict(self._notes), None
                    await self._loop.run_in_executor(None, self._write, notes)
                    self._written = notes
        except OSError as error:
            structlog.get_logger().warning("audit_not_kept", error=str(error))
            raise StorageFailedError(
                f"what the audit found could not be written to {self._path}: {error}"
            ) from error

    def _write(self, notes: dict[int, str]) -> None:
        replace_file(self._disk, self._path, msgspec.json.encode(notes))


def load_notes(disk: "Disk", path: str) -> dict[int, str]:
    """What is written there, by shard; nothing where it cannot be read."""
    try:
        found = msgspec.json.decode(read_whole(disk, path) or b"{}", type=dict[int, str])
    except (OSError, *UNDECODABLE):
        return {}
    return {shard_id: what[:AUDIT_TEXT_MAX] for shard_id, what in islice(found.items(), SHARDS_MAX)}
