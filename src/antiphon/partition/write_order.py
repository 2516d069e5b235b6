"""One writer's requests to a shard are carried out in the order in which they were sent: what the log alone cannot tell.

A client has several requests to a table's shard on their way. The shard may refuse one for a moment (it has just been
elected, its queue is full, keys are being handed to another shard) and could carry out the next, which must not overtake:
they may put the same key. So a request says which one went before it and has no answer yet (`TableWrite.after`), and the
shard takes it only once that one was dealt with here: it is in the log, or left nothing there since each of its operations
was refused. The sender then sends both again, in order. An older request that comes late is refused by its sequence, as
always.

Every leader begins without memory of requests that left nothing in the log. That is enough, since whoever has no answer to
one sends it to the new leader first.
"""

from typing import Final

from antiphon.errors import NotReadyError, OutOfOrderSequenceError
from antiphon.log.producer_state import ProducerState
from antiphon.model.requests import TableWrite
from antiphon.records.batch import BatchHeader, is_later

REFUSED_MAX: Final = 1000
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


class RefusedAppends:
    """First batches of producers that a topic's log does not know, which were refused: what follows them must not land.

    The log takes any first sequence of a producer that it does not know. But when the batch before one was on its way here
    too and has just been refused, then this one must not land, even if the end is where it expects it by now: so a chain of
    appends leaves a prefix (S2.13). The same holds where both waited for their turn, and the time of the first was over.

    `known`: epoch and sequence of the first such batch, by producer. Where it is empty, nothing need be checked. A batch
    before that one, which was refused elsewhere, may land.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[int, int]] = {}

    def note(self, header: BatchHeader, producers: ProducerState) -> None:
        """A batch was refused."""
        producer_id = header.producer_id
        if producer_id < 0 or producers.last_batch(producer_id) is not None:
            return  # batches without a producer are not a chain; those of a known one must follow its last
        epoch, sequence = self.known.get(producer_id, (-1, -1))
        if epoch == header.producer_epoch and not is_later(sequence, header.base_sequence):
            return  # this one was on its way behind the other
        if len(self.known) >= REFUSED_MAX and producer_id not in self.known:
            del self.known[next(iter(self.known))]
        self.known[producer_id] = (header.producer_epoch, header.base_sequence)

    def check(self, header: BatchHeader) -> None:
        """Raise OutOfOrderSequenceError for a batch that follows a refused one in its producer's sequence."""
        epoch, sequence = self.known.get(header.producer_id, (-1, -1))
        if epoch == header.producer_epoch and is_later(header.base_sequence, sequence):
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} sent sequence {header.base_sequence}, but its batch {sequence} was refused",
                expected=sequence,
                actual=header.base_sequence,
            )

    def landed(self, header: BatchHeader) -> None:
        """A batch of this producer is in the log: from now on that tells what comes next."""
        self.known.pop(header.producer_id, None)

    def clear(self) -> None:
        """Forget all."""
        self.known.clear()
