"""One life of a member of a consumer group (classic protocol): join, own partitions, commit, and be gone one day.

Most members go on in their generation when nobody answers, or another node coordinates, as the well-known clients do.
Now and then a member commits once more under a generation that it was in before, as one that was cut off for a while
would; and not every one of them says goodbye.
"""

import contextlib
from typing import TYPE_CHECKING, Any, Final

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import groups as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.simulation.cluster.kafka_client import Address, KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.kafka_history import Commit, Given, History, Round
from antiphon.simulation.cluster.workloads.kafka_workload import TOPIC, KafkaWorkload
from antiphon.simulation.cluster.workloads.kept_groups import LEASE, Coordinator, coordinator_of
from antiphon.simulation.violation import ViolationError, require

if TYPE_CHECKING:
    from antiphon.simulation.runtime.process import Process

GROUP: Final = "listeners"
CONSUMER: Final = "consumer"
PROTOCOL: Final = "range"
SESSION_MS: Final = (300, 1_000, 5_000)
REBALANCE_MS: Final = (500, 2_000)
JOIN_EXTRA_S: Final = 2.0  # over the time that a rebalance may take
RECORDS_MAX: Final = 10
LATE_CHANCE: Final = 0.2
PATIENT: Final = 0.8
HEARTBEAT_S: Final = 0.15
OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 9, 11, 12, 13, 14
FIRST_STATIC: Final = {SYNC_GROUP: 3, HEARTBEAT: 4, OFFSET_COMMIT: 9, LEAVE_GROUP: 5}
MANY_GROUPS: Final = 8  # version of OffsetFetch from which it asks for many groups at once

ELSEWHERE: Final = frozenset({
    code.COORDINATOR_LOAD_IN_PROGRESS, code.COORDINATOR_NOT_AVAILABLE, code.NOT_COORDINATOR,
})  # fmt: skip
REFUSED: Final = frozenset({
    code.ILLEGAL_GENERATION, code.UNKNOWN_MEMBER_ID, code.REBALANCE_IN_PROGRESS, code.FENCED_INSTANCE_ID,
})  # fmt: skip
UNUSUAL: Final = frozenset({
    code.UNKNOWN_TOPIC_OR_PARTITION, code.KAFKA_STORAGE_ERROR, code.REQUEST_TIMED_OUT, code.NOT_ENOUGH_REPLICAS,
})  # fmt: skip


class Membership:
    """See the module's text."""

    def __init__(
        self,
        workload: KafkaWorkload,
        history: History,
        process: "Process",
        client: KafkaClient,
        group: str = GROUP,
        instance: str | None = None,
    ) -> None:
        self._group = group
        self._instance = instance  # of a static member
        self._is_fenced = False
        self._workload = workload
        self._history = history
        self._process = process
        self._client = client
        self._draw = client.random
        self._late = workload.cluster.stream(f"late commits of {process.name} {workload.now}")
        self._goes_on = (
            self._draw.random() < PATIENT
        )  # does it look for another coordinator, and not join again?
        self._coordinator: Address | None = None
        self._member_id = ""
        self._round: Round = (-1, "")
        self._skips = False  # is it told that the assignments of before stand?
        self._was: list[tuple[str, Round]] = []  # its member ids and rounds; the last ones are those of now
        self._positions: dict[int, int] = {}  # of what it owns
        self._known: tuple[float, Coordinator] | None = None  # when, and by whom, in the round of now
        self._answered_by: Coordinator | None = None  # the last request; None where somebody deposed may have
        self._session_ms = self._draw.choice(SESSION_MS)
        self._rebalance_ms = self._draw.choice(REBALANCE_MS)
        self._versions = {
            JOIN_GROUP: self._draw.choice((2, 5, 9)),
            SYNC_GROUP: self._draw.choice((1, 3, 5)),
            HEARTBEAT: self._draw.choice((1, 4)),
            OFFSET_COMMIT: self._draw.choice((2, 6, 9)),
            OFFSET_FETCH: self._draw.choice((2, 5, 7, 9)),
            LEAVE_GROUP: self._draw.choice((1, 5)),
        }
        if instance is not None:
            self._versions |= {**FIRST_STATIC, JOIN_GROUP: self._draw.choice((5, 9))}

    async def live(self) -> None:
        """Join, work, join again, for a while."""
        ends_s = self._workload.now + self._draw.choice((0.5, 2.0, 10.0))
        while not self._workload.stopped and self._workload.now < ends_s and not self._is_fenced:
            try:
                await self._commit_late()
                if await self._join() and await self._sync() and await self._begin():
                    await self._work(ends_s)
            except NoAnswerError:
                self._coordinator = None
            await self._client.back_off()
        if self._draw.random() < (0.7 if self._instance is None else 0.1):
            await self._leave()
        self._client.close()

    async def look(self) -> None:
        """Ask for the committed offsets of all partitions, until somebody says them."""
        while True:
            try:
                if await self._fetch_offsets(tuple(self._workload.shard_ids)):
                    break
            except NoAnswerError:
                self._coordinator = None
            await self._client.back_off()
        self._client.close()

    async def _ask(self, key: int, request: Any, timeout_s: float = 3.0) -> Any:
        if self._coordinator is None:
            self._coordinator = await self._client.coordinator(self._group)
        if self._coordinator is None:
            raise NoAnswerError("nobody knows the coordinator")
        before = self._coordinates()
        found = await self._client.ask(self._coordinator, key, self._versions[key], request, timeout_s)
        self._answered_by = before if before == self._coordinates() else None
        return found

    def _troubled(self, what: str, error: int) -> bool:
        """Something is to be done about an error code; ViolationError for one that should not come."""
        if not error:
            return False
        self._workload.cluster.tell("group", self._process.name, what, error)
        if error in ELSEWHERE or error in UNUSUAL:
            self._coordinator = None
        elif error in {code.UNKNOWN_MEMBER_ID, code.ILLEGAL_GENERATION}:
            self._judge_forgotten(what, error)
            self._member_id = ""
        elif error == code.FENCED_INSTANCE_ID and self._instance is not None:
            self._is_fenced = True
        elif error not in REFUSED:
            raise ViolationError(
                "group-refused", f"{what} of {self._process.name} is refused with error {error}"
            )
        return True

    def _may_go_on(self, what: str, error: int) -> bool:
        """Is it still in its generation, as far as it knows?"""
        return not self._troubled(what, error) or (self._goes_on and self._coordinator is None)

    # -- membership -------------------------------------------------------------------------------------------------

    async def _join(self) -> bool:
        request = m.JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            member_id=self._member_id,
            group_instance_id=self._instance,
            protocol_type=CONSUMER,
            protocols=[m.JoinProtocol(name=PROTOCOL, metadata=b"")],
        )
        found = await self._ask(JOIN_GROUP, request, self._rebalance_ms / 1000 + JOIN_EXTRA_S)
        if found.error_code == code.MEMBER_ID_REQUIRED:
            self._member_id = found.member_id
            return False
        if self._troubled("join", found.error_code):
            return False
        self._member_id, self._round = found.member_id, (found.generation_id, found.leader)
        self._was.append((self._member_id, self._round))
        self._known = None
        self._skips = found.skip_assignment
        if self._instance is not None:
            self._history.instances[self._member_id] = self._instance
        self._history.outcomes["joined"] += 1
        self._workload.cluster.tell("joined", self._process.name, *self._round)
        if found.leader == found.member_id:
            members = [member.member_id for member in found.members]
            partitions = tuple(self._workload.shard_ids)
            self._history.meant[self._round] = {
                member: partitions[at :: len(members)] for at, member in enumerate(members)
            }
        return True

    async def _sync(self) -> bool:
        meant = self._history.meant
        leads = self._round[1] == self._member_id and not self._skips
        request = m.SyncGroupRequest(
            group_id=self._group,
            generation_id=self._round[0],
            member_id=self._member_id,
            group_instance_id=self._instance,
            protocol_type=CONSUMER,
            protocol_name=PROTOCOL,
            assignments=[
                m.SyncAssignment(member_id=member, assignment=bytes(owned))
                for member, owned in (meant[self._round] if leads else {}).items()
            ],
        )
        found = await self._ask(SYNC_GROUP, request, self._rebalance_ms / 1000 + JOIN_EXTRA_S)
        if self._troubled("sync", found.error_code):
            return False
        owned = tuple(found.assignment)
        self._workload.cluster.tell("owns", self._process.name, *self._round, owned)
        if self._instance is None:  # one that takes another's place goes by what was meant for that one
            self._judge_owned(owned)
        self._history.given.append(Given(self._round, self._member_id, owned))
        self._positions = dict.fromkeys(owned, 0)
        return True

    def _judge_owned(self, owned: tuple[int, ...]) -> None:
        meant = self._history.meant
        require(
            owned == meant.get(self._round, {}).get(self._member_id, ()),
            "one-owner",
            f"{self._member_id} is to own {owned} in {self._round}; its leader meant {meant.get(self._round)}",
        )
        for partition in owned:
            owner = self._history.owners.setdefault((self._round, partition), self._member_id)
            require(
                owner == self._member_id,
                "one-owner",
                f"{owner} and {self._member_id} both own partition {partition} in {self._round}",
            )

    async def _begin(self) -> bool:
        """Find out where to begin, however often it has to be asked for."""
        while not await self._fetch_offsets(tuple(self._positions)):
            if self._workload.stopped or self._coordinator is None:
                return False
            await self._client.back_off()
        return True

    async def _work(self, ends_s: float) -> None:
        """Consume and commit until the group calls."""
        heartbeats_s = min(self._session_ms / 3000, HEARTBEAT_S)
        heartbeat_s = self._workload.now
        while not self._workload.stopped and self._workload.now < ends_s:
            try:
                if self._workload.now >= heartbeat_s:
                    if not await self._heartbeat():
                        return
                    heartbeat_s = self._workload.now + heartbeats_s
                if self._positions and not await self._consume():
                    return
            except NoAnswerError:
                if not self._goes_on:
                    raise
                self._coordinator, heartbeat_s = None, self._workload.now
            await self._workload.sleep(self._process, min(heartbeats_s, 0.1))

    async def _heartbeat(self) -> bool:
        request = m.HeartbeatRequest(
            group_id=self._group,
            generation_id=self._round[0],
            member_id=self._member_id,
            group_instance_id=self._instance,
        )
        asked_s = self._workload.now
        found = await self._ask(HEARTBEAT, request)
        by = self._answered_by
        if by is not None and not found.error_code:
            if self._known is not None and self._known[1] != by:
                self._history.outcomes["outlived"] += 1
            self._known = (asked_s, by)
        return self._may_go_on("heartbeat", found.error_code)

    def _coordinates(self) -> Coordinator | None:
        """Who coordinates the group, if that is whom this member asks."""
        found = coordinator_of(self._workload.cluster, self._group)
        asked = None if self._coordinator is None else self._coordinator[0]
        return found if found is not None and found.host == asked else None

    def _judge_forgotten(self, what: str, error: int) -> None:
        if self._instance is not None or self._answered_by is None:
            return  # who took its place may have left
        known_s, by = (-1e9, None) if self._known is None else self._known
        silent_s = self._workload.now - known_s
        require(
            silent_s >= LEASE * min(self._session_ms, self._rebalance_ms) / 1000,
            "member-forgotten",
            f"{self._member_id} of {self._round} is refused {what} with error {error}; {by} knew it {silent_s:.3f} s ago",
        )

    async def _leave(self) -> None:
        request = m.LeaveGroupRequest(
            group_id=self._group,
            member_id=self._member_id,
            members=[m.LeavingMember(member_id=self._member_id, group_instance_id=self._instance)],
        )
        with contextlib.suppress(NoAnswerError):
            await self._ask(LEAVE_GROUP, request)

    # -- offsets --------------------------------------------------------------------------------------------------

    async def _consume(self) -> bool:
        partition = self._draw.choice(sorted(self._positions))
        at = min(
            self._positions[partition] + self._draw.randrange(RECORDS_MAX), self._workload.end_of(partition)
        )
        self._positions[partition] = at
        if len(self._was) > 1 and self._draw.random() < 0.1:
            await self._commit(partition, at, *self._draw.choice(self._was[:-1]))
        return await self._commit(partition, at, self._member_id, self._round)

    async def _commit_late(self) -> None:
        """Before it joins again a member may still commit as the one that it was, to whoever coordinates now."""
        if not self._was or self._late.random() >= LATE_CHANCE:
            return
        partition = self._late.choice(sorted(self._workload.shard_ids))
        await self._commit(partition, self._positions.get(partition, 0), *self._late.choice(self._was))

    async def _commit(self, partition: int, offset: int, member_id: str, who: Round) -> bool:
        history = self._history
        text = f"{who[0]} {who[1]} {len(history.commits)}"
        history.commits[text] = Commit(partition, offset, who, member_id=member_id)
        one = m.CommitPartition(partition_index=partition, committed_offset=offset, committed_metadata=text)
        request = m.OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=who[0],
            member_id=member_id,
            group_instance_id=self._instance,
            topics=[m.CommitTopic(name=TOPIC, partitions=[one])],
        )
        self._history.outcomes["commit_unknown"] += 1
        found = await self._ask(OFFSET_COMMIT, request)
        error = found.topics[0].partitions[0].error_code
        self._workload.cluster.tell("commit", self._process.name, partition, offset, text, error)
        if history.answered(text, error, REFUSED) != "unknown":
            history.outcomes["commit_unknown"] -= 1
            history.outcomes["committed" if not error else "commit_refused"] += 1
        return who != self._round or self._may_go_on("commit", error)

    async def _fetch_offsets(self, partitions: tuple[int, ...]) -> bool:
        known = self._history.known(partitions)
        topics = [PartitionsOfTopic(name=TOPIC, partitions=list(partitions))]
        many = self._versions[OFFSET_FETCH] >= MANY_GROUPS
        request = m.OffsetFetchRequest(
            group_id=self._group,
            topics=topics,
            groups=[m.FetchOffsetsGroup(group_id=self._group, topics=topics)],
        )
        found = await self._ask(OFFSET_FETCH, request)
        group = found.groups[0] if many else found
        if self._troubled("offsets", group.error_code):
            return False
        for one in group.topics[0].partitions:
            self._positions[one.partition_index] = self._history.was_found(one, known)
        return True
