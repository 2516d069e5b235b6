"""The methods of Oxia's service, and of gRPC's health service: one handler each, for a call."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from antiphon import system
from antiphon.errors import (
    AntiphonError,
    NotReadyError,
    OverloadedError,
    SessionNotFoundError,
    UnauthenticatedError,
    UnknownTopicError,
    WrongShardError,
)
from antiphon.gateway.protobuf import encode, put_sized
from antiphon.gateway.quotas import WAIT_S_MAX, Use, payer_of
from antiphon.model.access import Operation, Resource
from antiphon.model.internal import is_internal
from antiphon.model.metadata import KeyRanges, Kind, TopicMeta
from antiphon.model.requests import OPS_MAX, Delete, TableWritten
from antiphon.model.sessions import CloseSession, KeepSession, OpenSession
from antiphon.oxia import messages as m
from antiphon.oxia.call import Call, Carrier, Handler
from antiphon.oxia.feeds import Feeds, Follower, empty_batch, newest_of
from antiphon.oxia.placing import Place, only_shard, place_in
from antiphon.oxia.reads import ANSWER_BYTES, Reads, record
from antiphon.oxia.shards import SCAN_BYTES_MAX, ShardRequests
from antiphon.oxia.status import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    UNAUTHENTICATED,
    CallFailedError,
)
from antiphon.oxia.writes import TOGETHER_OPS, Planned, Writes, answered, found_nothing, plan, takes_alone
from antiphon.security.authenticator import FAILED_DELAY_S
from antiphon.security.authorization import hard_part, log_in
from antiphon.security.authorizer import Rights
from antiphon.shares import asking

if TYPE_CHECKING:
    from antiphon.gateway.interface import Gateway
    from antiphon.gateway.quotas import Quotas
    from antiphon.gateway.turns import Turns
    from antiphon.security.session import Session

SERVICES: Final = ("/io.streamnative.oxia.proto.OxiaClient/", "/io.oxia.proto.v1.OxiaClient/")
HEALTH: Final = "/grpc.health.v1.Health/"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
NAMESPACE: Final = "default"
UNNAMED: Final = (
    0  # no table's shard; clients that forget to name one ask for Oxia's first (Go's, for sequences)
)
SESSION_MIN_MS, SESSION_MAX_MS = 2_000, 300_000
CLIENT_ID: Final = "oxia"  # of quotas
SPLIT_TRIES: Final = 10  # of a read, while a shard is being split
LOOK_S: Final = 1.0  # between two looks at metadata that no change of was told
NEWS_S: Final = 2.0  # that a client waits whose namespace nobody has heard of
READY_S: Final = 20.0  # that a call waits at a node that was just started


class CallsOwner(Protocol):
    """The listener, as handlers see it."""

    quotas: "Quotas"
    turns: "Turns"

    def session_for(self, connection: Carrier, authorization: bytes) -> "Session":
        """The session of a call."""


class OxiaCalls:
    """See the module's text; for all calls of a listener."""

    def __init__(self, gateway: "Gateway", listener: CallsOwner) -> None:
        self._gateway = gateway
        self._listener = listener
        self._shards = ShardRequests(gateway)
        self._writes = Writes(gateway, self._shards)
        self.reads = Reads(self._shards)
        self._feeds = Feeds(self._shards)
        found: dict[str, Handler] = {
            "GetShardAssignments": self.assignments,
            "Write": self.write,
            "WriteStream": self.write_stream,
            "Read": self.read,
            "List": self.list_keys,
            "RangeScan": self.range_scan,
            "GetSequenceUpdates": self.sequence_updates,
            "GetNotifications": self.notifications,
            "CreateSession": self.create_session,
            "KeepAlive": self.keep_alive,
            "CloseSession": self.close_session,
        }
        self.handlers: dict[str, tuple[str, Handler]] = {
            service + name: (name, handler) for service in SERVICES for name, handler in found.items()
        }
        self.handlers[HEALTH + "Check"] = ("Check", self.health_check)
        self.handlers[HEALTH + "Watch"] = ("Watch", self.health_watch)

    # -- what all calls begin with ------------------------------------------------------------------------------------

    async def _rights(self, call: Call) -> Rights:
        """What the client may do. Raises UnauthenticatedError, and what its quotas say."""
        connection = call.connection
        authorization = call.headers.get(b"authorization", b"")
        session = self._listener.session_for(connection, authorization)
        if authorization and not session.has_logged_in:
            session = await self._logged_in(connection, authorization)
        if not session.is_open:
            raise CallFailedError(
                UNAUTHENTICATED, "say who you are: authorization: Bearer TOKEN, or Basic USER:PASSWORD"
            )
        call.session = session
        asking.set(session.client(connection.host))  # a call has a task of its own
        crowd = connection.place.take(session.rights, connection.host)
        if crowd is not None:
            raise OverloadedError(crowd.message)
        return session.rights

    async def _logged_in(self, connection: Carrier, authorization: bytes) -> "Session":
        """The session of a call whose login is to be looked at: one of a connection at a time.

        One that fails takes a while, and those behind it wait: who guesses passwords has a guess a second.
        """
        async with connection.logins:
            session = self._listener.session_for(connection, authorization)
            try:
                if not session.has_logged_in:
                    work = hard_part(session, authorization)
                    if work is not None:
                        await work
                    log_in(session, authorization)
            except UnauthenticatedError:
                await asyncio.sleep(FAILED_DELAY_S)
                raise
            return session

    async def _pays(self, rights: Rights, use: Use, size_bytes: int) -> None:
        """Charge a client, which waits as long as it owes, or until the quotas are others."""
        quotas = self._listener.quotas
        if not quotas.all:
            return
        payer = payer_of(rights.principal, CLIENT_ID)
        owed_s = quotas.owed_s(use, payer)
        if owed_s > 0.0:
            quotas.refuses(use, payer, None)
            await quotas.wait(min(owed_s, WAIT_S_MAX))
        quotas.charge(use, payer, size_bytes, None)

    async def _place(self, call: Call, shard_id: int | None) -> Place:
        if shard_id is None:
            raise CallFailedError(INVALID_ARGUMENT, "the request names no shard")
        await self._ready()
        if shard_id == UNNAMED:
            shard_id = only_shard(self._gateway, NAMESPACE) or UNNAMED
        place = place_in(self._gateway, shard_id, call.headers.get(b"user-agent", b""))
        if place.topic.kind is not Kind.TABLE or is_internal(place.topic):
            raise CallFailedError(NOT_FOUND, f"shard {shard_id} is none of a namespace", "SHARD_NOT_FOUND")
        return place

    async def _ready(self) -> None:
        """Return when this node knows the cluster's metadata."""
        if self._gateway.metadata_version < 0:
            await self._gateway.wait_metadata(-1, READY_S)
            if self._gateway.metadata_version < 0:
                raise NotReadyError("this node was just started and knows no metadata yet")

    # -- shards -------------------------------------------------------------------------------------------------------

    async def assignments(self, call: Call) -> None:
        """Tell the shards of a namespace, now and whenever they change. The client is to ask this very node for all."""
        rights = await self._rights(call)
        request = await call.request(m.ShardAssignmentsRequest)
        call.dealt_with()
        await self._ready()
        name = request.namespace or NAMESPACE
        authority = call.headers.get(b":authority", b"").decode("latin-1")
        await self._heard_of(name)
        told: bytes | None = None
        while call.is_open:
            version = self._gateway.metadata_version
            found = bytes(encode(_assignments(self._table(name, rights), name, authority)))
            if found != told:
                told = found
                await call.send(found)
            await self._gateway.wait_metadata(version, LOOK_S)

    async def _heard_of(self, name: str) -> None:
        """Return when this node knows the table, or has waited for news of it: it may have been made a moment ago."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + NEWS_S
        while (left_s := until_s - loop.time()) > 0:
            try:
                self._gateway.topic(name)
            except UnknownTopicError:
                await self._gateway.wait_metadata(self._gateway.metadata_version, left_s)
            else:
                return

    def _table(self, name: str, rights: Rights) -> TopicMeta:
        try:
            topic = self._gateway.topic(name)
        except UnknownTopicError:
            if rights.limited:
                rights.require(Operation.DESCRIBE, Resource.TABLE, name)
            raise CallFailedError(
                NOT_FOUND, f"there is no table {name!r}: namespaces are tables", "NAMESPACE_NOT_FOUND"
            ) from None
        if topic.kind is not Kind.TABLE or is_internal(topic):
            raise CallFailedError(NOT_FOUND, f"{name!r} is no table of clients", "NAMESPACE_NOT_FOUND")
        if rights.limited:
            rights.require(Operation.DESCRIBE, Resource.TABLE, name)
        return topic

    # -- writes -------------------------------------------------------------------------------------------------------

    async def write(self, call: Call) -> None:
        """Carry out one request."""
        rights = await self._rights(call)
        data = await call.one_message()
        request = await call.parsed(m.WriteRequest, data)
        await self._pays(rights, Use.PRODUCE, len(data))
        place = await self._place(call, request.shard)
        planned = await plan(request, place, call.turn)
        written = await self._written(place, planned, rights, call.deadline_s)
        call.post(await answered(planned, written, call.turn))
        call.dealt_with()

    async def _written(self, place: Place, planned: Planned, rights: Rights, deadline_s: float | None) -> Any:
        if not planned.ops:
            return ()
        if len(planned.ops) > OPS_MAX:
            raise CallFailedError(
                INVALID_ARGUMENT, f"a request has {OPS_MAX} operations at most, not {len(planned.ops)}"
            )
        written: TableWritten = await self._writes.carry_out(place, planned.ops, rights, deadline_s)
        results = list(written.results)
        for at, op in enumerate(planned.ops):
            if isinstance(op, Delete) and found_nothing(results[at]):
                other = place.elsewhere(op.key)
                if other is not None:  # where others have put it, or a split has taken it
                    there = place.at(other)  # as of the same metadata: should it have gone on, it is refused
                    again = await self._writes.carry_out(there, [op], rights, deadline_s)
                    results[at] = again.results[0]
        return results

    async def write_stream(self, call: Call) -> None:
        """Carry out requests in their order, and answer them in it. What came meanwhile goes out together."""
        rights = await self._rights(call)
        shard_id = _shard_of_stream(call)
        while (data := await call.message()) is not None:
            place = await self._place(call, shard_id)
            waiting, size_bytes = [], 0
            while data is not None:
                waiting.append(await plan(await call.parsed(m.WriteRequest, data), place, call.turn))
                size_bytes += len(data)
                together = sum(len(one.ops) for one in waiting)
                data = call.more() if together < TOGETHER_OPS else None
            await self._pays(rights, Use.PRODUCE, size_bytes)
            await self._write_together(call, place, waiting, rights)
            call.dealt_with()

    async def _write_together(self, call: Call, place: Place, waiting: list[Planned], rights: Rights) -> None:
        if len(waiting) > 1:
            everything = Planned(waiting[0].request, [op for one in waiting for op in one.ops])
            try:
                results = await self._written(place, everything, rights, None)
            except AntiphonError as error:
                if not takes_alone(error):
                    raise
            else:
                at = 0
                for one in waiting:
                    await call.send(await answered(one, results[at : at + len(one.ops)], call.turn))
                    at += len(one.ops)
                return
        for one in waiting:
            results = await self._written(place, one, rights, None)
            await call.send(await answered(one, results, call.turn))

    # -- reads --------------------------------------------------------------------------------------------------------

    async def read(self, call: Call) -> None:
        """Read keys."""
        rights = await self._rights(call)
        request = await call.request(m.ReadRequest)
        gets, told = list(request.gets), False
        for _ in range(SPLIT_TRIES):
            place = await self._place(call, request.shard)
            version = self._gateway.metadata_version
            try:
                async for message in self.reads.gets(place, gets, rights, call):
                    await self._pays(rights, Use.FETCH, len(message))
                    told = True
                    await call.send(message)
            except WrongShardError:
                if told:
                    raise
                await self._gateway.wait_metadata(version, LOOK_S)  # the shard has just been split
            else:
                break
        else:
            raise NotReadyError("the table's shards are changing; ask again")
        call.dealt_with()

    async def list_keys(self, call: Call) -> None:
        """List the keys of a range."""
        await self._range(call, values=False)

    async def range_scan(self, call: Call) -> None:
        """Read the rows of a range."""
        await self._range(call, values=True)

    async def _range(self, call: Call, *, values: bool) -> None:
        rights = await self._rights(call)
        request = await call.request(m.RangeRequest)
        place = await self._place(call, request.shard)
        out = bytearray()
        turns, owner = self._listener.turns, call.connection
        async for page in self.reads.pages(place, request, rights, call, values=values):
            page.reverse()
            while page:  # what is sent is let go of
                piece = record(page.pop()) if values else page.pop()
                if out and len(out) + len(piece) > ANSWER_BYTES:
                    await self._send(call, rights, out)
                    out = bytearray()
                put_sized(out, 0x0A, piece)
            if out and not call.may_read(SCAN_BYTES_MAX):
                await self._send(call, rights, out)  # others wait for the room that it takes
                out = bytearray()
            call.keep(len(out))
            await turns.next(owner, owner.session.client(owner.host))
            if not call.is_open:
                return
        if out:
            await self._send(call, rights, out)
        call.dealt_with()

    async def _send(self, call: Call, rights: Rights, out: bytes | bytearray) -> None:
        await self._pays(rights, Use.FETCH, len(out))
        await call.send(out)

    # -- what happens -------------------------------------------------------------------------------------------------

    async def notifications(self, call: Call) -> None:
        """Tell what happens to the keys of a shard, after a batch that says from where on."""
        rights = await self._rights(call)
        request = await call.request(m.NotificationsRequest)
        call.dealt_with()
        place = await self._place(call, request.shard)
        shard_id = place.shard.shard_id
        after = request.start_offset_exclusive
        start = await self._feeds.end_of(shard_id, rights) if after is None else max(after, -1) + 1
        await call.send(empty_batch(shard_id, start - 1, system.wall_ms()))
        follower = Follower(self._feeds, shard_id, start, rights, call)
        try:
            while call.is_open:
                for message in (await follower.next()).notifications(shard_id):
                    await self._send(call, rights, message)
        finally:
            follower.close()

    async def sequence_updates(self, call: Call) -> None:
        """Tell the highest key of a sequence, and each one that is higher; of several at once the highest."""
        rights = await self._rights(call)
        request = await call.request(m.GetSequenceUpdatesRequest)
        call.dealt_with()
        place = await self._place(call, request.shard)
        shard_id, prefix = place.shard.shard_id, request.key
        start = await self._feeds.end_of(shard_id, rights)
        told = await self._feeds.last_of(shard_id, prefix, rights)
        if told is not None:
            await call.send(m.GetSequenceUpdatesResponse(highest_sequence_key=told))
        follower = Follower(self._feeds, shard_id, start, rights, call)
        try:
            while call.is_open:
                newest = newest_of(await follower.next(), prefix)
                if newest is not None and (told is None or newest > told):
                    told = newest
                    await call.send(m.GetSequenceUpdatesResponse(highest_sequence_key=newest))
        finally:
            follower.close()

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def create_session(self, call: Call) -> None:
        """Open a session in a shard, under an id that is drawn here."""
        rights = await self._rights(call)
        request = await call.request(m.CreateSessionRequest)
        timeout_ms = request.session_timeout_ms
        if not SESSION_MIN_MS <= timeout_ms <= SESSION_MAX_MS:
            raise CallFailedError(
                INVALID_ARGUMENT,
                f"a session's time-out is from {SESSION_MIN_MS} to {SESSION_MAX_MS} ms, not {timeout_ms}",
                "INVALID_SESSION_TIMEOUT",
            )
        place = await self._place(call, request.shard)
        session_id = int.from_bytes(system.secret_bytes(8), "big") >> 2 | 1
        await self._shards.ask(
            OpenSession(place.shard.shard_id, session_id, timeout_ms, place.hashes), rights, call.deadline_s
        )
        call.post(m.CreateSessionResponse(session_id=session_id))
        call.dealt_with()

    async def keep_alive(self, call: Call) -> None:
        """A sign of life of a session's client."""
        await self._on_session(call, KeepSession)

    async def close_session(self, call: Call) -> None:
        """End a session."""
        await self._on_session(call, CloseSession)

    async def _on_session(self, call: Call, kind: type[KeepSession | CloseSession]) -> None:
        rights = await self._rights(call)
        request = await call.request(m.SessionRequest)
        place = await self._place(call, request.shard)
        if request.session_id <= 0:
            raise SessionNotFoundError(f"session {request.session_id} is not open: no session has such an id")
        for other in place.others:  # a split took rows of the session there, and its client does not know
            with suppress(SessionNotFoundError):
                shard = self._gateway.shard(other)[1]
                await self._shards.ask(kind(other, request.session_id, shard.hashes), rights, call.deadline_s)
        body = kind(place.shard.shard_id, request.session_id, place.hashes)
        await self._shards.ask(body, rights, call.deadline_s)
        call.post(m.Empty())
        call.dealt_with()

    # -- health -------------------------------------------------------------------------------------------------------

    def _health(self, service: str) -> int:
        known = service in {"", "oxia-readiness", *(one.strip("/") for one in SERVICES)}
        if not known:
            return SERVICE_UNKNOWN
        is_ready = service == "" or self._gateway.metadata_version >= 0
        return SERVING if is_ready else NOT_SERVING

    async def health_check(self, call: Call) -> None:
        """Is the service there? Everybody may ask."""
        request = await call.request(m.HealthCheckRequest)
        status = self._health(request.service)
        if status == SERVICE_UNKNOWN:
            raise CallFailedError(NOT_FOUND, f"there is no service {request.service[:100]!r}")
        call.post(m.HealthCheckResponse(status=status))
        call.dealt_with()

    async def health_watch(self, call: Call) -> None:
        """The same, and whenever it changes."""
        request = await call.request(m.HealthCheckRequest)
        call.dealt_with()
        told = 0
        while call.is_open:
            status = self._health(request.service)
            if status != told:
                told = status
                await call.send(m.HealthCheckResponse(status=status))
            await asyncio.sleep(LOOK_S)


def _assignments(topic: TopicMeta, name: str, authority: str) -> m.ShardAssignments:
    """The shards of a table, all of which are asked at the address that the client has used."""
    ranges = KeyRanges(topic.shards)
    found = []
    for shard in topic.shards:
        first, last = ranges.range_of(shard)
        hashes = m.Int32HashRange(first=first, last=last)
        found.append(m.ShardAssignment(shard=shard.shard_id, leader=authority, hashes=hashes))
    value = m.NamespaceShardsAssignment(assignments=found, router=m.XXHASH3)
    return m.ShardAssignments(namespaces=[m.NamespaceEntry(key=name, value=value)])


def _shard_of_stream(call: Call) -> int:
    """The shard that the metadata of a stream names."""
    told = call.headers.get(b"shard-id", b"")
    if not told.isdigit() or len(told) > 18:
        raise CallFailedError(
            INVALID_ARGUMENT, "a stream of writes has `shard-id` among its metadata, a number"
        )
    return int(told)
