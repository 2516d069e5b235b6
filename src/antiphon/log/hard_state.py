"""What a replica promised: its term and its vote (S1.38), and a hint of how far its log was committed.

The promise is a checksummed file that is replaced atomically and synced before anybody is told. The high watermark is only a
hint that saves time after a restart: it is written without a sync and counts as 0 when it is not whole.

Big-endian. `hard-state`: magic 8s "ANTIPHHS" | version u32 | crc u32 of the rest | term i64 | voted_for i64 (-1: nobody).
`high-watermark`: magic 8s "ANTIPHHW" | version u32 | crc u32 of the rest | offset i64 | led i64 (the last term in which this
replica, as leader, acknowledged what was not settled; absent where there is none).
"""

import functools
import os
import struct
from typing import Final

from antiphon.errors import DamagedLogError
from antiphon.invariants import invariant
from antiphon.log.disk import Disk, read_whole, replace_file
from antiphon.log.operations import CallStep, LogOp, OpQueue
from antiphon.log.snapshot import frame, unframe

HARD_STATE_NAME: Final = "hard-state"
HIGH_WATERMARK_NAME: Final = "high-watermark"
_MAGIC: Final = b"ANTIPHHS"
_WATERMARK_MAGIC: Final = b"ANTIPHHW"
_VERSION: Final = 1
_PROMISE: Final = struct.Struct(">qq")
_OFFSET: Final = struct.Struct(">q")
_HINT: Final = struct.Struct(">qq")


class HardState:
    """Term and vote of one replica. `term` and `voted_for` are what was staged last; durable when its operation is done."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        queue: OpQueue,
        term: int,
        voted_for: int | None,
        high_watermark: int,
        led_term: int = 0,
    ) -> None:
        self.term = term
        self.voted_for = voted_for
        self.high_watermark = high_watermark
        self.led_term = (
            led_term  # 0, or the last term whose unsettled entries this replica acknowledged as leader
        )
        self._disk = disk
        self._directory = directory
        self._queue = queue

    @classmethod
    def load(cls, disk: Disk, directory: str, queue: OpQueue) -> "HardState":
        """Read the files; a replica that never promised anything has term 0.

        Raises DamagedLogError when the promise is there and cannot be read: a replica must not forget what it promised.
        """
        path = os.path.join(directory, HARD_STATE_NAME)
        data = read_whole(disk, path)
        term, voted_for = 0, -1
        if data is not None:
            payload = unframe(_MAGIC, _VERSION, data, path)
            if payload is None or len(payload) != _PROMISE.size:
                raise DamagedLogError(
                    f"{path} is damaged: the term and vote of this replica are lost; remove the replica's directory "
                    "only after the shard has been moved off this node",
                    path=path,
                )
            term, voted_for = _PROMISE.unpack(payload)
        hint_path = os.path.join(directory, HIGH_WATERMARK_NAME)
        hint = unframe(_WATERMARK_MAGIC, _VERSION, read_whole(disk, hint_path), hint_path)
        high_watermark, led_term = 0, 0
        if hint is not None and len(hint) == _OFFSET.size:
            (high_watermark,) = _OFFSET.unpack(hint)
        elif hint is not None and len(hint) == _HINT.size:
            high_watermark, led_term = _HINT.unpack(hint)
        return cls(
            disk, directory, queue, term, None if voted_for < 0 else voted_for, high_watermark, led_term
        )

    def stage(self, term: int, voted_for: int | None) -> LogOp:
        """Promise `term` and this vote; durable when the operation is done. A term never falls, a vote never changes."""
        invariant(term >= self.term, f"a term never falls: {self.term} then {term}")
        invariant(
            term > self.term or self.voted_for is None or voted_for == self.voted_for,
            f"one vote per term: {self.voted_for} then {voted_for} in term {term}",
        )
        self.term, self.voted_for = term, voted_for
        payload = _PROMISE.pack(term, -1 if voted_for is None else voted_for)
        path = os.path.join(self._directory, HARD_STATE_NAME)
        step = CallStep(functools.partial(replace_file, self._disk, path, frame(_MAGIC, _VERSION, payload)))
        return LogOp(self._queue, [step])

    def stage_high_watermark(self, offset: int, led_term: int = 0) -> LogOp:
        """Leave a hint for the next start; not synced. Call it now and then, and at a clean stop.

        `led_term`: see the attribute; 0 leaves what was said before.
        """
        self.high_watermark, self.led_term = offset, led_term or self.led_term
        payload = _HINT.pack(offset, self.led_term) if self.led_term else _OFFSET.pack(offset)
        data = frame(_WATERMARK_MAGIC, _VERSION, payload)
        path = os.path.join(self._directory, HIGH_WATERMARK_NAME)
        write = functools.partial(replace_file, self._disk, path, data, durable=False)
        return LogOp(self._queue, [CallStep(write)])
