"""One life of a member of a group of Kafka's consumer protocol (KIP-848): heartbeats, partitions, commits, and an end.

It does as Kafka's clients do. What it owns is what it was told last. It stops using what it is to give up before it says
so, and everything when it has had no answer for most of a session. Not every member says goodbye, and now and then one
commits under an epoch that it had before.
"""

import contextlib
from typing import TYPE_CHECKING, ClassVar, Final

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import consumer_groups as cm
from antiphon.kafka.messages import groups as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.consumer_history import History
from antiphon.simulation.cluster.workloads.group_member import GroupMember
from antiphon.simulation.cluster.workloads.kafka_history import Commit
from antiphon.simulation.violation import ViolationError, require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
    from antiphon.simulation.runtime.process import Process

GROUP: Final = "sharers"
TOPIC: Final = "shared"
OFFSET_COMMIT, OFFSET_FETCH, HEARTBEAT = 8, 9, 68
STEP: Final = 10  # offsets that a commit goes on by, at most

ELSEWHERE: Final = frozenset({
    code.COORDINATOR_LOAD_IN_PROGRESS, code.COORDINATOR_NOT_AVAILABLE, code.NOT_COORDINATOR,
    code.UNKNOWN_TOPIC_OR_PARTITION, code.KAFKA_STORAGE_ERROR, code.REQUEST_TIMED_OUT, code.NOT_ENOUGH_REPLICAS,
})  # fmt: skip
FENCED: Final = frozenset({code.UNKNOWN_MEMBER_ID, code.FENCED_MEMBER_EPOCH})
REFUSED: Final = frozenset({*FENCED, code.STALE_MEMBER_EPOCH})


class ConsumerMember(GroupMember):
    """See the module's text. `refused`: what a commit may be refused with. `commit_version`: of OffsetCommit."""

    refused: ClassVar[frozenset[int]] = REFUSED
    commit_version: ClassVar[int] = 9

    group = GROUP
    ask_s = 1.0

    def __init__(
        self,
        workload: "KafkaWorkload",
        history: History,
        process: "Process",
        client: KafkaClient,
        number: int,
    ) -> None:
        super().__init__(workload, process, client, number)
        self._history = history
        self._regex = self._draw.random() < 0.3
        self._assignor = self._draw.choice((None, None, "range", "uniform"))
        self._epochs: list[int] = []  # that it had before
        self._owned: tuple[int, ...] = ()
        self._positions: dict[int, int] = {}
        self._topic_id = b""
        self._ok_s = -1.0  # when the last heartbeat was sent that was answered well
        self._says_all = True

    @property
    def owns_all(self) -> bool:
        """Does it own every partition?"""
        return set(self._owned) == set(self._workload.shard_ids)

    async def live(self, ends_s: float, *, until_all: bool = False) -> None:
        """Join, work, join again if need be, for a while, or until it owns everything."""
        heartbeat_s = 0.0
        while (until_all and not self.owns_all) or (
            not until_all and not self._workload.stopped and self._workload.now < ends_s
        ):
            try:
                if self._workload.now >= heartbeat_s:
                    heartbeat_s = self._workload.now + self._history.heartbeat_ms / 1000
                    await self._heartbeat()
                if self._owned and not until_all:
                    await self._consume()
            except NoAnswerError:
                self._coordinator = None
                self._says_all = True
            self._let_lapse()
            await self._client.back_off()
        if self._draw.random() < 0.7:
            await self._leave()
        self._release()
        self._client.close()

    async def look(self) -> None:
        """Ask for the committed offsets of all partitions, as nobody of the group, until somebody says them."""
        while True:
            try:
                if await self._fetch(tuple(self._workload.shard_ids), as_member=False):
                    return
            except NoAnswerError:
                self._coordinator = None
            await self._client.back_off()

    # -- membership -------------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        sent_s, epoch = self._workload.now, self._epoch
        says_all = self._says_all or not epoch
        topics = [] if self._regex else [TOPIC]
        owned = cm.TopicPartitions(topic_id=self._topic_id, partitions=list(self._owned))
        request = cm.ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.name,
            member_epoch=epoch,
            rebalance_timeout_ms=2 * self._history.session_ms if says_all else -1,
            subscribed_topic_names=topics if says_all else None,
            subscribed_topic_regex=f"{TOPIC}.*" if says_all and self._regex else None,
            server_assignor=self._assignor if says_all else None,
            topic_partitions=[owned] if self._owned and epoch else [],
        )
        found = await self._ask_coordinator(HEARTBEAT, 1, request)
        if found.error_code in FENCED:
            self._fenced(found.error_code)
            return
        if found.error_code:
            self._troubled("heartbeat", found.error_code)
            return
        require(
            found.heartbeat_interval_ms == self._history.heartbeat_ms,
            "interval-told",
            f"{self.name} is to come every {found.heartbeat_interval_ms} ms, and {self._history.heartbeat_ms} ms are set",
        )
        if (
            self._workload.now >= sent_s + self._history.lease_s
        ):  # it stood still: what it is told here may be another one's by now
            self._says_all = True
            return
        self._ok_s, self._says_all = sent_s, False
        if not epoch:
            self._history.outcomes["consumers-joined"] += 1
        if found.member_epoch != epoch:
            self._epochs.append(epoch)
            self._epoch = found.member_epoch
        if found.assignment is not None:
            self._told(found.assignment)
        if set(self._owned) - set(self._positions):
            await self._begin()

    def _told(self, assignment: cm.HeartbeatAssignment) -> None:
        for topic in assignment.topic_partitions:
            self._topic_id = topic.topic_id
        self._take(tuple(sorted(p for topic in assignment.topic_partitions for p in topic.partitions)))

    def _take(self, owned: tuple[int, ...]) -> None:
        """It is told that these are its own from now on."""
        self._workload.cluster.tell("shares", self.name, self._epoch, owned)
        for partition in set(self._owned) - set(owned):
            self._history.owners.pop(partition, None)
            self._positions.pop(partition, None)
        for partition in owned:
            owner, until_s = self._history.owners.get(partition, (self.name, 0.0))
            require(
                owner == self.name or until_s <= self._workload.now,
                "one-owner",
                f"{self.name} is given partition {partition} in epoch {self._epoch}, which {owner} has",
            )
        self._owned = owned
        self._renew()

    def _renew(self) -> None:
        """What it owns is its own until some time after its last good heartbeat."""
        for partition in self._owned:
            self._history.owners[partition] = (self.name, self._ok_s + self._history.lease_s)

    def _let_lapse(self) -> None:
        if self._ok_s >= 0 and self._workload.now >= self._ok_s + self._history.lease_s:
            self._release()
        elif self._owned:
            self._renew()

    def _release(self) -> None:
        for partition in self._owned:
            if self._history.owners.get(partition, ("",))[0] == self.name:
                del self._history.owners[partition]
        self._owned = ()
        self._positions.clear()
        self._says_all = True

    def _fenced(self, error: int) -> None:
        """The group does not know it any more: that may be so only when it was silent for long."""
        silent_s = self._workload.now - self._ok_s  # the refusal may have been decided just now
        self._workload.cluster.tell("fenced", self.name, self._epoch, error)
        require(
            not self._epoch or silent_s >= self._history.lease_s,
            "member-forgotten",
            f"{self.name} of epoch {self._epoch} is refused with error {error}, and asked for its last good answer "
            f"{silent_s:.3f} s ago",
        )
        self._history.outcomes["consumers-fenced"] += 1
        self._release()
        self._epochs.append(self._epoch)
        self._epoch, self._ok_s = 0, -1.0

    async def _leave(self) -> None:
        request = cm.ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.name, member_epoch=-1)
        self._release()
        with contextlib.suppress(NoAnswerError):
            await self._ask_coordinator(HEARTBEAT, 1, request)

    def _troubled(self, what: str, error: int) -> None:
        self._workload.cluster.tell("group", self.name, what, error)
        if error not in ELSEWHERE and error not in self.refused:
            raise ViolationError("group-refused", f"{what} of {self.name} is refused with error {error}")
        self._says_all = True
        if error in ELSEWHERE:
            self._coordinator = None

    # -- offsets --------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Find out where to begin with what is new."""
        new = tuple(sorted(set(self._owned) - set(self._positions)))
        await self._fetch(new, as_member=True)

    async def _consume(self) -> None:
        known = sorted(set(self._owned) & set(self._positions))
        if not known:
            await self._begin()
            return
        partition = self._draw.choice(known)
        self._positions[partition] += self._draw.randrange(STEP)
        epoch = self._epoch
        if self._epochs and self._draw.random() < 0.1:
            epoch = self._draw.choice(self._epochs)
        await self._commit(partition, self._positions[partition], epoch)

    async def _commit(self, partition: int, offset: int, epoch: int) -> None:
        history = self._history
        text = f"{epoch} {self.name} {len(history.commits)}"
        history.commits[text] = Commit(partition, offset, (epoch, self.name))
        one = m.CommitPartition(partition_index=partition, committed_offset=offset, committed_metadata=text)
        request = m.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=epoch,
            member_id=self.name,
            topics=[m.CommitTopic(name=TOPIC, partitions=[one])],
        )
        found = await self._ask_coordinator(OFFSET_COMMIT, self.commit_version, request)
        error = found.topics[0].partitions[0].error_code
        self._workload.cluster.tell("commit", self.name, partition, offset, text, error)
        outcome = history.answered(text, error, self.refused)
        history.outcomes["consumers-committed"] += outcome == "acknowledged"
        history.outcomes["consumers-refused"] += outcome == "refused"
        if error:
            self._troubled("commit", error)

    async def _fetch(self, partitions: tuple[int, ...], *, as_member: bool) -> bool:
        known = self._history.known(partitions)
        group = m.FetchOffsetsGroup(
            group_id=self.group,
            member_id=self.name if as_member else None,
            member_epoch=self._epoch if as_member else -1,
            topics=[PartitionsOfTopic(name=TOPIC, partitions=list(partitions))],
        )
        found = (await self._ask_coordinator(OFFSET_FETCH, 9, m.OffsetFetchRequest(groups=[group]))).groups[0]
        if found.error_code:
            self._troubled("offsets", found.error_code)
            return False
        for one in found.topics[0].partitions:
            position = self._history.was_found(one, known)
            if as_member and one.partition_index in self._owned:
                self._positions[one.partition_index] = position
        return True
