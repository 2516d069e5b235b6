"""A thread in which passwords are checked: it takes milliseconds each, which the event loop is not to wait for.

One is checked at a time, and of those who wait one of each address in turn.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from antiphon.errors import OverloadedError
from antiphon.gateway.gate import Gate

Result = TypeVar("Result")
WAITING_MAX: Final = 2_048  # checks of a node that wait or are under way
ADDRESS_WAITING_MAX: Final = 256


class PasswordThread:
    """See the module's text.

    Attributes:
        checked: passwords that were checked, since the start.
        refused: those that were not, because too many waited.
    """

    def __init__(self) -> None:
        self.checked = self.refused = 0
        self._gate = Gate(1)
        self._waiting = Counter[str]()  # by address

    @property
    def waiting(self) -> int:
        """Checks that wait or are under way."""
        return self._waiting.total()

    async def run(self, address: str, work: Callable[..., Result], *args: object) -> Result:
        """What `work` returns, in its turn. Raises OverloadedError where too many wait.

        Where whoever waits is gone before his turn, the work is not done.
        """
        if self.waiting >= WAITING_MAX or self._waiting[address] >= ADDRESS_WAITING_MAX:
            self.refused += 1
            raise OverloadedError("too many passwords are to be checked by this node now; try again")
        self._waiting[address] += 1
        try:
            await self._gate.enter(address)
            try:
                working = asyncio.get_running_loop().run_in_executor(None, work, *args)
            except BaseException:
                self._gate.leave()
                raise
            working.add_done_callback(self._done)
            return await asyncio.shield(working)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]

    def _done(self, working: "asyncio.Future[Result]") -> None:
        self.checked += 1
        self._gate.leave()
        if not working.cancelled():
            working.exception()  # where whoever waited is gone, nobody else asks for it
