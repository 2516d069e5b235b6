"""ShareFetch and ShareAcknowledge: what members of share groups ask of the leaders of partitions (KIP-932).

A member is answered with records that are its own for a while, and with what became of its acknowledgements. Both only when
its share-partitions are stored as they are then, and are still this node's (`groups.share_partitions`).
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from antiphon.coordination.share_terms import Ack, AckType
from antiphon.errors import AntiphonError
from antiphon.gateway.interface import Gateway
from antiphon.gateway.quotas import Payer, Quotas, Use, payer_of
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.connection import Answer, Connection
from antiphon.kafka.framing import RequestHeader
from antiphon.kafka.groups.share_partitions import Place, Share, SharePartitions, now_ms
from antiphon.kafka.groups.share_reads import Wanted, give, isolation_of
from antiphon.kafka.handlers.fetch import BATCH_BYTES, GATHER_S, RESPONSE_BYTES_MAX, WAIT_MS_MAX
from antiphon.kafka.handlers.group_outcomes import check_reads
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.handlers.share_acks import ShareAcks, Told
from antiphon.kafka.handlers.share_places import Failed, SharePlaces
from antiphon.kafka.messages import share_groups as m
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.produce_codec import NodeEndpoint
from antiphon.kafka.share_fetch_codec import NO_LEADER, ShareFetched, encode_share_fetch
from antiphon.kafka.share_sessions import FINAL, INITIAL, ShareSession, ShareSessions
from antiphon.security.authorizer import Rights
from antiphon.shares import asking

ID_BYTES_MAX: Final = 1024
RECORDS_MAX: Final = 100_000  # of one answer
LOOK_S: Final = (
    1.0  # between looks at whether what is held here is what is stored, while there is nothing to be given
)
PIECE: Final = 64  # partitions that are looked at in one turn of the event loop


class ShareFetchHandler:
    """Carries out ShareFetch and ShareAcknowledge requests."""

    def __init__(
        self,
        gateway: Gateway,
        cache: MetadataCache,
        quotas: Quotas,
        shares: SharePartitions,
    ) -> None:
        self.sessions = ShareSessions(shares.config.sessions_max)
        self._gateway = gateway
        self._cache = cache
        self._quotas = quotas
        self._shares = shares
        self._places = SharePlaces(gateway, cache, shares)
        self._acks = ShareAcks(self._places, shares)

    def ended(self, connection: Connection) -> None:
        """A connection is gone: what its members worked on is for others."""
        for member, places in self.sessions.ended(connection):
            self._acks.release(member, places, unseen=False)

    # -- ShareFetch -------------------------------------------------------------------------------------------------

    async def run(self, header: RequestHeader, request: m.ShareFetchRequest, answer: Answer) -> None:
        """Acknowledge, acquire, wait if there is nothing, answer."""
        answer.connection.go_on(answer)
        asking.set(answer.connection.client)
        payer = None
        if self._quotas.all:
            payer = payer_of(answer.connection.session.rights.principal, header.client_id)
        lock_ms = self._shares.config.records.record_lock_duration_ms
        try:
            member = _member(request.group_id, request.member_id, answer.connection.session.rights)
            found = await self._fetched(request, answer, member, payer)
        except RefusedError as refused:
            throttle_ms = answer.throttle_ms
            answer.send(
                *encode_share_fetch(header, refused.error_code, refused.reason, throttle_ms=throttle_ms)
            )
            return
        for one in found:
            share = self.known(member[0], one.topic_id, one.partition)
            if share is not None:
                lock_ms = share.settings.bounds.record_lock_duration_ms
                break
        size_bytes = sum(one.size_bytes for one in found)
        self._quotas.charge(Use.FETCH, payer, size_bytes, answer)
        endpoints = self._endpoints([one.leader for one in found])
        how = {"lock_ms": lock_ms, "throttle_ms": answer.throttle_ms}
        answer.send(*encode_share_fetch(header, code.NONE, None, found, endpoints, **how))

    def known(self, group: str, topic_id: bytes, partition: int) -> Share | None:
        """The share-partition, if it is here."""
        return self._shares.find(Place(group, topic_id, partition))

    async def look(self, share: Share) -> None:
        """Return when it is certain that this node has the share-partition, or has it no more."""
        try:
            await self._shares.settle(share)
        except AntiphonError:
            return  # who asks for it next hears why, or has it read anew

    async def _fetched(
        self, request: m.ShareFetchRequest, answer: Answer, member: tuple[str, str], payer: Payer | None
    ) -> list[ShareFetched]:
        """What the member is told of partitions. Raises RefusedError."""
        session = self._session(request, answer.connection, member)
        rights = answer.connection.session.rights
        told = await self._acks.take(rights, member, request.topics, renews=request.is_renew_ack)
        if request.share_session_epoch == FINAL:
            self._end(session)
            return [_acknowledged(place, failed) for place, failed in told.items()]
        fetches = request.max_bytes > 0 and request.max_records > 0 and not request.is_renew_ack
        if not fetches or self._quotas.refuses(Use.FETCH, payer, answer):
            return [_acknowledged(place, failed) for place, failed in told.items()]
        most = self._quotas.at_once(Use.FETCH, payer)
        if most is not None:
            request.max_bytes = min(request.max_bytes, max(1, int(most)))
        return await _Fetch(self, request, answer, session).carried_out(told)

    def _session(
        self, request: m.ShareFetchRequest, connection: Connection, member: tuple[str, str]
    ) -> ShareSession:
        """The session as the request wants it. Raises RefusedError."""
        if request.share_session_epoch == INITIAL:
            if any(p.acknowledgement_batches for topic in request.topics for p in topic.partitions):
                raise RefusedError(
                    code.INVALID_REQUEST, "who opens a share session has nothing to acknowledge"
                )
            session = self.sessions.open(member, connection)
        else:
            session = self.sessions.find(member, request.share_session_epoch)
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                session.partitions.pop((forgotten.topic_id, partition), None)
        if request.share_session_epoch != FINAL:
            for topic in request.topics:
                for wanted in topic.partitions:
                    session.want((topic.topic_id, wanted.partition_index))
        session.count()
        return session

    def _end(self, session: ShareSession) -> None:
        self._acks.release(session.key, list(session.partitions), unseen=True)
        self.sessions.close(session.key)

    def _endpoints(self, leaders: Sequence[tuple[int, int]]) -> list[NodeEndpoint]:
        return self._cache.endpoints_of([leader for leader in leaders if leader != NO_LEADER])

    # -- ShareAcknowledge -------------------------------------------------------------------------------------------

    async def acknowledge(
        self, request: m.ShareAcknowledgeRequest, context: RequestContext
    ) -> m.ShareAcknowledgeResponse:
        """ShareAcknowledge: stored when it is answered."""
        member = _member(request.group_id, request.member_id, context.rights)
        if request.share_session_epoch == INITIAL:
            raise RefusedError(code.INVALID_SHARE_SESSION_EPOCH, "a ShareFetch opens a share session")
        session = self.sessions.find(member, request.share_session_epoch)
        told = await self._acks.take(context.rights, member, request.topics, renews=request.is_renew_ack)
        if request.share_session_epoch == FINAL:
            self._end(session)
        topics: dict[bytes, list[m.ShareAcknowledgedPartition]] = {}
        leaders = []
        for place, failed in told.items():
            one = _acknowledged(place, failed)
            leaders.append(one.leader)
            topics.setdefault(place.topic_id, []).append(
                m.ShareAcknowledgedPartition(
                    partition_index=place.partition,
                    error_code=one.ack_error_code,
                    error_message=one.ack_error_message,
                    current_leader=m.LeaderIdAndEpoch(leader_id=one.leader[0], leader_epoch=one.leader[1]),
                )
            )
        return m.ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=self._shares.config.records.record_lock_duration_ms,
            responses=[
                m.ShareAcknowledgedTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
            node_endpoints=[
                m.ShareNodeEndpoint(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack or None)
                for one in self._endpoints(leaders)
            ],
        )

    # -- for fetches ------------------------------------------------------------------------------------------------

    async def find(self, rights: Rights, place: Place) -> Share | Failed:
        """The share-partition, or why it is not to be had."""
        return await self._places.find(rights, place)

    async def give(self, share: Share, wanted: Wanted, fetched: ShareFetched) -> bool:
        """Put what the member is given into its answer; is there more than there is room for?"""
        try:
            given = await give(self._gateway, self._shares, share, wanted)
        except AntiphonError as error:
            _fail(fetched, self._places.failed(share.place, error))
            return False
        fetched.acquired, fetched.batches, fetched.size_bytes = (
            given.acquired,
            given.batches,
            given.size_bytes,
        )
        return given.lacks_room

    async def settle(self, share: Share, member: str, fetched: ShareFetched) -> None:
        """Return when the member may be given what it acquired; it is not, where that is not certain."""
        try:
            await self._shares.settle(share)
        except AntiphonError as error:
            acks = [Ack(each.first, each.end, (AckType.RELEASE,)) for each in fetched.acquired]
            if share.gone is None and share.machine.acknowledge(now_ms(), member, acks) is None:
                self._shares.changed(share)
            fetched.acquired, fetched.batches, fetched.size_bytes = (), (), 0
            _fail(fetched, self._places.failed(share.place, error))

    async def wait(self, shares: Sequence[Share], timeout_s: float) -> None:
        """Return when there may be something of these to be given, or after `timeout_s`."""
        wake = asyncio.Event()
        followed: list[tuple[int, int]] = []
        try:
            for share in shares:
                share.wakes.add(wake)
                if share.gone is not None or share.machine.next_offset() not in {None, share.machine.end}:
                    wake.set()
                elif share.machine.room:
                    key = self._gateway.next_follow_key()
                    at = (key, share.shard_id, share.machine.end, isolation_of(share))
                    if self._gateway.follow(*at, wake.set):
                        followed.append((share.shard_id, key))
                    else:
                        wake.set()
            await asyncio.wait_for(wake.wait(), timeout_s)
        except (TimeoutError, AntiphonError):
            return
        finally:
            for share in shares:
                share.wakes.discard(wake)
            for shard_id, key in followed:
                self._gateway.unfollow(shard_id, key)


class _Fetch:
    """One request that fetches."""

    def __init__(
        self, handler: ShareFetchHandler, request: m.ShareFetchRequest, answer: Answer, session: ShareSession
    ) -> None:
        self._handler = handler
        self._request = request
        self._answer = answer
        self._session = session
        self._found: dict[Place, ShareFetched] = {}
        self._shares: list[Share] = []
        self._lacks_room = False

    async def carried_out(self, told: Told) -> list[ShareFetched]:
        """What the member is told, acknowledgements among it."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + min(max(self._request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
        await self._look()
        await self._pass()
        while not self._has_news and (left_s := deadline_s - loop.time()) > 0:
            if self._lacks_room:
                await self._answer.connection.wait_for_room(left_s)
            elif self._shares:
                await self._handler.wait(self._shares, left_s)
            else:
                break
            if loop.time() < deadline_s:
                await self._pass()
                if not self._has_news:
                    await asyncio.sleep(min(GATHER_S, max(0.0, deadline_s - loop.time())))
        for place, failed in told.items():
            one = self._found.setdefault(place, ShareFetched(place.topic_id, place.partition))
            _fail_ack(one, failed)
        return [one for place, one in self._found.items() if one.error_code or one.acquired or place in told]

    async def _look(self) -> None:
        """Ask whether what is held here is what is stored: operators change it, of groups without members."""
        now_s = asyncio.get_running_loop().time()
        group = self._session.key[0]
        shares = (self._handler.known(group, *key) for key in self._session.partitions)
        is_new = self._request.share_session_epoch == INITIAL
        old = [
            share for share in shares if share is not None and (is_new or now_s - share.looked_s >= LOOK_S)
        ]
        await asyncio.gather(*(self._handler.look(share) for share in old))

    @property
    def _has_news(self) -> bool:
        return any(one.error_code or one.acquired for one in self._found.values())

    async def _pass(self) -> None:
        """Look at each partition once, as far as there is room for what is found."""
        answer, request = self._answer, self._request
        room = max(0, min(request.max_bytes, RESPONSE_BYTES_MAX, answer.room_bytes))
        whole = room > 0 and answer.may_begin(max(room, BATCH_BYTES))
        reserved = max(room, BATCH_BYTES) if whole else room
        answer.reserve(reserved)
        self._shares = []
        self._lacks_room = False
        acquired: list[tuple[Share, ShareFetched]] = []
        try:
            acquired = await self._acquire(room, whole=whole)
            member = self._session.key[1]
            await asyncio.gather(*(self._handler.settle(share, member, one) for share, one in acquired))
        finally:
            answer.reserve(sum(one.size_bytes for _, one in acquired) - reserved)

    async def _acquire(self, left_bytes: int, *, whole: bool) -> list[tuple[Share, ShareFetched]]:
        group, member = self._session.key
        request = self._request
        left_records = min(request.max_records, RECORDS_MAX)
        acquired: list[tuple[Share, ShareFetched]] = []
        rights = self._answer.connection.session.rights
        for number, key in enumerate(list(self._session.partitions), 1):
            if not number % PIECE:
                await self._answer.next_turn()
            place = Place(group, *key)
            fetched = self._found[place] = ShareFetched(place.topic_id, place.partition)
            share = await self._handler.find(rights, place)
            if isinstance(share, Failed):
                _fail(fetched, share)
                continue
            self._shares.append(share)
            if left_records <= 0 or (left_bytes <= 0 and acquired):
                continue
            first = whole and not acquired
            strict = request.share_acquire_mode == 1
            wanted = Wanted(member, left_records, left_bytes, request.batch_size, strict, first)
            self._lacks_room |= (
                await self._handler.give(share, wanted, fetched) and not acquired and not whole
            )
            if fetched.acquired:
                acquired.append((share, fetched))
                self._session.served(key)
                left_bytes -= fetched.size_bytes
                left_records -= sum(each.end - each.first for each in fetched.acquired)
        return acquired


def _member(group: str | None, member: str | None, rights: Rights) -> tuple[str, str]:
    """Whose request this is. Raises RefusedError."""
    if not group or not member or len(group.encode()) > ID_BYTES_MAX or len(member.encode()) > ID_BYTES_MAX:
        raise RefusedError(
            code.INVALID_REQUEST, "GroupId and MemberId must be given, with 1,024 bytes at most"
        )
    check_reads(rights, group)
    return group, member


def _acknowledged(place: Place, failed: Failed | None) -> ShareFetched:
    one = ShareFetched(place.topic_id, place.partition)
    _fail_ack(one, failed)
    return one


def _fail_ack(one: ShareFetched, failed: Failed | None) -> None:
    if failed is not None:
        one.ack_error_code, one.ack_error_message, one.leader = failed


def _fail(one: ShareFetched, failed: Failed) -> None:
    one.error_code, one.error_message, one.leader = failed
