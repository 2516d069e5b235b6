"""Says "starting Python workers" where a person would wait without knowing for what.

Spark starts one process that forks its Python workers (`antiphon.spark.daemon`). What tasks need is imported there first,
which takes a second or more where nothing of it is in memory. Only that process knows how long it takes, and it has no
terminal: what it writes goes through Java, and with commands into a file. So the driver says in the environment where a
person sits, if one does.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Final

VARIABLE: Final = "ANTIPHON_SPARK_STARTING"
LINE: Final = "antiphon: starting Python workers"
LOG: Final = "log"  # in place of a terminal: where Spark's Python workers write
AFTER_S: Final = 1.0
_CLEAR_LINE: Final = "\r\x1b[2K"  # there may be a bar, which is drawn again below

logger: Final = logging.getLogger("antiphon.spark")


def note_place() -> None:
    """In the driver, before Java starts: where it is to be said.

    That is the terminal of stderr. Without one it is Spark's log, if the logger `antiphon.spark` tells INFO, else nowhere.
    """
    place = ""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # whatever stands in for stderr here
        if sys.stderr.isatty():
            place = os.ttyname(sys.stderr.fileno())
    if not place and logger.isEnabledFor(logging.INFO):
        place = LOG
    os.environ.pop(VARIABLE, None)
    if place:
        os.environ[VARIABLE] = place


@contextlib.contextmanager
def told_when_slow() -> Iterator[None]:
    """In the process that starts workers, in its main thread: says it once what is done within takes over a second.

    By a signal and not by a thread, for this process forks.
    """
    place = os.environ.get(VARIABLE, "")
    if not place:
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: _tell(place))
    timer = signal.setitimer(signal.ITIMER_REAL, AFTER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def _tell(place: str) -> None:
    with contextlib.suppress(OSError):  # the terminal was closed
        if place == LOG:
            os.write(2, f"{LINE}\n".encode())
            return
        terminal = os.open(place, os.O_WRONLY | os.O_NOCTTY)
        try:
            os.write(terminal, f"{_CLEAR_LINE}{LINE}\n".encode())
        finally:
            os.close(terminal)
