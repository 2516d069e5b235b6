"""A small blocking client of the native protocol, for Spark's tasks and planners.

A task is a process that does one thing and needs no event loop. `Cluster` keeps one socket per node, and sends requests for
many shards at once (one round trip, whatever their number). What follows from a failed try is decided by
`antiphon.client.routing`, as for the asynchronous client. Requests without an answer are repeated until the time is up, so
this is for requests that may be repeated: reads, and writes with a producer id.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from antiphon.client.access import Access, access_with
from antiphon.client.addresses import Address, address_text, parse_address
from antiphon.client.blocking_link import ANSWER_TIMEOUT_S, Answer, Buffer, Link
from antiphon.client.closing import Closes
from antiphon.client.connection_errors import ConnectionLostError
from antiphon.client.greeting import CONNECT_TIMEOUT_S
from antiphon.client.reads import is_read
from antiphon.client.routing.routes import NOBODY_HELPS, Routes, places_to_ask
from antiphon.client.routing.tries import GAVE_UP, NEWS_WAIT_MS, Question, Shunned, Tries
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    ProtocolViolationError,
    TimedOutError,
    UnavailableError,
    UnknownTopicError,
    UnreachableError,
    WrongKindError,
    WrongShardError,
)
from antiphon.model.metadata import ClusterMeta, Kind, TopicMeta
from antiphon.model.requests import GetMetadata, ListOffset, MetadataReply, OffsetReply
from antiphon.security.account import Account

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing

TIMEOUT_S_MIN: Final = 0.02  # for an answer, also where the time is over
SHUN_S_MIN: Final = (
    0.05  # an address that could not be reached is left alone for so long, then for twice as long, ...
)
SHUN_S_MAX: Final = 1.0

FoundT = TypeVar("FoundT")


class ShardCall(NamedTuple):
    """One request for the leader of a shard."""

    shard_id: int
    body: Any
    payload: Sequence[Buffer] = ()


class Caller(Protocol):
    """Sends requests to a place that has a shard's records."""

    def call(self, call: ShardCall) -> Answer:
        """One request and its answer."""


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
        self._shunned: Shunned[Address] = Shunned(SHUN_S_MIN, SHUN_S_MAX)
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
        tries = self.tries()
        while True:
            problem = self._refresh(tries.deadline_s)
            if problem is None and self._routes.meta is not None:
                return self._routes.meta
            error = UnavailableError(f"{problem}")
            try:
                tries.failed_anywhere(error)
                self._next(tries)
            except TimedOutError:
                raise UnreachableError(
                    f"no node answered at {self._places()}: {problem}; is the cluster up?"
                ) from error

    def topic(self, name: str, *, table: bool, refresh: bool = True) -> TopicMeta:
        """Metadata of a topic or table; raises UnknownTopicError, WrongKindError."""
        meta = self.metadata(refresh=refresh)
        for topic in meta.topics:
            if topic.name == name:
                if (topic.kind == Kind.TABLE) != table:
                    found, wanted = ("table", "topic") if table is False else ("topic", "table")
                    raise WrongKindError(
                        f'{name} is a {found}: give option("{found}", ...), not "{wanted}"',
                        name=name,
                        found=str(found),
                    )
                return topic
        kind = "table" if table else "topic"
        raise UnknownTopicError(
            f"there is no {kind} {name!r} at {self._places()}; create it first",
            name=name,
            kind=kind,
            at=self._places().replace(" ", ""),
        )

    def _places(self) -> str:
        return ", ".join(map(address_text, self._servers))

    def _refresh(self, deadline_s: float, question: Question | None = None) -> str | None:
        """Ask one node after the other for metadata; None on success, else what went wrong last."""
        problem = "no address"
        meta, holds = self._routes.meta, question is not None and question.holds
        known = meta.version if meta is not None and holds else -1
        body = GetMetadata(known, NEWS_WAIT_MS if holds else 0)
        for address in self._addresses(None if question is None else question.avoid):
            left_s = max(TIMEOUT_S_MIN, deadline_s - time.monotonic())
            try:
                reply = self._link(address).call(body, min(left_s, ANSWER_TIMEOUT_S)).body
            except (OSError, AntiphonError) as error:
                self._drop(address)
                if isinstance(error, NOBODY_HELPS):
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

    def _addresses(self, avoid: str | None = None) -> list[Address]:
        """Nodes that were reached lately first, then all others that are known."""
        known = map(parse_address, self._routes.addresses.values())
        avoided = None if avoid is None else parse_address(avoid)
        return places_to_ask(self._links, known, self._servers, random.shuffle, avoided)

    def _link(self, address: Address) -> Link:
        """The connection to an address; raises OSError, at once where it could not be reached a moment ago."""
        link = self._links.get(address)
        if link is not None:
            return link
        problem = self._shunned.problem(address, time.monotonic())
        if problem is not None:
            raise ConnectionError(problem)
        try:
            link = Link(address, account=self._account, tls=self._tls)
        except OSError as error:
            problem = f"{address_text(address)}: {error}"
            self._shunned.failed(address, problem, time.monotonic(), random.uniform)
            raise
        self._shunned.answered(address)
        if self._cluster_id is not None and link.cluster_id != self._cluster_id:
            link.close()
            raise InvalidRequestError(
                f"{address_text(address)} belongs to cluster {link.cluster_id}, the others to {self._cluster_id}"
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
        raise UnreachableError(f"node {node_id} at {address_text(address)} does not answer: {problem}")

    def address_of(self, node_id: int) -> Address:
        """Where a node listens; raises UnreachableError where the metadata does not know it."""
        self.metadata(refresh=False)
        if (address := self._routes.addresses.get(node_id)) is not None:
            return parse_address(address)
        raise UnreachableError(f"node {node_id} is no node of the cluster at {self._places()}")

    def followers_of(self, shard_id: int) -> list[int]:
        """Nodes that hold a full member's replica of the shard, the leader left out, as far as is known here."""
        alive = {node.node_id for node in self.metadata(refresh=False).nodes if node.alive and node.native}
        leader = self._routes.leader(shard_id)
        shard = self._routes.shard(shard_id)
        if shard is None or shard.origins:  # where every replica writes, each has an order of its own
            return []
        return [node for node in shard.ensemble if node != leader and node in alive]

    # -- tries ----------------------------------------------------------------------------------------------------

    def tries(self) -> Tries:
        """For a call that begins now."""
        now_s = time.monotonic()
        return Tries(self._routes, now_s, now_s + self._timeout_s)

    def learn(self, error: AntiphonError, tries: Tries) -> None:
        """Pause, and have newer metadata afterwards if a node has some; raises TimedOutError when the time is over."""
        tries.lacking(error)
        self._next(tries)

    def _next(self, tries: Tries, said: str = GAVE_UP) -> None:
        """Pause, and ask what is to be asked; if nobody answers, the next try says what is wrong.

        `said` begins the message if the tries end here.
        """
        step = tries.step(time.monotonic(), random.uniform, said)
        time.sleep(step.pause_s)
        if step.question is not None:
            self._refresh(tries.deadline_s, step.question)

    def across_splits(self, attempt: Callable[[], FoundT]) -> FoundT:
        """Do something by what is known of a table's shards; again with newer metadata where one of them was split.

        `attempt` does it, once; how long it takes is its own affair. Raises what it raises, and TimedOutError.
        """
        tries = self.tries()
        while True:
            began_s = time.monotonic()
            try:
                return attempt()
            except WrongShardError as error:
                tries.deadline_s += time.monotonic() - began_s
                self.learn(error, tries)

    # -- requests -------------------------------------------------------------------------------------------------

    def call_any(self, body: Any) -> Any:
        """The reply of any node to a request; if one fails in a way that a retry can fix, another one is asked.

        Raises the first error that a retry cannot fix, or TimedOutError.
        """
        tries = self.tries()
        avoid: str | None = None
        while True:
            address = self._addresses(avoid)[0]
            avoid, sent = address_text(address), False
            try:
                link = self._link(address)
                sent = True
                return link.call(body).body
            except AntiphonError as error:  # some are OSErrors, too
                if isinstance(error, ProtocolViolationError):
                    self._drop(address)
                failed = error
            except OSError as error:
                self._drop(address)
                failed = ConnectionLostError(f"{error}")
            tries.failed_anywhere(failed, wrote=sent and not is_read(body))
            self._next(tries)

    def call(self, call: ShardCall) -> Answer:
        """One request to the leader of its shard."""
        return self.call_all([call])[0]

    def call_all(self, calls: Sequence[ShardCall]) -> list[Answer]:
        """Send all requests, at most one per shard, and return their answers in order.

        Raises the first error that a retry cannot fix, or TimedOutError with the last reason.
        """
        answers: dict[int, Answer] = {}
        now_s = time.monotonic()
        tries = Tries(self._routes, now_s, now_s + self._timeout_s, retries=self._retries)
        self.metadata(refresh=False)
        while True:
            waiting = [index for index in range(len(calls)) if index not in answers]
            self._round(calls, waiting, answers, tries)
            left = len(calls) - len(answers)
            if not left:
                return [answers[index] for index in range(len(calls))]
            if left < len(waiting):
                tries.progressed()
            self._next(tries, f"{left} of {len(calls)} requests had no answer")

    def _round(
        self, calls: Sequence[ShardCall], waiting: Sequence[int], answers: dict[int, Answer], tries: Tries
    ) -> None:
        """One try of everything that waits: send all, then collect."""
        sent: dict[Address, dict[int, int]] = {}
        for index in waiting:
            shard_id, body, payload = calls[index]
            try:
                address = self._leader(shard_id)
            except AntiphonError as error:
                tries.failed(shard_id, error, time.monotonic())
                continue
            try:
                request_id = self._link(address).send(body, payload)
            except AntiphonError as error:  # some are OSErrors, too
                tries.failed(shard_id, error, time.monotonic())
            except OSError as error:
                lost = [calls[at] for at in sent.pop(address, {}).values()]
                self._lost(address, error, lost, tries)
                tries.failed(shard_id, ConnectionLostError(f"{error}"), time.monotonic())
            else:
                sent.setdefault(address, {})[request_id] = index
        for address, pending in sent.items():
            self._collect(address, pending, calls, answers, tries)

    def _collect(
        self,
        address: Address,
        pending: dict[int, int],
        calls: Sequence[ShardCall],
        answers: dict[int, Answer],
        tries: Tries,
    ) -> None:
        link = self._links.get(address)
        while pending and link is not None:
            left_s = max(TIMEOUT_S_MIN, tries.left_s(time.monotonic()))
            try:
                request_id, answer = link.receive(min(left_s, ANSWER_TIMEOUT_S))
            except (OSError, ProtocolViolationError) as error:
                self._lost(address, error, [calls[index] for index in pending.values()], tries)
                return
            index = pending.pop(request_id, None)
            if index is None:
                continue  # an answer that came too late for an earlier try
            if isinstance(answer.body, AntiphonError):
                self._refused(calls[index], answer.body, tries)
            else:
                answers[index] = answer

    def _refused(self, call: ShardCall, error: AntiphonError, tries: Tries) -> None:
        """A leader refused a request; raises what ends the tries."""
        if isinstance(error, WrongShardError):
            raise error  # which shard to ask instead is for the caller to say
        tries.failed(call.shard_id, error, time.monotonic(), wrote=not is_read(call.body))

    def _lost(self, address: Address, error: Exception, calls: Iterable[ShardCall], tries: Tries) -> None:
        """A connection broke on which these requests had no answer yet."""
        self._drop(address)
        lost = ConnectionLostError(f"{error}")
        for call in calls:
            tries.failed(call.shard_id, lost, time.monotonic(), wrote=not is_read(call.body))

    def _leader(self, shard_id: int) -> Address:
        if self._routes.leader(shard_id) is None:
            self.newest_metadata()  # a node that has just started may not know of it yet
        return parse_address(self._routes.leader_address(shard_id))


def list_offsets(cluster: Cluster, times_ms: Mapping[int, int]) -> dict[int, OffsetReply]:
    """What each shard answers to its time, which is as in `ListOffset`; both by shard id."""
    calls = [ShardCall(shard, ListOffset(shard, time_ms)) for shard, time_ms in times_ms.items()]
    return {shard: found.body for shard, found in zip(times_ms, cluster.call_all(calls), strict=True)}
