"""The durable promises of a replica: its term and its vote (S1.38); the last term that it led, and a hint of its high
watermark.

The promise is a checksummed file. It is replaced atomically and synced before the replica sends it. The same holds for
the last term in which this replica, as leader, acknowledged entries that were not settled: without it a loss could not
be reported after a power failure (S4.28). The high watermark is only a hint that saves time after a restart. It is
written without a sync and counts as 0 if it is incomplete.

Big-endian. `hard-state`: magic 8s "ANTIPHHS" | version u32 | crc u32 of the rest | term i64 | voted_for i64 (-1:
nobody). `led-term`: magic 8s "ANTIPHLT" | version u32 | crc u32 of all else | term i64. `high-watermark`: magic 8s
"ANTIPHHW" | version u32 | crc u32 of the rest | offset i64 | led i64 (as in `led-term`; earlier versions wrote it only
here; absent if there is none).
"""

import functools
import os
import struct
from typing import Final, NamedTuple

from antiphon.invariants import invariant
from antiphon.log.disk import Disk, read_whole, replace_file
from antiphon.log.inventory import Held
from antiphon.log.operations import CallStep, LogOp, OpQueue
from antiphon.log.snapshot import frame, seal, unframe

HARD_STATE_NAME: Final = "hard-state"
HIGH_WATERMARK_NAME: Final = "high-watermark"
LED_TERM_NAME: Final = "led-term"
_MAGIC: Final = b"ANTIPHHS"
_WATERMARK_MAGIC: Final = b"ANTIPHHW"
_LED_MAGIC: Final = b"ANTIPHLT"
VERSION: Final = 1
_PROMISE: Final = struct.Struct(">qq")
_OFFSET: Final = struct.Struct(">q")
_LED: Final = struct.Struct(">q")
_HINT: Final = struct.Struct(">qq")


class Found(NamedTuple):
    """What the files say.

    `led_term`: 0, or the last term whose unsettled entries this replica acknowledged as leader. `readable`: False where the
    file of the promise is there and does not say what was promised.
    """

    term: int
    voted_for: int | None
    high_watermark: int
    led_term: int
    readable: bool


class HardState:
    """Term and vote of one replica. `term` and `voted_for` have the last staged values, durable when their operation is
    done.
    """

    def __init__(
        self, disk: Disk, directory: str, queue: OpQueue, found: Found, held: Held | None = None
    ) -> None:
        self.term, self.voted_for = found.term, found.voted_for
        self.high_watermark = found.high_watermark
        self.led_term = found.led_term
        self.readable = found.readable
        self.queue = queue
        self.held = held or Held()
        self._disk = disk
        self._directory = directory

    @classmethod
    def load(cls, disk: Disk, directory: str, queue: OpQueue, held: Held | None = None) -> "HardState":
        """Read the files; a replica that never promised anything has term 0, and one whose file is bad is not `readable`.

        `held`: is told of every promise that is durable.
        """
        path = os.path.join(directory, HARD_STATE_NAME)
        data = read_whole(disk, path)
        term, voted_for = 0, -1
        payload = unframe(_MAGIC, VERSION, data, path)
        readable = data is None or (payload is not None and len(payload) == _PROMISE.size)
        if payload is not None and readable:
            term, voted_for = _PROMISE.unpack(payload)
        hint_path = os.path.join(directory, HIGH_WATERMARK_NAME)
        hint = unframe(_WATERMARK_MAGIC, VERSION, read_whole(disk, hint_path), hint_path)
        high_watermark, led_term = 0, 0
        if hint is not None and len(hint) == _OFFSET.size:
            (high_watermark,) = _OFFSET.unpack(hint)
        elif hint is not None and len(hint) == _HINT.size:
            high_watermark, led_term = _HINT.unpack(hint)
        led_term = max(led_term, _read_led_term(disk, directory))
        vote = None if voted_for < 0 else voted_for
        return cls(disk, directory, queue, Found(term, vote, high_watermark, led_term, readable), held)

    def forget(self, floor: int) -> None:
        """The promise in the file is lost: the term is at least `floor`, a term that is in the log, and the vote is
        unknown.
        """
        if floor > self.term:
            self.term, self.voted_for = floor, None

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
        data = frame(_MAGIC, VERSION, payload)
        return LogOp(self.queue, [CallStep(functools.partial(self._promise, path, data, term))])

    def _promise(self, path: str, data: bytes, term: int) -> None:
        replace_file(self._disk, path, data)
        self.held.promised(term)

    def stage_led_term(self, term: int) -> LogOp:
        """Remember the attribute; durable when the operation is done."""
        self.led_term = term
        path = os.path.join(self._directory, LED_TERM_NAME)
        data = seal(_LED_MAGIC, VERSION, _LED.pack(term))
        return LogOp(self.queue, [CallStep(functools.partial(replace_file, self._disk, path, data))])

    def stage_high_watermark(self, offset: int) -> LogOp:
        """Write a hint for the next start; not synced. Call it now and then, and at a clean stop."""
        # The old one would speak against the log that is cut to the new one
        durable = offset < self.high_watermark
        self.high_watermark = offset
        payload = _HINT.pack(offset, self.led_term) if self.led_term else _OFFSET.pack(offset)
        data = frame(_WATERMARK_MAGIC, VERSION, payload)
        path = os.path.join(self._directory, HIGH_WATERMARK_NAME)
        write = functools.partial(replace_file, self._disk, path, data, durable=durable)
        return LogOp(self.queue, [CallStep(write)])


def _read_led_term(disk: Disk, directory: str) -> int:
    """0 where there is none, or the file is not whole."""
    path = os.path.join(directory, LED_TERM_NAME)
    payload = unframe(_LED_MAGIC, VERSION, read_whole(disk, path), path)
    return 0 if payload is None or len(payload) != _LED.size else int(_LED.unpack(payload)[0])
