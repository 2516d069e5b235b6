"""Turns of a node that are small and take their time, so that much happens between two pieces of work."""

import asyncio
from random import Random
from typing import Final

from antiphon.gateway.turns import Turns

PAUSE_S: Final = 0.003
WORK_MAX: Final = 8  # units in one turn
SHARE_S: Final = 2e-4  # of a Kafka client: two small requests


class SlowTurns(Turns):
    """See `Turns`; a piece is about so many `operations`, and the next one comes after a drawn pause. Of what a client
    sends in one go a request or two are begun at once.
    """

    def __init__(self, operations: int, draw: Random) -> None:
        super().__init__()
        self.operations = operations
        self.work_max = WORK_MAX
        self.share_s = SHARE_S
        self._draw = draw

    def _soon(self) -> None:
        asyncio.get_running_loop().call_later(self._draw.uniform(0.0, PAUSE_S), self._run)
