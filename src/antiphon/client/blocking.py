"""A small blocking client of the native protocol, for Spark's tasks and planners.

A task is a process that does one thing and needs no event loop. `Cluster` keeps one socket per node, sends requests for
many shards at once (one round trip, whatever their number) and follows leaders. After a `not_leader` answer, a lost
connection or a silent node it asks for metadata again and repeats every request without an answer, with growing pauses,
until its time is up. So it is for requests that may be repeated: reads, and writes with a producer id.
"""

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from antiphon.client.access import Access, access_with
from antiphon.client.blocking_link import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, Address, Answer, Buffer, Link
from antiphon.client.closing import Closes
from antiphon.client.routes import Next, Routes
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    NotLeaderError,
    ProtocolViolationError,
    TimedOutError,
    UnauthenticatedError,
    UnavailableError,
    UnknownTopicError,
    UnreachableError,
    WrongKindError,
    WrongShardError,
    from_wire,
)
from antiphon.model.metadata import ClusterMeta, Kind, TopicMeta
from antiphon.model.requests import Failure, GetMetadata, MetadataReply
from antiphon.security.account import Account

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing

PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 0.5
SHUN_S_MIN: Final = (
    0.05  # an address that could not be reached is left alone for so long, then for twice as long, ...
)
SHUN_S_MAX: Final = 1.0


class ShardCall(NamedTuple):
    """One request for the leader of a shard."""

    shard_id: int
    body: Any
    payload: Sequence[Buffer] = ()


class Caller(Protocol):
    """Sends requests to a place that has a shard's records."""

    def call(self, call: ShardCall) -> Answer:
        """One request and its answer."""
        ...


class _Shunned(NamedTuple):
    """An address that could not be reached: until when it is left alone, for how long that is, and why."""

    until: float
    pause_s: float
    problem: str


class Cluster(Closes):
    """The cluster, seen from one process. Not thread-safe.

    `timeout_ms` bounds every call, retries included. `retries`: so often a call is tried again without any progress; None:
    as often as the time allows. `account`: to log in with, `tls`: how to connect; None: as the access says that comes with
    the servers, else the environment.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        timeout_ms: int,
        retries: int | None = None,
        account: Account | None = None,
        tls: "Dialing | None" = None,
    ) -> None:
        access = access_with(servers) or Access()
        self._account = account or access.account
        self._tls = tls or access.dialing()
        self._servers = list(servers)
        self._timeout_s = timeout_ms / 1000
        self._retries = retries
        self._links: dict[Address, Link] = {}
        self._shunned: dict[Address, _Shunned] = {}
        self._routes = Routes()
        self._cluster_id: str | None = None

    def close(self) -> None:
        """Close all connections; the object can still be used and connects again."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    @property
    def timeout_s(self) -> float:
        """How long a call may take, retries included."""
        return self._timeout_s

    # -- metadata -----------------------------------------------------------------------------------------------

    def metadata(self, *, refresh: bool = True) -> ClusterMeta:
        """The cluster's metadata, asked for anew unless `refresh` is False. Raises UnreachableError."""
        if self._routes.meta is not None and not refresh:
            return self._routes.meta
        deadline = time.monotonic() + self._timeout_s
        pause_s = PAUSE_S_MIN
        while True:
            problem = self._refresh(deadline)
            if problem is None and self._routes.meta is not None:
                return self._routes.meta
            if time.monotonic() + pause_s >= deadline:
                raise UnreachableError(f"no node answered at {self._places()}: {problem}; is the cluster up?")
            pause_s = _pause(pause_s)

    def topic(self, name: str, *, table: bool, refresh: bool = True) -> TopicMeta:
        """Metadata of a topic or table; raises UnknownTopicError, WrongKindError."""
        meta = self.metadata(refresh=refresh)
        for topic in meta.topics:
            if topic.name == name:
                if (topic.kind == Kind.TABLE) != table:
                    found, wanted = ("table", "topic") if table is False else ("topic", "table")
                    raise WrongKindError(f'{name} is a {found}: give option("{found}", ...), not "{wanted}"')
                return topic
        kind = "table" if table else "topic"
        raise UnknownTopicError(
            f"there is no {kind} {name!r} at {self._places()}; create it first", name=name
        )

    def _places(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in self._servers)

    def _refresh(self, deadline: float | None = None) -> str | None:
        """Ask one node after the other; None on success, else what went wrong last."""
        problem = "no address"
        for address in self._addresses():
            left = ANSWER_TIMEOUT_S if deadline is None else max(PAUSE_S_MIN, deadline - time.monotonic())
            try:
                reply = self._link(address).call(GetMetadata(), min(left, ANSWER_TIMEOUT_S)).body
            except (OSError, AntiphonError) as error:
                self._drop(address)
                if isinstance(error, InvalidRequestError | ProtocolViolationError | UnauthenticatedError):
                    raise
                problem = f"{error}"
                continue
            if isinstance(reply, MetadataReply):
                self._routes.adopt(reply.cluster)
                return None
        return problem

    def newest_metadata(self) -> ClusterMeta:
        """The newest metadata of all nodes that answer soon: for callers that must not miss a change because one node
        lags.
        """
        for address in self._addresses():
            try:
                reply = self._link(address).call(GetMetadata(), CONNECT_TIMEOUT_S).body
            except (OSError, AntiphonError):
                self._drop(address)
                continue
            if isinstance(reply, MetadataReply):
                self._routes.adopt(reply.cluster)
        return self.metadata(refresh=False)

    def _addresses(self) -> list[Address]:
        """Nodes that were reached lately first, then all others that are known."""
        known = [*self._links, *map(_address, self._routes.addresses.values())]
        return list(dict.fromkeys(known + self._servers))

    def _link(self, address: Address) -> Link:
        """The connection to an address; raises OSError, at once where it could not be reached a moment ago."""
        link = self._links.get(address)
        if link is not None:
            return link
        shunned = self._shunned.get(address)
        if shunned is not None and time.monotonic() < shunned.until:
            raise ConnectionError(shunned.problem)
        try:
            link = Link(address, account=self._account, tls=self._tls)
        except OSError as error:
            pause_s = SHUN_S_MIN if shunned is None else min(2 * shunned.pause_s, SHUN_S_MAX)
            until = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
            self._shunned[address] = _Shunned(until, pause_s, f"{address[0]}:{address[1]}: {error}")
            raise
        self._shunned.pop(address, None)
        if self._cluster_id is not None and link.cluster_id != self._cluster_id:
            link.close()
            raise InvalidRequestError(
                f"{address[0]}:{address[1]} belongs to cluster {link.cluster_id}, the others to {self._cluster_id}"
            )
        self._cluster_id = link.cluster_id
        self._links[address] = link
        return link

    def _drop(self, address: Address) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            link.close()

    # -- requests to one node ---------------------------------------------------------------------------------

    def ask(self, node_id: int, body: Any, payload: Sequence[Buffer] = ()) -> Answer:
        """One request to one node, whichever node leads: for requests to a replica. Tried once more on a new
        connection.

        Raises UnreachableError if the node is unknown or does not answer, and the error of a refusal.
        """
        address = self.address_of(node_id)
        problem: Exception | None = None
        for _ in range(2):
            try:
                link = self._link(address)
                request_id = link.send(body, payload)
                return link.answer_to(request_id)
            except (OSError, ProtocolViolationError) as error:
                if isinstance(error, TimedOutError):  # the node's own word
                    raise
                self._drop(address)
                problem = error
        raise UnreachableError(f"node {node_id} at {address[0]}:{address[1]} does not answer: {problem}")

    def address_of(self, node_id: int) -> Address:
        """Where a node listens; raises UnreachableError where the metadata does not know it."""
        self.metadata(refresh=False)
        if (address := self._routes.addresses.get(node_id)) is not None:
            return _address(address)
        raise UnreachableError(f"node {node_id} is no node of the cluster at {self._places()}")

    def followers_of(self, shard_id: int) -> list[int]:
        """Nodes that hold a full member's replica of the shard, the leader left out, as far as is known here."""
        alive = {node.node_id for node in self.metadata(refresh=False).nodes if node.alive and node.native}
        leader = self._routes.leader(shard_id)
        shard = self._routes.shard(shard_id)
        if shard is None or shard.origins:  # where every replica writes, each has an order of its own
            return []
        return [node for node in shard.ensemble if node != leader and node in alive]

    # -- requests to leaders ------------------------------------------------------------------------------------

    def call(self, call: ShardCall) -> Answer:
        """One request to the leader of its shard."""
        return self.call_all([call])[0]

    def call_all(self, calls: Sequence[ShardCall]) -> list[Answer]:
        """Send all requests, at most one per shard, and return their answers in order.

        Raises the first error that a retry cannot fix, or TimedOutError with the last reason.
        """
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + self._timeout_s
        pause_s, tries = PAUSE_S_MIN, 0
        self.metadata(refresh=False)
        while True:
            waiting = [index for index in range(len(calls)) if index not in answers]
            problem = self._round(calls, waiting, answers, deadline)
            if len(answers) == len(calls):
                return [answers[index] for index in range(len(calls))]
            tries = tries + 1 if len(answers) == len(calls) - len(waiting) else 0
            if self._retries is not None and tries > self._retries:
                raise UnavailableError(
                    f"{len(calls) - len(answers)} of {len(calls)} requests had no answer in {tries} tries (option retries), "
                    f"lastly because of: {problem}"
                )
            if time.monotonic() + pause_s >= deadline:
                raise TimedOutError(
                    f"{len(calls) - len(answers)} of {len(calls)} requests had no answer within {self._timeout_s:.0f} s, "
                    f"lastly because of: {problem}"
                )
            if len(answers) == len(calls) - len(waiting):
                pause_s = _pause(pause_s)
            self._refresh(deadline)

    def _round(
        self,
        calls: Sequence[ShardCall],
        waiting: Sequence[int],
        answers: dict[int, Answer],
        deadline: float,
    ) -> str:
        """One try of everything that waits: send all, then collect. Returns what went wrong last."""
        problem = "no leader"
        sent: dict[Address, dict[int, int]] = {}
        for index in waiting:
            try:
                address = self._leader(calls[index].shard_id)
                link = self._link(address)
                request_id = link.send(calls[index].body, calls[index].payload)
            except (OSError, UnavailableError) as error:
                problem = f"{error}"
                if isinstance(error, OSError):
                    self._drop(address)
                    sent.pop(address, None)
                continue
            sent.setdefault(address, {})[request_id] = index
        for address, pending in sent.items():
            problem = self._collect(address, pending, calls, answers, deadline) or problem
        return problem

    def _collect(
        self,
        address: Address,
        pending: dict[int, int],
        calls: Sequence[ShardCall],
        answers: dict[int, Answer],
        deadline: float,
    ) -> str | None:
        problem = None
        link = self._links.get(address)
        while pending and link is not None:
            try:
                left = max(PAUSE_S_MIN, deadline - time.monotonic())
                request_id, answer = link.receive(min(left, ANSWER_TIMEOUT_S))
            except (OSError, ProtocolViolationError) as error:
                self._drop(address)
                return f"{error}"
            index = pending.pop(request_id, None)
            if index is None:
                continue  # an answer that came too late for an earlier try
            if isinstance(answer.body, Failure):
                elapsed_s = self._timeout_s - (deadline - time.monotonic())
                problem = self._failed(calls[index].shard_id, answer.body, elapsed_s)
            else:
                answers[index] = answer
        return problem

    def _failed(self, shard_id: int, failure: Failure, elapsed_s: float = 0.0) -> str:
        """Learn from a refusal, `elapsed_s` after the first try, and say what it was; or raise what ends the tries."""
        error = from_wire(failure.code, failure.message, dict(failure.details))
        if isinstance(error, WrongShardError):
            raise error  # which shard to ask instead is for the caller to say
        step = self._routes.after(shard_id, error, elapsed_s)
        if (
            isinstance(error, NotLeaderError)
            and step is not Next.FOLLOW
            and error.details.get("leader") is None
        ):
            self._routes.forget_hint(shard_id)
        return f"{failure.code}: {failure.message}"

    def _leader(self, shard_id: int) -> Address:
        if self._routes.leader(shard_id) is None:
            self.newest_metadata()  # a node that has just started may not know of it yet
        return _address(self._routes.leader_address(shard_id))


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _pause(pause_s: float) -> float:
    """Wait about that long; returns the next pause."""
    time.sleep(pause_s * random.uniform(0.5, 1.0))
    return min(pause_s * 2, PAUSE_S_MAX)
