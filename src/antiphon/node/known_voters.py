"""Who holds `__cluster`, as far as this node knows: by the metadata, by what it noted of it, or by its configuration.

`nodes` of the configuration names the founders. That is the first hint: the voters may be others by now. So a node notes in
its directory who they are and where they are reached (`voters`), each time it hears otherwise, and goes by that at its next
start, before anybody has said anything. What it notes may be old: whoever is asked in vain says who coordinates, and where.
"""

import os
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from antiphon.errors import UNDECODABLE, StorageFailedError
from antiphon.log.disk import Disk, not_permitted, read_whole, replace_file
from antiphon.log.snapshot import seal, unframe
from antiphon.model.cluster import mark_of
from antiphon.model.metadata import Recovery, ShardMeta

if TYPE_CHECKING:
    from antiphon.node.config import NodeConfig
    from antiphon.node.local_view import LocalView

VOTERS_NAME: Final = "voters"
VOTERS_MAGIC: Final = b"ANTIPHVO"
VOTERS_VERSION: Final = 1


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a node is reached by other nodes; `peer` empty: at `native`."""

    id: int
    native: str
    peer: str = ""


class Note(msgspec.Struct, frozen=True, array_like=True):
    """What is noted: the record of the voters, where each of its nodes is, and the mark of the last recovery."""

    voters: ShardMeta | None
    addresses: tuple[Address, ...] = ()
    mark: int = 0


class KnownVoters:
    """See the module's text; of one node. Reads the note when it is made."""

    def __init__(self, config: "NodeConfig", view: "LocalView", disk: Disk) -> None:
        self._config = config
        self._view = view
        self._disk = disk
        self._path = os.path.join(config.dir, VOTERS_NAME)
        self._log = structlog.get_logger()
        self.note = read_note(disk, self._path)
        # Was this a voter before a recovery, whose log is of then? It goes by its note of then
        self.is_past = False

    @property
    def mark(self) -> int:
        """The term from which on the history of `__cluster` goes that is known here; 0: the first one."""
        return max(mark_of(self._view.recovery), 0 if self.note is None else self.note.mark)

    @property
    def record(self) -> ShardMeta | None:
        """The newest record of them that is known; None: nobody has said that they ever changed."""
        noted = None if self.note is None else self.note.voters
        return noted if self.is_past else self._view.voters or noted

    @property
    def voting(self) -> tuple[int, ...]:
        """Who votes now."""
        record = self.record
        return self._config.voters if record is None else record.ensemble

    @property
    def is_held_here(self) -> bool:
        """Is there to be a replica of `__cluster` on this node?"""
        record = self.record
        return self._config.node_id in (self._config.voters if record is None else record.everybody)

    @property
    def is_noted(self) -> bool:
        """Would this node know after a restart what it knows now?"""
        return (
            self.note is None
            if self.record is None
            else self.note is not None and self.note.voters == self.record
        )

    @property
    def asked(self) -> tuple[int, ...]:
        """Who may know who coordinates, where nobody knows: the voters first."""
        if self.record is None:
            return self._config.voters
        return tuple(dict.fromkeys((*self.voting, *(member.id for member in self._config.nodes))))

    def heard(self, recovery: Recovery | None) -> bool:
        """Another node says that there was this recovery. Is that news? Blocking, and rare."""
        mark = mark_of(recovery)
        if mark <= self.mark:
            return False
        before = self.note or Note(None)
        self._put(Note(before.voters, before.addresses, mark))
        return True

    def follow(self) -> None:
        """The metadata moved on: note who the voters are, where that is news. Blocking, and rare."""
        record = self._view.voters
        if record is None or self.is_past:
            return
        nodes = self._view.nodes
        addresses = tuple(
            Address(one, nodes[one].native, nodes[one].peer) for one in record.everybody if one in nodes
        )
        note = Note(record, addresses, self.mark)
        if note != self.note:
            self._put(note)

    def _put(self, note: Note) -> None:
        try:
            write_note(self._disk, self._path, note)
        except OSError as error:  # what it says is known until the process ends, and it is tried again
            self._log.warning("voters_not_noted", error=str(error))
        else:
            self.note = note


def read_note(disk: Disk, path: str) -> Note | None:
    """What is noted there; None where there is nothing that can be read.

    Raises StorageFailedError for a file that this user may not open: its node would go by who voted when it was founded.
    """
    try:
        data = read_whole(disk, path)
    except PermissionError as error:
        raise StorageFailedError(not_permitted(error)) from error
    payload = unframe(VOTERS_MAGIC, VOTERS_VERSION, data, path)
    if payload is None:
        return None
    try:
        found: Note = msgspec.msgpack.decode(payload, type=Note)
    except UNDECODABLE:
        return None
    return None if found.voters is not None and not found.voters.ensemble else found


def write_note(disk: Disk, path: str, note: Note) -> None:
    """Note this there; durable when this returns. Raises OSError."""
    replace_file(disk, path, seal(VOTERS_MAGIC, VOTERS_VERSION, msgspec.msgpack.encode(note)))
