"""Sessions for programs that block: the face of `AsyncSession`. Its heartbeats run on the client's own thread."""

from typing import TYPE_CHECKING

from antiphon.client.closing import Closes
from antiphon.client.session import AsyncSession

if TYPE_CHECKING:
    from antiphon.client.loop_thread import LoopThread


class Session(Closes):
    """A session; `client.session()` makes one, as a context that closes it at its end. See `AsyncSession`.

    Its heartbeats are sent however long the program itself blocks. So it tells that the process lives and reaches the
    cluster, and nothing of what the program is doing.
    """

    def __init__(self, thread: "LoopThread", session: AsyncSession) -> None:
        self._thread = thread
        self._session = session
        self.id = session.id
        self.timeout_s = session.timeout_s

    @property
    def aio(self) -> AsyncSession:
        """The asynchronous session underneath."""
        return self._session

    @property
    def is_lost(self) -> bool:
        """Has it ended without being closed, or may it have? See `AsyncSession.is_lost`."""

        async def look() -> bool:
            return self._session.is_lost

        return self._thread.call(look())

    def close(self) -> None:
        """End it: its rows are removed when this returns. See `AsyncSession.close`."""
        self._thread.call(self._session.close())
