"""Asks one node for its own replicas: patiently, but not for ever, and one answer ahead of whoever looks at them."""

import random
import time
from typing import Any, Final, NamedTuple

from antiphon.client.access import Access
from antiphon.client.addresses import address_text, parse_address
from antiphon.client.blocking_link import ANSWER_TIMEOUT_S, Answer, Link
from antiphon.client.closing import Closes
from antiphon.client.greeting import CONNECT_TIMEOUT_S
from antiphon.client.routing.tries import PAUSE_S_MAX, PAUSE_S_MIN, BackOff
from antiphon.errors import AntiphonError, ProtocolViolationError, UnreachableError, from_wire
from antiphon.model.requests import Fetch, Fetched, GetStatus, ReplicaStatus, StatusReply

FETCH_BYTES: Final = 8 * 1024 * 1024
SILENT_S: Final = 60.0  # for so long a node that did not answer is hardly waited for: a task has many pieces
SILENT_TIMEOUT_S: Final = 0.5
RECENT_S: Final = 60.0  # damage that was mended since then explains what a reader has just missed
DAMAGED_KINDS: Final = ("log_damaged", "replica_stopped")
DAMAGED_STATES: Final = ("damaged", "failed")


# Address -> until when. A worker process carries out many tasks, one after the other.
_silent: dict[tuple[str, int], float] = {}


class _Sent(NamedTuple):
    link: Link
    request_id: int
    body: Any


class NodeLink(Closes):
    """One connection to one node. Every call is repeated until it is answered or `timeout_ms` are over.

    With `learns`, a node that was silent is hardly waited for by the other links of this process, for a while.

    What a node refuses for good is raised as it is; all else ends as UnreachableError.
    """

    def __init__(
        self, node: int, address: str, timeout_ms: int, access: Access | None = None, *, learns: bool = False
    ) -> None:
        self.node = node
        self._address = parse_address(address)
        self._timeout_s = timeout_ms / 1000
        self._access = access or Access()
        self._learns = learns
        self._link: Link | None = None
        self._sent: _Sent | None = None

    def close(self) -> None:
        """Hang up; the next call connects again."""
        self._sent = None
        if self._link is not None:
            self._link.close()
            self._link = None

    def send_ahead(self, body: Any) -> None:
        """Send a request whose answer `ask` with the same body will take. What goes wrong, goes wrong there."""
        try:
            link = self._connected()
            self._sent = _Sent(link, link.send(body), body)
        except (OSError, AntiphonError):
            self.close()

    def ask(self, body: Any) -> Answer:
        """The answer to a request."""
        timeout_s = self._timeout_s
        if self._learns and _silent.get(self._address, 0.0) > time.monotonic():
            timeout_s = min(timeout_s, SILENT_TIMEOUT_S)
        deadline = time.monotonic() + timeout_s
        backoff = BackOff(PAUSE_S_MIN, PAUSE_S_MAX)
        while True:
            try:
                answer = self._once(body, max(0.05, min(ANSWER_TIMEOUT_S, deadline - time.monotonic())))
                _silent.pop(self._address, None)
                return answer
            except (OSError, ProtocolViolationError) as error:
                self.close()
                problem: Exception = error
            except AntiphonError as error:
                if not error.retriable:
                    raise
                if error.details.get("failed"):
                    raise _stopped(error) from error
                problem = error
            pause_s = backoff.next_s(random.uniform)
            if time.monotonic() + pause_s >= deadline:
                _silent[self._address] = time.monotonic() + SILENT_S
                raise UnreachableError(
                    f"node {self.node} at {address_text(self._address)} gave no answer within "
                    f"{timeout_s:.1f} s: {problem}"
                ) from problem
            time.sleep(pause_s)

    def _once(self, body: Any, timeout_s: float) -> Answer:
        sent, self._sent = self._sent, None
        if sent is not None and sent.link is self._link and sent.body == body:
            return sent.link.answer_to(sent.request_id, timeout_s)
        link = self._connected()
        return link.answer_to(link.send(body, (), timeout_s), timeout_s)

    def _connected(self) -> Link:
        if self._link is None:
            self._link = Link(
                self._address,
                min(CONNECT_TIMEOUT_S, self._timeout_s),
                account=self._access.account,
                tls=self._access.dialing(),
            )
        return self._link

    # -- what is asked ------------------------------------------------------------------------------------------

    def fetch(self, shard_id: int, offset: int) -> tuple[Fetched, memoryview]:
        """Whole batches of this replica, from the one that holds `offset`, as far as it knows them to be committed."""
        answer = self.ask(_fetch(shard_id, offset))
        if not isinstance(answer.body, Fetched):
            raise ProtocolViolationError(
                f"node {self.node} answered a fetch with {type(answer.body).__name__}"
            )
        return answer.body, answer.payload

    def fetch_ahead(self, shard_id: int, offset: int) -> None:
        """Have the node prepare what `fetch` will be asked for next."""
        self.send_ahead(_fetch(shard_id, offset))

    def statuses(self) -> dict[int, ReplicaStatus]:
        """The node's replicas, by shard id."""
        return {replica.shard_id: replica for replica in self._status().replicas}

    def known_damage(self, shard_id: int) -> str | None:
        """What the node itself says is, or was a moment ago, damaged of its replica of a shard; None: nothing."""
        status = self._status()
        recent_ms = time.time() * 1000 - RECENT_S * 1000
        for finding in status.findings:
            is_current = not finding.mended_ms or finding.mended_ms > recent_ms
            if finding.shard_id == shard_id and finding.kind in DAMAGED_KINDS and is_current:
                return finding.what
        states = {replica.shard_id: replica.state for replica in status.replicas}
        return f"its replica is {states[shard_id]}" if states.get(shard_id) in DAMAGED_STATES else None

    def _status(self) -> StatusReply:
        reply = self.ask(GetStatus()).body
        if not isinstance(reply, StatusReply):
            raise ProtocolViolationError(
                f"node {self.node} answered with {type(reply).__name__}, not its status"
            )
        return reply


def _stopped(error: AntiphonError) -> AntiphonError:
    """What stopped a replica for good, out of the refusal that says that it did."""
    return from_wire(str(error.details["failed"]), error.message, {"offset": error.details.get("offset")})


def _fetch(shard_id: int, offset: int) -> Fetch:
    return Fetch(shard_id, offset, FETCH_BYTES, 0, "replica")
