"""Copies one shard into files: its log in pieces, and the state that these go on from, where they do not begin at 0.

A topic whose log was trimmed needs what was known of producers at its start, a table also its rows: the shard's leader
copies both, as for a follower. What an earlier backup has stays of use as long as its pieces join the log. Pieces that end
before the state are left out. A table gets a new state when much log would have to be applied to the old one.
"""

import asyncio
from typing import Final, NamedTuple

from antiphon import system
from antiphon.backup.log_copy import (
    TrimmedError,
    copy_state,
    drop_state,
    log_start_of,
    read_batches,
    read_state_file,
    term_at,
)
from antiphon.backup.manifest import Piece, ShardBackup, State, StoredFile
from antiphon.backup.place import Place
from antiphon.client.aio import AsyncClient
from antiphon.errors import BackupError, NotHeldError
from antiphon.model.backup import ShardHeld, StateCopied
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.records.batch import iter_batches

PIECE_BYTES: Final = 64 * 1024 * 1024
REPLAY_BYTES: Final = (
    256 * 1024 * 1024
)  # of a table's log behind its state; or twice the state, where that is more
TRIES: Final = 4  # where the log is trimmed, or its leader changes, while it is copied


class Written:
    """What was written so far."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.files = 0

    def add(self, size_bytes: int) -> None:
        """One file more."""
        self.size_bytes += size_bytes
        self.files += 1


class Copied(NamedTuple):
    """A shard up to a cut: where its log starts, its pieces, and the state that they go on from."""

    start: int
    pieces: tuple[Piece, ...]
    state: State | None


class ShardCopy:
    """See the module's text; of one backup. `known`: what an earlier backup has of the shard."""

    def __init__(
        self,
        client: AsyncClient,
        place: Place,
        shard_id: int,
        written: Written,
        known: ShardBackup | None,
        *,
        is_table: bool,
    ) -> None:
        self._client = client
        self._place = place
        self._shard_id = shard_id
        self._written = written
        self._is_table = is_table
        self._is_checked = known is None  # are the pieces known to be of this very log?
        self._pieces: list[Piece] = [] if known is None else list(known.pieces)
        self._state = None if known is None else known.state
        self._floor = 0  # from where on `__cluster` is copied: its checkpoints take the place of a state
        stored = () if self._state is None else self._state.files
        self._stored = {(file.name, file.size_bytes, file.crc): file for file in stored}

    async def ahead(self) -> None:
        """Copy what is committed now."""
        log_start, end = await log_start_of(self._client, self._shard_id)
        await self._copy(log_start, end)

    async def up_to(self, held: ShardHeld) -> Copied:
        """Copy what is missing up to the cut. Raises BackupError where that is gone already, or other than it was."""
        self._is_checked = (
            not self._pieces
        )  # what was copied before may be lost by now, where the rule of commits allows it
        log_start = await self._copy(held.log_start, held.end)
        begins = self._floor if self._state is None else self._state.offset
        # What `__cluster` goes on from is a checkpoint. One that was begun before the cut may have ended behind it.
        is_cut_off = self._shard_id == CLUSTER_SHARD_ID and log_start > held.log_start
        if begins > held.end or is_cut_off:
            self._state, self._pieces = None, []
            raise BackupError(
                f"the log of shard {self._shard_id} was trimmed beyond the cut before it was copied"
            )
        pieces = tuple(piece for piece in self._pieces if piece.start < held.end)
        if pieces and pieces[-1].end > held.end:
            self._state, self._pieces = None, []
            raise BackupError(f"shard {self._shard_id} was copied beyond the cut, which ends at {held.end}")
        return Copied(begins if self._is_table else max(begins, log_start), pieces, self._state)

    @property
    def _end(self) -> int:
        """Up to where the shard is copied."""
        base = self._floor if self._state is None else self._state.offset
        return max(base, self._pieces[-1].end) if self._pieces else base

    async def _copy(self, log_start: int, end: int) -> int:
        """Have all up to `end`; returns where the log starts by then."""
        for number in range(1, TRIES + 1):
            try:
                await self._check_known(log_start, end)
                if self._shard_id == CLUSTER_SHARD_ID:
                    self._begin_at(log_start)
                elif self._needs_state(log_start):
                    self._continue_from(await self._copied_state())
                while self._end < end:
                    self._pieces.append(await self._piece(self._end, end))
            except TrimmedError as error:
                if number == TRIES:
                    raise
                log_start = int(error.details["log_start"])
            except NotHeldError:  # the copy of the state is gone: another node leads
                if number == TRIES:
                    raise
            else:
                break
        return log_start

    async def _check_known(self, log_start: int, end: int) -> None:
        """Use what an earlier backup has only if the log goes on from it: an entry of the same term at the same place."""
        if self._is_checked:
            return
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.end > log_start:
            is_same = last.end <= end
            if is_same and self._shard_id != CLUSTER_SHARD_ID:
                is_same = await term_at(self._client, self._shard_id, last.end - 1) == last.term
            if not is_same:  # its rule of commits may lose writes, or somebody made an unclean leader
                self._pieces, self._state = [], None
        self._is_checked = True

    def _needs_state(self, log_start: int) -> bool:
        state = self._state
        if not self._is_table and state is not None and state.offset < log_start:
            return True  # what was trimmed since need not be kept
        if self._end < log_start:
            return True
        if not log_start or not self._is_table:
            return state is None and log_start > 0
        of_state = 0 if state is None else state.size_bytes
        return sum(piece.size_bytes for piece in self._pieces) > max(REPLAY_BYTES, 2 * of_state)

    def _begin_at(self, log_start: int) -> None:
        """Of `__cluster`: leave out what came before its newest checkpoint."""
        self._floor = log_start
        kept = [piece for piece in self._pieces if piece.end > log_start]
        self._pieces = kept if kept and kept[0].start <= log_start else []

    def _continue_from(self, state: State) -> None:
        """Leave out the pieces that are not needed with this state; all of them, where they do not join it."""
        self._state = state
        kept = [piece for piece in self._pieces if piece.end > state.offset]
        self._pieces = kept if kept and kept[0].start <= state.offset else []

    async def _piece(self, start: int, end: int) -> Piece:
        """Write one piece, which ends at `end` or when it is large enough."""
        path = f"logs/{self._shard_id}/{start:020d}-{system.new_uuid().hex[:12]}.log"
        at, term = start, -1
        with self._place.writing(path) as file:
            chunks = read_batches(self._client, self._shard_id, start, end)
            try:
                async for chunk in chunks:
                    await asyncio.to_thread(file.add, chunk)
                    for header, _ in iter_batches(chunk):
                        at, term = header.next_offset, header.leader_epoch
                    if file.size_bytes >= PIECE_BYTES:
                        break
            finally:
                await chunks.aclose()
        self._written.add(file.size_bytes)
        return Piece(path, start, at, file.size_bytes, file.checksum, term)

    async def _copied_state(self) -> State:
        copied = await copy_state(self._client, self._shard_id)
        try:
            files = [await self._state_file(copied, number) for number in range(len(copied.files))]
        finally:
            await drop_state(self._client, self._shard_id, copied)
        return State(copied.term, copied.offset, tuple(files))

    async def _state_file(self, copied: StateCopied, number: int) -> StoredFile:
        """Write a file of a state, unless the backup before has the same one."""
        said = copied.files[number]
        same = self._stored.get((said.name, said.size_bytes, said.crc))
        if same is not None:
            return same
        path = f"states/{self._shard_id}/{said.name}-{system.new_uuid().hex[:12]}"
        with self._place.writing(path) as file:
            async for piece in read_state_file(self._client, self._shard_id, copied, number):
                await asyncio.to_thread(file.add, piece)
        self._written.add(file.size_bytes)
        return StoredFile(said.name, path, file.size_bytes, file.checksum, said.crc)
