"""When the event loop itself writes and syncs a small append, instead of its worker.

To give a write to another thread and to be told of its end takes two wake-ups and several fights for the interpreter's lock:
more processor time than the write, and about as much time as a quick disk takes to sync. But while the loop writes it does
nothing else. So it does so only

- for one small write into blocks that are there (`GroupCommitter.is_quick`), with no other write under way;
- after `CALM` such writes in a row, none of which came sooner after the one before than that had taken;
- while the disk is quick: the last writes took less than `QUICK_S` on average. One that takes a second leaves the next
  hundred or so to the worker;
- while the loop has little else to do: its thread used less than `BUSY` of the time since the last write.
"""

from typing import Final

CALM: Final = 8
QUICK_S: Final = 0.0005
AVERAGED: Final = 16  # writes, about: each counts so much less than the one after it
BUSY: Final = 0.7


class LoneWrites:
    """Decides it for one node. Times in seconds: `now_s` of a clock, `used_s` of the loop's thread."""

    def __init__(self) -> None:
        self._calm = 0
        self._average_s = 0.0
        self._asked_s = self._used_s = self._took_s = self._ended_s = 0.0

    def begins(self, now_s: float, used_s: float) -> bool:
        """A lone small write is about to be carried out; is the loop to do it?"""
        is_busy = (
            used_s - self._used_s > (now_s - self._asked_s) * BUSY or now_s - self._ended_s < self._took_s
        )
        self._asked_s, self._used_s = now_s, used_s
        self._calm = 0 if is_busy else self._calm + 1
        return self._calm > CALM and self._average_s < QUICK_S

    def ended(self, began_s: float, ended_s: float) -> None:
        """A write took from then to then, whoever did it."""
        self._took_s, self._ended_s = ended_s - began_s, ended_s
        self._average_s += (self._took_s - self._average_s) / AVERAGED

    def crowded(self) -> None:
        """Several writes came at once, or a large one, or another one was under way."""
        self._calm = 0
