"""What a simulated disk may do wrong: calls that fail, by kind and by path, and how long calls take."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

CALL_KINDS: Final = (
    "open", "create", "read", "write", "fdatasync", "truncate", "rename", "remove", "mkdir", "fsync_dir", "listdir",
)  # fmt: skip
ALWAYS: Final = 1 << 60

Duration = Callable[[str, str, int], float]
"""Seconds that a call takes, by its kind, its path and the bytes that it reads or writes."""


@dataclass(slots=True)
class Fault:
    """Calls of these kinds (none: of all) on what lies at or under `path` raise OSError with this error number.

    The first `after` of them pass, and `calls` fail, each with a chance of `chance`. A failed `fdatasync` loses what it was
    to make durable: see `SimulatedContent.fail_sync`.
    """

    kinds: tuple[str, ...] = ()
    error: int = errno.EIO
    path: str = "/"
    after: int = 0
    calls: int = ALWAYS
    chance: float = 1.0

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(CALL_KINDS)
        if unknown:
            raise ValueError(f"calls of a disk are {', '.join(CALL_KINDS)}, not {', '.join(sorted(unknown))}")

    def hits(self, kind: str, path: str, rng: Random) -> bool:
        """Does this call fail? Counts it."""
        if self.calls <= 0 or (self.kinds and kind not in self.kinds) or not is_under(path, self.path):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.chance < 1.0 and rng.random() >= self.chance:
            return False
        self.calls -= 1
        return True

    def raise_it(self, path: str) -> None:
        """Raise what the call fails with."""
        raise OSError(self.error, os.strerror(self.error), path)


def descriptors_used_up(path: str = "/") -> Fault:
    """No file can be opened: the process has as many open as it may."""
    return Fault(("open", "create"), errno.EMFILE, path)


def is_under(path: str, root: str) -> bool:
    """Is `path` the same as `root`, or in it?"""
    root = root.rstrip("/")
    return path == root or path.startswith(root + "/")
