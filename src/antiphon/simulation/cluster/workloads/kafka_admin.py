"""Administration over Kafka's protocol, at any node: topics are made, described and deleted; what was acknowledged is so.

Each topic has one client, which deletes it only when its creation was acknowledged. So in the end a topic is there if its
creation was acknowledged and nobody asked for its deletion, and it is not there if its deletion was acknowledged.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin as m
from antiphon.kafka.messages import groups as gm
from antiphon.kafka.messages import reassignments as rm
from antiphon.kafka.primitives import ZERO_UUID
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.kafka_workload import KafkaWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

LIST_GROUPS, CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CONFIGS, MOVE, LIST_MOVES = 16, 19, 20, 32, 45, 46
NOT_MOVED: Final = frozenset({
    code.UNKNOWN_TOPIC_OR_PARTITION, code.REQUEST_TIMED_OUT, code.NOT_ENOUGH_REPLICAS, code.LEADER_NOT_AVAILABLE,
    code.INVALID_REPLICA_ASSIGNMENT, code.NO_REASSIGNMENT_IN_PROGRESS, code.NOT_LEADER_OR_FOLLOWER,
})  # fmt: skip
TOPICS_MAX: Final = 6  # a client's, so that a world does not fill with shards
PATIENCE_S: Final = 10.0
SETTING: Final = "retention.ms"


@dataclass(slots=True)
class _Topic:
    name: str
    partitions: int
    retention: str
    made: bool = False  # its creation was acknowledged
    unwanted: bool = False  # its deletion was asked for
    gone: bool = False  # its deletion was acknowledged


@workload("kafka_admins", 15, Drawn(one_of(0, 0, 0, 1), "more loads", 3), logs_in=False)
class AdminWorkload(KafkaWorkload):
    """CreateTopics, DeleteTopics, DescribeConfigs, ListGroups at any node; AlterPartitionReassignments begins moves and
    takes them back.

    Checked: at the end every node knows each topic whose creation was acknowledged, and none whose deletion was; a topic
    is described with the settings that it was given; a move is listed with nodes that come or go.
    """

    may_be_killed = False

    def __init__(self, cluster: "SimulatedCluster", name: str = "admin") -> None:
        super().__init__(cluster, name)
        self.topics: list[_Topic] = []
        self.outcomes = {
            "created": 0,
            "deleted": 0,
            "described": 0,
            "listed": 0,
            "moved": 0,
            "not-administered": 0,
        }

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`: it makes what it needs."""

    async def _work(self, process: "Process", number: int) -> None:
        client, draw = self.client(process), process.random
        mine: list[_Topic] = []
        while not self.stopped:
            known = [topic for topic in mine if topic.made]
            kind = draw.random()
            try:
                if kind < 0.3 and len(mine) < TOPICS_MAX:
                    topic = _Topic(
                        f"{self.name}-{number}-{len(mine)}",
                        draw.choice((1, 2)),
                        f"{draw.randint(1, 9)}000000",
                    )
                    mine.append(topic)
                    self.topics.append(topic)
                    await self._create(client, topic)
                elif kind < 0.4 and known:
                    await self._delete(client, draw.choice(known))
                elif kind < 0.65 and known:
                    await self._describe(client, draw.choice(known))
                elif kind < 0.85 and known:
                    await self._move(client, draw.choice(known))
                else:
                    found = await self._ask(client, LIST_GROUPS, 3, gm.ListGroupsRequest())
                    self.outcomes["listed"] += not found.error_code
            except NoAnswerError:
                self.outcomes["not-administered"] += 1
            await self.sleep(process, 0.3)
        client.close()

    @staticmethod
    async def _ask(client: KafkaClient, key: int, version: int, request: Any) -> Any:
        return await client.ask(client.any_node(), key, version, request, PATIENCE_S)

    async def _create(self, client: KafkaClient, topic: _Topic) -> None:
        one = m.CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=-1,
            assignments=[],
            configs=[m.TopicSetting(name=SETTING, value=topic.retention)],
        )
        request = m.CreateTopicsRequest(topics=[one], timeout_ms=5_000)
        done = (await self._ask(client, CREATE_TOPICS, 5, request)).topics[0]
        topic.made = not done.error_code
        self.cluster.tell("kafka-create", topic.name, done.error_code)
        self.outcomes["created" if topic.made else "not-administered"] += 1
        if topic.made:
            require(done.num_partitions == topic.partitions, "admin-answer", f"{done} was made, not {topic}")

    async def _delete(self, client: KafkaClient, topic: _Topic) -> None:
        topic.unwanted = True
        request = m.DeleteTopicsRequest(
            topics=[m.DeletableTopic(name=topic.name, topic_id=ZERO_UUID)],
            topic_names=[topic.name],
            timeout_ms=5_000,
        )
        done = (await self._ask(client, DELETE_TOPICS, 4, request)).responses[0]
        self.cluster.tell("kafka-delete", topic.name, done.error_code)
        topic.gone = topic.gone or not done.error_code
        self.outcomes["not-administered" if done.error_code else "deleted"] += 1

    async def _move(self, client: KafkaClient, topic: _Topic) -> None:
        """Have a partition moved to some nodes, or a move taken back; what is moving is listed as it is."""
        draw = client.random
        nodes = [machine.node_id for machine in self.cluster.machines]
        replicas = draw.sample(nodes, draw.randint(1, min(3, len(nodes)))) if draw.random() < 0.8 else None
        wanted = rm.ReassignedPartition(partition_index=0, replicas=replicas)
        topics = [rm.ReassignedTopic(name=topic.name, partitions=[wanted])]
        request = rm.AlterPartitionReassignmentsRequest(timeout_ms=5_000, topics=topics)
        answer = await self._ask(client, MOVE, 1, request)
        done = answer.responses[0].partitions[0]
        self.cluster.tell("kafka-move", topic.name, replicas, done.error_code)
        self.outcomes["not-administered" if done.error_code else "moved"] += 1
        require(done.error_code in {code.NONE, *NOT_MOVED}, "admin-answer", f"a move to {replicas}: {done}")
        listed = await self._ask(
            client, LIST_MOVES, 0, rm.ListPartitionReassignmentsRequest(timeout_ms=5_000, topics=None)
        )
        for one in (partition for found in listed.topics for partition in found.partitions):
            came, gone = set(one.adding_replicas), set(one.removing_replicas)
            require(
                bool(came | gone) and not came & gone and came | gone <= set(one.replicas) <= set(nodes),
                "admin-answer",
                f"a move is listed as {one}",
            )

    async def _describe(self, client: KafkaClient, topic: _Topic) -> None:
        wanted = m.DescribeConfigsResource(
            resource_type=2, resource_name=topic.name, configuration_keys=[SETTING]
        )
        request = m.DescribeConfigsRequest(resources=[wanted])
        done = (await self._ask(client, DESCRIBE_CONFIGS, 4, request)).results[0]
        if done.error_code:
            self.outcomes["not-administered"] += 1  # this node may not have heard of it yet
            return
        self.outcomes["described"] += 1
        require(
            [(one.name, one.value) for one in done.configs] == [(SETTING, topic.retention)],
            "admin-answer",
            f"{topic} is described with {done.configs}",
        )

    def check(self) -> None:
        """See `Workload`."""
        for machine in self.cluster.machines:
            known = {} if machine.node is None else machine.node.view.topics
            for topic in self.topics:
                found = known.get(topic.name)
                require(
                    not (topic.made and not topic.unwanted)
                    or (found is not None and len(found.shards) == topic.partitions),
                    "acknowledged-kept",
                    f"the creation of {topic} was acknowledged, and node {machine.node_id} has {found}",
                )
                require(
                    not topic.gone or found is None,
                    "acknowledged-kept",
                    f"the deletion of {topic} was acknowledged, and node {machine.node_id} has {found}",
                )
