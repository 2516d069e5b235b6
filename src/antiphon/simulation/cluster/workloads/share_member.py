"""One life of a member of a share group (KIP-932): heartbeats, share sessions, acknowledgements, and an end.

It does as Kafka's clients do: a session for each node that leads partitions of its own, with acknowledgements in fetches or
by themselves. It works on records for less than their lock lasts, or for longer; it accepts most, releases or rejects some,
and forgets a few. Not every member says goodbye.
"""

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from antiphon.kafka import error_codes as code
from antiphon.kafka.api import SHARE_FETCH
from antiphon.kafka.messages import share_groups as sm
from antiphon.simulation.cluster.kafka_client import Address, Connection, KafkaClient, NoAnswerError
from antiphon.simulation.cluster.timing import CONSUMER_SESSION_MS, SHARE_LOCK_MS
from antiphon.simulation.cluster.workloads.group_member import GroupMember
from antiphon.simulation.cluster.workloads.share_history import Held, ShareHistory
from antiphon.simulation.violation import ViolationError, require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
    from antiphon.simulation.runtime.process import Process

INTERVAL_MS: Final = 250  # between heartbeats
LEASE_S: Final = (
    0.7 * CONSUMER_SESSION_MS / 1000
)  # whom the group heard of later than that it knows; clocks differ
GROUP: Final = "queue"
TOPIC: Final = "queued"
HEARTBEAT, ACKNOWLEDGE = 76, 79
POISON: Final = 7  # every so many records nobody can do anything with one
IDLE_RECORDS: Final = 5  # so many are given to one who forgets them
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
KINDS: Final = {ACCEPT: "accepted", REJECT: "rejected"}
ELSEWHERE: Final = frozenset({
    code.COORDINATOR_LOAD_IN_PROGRESS, code.COORDINATOR_NOT_AVAILABLE, code.NOT_COORDINATOR,
    code.UNKNOWN_TOPIC_OR_PARTITION, code.UNKNOWN_TOPIC_ID, code.NOT_LEADER_OR_FOLLOWER, code.UNSUPPORTED_VERSION,
    code.KAFKA_STORAGE_ERROR,
})  # fmt: skip
SESSION_LOST: Final = frozenset({code.SHARE_SESSION_NOT_FOUND, code.INVALID_SHARE_SESSION_EPOCH})
FENCED: Final = frozenset({code.UNKNOWN_MEMBER_ID, code.FENCED_MEMBER_EPOCH})


@dataclass(eq=False, slots=True)
class Session:
    """With one node. `held`: what it works on, until when; `given`: all that it was given here."""

    connection: Connection
    epoch: int = 0
    partitions: set[int] = field(default_factory=set)
    held: dict[Held, float] = field(default_factory=dict)
    given: list[Held] = field(default_factory=list)
    begun: bool = False


Acks = dict[int, list[tuple[Held, int]]]  # by partition: records and the type of acknowledgement


class ShareMember(GroupMember):
    """See the module's text."""

    group = GROUP
    ask_s = 4.0

    def __init__(
        self,
        workload: "KafkaWorkload",
        history: ShareHistory,
        process: "Process",
        client: KafkaClient,
        number: int,
    ) -> None:
        super().__init__(workload, process, client, number)
        self._history = history
        self._version = self._draw.choice((1, 2))
        self._careful = False  # does it accept everything?
        self._idle = False  # or nothing?
        self._given = 0
        self._assigned: frozenset[int] = frozenset()
        self._sessions: dict[Address, Session] = {}
        self._heartbeat_s = 0.0
        self._ok_s = -1.0  # when the last heartbeat was sent that was answered well

    async def live(self, ends_s: float, *, until_done: bool = False, idle: bool = False) -> None:
        """Join, work, join again if need be, for a while, or until all is done. `idle`: it forgets what it is given."""
        self._idle = idle
        self._careful = until_done and not idle
        while not (self._workload.stopped and (not until_done or self._history.is_done())) and (
            until_done or self._workload.now < ends_s
        ):
            try:
                if idle and self._given > IDLE_RECORDS:
                    self._look_at_connections()
                    await self._client.back_off()  # it is silent, and its connections stay
                    continue
                if self._workload.now >= self._heartbeat_s:
                    self._heartbeat_s = self._workload.now + INTERVAL_MS / 1000
                    await self._heartbeat()
                if self._assigned:
                    await self._work()
            except NoAnswerError:
                self._coordinator = None
            self._look_at_connections()
            await self._client.back_off()
        if self._draw.random() < 0.7:
            await self._leave()
        for session in self._sessions.values():
            self._end(session)
        self._client.close()

    # -- membership -------------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        sent_s = self._workload.now
        request = sm.ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self._epoch,
            subscribed_topic_names=[TOPIC] if not self._epoch or self._draw.random() < 0.1 else None,
        )
        found = await self._ask_coordinator(HEARTBEAT, 1, request)
        if found.error_code in FENCED:
            self._fenced(found.error_code)
            return
        if found.error_code:
            self._troubled("heartbeat", found.error_code)
            self._coordinator = None
            return
        require(
            found.heartbeat_interval_ms == INTERVAL_MS,
            "share-interval",
            f"{self.name} is to come every {found.heartbeat_interval_ms} ms, and {INTERVAL_MS} ms are set",
        )
        if not self._epoch:
            self._history.outcomes["shares-joined"] += 1
        self._epoch, self._ok_s = found.member_epoch, sent_s
        if found.assignment is not None:
            self._assigned = frozenset(
                partition for topic in found.assignment.topic_partitions for partition in topic.partitions
            )

    def _fenced(self, error: int) -> None:
        """The group does not know it any more: that may be so only when it was silent for long."""
        silent_s = self._workload.now - self._ok_s  # the refusal may have been decided just now
        self._workload.cluster.tell("share-fenced", self.name, self._epoch, error)
        require(
            not self._epoch or silent_s >= LEASE_S,
            "share-member-forgotten",
            f"{self.name} of epoch {self._epoch} is refused with error {error}, and asked for its last good answer "
            f"{silent_s:.3f} s ago",
        )
        self._history.outcomes["shares-fenced"] += 1
        self._epoch, self._ok_s = 0, -1.0

    async def _leave(self) -> None:
        with contextlib.suppress(NoAnswerError):
            for address, session in list(self._sessions.items()):
                await self._close(address, session)
            request = sm.ShareGroupHeartbeatRequest(group_id=GROUP, member_id=self.name, member_epoch=-1)
            await self._ask_coordinator(HEARTBEAT, 1, request)

    def _troubled(self, what: str, error: int) -> None:
        self._workload.cluster.tell("share", self.name, what, error)
        if error not in ELSEWHERE:
            raise ViolationError("share-refused", f"{what} of {self.name} is refused with error {error}")

    # -- sessions ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """One request to the leader of one of its partitions."""
        partition = self._draw.choice(sorted(self._assigned))
        address, _ = await self._client.leader(TOPIC, partition)
        connection = await self._client.connection(address)
        session = self._sessions.get(address)
        if session is not None and session.connection is not connection:
            self._end(session)
            session = None
        if session is None:
            session = self._sessions[address] = Session(connection)
        acks = self._due(session)
        if acks and self._draw.random() < 0.5:
            await self._acknowledge(session, acks)
        else:
            await self._fetch(session, partition, acks)

    def _due(self, session: Session) -> Acks:
        """What it is through with, and what it says of that."""
        acks: Acks = {}
        for held, due_s in list(session.held.items()):
            if due_s > self._workload.now:
                continue
            draw = self._draw.random()
            if self._idle or (not self._careful and draw < 0.1):  # it forgets these: the lock ends by itself
                del session.held[held]
                continue
            kind = ACCEPT if self._careful or draw < 0.7 else RELEASE if draw < 0.85 else REJECT
            if held.first % POISON == 1 and not self._careful:
                kind = RELEASE
            if draw > 0.97 and self._version > 1 and not self._careful:
                kind = RENEW
            acks.setdefault(held.partition, []).append((held, kind))
        return acks

    def _topics(self, acks: Acks, more: frozenset[int] = frozenset()) -> list[sm.ShareTopicWanted]:
        wanted = [
            sm.SharePartitionWanted(
                partition_index=partition, acknowledgement_batches=_batches(acks.get(partition, []))
            )
            for partition in sorted({*acks, *more})
        ]
        topic_id = self._history.topic_id
        return [sm.ShareTopicWanted(topic_id=topic_id, partitions=wanted)] if wanted else []

    async def _fetch(self, session: Session, partition: int, acks: Acks) -> None:
        if not session.epoch:
            acks = {}
        new = frozenset({partition}) - session.partitions
        draw = self._draw
        request = sm.ShareFetchRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=session.epoch,
            max_wait_ms=draw.choice((0, 50, 300)),
            min_bytes=1,
            max_bytes=draw.choice((1, 1_000, 1 << 20)),
            max_records=draw.choice((1, 5, 100)),
            batch_size=draw.choice((1, 100)),
            share_acquire_mode=draw.choice((0, 1)) if self._version > 1 else 0,
            is_renew_ack=_renews(acks),
            topics=self._topics(acks, new),
            forgotten_topics_data=[],
        )
        asked_s = self._workload.now
        leaders = {each: self._history.leaders(each) for each in self._history.shard_ids}
        self._let_go(session, acks)
        session.partitions |= new
        found = await self._ask(session, SHARE_FETCH, request)
        if found is None:
            return
        told = {one.partition_index: one for topic in found.responses for one in topic.partitions}
        self._acknowledged(session, acks, {at: one.acknowledge_error_code for at, one in told.items()})
        for one in told.values():
            if one.error_code:
                self._troubled("fetch", one.error_code)
                self._client.forget(TOPIC, one.partition_index)
                session.partitions.discard(one.partition_index)
                self._drop(session)
            for each in one.acquired_records:
                held = Held(
                    self.name,
                    one.partition_index,
                    each.first_offset,
                    each.last_offset + 1,
                    each.delivery_count,
                    asked_s,
                    session.connection,
                    leaders[one.partition_index],
                )
                self._workload.cluster.tell(
                    "given", self.name, held.partition, held.first, held.end, held.deliveries
                )
                self._history.take(held)
                for old in [one for one in session.held if one.overlaps(held)]:
                    del session.held[old]  # its lock has ended
                session.given.append(held)
                self._given += held.end - held.first
                works_s = draw.choice((0.0, 0.1, 0.5, 1.5)) * SHARE_LOCK_MS / 1000
                session.held[held] = self._workload.now + (0.0 if self._careful else works_s)

    async def _acknowledge(self, session: Session, acks: Acks) -> None:
        request = sm.ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=session.epoch,
            is_renew_ack=_renews(acks),
            topics=[
                sm.ShareTopicWanted(
                    topic_id=topic.topic_id,
                    partitions=[
                        sm.SharePartitionWanted(
                            partition_index=one.partition_index,
                            acknowledgement_batches=one.acknowledgement_batches,
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in self._topics(acks)
            ],
        )
        self._let_go(session, acks)
        found = await self._ask(session, ACKNOWLEDGE, request)
        if found is not None:
            told = {
                one.partition_index: one.error_code for topic in found.responses for one in topic.partitions
            }
            self._acknowledged(session, acks, told)

    async def _close(self, address: Address, session: Session) -> None:
        """End the session; what it holds is for others."""
        if not session.begun:
            return
        request = sm.ShareAcknowledgeRequest(
            group_id=GROUP, member_id=self.name, share_session_epoch=-1, topics=[]
        )
        self._end(session)
        del self._sessions[address]
        await self._ask(session, ACKNOWLEDGE, request)

    async def _ask(self, session: Session, key: int, request: Any) -> Any:
        """The answer; None where the session is lost. Without an answer it is given up, with its connection."""
        try:
            found = await self._client.send(session.connection, key, self._version, request, self.ask_s)
        except NoAnswerError:
            for partition in session.partitions:
                self._history.unanswered[partition] += 1
            session.connection.close()
            raise
        if found.error_code in SESSION_LOST:
            self._drop(session)
            self._history.outcomes["shares-lapsed"] += 1
            return None
        if found.error_code:
            self._troubled("share session", found.error_code)
            return None
        session.begun = True
        session.epoch += 1
        return found

    # -- what it holds ----------------------------------------------------------------------------------------------

    def _let_go(self, session: Session, acks: Acks) -> None:
        """From the moment of the request on, the records may be anybody's."""
        for several in acks.values():
            for held, kind in several:
                session.held.pop(held, None)
                if kind != RENEW:
                    held.is_over = True

    def _acknowledged(self, session: Session, acks: Acks, told: dict[int, int]) -> None:
        for partition, several in acks.items():
            error = told.get(partition, 0)
            self._workload.cluster.tell("acknowledged", self.name, partition, error, len(several))
            if error == code.INVALID_RECORD_STATE:
                self._history.outcomes["shares-refused"] += len(several)
                continue
            if error:
                self._troubled("acknowledgement", error)
                self._client.forget(TOPIC, partition)
                continue
            for held, kind in several:
                self._confirmed(session, held, kind)

    def _confirmed(self, session: Session, held: Held, kind: int) -> None:
        if kind == RENEW:
            session.held[held] = self._workload.now
            return
        for offset in range(held.first, held.end):
            if kind == RELEASE:
                self._history.released(held, offset)
            else:
                self._history.confirm(held, offset, KINDS[kind])
        self._history.outcomes["shares-released" if kind == RELEASE else "shares-accepted"] += (
            held.end - held.first
        )

    def _drop(self, session: Session) -> None:
        self._sessions = {at: each for at, each in self._sessions.items() if each is not session}
        self._end(session)

    def _end(self, session: Session) -> None:
        if session.connection.closed:
            self._history.closed_s.setdefault(session.connection, self._workload.now)
        for held in session.given:
            held.is_over = True
        session.held.clear()

    def died(self) -> None:
        """Its process was killed, and its connections with it."""
        for session in self._sessions.values():
            self._history.closed_s.setdefault(session.connection, self._workload.now)
            self._end(session)

    def _look_at_connections(self) -> None:
        for address, session in list(self._sessions.items()):
            if session.connection.closed:
                self._end(session)
                del self._sessions[address]


def _renews(acks: Acks) -> bool:
    return any(kind == RENEW for several in acks.values() for _, kind in several)


def _batches(several: list[tuple[Held, int]]) -> list[sm.AcknowledgementBatch]:
    return [
        sm.AcknowledgementBatch(first_offset=held.first, last_offset=held.end - 1, acknowledge_types=[kind])
        for held, kind in sorted(several, key=lambda each: each[0].first)
    ]
