"""A share group (KIP-932), whose members come and go while leaders and coordinators do.

- `share-again`: no record is given to anybody who asks after its acceptance or rejection was confirmed.
- `share-durable`: what is confirmed is in the committed log of the group's table at that moment.
- `share-two-holders`: no two members have a record at a time, under one leader of the partition.
- `share-limit`, `share-deliveries`: no record is given more often than it may be, and releases that were confirmed count.
- `share-owner`, `share-start`: in that log no leader stores anything after another one did, and no start offset goes back.
- `share-told`: an operator is told of offsets that were stored between the question and the answer.
- `share-never-given`: every committed record was given to somebody, or as many answers were lost as it may be given.
- `share-interval`: members are told how often to come as an operator has set it.
- At the end everything is done, or the run does not end.
"""

from typing import TYPE_CHECKING, Final

from antiphon.client.aio import AsyncClient
from antiphon.records.batch import iter_batches
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.timing import SHARE_DELIVERIES
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.share_history import ShareHistory
from antiphon.simulation.cluster.workloads.share_member import GROUP, INTERVAL_MS, TOPIC, ShareMember
from antiphon.simulation.cluster.workloads.share_operator import ShareOperator
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, insist, topic_named
from antiphon.simulation.runtime.process import calling_process
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

AWAY_S: Final = 0.5
LOOK_S: Final = 0.7
GROUP_RESOURCE: Final = 32
RECORDS_MAX: Final = 600  # of the topic


@workload("share_members", 38, Drawn(one_of(0, 0, 0, 0, 2)), logs_in=False)
class ShareGroupWorkload(KafkaWorkload):
    """Members of a share group come, go, acknowledge and forget while leaders of partitions and coordinators change.

    Checked: a record is given to nobody who asks after its end was confirmed, which is in the committed log by then; to no
    two members at a time while one leader lasts; no more often than it may be; no former leader stores anything; every
    record is given to somebody, and done in the end; an operator is told where the group was when it was asked about.
    """

    topic = TOPIC
    partitions = 2

    def __init__(self, cluster: "SimulatedCluster", name: str = "share-group") -> None:
        super().__init__(cluster, name)
        self.history = ShareHistory(cluster, GROUP)
        self.outcomes = self.history.outcomes
        self._lives = 0
        self._members: dict[Process, ShareMember] = {}  # the last one of each client
        self._records = 0

    async def set_up(self, db: AsyncClient) -> None:
        """See `Workload`: where the group begins, and how often its members come, is what an operator says."""
        await super().set_up(db)
        client = self.client(calling_process())
        while await client.coordinator(GROUP) is None or not await self._configure(client):
            await client.back_off()
        await client.refresh(TOPIC)
        client.close()
        self.history.groups_shard = self.cluster.shard_of_group(GROUP)
        self.history.shard_ids = self.shard_ids
        found = await topic_named(db, TOPIC)
        self.history.topic_id = found.topic_id

    async def _configure(self, client: KafkaClient) -> bool:
        try:
            settings = {
                "share.auto.offset.reset": "earliest",
                "share.heartbeat.interval.ms": str(INTERVAL_MS),
            }
            found = await client.alter_configs(GROUP_RESOURCE, GROUP, settings)
        except NoAnswerError:
            return False
        return not found.error_code

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(self.cluster.options.share_members, self._come_and_go)
        self.spawn("feeder", self.with_client(self._feed))
        self.spawn("idle", self._be_idle)
        self.spawn("operator", self.with_client(self._look))
        self.spawn("last", self._come_last)

    def _member(self, process: "Process") -> ShareMember:
        self._lives += 1
        made = ShareMember(self, self.history, process, self.client(process), self._lives)
        self._members[process] = made
        return made

    def died(self, number: int) -> None:  # noqa: ARG002 - whose process does not live
        """See `Workload`: the connections of its member are gone."""
        for process in [process for process in self._members if not process.alive]:
            self._members.pop(process).died()

    async def _come_and_go(self, process: "Process", _number: int) -> None:
        while not self.stopped:
            ends_s = self.now + process.random.choice((0.5, 2.0, 10.0))
            await self._member(process).live(ends_s)
            await self.sleep(process, AWAY_S)

    async def _be_idle(self, process: "Process") -> None:
        """A member that is given something and falls silent, connected: only the ends of its locks free the records."""
        await self._member(process).live(0.0, until_done=True, idle=True)

    async def _come_last(self, process: "Process") -> None:
        while not self.stopped:
            await self.sleep(process, AWAY_S)
        await self._member(process).live(0.0, until_done=True)

    async def _look(self, db: AsyncClient, process: "Process") -> None:
        """Somebody watches the group."""
        operator = ShareOperator(db, self.history, TOPIC)
        while not self.stopped:
            with self.tells("group-not-told"):
                await operator.look()
            await self.sleep(process, LOOK_S)

    async def _feed(self, db: AsyncClient, process: "Process") -> None:
        topic = await insist(lambda: db.topic(TOPIC))
        draw = process.random
        while not self.stopped and self._records < RECORDS_MAX:
            self._records += 1
            with self.tells("not-queued"):
                shard = draw.randrange(self.partitions)
                await topic.append(b"%d" % self._records, shard=shard, timeout_s=PATIENCE_S)
            await self.sleep(process, 0.05)

    # -- judges -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        self.history.check_clashes()
        for partition, shard_id in self.shard_ids.items():
            for batch in self.cluster.evidence.truth(shard_id).batches:
                for header, _ in iter_batches(batch.data):
                    if not header.is_control:
                        self._check_given(partition, shard_id, header.base_offset, header.next_offset)

    def _check_given(self, partition: int, shard_id: int, first: int, end: int) -> None:
        for offset in range(first, min(end, self.history.ends.get(partition, 0))):
            require(
                (partition, offset) in self.history.given
                or self.history.unanswered[partition] >= SHARE_DELIVERIES,
                "share-never-given",
                f"record {offset} of partition {partition} was given to nobody, and "
                f"{self.history.unanswered[partition]} answers were lost",
                shard_id,
            )
