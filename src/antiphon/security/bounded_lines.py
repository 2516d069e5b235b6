"""Lines in the log about what strangers cause: so many for each of them, so that none fills it or hides another."""

from typing import Any, Final

import structlog

from antiphon import system

TOLD_PER_S: Final = 10  # lines about one of them
WHOS_PER_S: Final = 100  # that have lines of their own
OTHERS: Final = "others"
TEXT_MAX: Final = 100  # characters of what strangers call themselves


def shown(text: str, limit: int = TEXT_MAX) -> str:
    """A text of a stranger for the log: cut, and with escapes for what would not be seen, or be seen as something else."""
    cut = text[:limit]
    return repr(cut)[1:-1] + ("..." if len(text) > len(cut) else "")


class BoundedLines:
    """Lines of one event, at most `told_max` about each of `whos_max` in `every_s`; the next ones begin anew.

    Args:
        event: of the lines; those that say how many were left out are `EVENT_left_out`.
        who: the field that says whom a line is about.
        count: the field that says how many were left out.
        total: the field that says how many there were since the start, line or not.
    """

    def __init__(
        self,
        event: str,
        who: str,
        count: str,
        total: str,
        *,
        told_max: int = TOLD_PER_S,
        whos_max: int = WHOS_PER_S,
        every_s: float = 1.0,
    ) -> None:
        self._event, self._who, self._count, self._total = event, who, count, total
        self._lines_max, self._whos_max, self._every_s = told_max, whos_max, every_s
        self._from_s = 0.0
        self._written: dict[str, int] = {}  # lines since `_from_s`, by whom they are about
        self._left_out: dict[str, int] = {}
        self._seen = 0
        self._log = structlog.get_logger()

    def log(self, who: str, total: int, **facts: Any) -> None:
        """A line, or, where there were enough, one more to be counted in the line about those that were left out."""
        self._seen = total
        now_s = system.monotonic_s()
        if now_s - self._from_s >= self._every_s:
            self._from_s = now_s
            self._written.clear()
            self.log_left_out()
        told = self._written.get(who, 0)
        is_new = told == 0 and len(self._written) >= self._whos_max
        if told >= self._lines_max or is_new:
            who = who if who in self._left_out or len(self._left_out) < self._whos_max else OTHERS
            self._left_out[who] = self._left_out.get(who, 0) + 1
            return
        self._written[who] = told + 1
        self._log.warning(self._event, **{self._who: who}, **facts, **{self._total: total})

    def log_left_out(self) -> None:
        """Say how many had no line, by whom they were about."""
        for who, count in self._left_out.items():
            facts = {self._who: who, self._count: count, self._total: self._seen}
            self._log.warning(f"{self._event}_left_out", **facts)
        self._left_out.clear()
