"""One writer's requests to a table shard are carried out in the order in which they were sent.

A client has several requests to a shard on their way. The shard may refuse one for a moment (it has just been elected, its
queue is full, keys are being handed to another shard) and could carry out the next, which must not overtake: they may
put the same key. So a request says which one went before it and has no answer yet (`TableWrite.after`), and the shard takes
it only once that one was dealt with here: it is in the log, or left nothing there since each of its operations was refused.
The sender then sends both again, in order. An older request that comes late is refused by its sequence, as always.

Every leader begins without memory of requests that left nothing in the log. That is enough, since whoever has no answer to
one sends it to the new leader first.
"""

from typing import Final

from antiphon.errors import NotReadyError
from antiphon.log.producer_state import ProducerState
from antiphon.wire.requests import TableWrite

WRITERS_MAX: Final = 10_000
"""Writers whose last request without effect is remembered. One that was forgotten only has to send two requests again."""


class WriteOrder:
    """What the log does not tell of the order of requests: those that left nothing in it."""

    def __init__(self) -> None:
        self._without_trace: dict[
            int, tuple[int, int]
        ] = {}  # producer -> epoch and sequence of its newest such

    def check(self, request: TableWrite, producers: ProducerState) -> None:
        """Raise NotReadyError for a request that would overtake another one of its sender's; nothing is remembered."""
        if request.after < 0:
            return
        wanted = (request.producer_epoch, request.after)
        last = producers.last_batch(request.producer_id)
        if last is not None and last.epoch == wanted[0] and last.first_sequence >= wanted[1]:
            return
        epoch, sequence = self._without_trace.get(request.producer_id, (-1, -1))
        if epoch == wanted[0] and sequence >= wanted[1]:
            return
        raise NotReadyError(
            f"request {request.sequence} of producer {request.producer_id} would overtake request {request.after}, which "
            f"shard {request.shard_id} has not carried out: send that one again first"
        )

    def left_no_trace(self, request: TableWrite) -> None:
        """A request was judged, and each of its operations refused."""
        if request.producer_id < 0:
            return
        if len(self._without_trace) >= WRITERS_MAX and request.producer_id not in self._without_trace:
            del self._without_trace[next(iter(self._without_trace))]
        self._without_trace[request.producer_id] = (request.producer_epoch, request.sequence)
