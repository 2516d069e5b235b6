"""Requests to the leaders of many shards, several of each shard on their way, so that leaders work while a task encodes.

Those of one shard are sent in order, and sent again in order when something went wrong in between: a leader that changed, a
connection that broke. So a request that comes again may find that it was carried out already, and one that overtook another
is refused by its sequence; the first is told by the producer's identity, the second is not an error but a reason to send
both again. For requests that may come twice without harm: batches of a job, or blobs of which only the one that was
answered counts.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from antiphon.client.addresses import Address
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.blocking_link import ANSWER_TIMEOUT_S, Answer
from antiphon.client.connection_errors import ConnectionLostError
from antiphon.client.routing.routes import mends
from antiphon.client.routing.tries import Tries
from antiphon.errors import AntiphonError, OutOfOrderSequenceError, ProtocolViolationError

WINDOW: Final = 4  # requests of one shard on their way
BYTES_MAX: Final = 48 * 1024 * 1024  # of all that is not answered


class _Item:
    """A request until its answer is there."""

    __slots__ = ("answered", "call", "failed", "flying", "is_done", "size_bytes")

    def __init__(
        self,
        call: ShardCall,
        answered: Callable[[Answer], None],
        failed: Callable[[AntiphonError], None] | None,
    ) -> None:
        self.call = call
        self.answered = answered
        self.failed = failed
        self.flying = False
        self.is_done = False
        self.size_bytes = sum(len(part) for part in call.payload)


class Pipeline(Cluster):
    """A `Cluster` of its own for such requests; use nothing else of it while some are on their way.

    `timeout_ms` is how long it goes on without any answer at all.
    """

    def __init__(
        self, servers: Sequence[Address], timeout_ms: int, window: int = WINDOW, bytes_max: int = BYTES_MAX
    ) -> None:
        super().__init__(servers, timeout_ms)
        self._window = window
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lanes: dict[int, deque[_Item]] = {}  # by shard id; the oldest first
        self._sent: dict[
            tuple[Address, int], _Item
        ] = {}  # on their way, in the order in which they were sent
        self._stopped = False  # something went wrong: nothing is sent until that is mended
        self._tries: Tries | None = None  # those since the last answer

    def adopt(self, cluster: Cluster) -> None:
        """Take over what another client knows of the cluster, which saves asking."""
        self._routes.adopt(cluster.metadata(refresh=False))

    def submit(
        self,
        call: ShardCall,
        answered: Callable[[Answer], None],
        failed: Callable[[AntiphonError], None] | None = None,
    ) -> None:
        """Send a request, perhaps later; waits while too much is not answered.

        `answered` gets the answer. `failed` gets an error that trying again cannot mend: where it returns, the request
        counts as answered; without it, and where it raises, the error ends this call.
        """
        item = _Item(call, answered, failed)
        lane = self._lanes.setdefault(call.shard_id, deque())
        lane.append(item)
        self._bytes += item.size_bytes
        self._fill(lane)
        while self._bytes > self._bytes_max or len(lane) > 2 * self._window:
            self._step()

    def drain(self) -> None:
        """Wait until everything is answered."""
        while any(self._lanes.values()):
            self._step()

    # -- one step -----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Take one answer, or mend what went wrong."""
        if self._stopped or not self._sent:
            self._mend()
            return
        (address, _), _item = next(iter(self._sent.items()))
        self._receive(address)

    def _fill(self, lane: deque[_Item]) -> None:
        """Send what may be sent of one shard."""
        if self._stopped:
            return
        if self._routes.meta is None:
            self.metadata()
        for at in range(min(self._window, len(lane))):
            item = lane[at]
            if not item.flying and not item.is_done and not self._post(item):
                return

    def _post(self, item: _Item) -> bool:
        """Send a request; False where that did not work."""
        shard_id, body, payload = item.call
        try:
            address = self._leader(shard_id)
        except AntiphonError as error:
            self._stop().failed(shard_id, error, time.monotonic())
            return False
        try:
            request_id = self._link(address).send(body, payload)
        except AntiphonError as error:  # some are OSErrors, too
            self._stop().failed(shard_id, error, time.monotonic())
            return False
        except OSError as error:
            self._broke(address, error)
            self._stop().failed(shard_id, ConnectionLostError(f"{error}"), time.monotonic())
            return False
        item.flying = True
        self._sent[address, request_id] = item
        return True

    def _receive(self, address: Address) -> None:
        """The next answer from one node."""
        try:
            request_id, answer = self._link(address).receive(ANSWER_TIMEOUT_S)
        except (OSError, ProtocolViolationError) as error:
            self._broke(address, error)
            return
        item = self._sent.pop((address, request_id), None)
        if item is None:
            return  # too late, for a try that was given up
        item.flying = False
        lane = self._lanes[item.call.shard_id]
        if isinstance(answer.body, AntiphonError):
            self._judge(item, lane, answer.body)
        else:
            self._finish(item, lane)
            item.answered(answer)
        self._fill(lane)

    def _judge(self, item: _Item, lane: deque[_Item], error: AntiphonError) -> None:
        """A request was refused."""
        if isinstance(error, OutOfOrderSequenceError) and lane[0] is not item:
            self._stop().reason = error  # it overtook one that has to be sent again
            return
        if mends(error):
            with suppress(AntiphonError):  # a shard that stays unknown
                self._refused(item.call, error, self._stop())
                return
        if item.failed is None:
            raise error
        item.failed(error)
        self._finish(item, lane)

    def _finish(self, item: _Item, lane: deque[_Item]) -> None:
        item.is_done = True
        self._bytes -= item.size_bytes
        while lane and lane[0].is_done:
            lane.popleft()
        if not self._stopped:
            self._tries = None
        elif self._tries is not None:  # what failed meanwhile is not forgotten
            now_s = time.monotonic()
            self._tries.renewed(now_s, now_s + self._timeout_s)

    # -- mending ------------------------------------------------------------------------------------------------

    def _stop(self) -> Tries:
        """Send no more until what went wrong is mended."""
        self._stopped = True
        self._tries = self._tries or self.tries()
        return self._tries

    def _broke(self, address: Address, error: Exception) -> None:
        """A connection broke: what was on its way there may have been carried out or not."""
        items = [self._sent.pop(key) for key in [key for key in self._sent if key[0] == address]]
        for item in items:
            item.flying = False
        self._lost(address, error, [item.call for item in items], self._stop())

    def _mend(self) -> None:
        """Wait for what is still on its way, find the leaders anew and send the rest again, in order."""
        while self._sent:
            (address, _), _item = next(iter(self._sent.items()))
            self._receive(address)
        waiting = sum(map(len, self._lanes.values()))
        if waiting:
            self._next(self._stop(), f"{waiting} requests had no answer")
        self._stopped = False
        for lane in self._lanes.values():
            self._fill(lane)
