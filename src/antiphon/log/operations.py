"""Operations that the event loop gives to the WAL thread: short lists of steps, in the order of their shard's queue.

The event loop decides everything: which segment, which position, which index entries. The WAL thread only carries it
out, so every step can be repeated (after the disk was full) with the same result.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError, StorageFailedError

if TYPE_CHECKING:
    from antiphon.records.batch import Buffer

Callback = Callable[[AntiphonError | None], None]

APPEND: Final = "append"
TRIM: Final = "trim"  # may overtake appends that wait for room
OTHER: Final = "other"


@dataclass(slots=True, eq=False)
class OpQueue:
    """Operations of one shard, oldest first. Touched by the WAL thread only, except where said."""

    name: str
    flush: str = "always"
    flush_interval_s: float = 1.0  # of `flush = interval`
    ops: "deque[LogOp]" = field(default_factory=deque)
    failed: StorageFailedError | None = None
    blocked: bool = False  # waits for room on the disk
    padded_path: str = ""  # in this file there are bytes up to `padded_to`: zeros behind the last batch
    padded_to: int = 0
    first_step: "CallStep | None" = None  # comes before the first operation that is made (event loop)


class WriteStep:
    """Batches for one segment, at a position, and their index entries."""

    __slots__ = ("buffers", "data_path", "entries", "first_entry", "index_path", "position", "size_bytes")

    def __init__(self, data_path: str, index_path: str, position: int, first_entry: int) -> None:
        self.data_path = data_path
        self.index_path = index_path
        self.position = position
        self.first_entry = first_entry
        self.buffers: list[Buffer] = []
        self.entries: list[bytes] = []
        self.size_bytes = 0


class CallStep:
    """Anything else: durable when `run` returns, harmless to run again."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run


Step = WriteStep | CallStep


class LogOp:
    """One operation: done when all of its steps are durable (or written, where the flush setting says so).

    `size_bytes` counts the batches in it. `settle` is the log's own bookkeeping, `callback` the submitter's; both run on the
    event loop, in this order.
    """

    __slots__ = ("callback", "kind", "next_step", "queue", "settle", "size_bytes", "steps")

    def __init__(
        self,
        queue: OpQueue,
        steps: list[Step],
        *,
        settle: Callback | None = None,
        kind: str = OTHER,
        size_bytes: int = 0,
    ) -> None:
        self.queue = queue
        if queue.first_step is not None and steps:
            steps = [queue.first_step, *steps]
            queue.first_step = None
        self.steps = steps
        self.next_step = 0
        self.settle = settle
        self.callback: Callback | None = None
        self.kind = kind
        self.size_bytes = size_bytes
