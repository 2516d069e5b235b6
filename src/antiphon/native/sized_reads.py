"""Reads of tables for native clients, whose answers are as large as nobody knows before.

An answer is read at once where there is room for as much as one of its kind may have. Elsewhere it is read too, as most are
small, and sent if there is room for what it has by now. If not, it is let go of within the same turn of the event loop, and
read again when there is room for its size. So no connection sends more than its share, whatever its client asks for, and
the node has one answer at most that is beyond all shares.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from antiphon.errors import AntiphonError
from antiphon.gateway.row_sizes import size_of
from antiphon.native.exchange import Exchange


class SizedRead:
    """One read, which is open as long as it is not answered.

    Args:
        expected_bytes: that an answer of this kind has at most, about; 0: it is small.
        cost_bytes: reading it takes as long as reading so many bytes.
    """

    def __init__(self, exchange: Exchange, request_id: int, expected_bytes: int, cost_bytes: int = 0) -> None:
        self._exchange: Final = exchange
        self._request_id: Final = request_id
        self._expected_bytes: Final = expected_bytes
        self._cost_bytes: Final = cost_bytes
        self._answer: Final = exchange.begin(request_id)
        self._read: Callable[[], None] | None = None
        self._is_sized = False  # was there room for all of it before it was read?

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Hand the read over; what is raised meanwhile ends it."""
        try:
            yield
        except BaseException:
            self._exchange.end()
            raise

    def admit(self, read: Callable[[], None], size: Callable[[], int] | None = None) -> None:
        """Have `read` call `done` once there is room for an answer, of `size` if that is known, and its turn has come; again
        if it was too large.
        """
        self._read, self._is_sized = read, size is not None
        self._exchange.when_room(self._attempt, size)

    def _attempt(self) -> None:
        exchange, read = self._exchange, self._read
        exchange.costs(self._cost_bytes)
        try:
            if read is not None:
                read()
        except AntiphonError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - answered as a bug of this node
            self._end(exchange.bug(error))

    def done(self, result: Any) -> None:
        """Answer with what was read, or why nothing was."""
        exchange = self._exchange
        is_bound = self._is_sized or exchange.fits(self._expected_bytes)
        if is_bound or exchange.is_gone or isinstance(result, AntiphonError):
            self._end(result)
            return
        size_bytes = size_of(result)
        if exchange.has_room_for(size_bytes):
            self._end(result)
            exchange.counted()
        else:
            exchange.when_room(self._attempt, lambda: size_bytes)

    def _end(self, result: Any) -> None:
        self._read = None  # it has this object: only the collector would find the two
        self._answer(result)
