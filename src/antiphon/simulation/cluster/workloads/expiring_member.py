"""Who commits offsets in a world in which they expire soon: one client alone, or the member of a group of either protocol.

A member commits three offsets: one of the topic that it reads, and one of another topic, when it has come; and another one
of its topic again and again, its pulse. A pulse that was acknowledged shows that the group had the member then, whoever
coordinates: it is in the log behind all that an earlier coordinator wrote.
"""

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import consumer_groups as cm
from antiphon.kafka.messages import groups as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.simulation.cluster.kafka_client import Address, KafkaClient, NoAnswerError
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
    from antiphon.simulation.runtime.process import Process

TOPIC: Final = "stream"
ELSEWHERE: Final = "elsewhere"
Place = tuple[str, int]
READ: Final = (TOPIC, 0)
PULSE: Final = (TOPIC, 1)
OTHER: Final = (ELSEWHERE, 0)
PULSE_S: Final = 0.3
REBALANCE_MS: Final = 500
SESSION_MS: Final = (400, 1_500, 5_000)
OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP = 8, 9, 11, 13, 14
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69


@dataclass(slots=True)
class Kept:
    """What is known of a group's offsets. `since_s`: an offset has to be kept for the retention from then on."""

    since_s: dict[Place, float] = field(default_factory=dict)
    committed_s: dict[Place, float] = field(default_factory=dict)  # when each was last committed


class Alone:
    """Commits without being a member. `one` is a life; `last` the last one, after which nothing is left."""

    def __init__(
        self, workload: "KafkaWorkload", process: "Process", group: str, kept: Kept, retention_s: float
    ) -> None:
        self.workload = workload
        self.group = group
        self.kept = kept
        self.retention_s = retention_s  # at least, by any node's clock
        self.process = process
        self.client: KafkaClient = workload.client(process)
        self.draw = self.client.random
        self._coordinator: Address | None = None

    async def one(self) -> None:
        """Commit, and look now and then, until it may be gone."""
        await self.commit(READ)
        for _ in range(self.draw.randrange(4)):
            await self.workload.sleep(self.process, self.retention_s)
            await self.look(READ)

    async def last(self) -> None:
        """Wait until nothing is left of the group."""
        while not await self.all_gone(READ, PULSE, OTHER):
            await self.workload.sleep(self.process, 2 * PULSE_S)

    async def ask(self, key: int, version: int, request: Any) -> Any:
        """The coordinator's answer; None where nothing is known of the outcome."""
        if self._coordinator is None:
            self._coordinator = await self.client.coordinator(self.group)
        try:
            if self._coordinator is not None:
                return await self.client.ask(self._coordinator, key, version, request)
        except NoAnswerError:
            self._coordinator = None
        await self.client.back_off()
        return None

    async def commit(self, place: Place, **member: Any) -> bool:
        """Commit an offset; is it stored?"""
        asked_s = self.workload.now
        one = m.CommitPartition(partition_index=place[1], committed_offset=1, committed_metadata="")
        topics = [m.CommitTopic(name=place[0], partitions=[one])]
        found = await self.ask(
            OFFSET_COMMIT, 9, m.OffsetCommitRequest(group_id=self.group, topics=topics, **member)
        )
        error = -1 if found is None else found.topics[0].partitions[0].error_code
        self.workload.cluster.tell("commit", self.group, *place, error)
        if error:
            self._coordinator = None
            return False
        self.kept.committed_s[place] = self.kept.since_s[place] = asked_s
        if member:  # its group has members, who read this topic
            for read in (READ, PULSE):
                if read in self.kept.since_s:
                    self.kept.since_s[read] = asked_s
        return True

    async def look(self, *places: Place) -> "Sequence[Place] | None":
        """The offsets that are there. None is gone before its time."""
        topics = [PartitionsOfTopic(name=topic, partitions=[at]) for topic, at in places]
        asked = m.OffsetFetchRequest(groups=[m.FetchOffsetsGroup(group_id=self.group, topics=topics)])
        found = await self.ask(OFFSET_FETCH, 8, asked)
        if found is None or found.groups[0].error_code:
            self._coordinator = None
            return None
        there = [
            (topic.name, one.partition_index)
            for topic in found.groups[0].topics
            for one in topic.partitions
            if one.committed_offset >= 0
        ]
        for place in places:
            self._judge(place, is_there=place in there)
        return there

    def _judge(self, place: Place, *, is_there: bool) -> None:
        outcomes = self.workload.outcomes
        now_s, since_s = self.workload.now, self.kept.since_s.get(place)
        if since_s is None:
            return
        if is_there:
            outcomes["offsets-kept"] += now_s - self.kept.committed_s[place] > 1.5 * self.retention_s
            return
        self.workload.cluster.tell("expired", self.group, *place)
        require(
            now_s - since_s >= self.retention_s,
            "expired-early",
            f"the offset of {place} in {self.group} is gone {now_s - since_s:.3f} s after it was committed, or its group "
            f"had members that read the topic; it is kept for {self.retention_s:.3f} s",
        )
        del self.kept.since_s[place], self.kept.committed_s[place]
        outcomes["offsets-expired"] += 1

    async def all_gone(self, *places: Place) -> bool:
        """Is none of these there any more?"""
        there = await self.look(*places)
        return there is not None and not there


class ClassicMember(Alone):
    """A member of the classic protocol. Its commits keep its session."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.member: dict[str, Any] = {}

    async def one(self) -> None:
        """Come, commit, stay for a while, and go, or just fall silent."""
        if not await self.enter():
            return
        ends_s = self.workload.now + self.draw.choice((0.2, 2.0, 6.0))
        await self.commit(READ, **self.member)
        await self.commit(OTHER, **self.member)
        while self.workload.now < ends_s and not self.workload.stopped and await self.stay():
            await self.look(READ, OTHER)
        if self.draw.random() < 0.7:
            await self.leave()
        await self.workload.sleep(self.process, self.draw.choice((0.2, 2 * self.retention_s)))
        await self.look(READ, OTHER)

    async def last(self) -> None:
        """Stay until what nobody reads is gone; then leave, and wait until all is."""
        while True:
            if await self.enter() and await self.commit(READ, **self.member):
                while await self.stay():
                    if await self.all_gone(OTHER):
                        await self.leave()
                        await super().last()
                        return
            await self.client.back_off()

    async def stay(self) -> bool:
        """Is it still a member?"""
        await self.workload.sleep(self.process, PULSE_S)
        return await self.commit(PULSE, **self.member)

    async def enter(self) -> bool:
        """Join; alone, so it leads."""
        name = TOPIC.encode()
        metadata = struct.pack(">hih", 0, 1, len(name)) + name + struct.pack(">i", -1)
        join = m.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.draw.choice(SESSION_MS),
            rebalance_timeout_ms=REBALANCE_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[m.JoinProtocol(name="range", metadata=metadata)],
        )
        joined = await self.ask(JOIN_GROUP, 3, join)
        if joined is None or joined.error_code:
            self._coordinator = None
            return False
        generation, name_of_it = joined.generation_id, joined.member_id
        sync = m.SyncGroupRequest(
            group_id=self.group, generation_id=generation, member_id=name_of_it, assignments=[]
        )
        synced = await self.ask(SYNC_GROUP, 2, sync)
        self.member = {"generation_id_or_member_epoch": generation, "member_id": name_of_it}
        return synced is not None and not synced.error_code

    async def leave(self) -> None:
        """Say goodbye."""
        request = m.LeaveGroupRequest(group_id=self.group, member_id=self.member["member_id"])
        await self.ask(LEAVE_GROUP, 2, request)


class ConsumerMember(ClassicMember):
    """A member of the consumer protocol."""

    async def enter(self) -> bool:
        """Join."""
        self.member = {
            "generation_id_or_member_epoch": 0,
            "member_id": f"{self.process.name} {self.workload.now}",
        }
        return await self._beat()

    async def stay(self) -> bool:
        """Is it still a member?"""
        return await self._beat() and await super().stay()

    async def _beat(self) -> bool:
        epoch = self.member["generation_id_or_member_epoch"]
        request = cm.ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member["member_id"],
            member_epoch=epoch,
            rebalance_timeout_ms=-1 if epoch else REBALANCE_MS,
            subscribed_topic_names=None if epoch else [TOPIC],
            topic_partitions=None if epoch else [],
        )
        found = await self.ask(CONSUMER_HEARTBEAT, 1, request)
        if found is None or found.error_code:
            self._coordinator = None
            return False
        self.member["generation_id_or_member_epoch"] = found.member_epoch
        return True

    async def leave(self) -> None:
        """Say goodbye."""
        request = cm.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member["member_id"], member_epoch=-1
        )
        await self.ask(CONSUMER_HEARTBEAT, 1, request)

    async def all_gone(self, *places: Place) -> bool:
        """Is none of these there any more, and where nothing is left, no group either?"""
        if not await super().all_gone(*places):
            return False
        if PULSE not in places:
            return True
        found = await self.ask(CONSUMER_DESCRIBE, 0, cm.ConsumerGroupDescribeRequest(group_ids=[self.group]))
        return found is not None and found.groups[0].error_code == code.GROUP_ID_NOT_FOUND
