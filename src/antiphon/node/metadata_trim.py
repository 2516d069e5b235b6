"""Lets this voter's log of `__cluster` begin where its newest checkpoint does.

Each voter does that by itself, when the record that closes the checkpoint is committed and is durable on its own disk, and
that it is settled is noted there. So a start that finds a log which begins above 0 finds the checkpoint in it, unless the
disk lost it, and an older version that is started there meets what it does not read before it goes by anything.
"""

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from antiphon.coordination.state import Checkpoint
    from antiphon.partition.partition import Partition

LOOK_AGAIN_S: Final = 0.5


class MetadataTrim:
    """See the module's text; of one open replica of `__cluster`."""

    def __init__(self, host: "Partition", loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._wanted: Checkpoint | None = None
        self._timer: asyncio.TimerHandle | None = None

    def met(self, checkpoint: "Checkpoint | None") -> None:
        """The fold has come this far: trim behind its newest checkpoint, as soon as that may be."""
        if checkpoint is not None and checkpoint.begin > self._host.log.log_start:
            self._wanted = checkpoint
            self._look()

    def stop(self) -> None:
        """The replica is about to be closed."""
        self._wanted = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        host, wanted = self._host, self._wanted
        if wanted is None or host.state.failed is not None or host.state.closed:
            return
        if min(host.mode.settled, host.log.durable_end) < wanted.end:
            self._timer = self._loop.call_later(LOOK_AGAIN_S, self._look)
            return
        self._wanted = None
        host.upkeep.note_watermark()
        host.upkeep.trim(wanted.begin, _trimmed)


def _trimmed(_error: "Exception | None") -> None:
    """Where the disk did not take it, the replica has stopped."""
