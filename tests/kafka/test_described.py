"""What newer tools ask: pages of partitions, the quorum, features, resources; and AlterConfigs."""

from typing import Any

import pytest

from antiphon.kafka import error_codes as code
from antiphon.kafka.features import CONDITIONAL_APPEND
from antiphon.kafka.messages import admin, cluster
from antiphon.kafka.messages import described as m
from antiphon.kafka.topic_config import SOURCE_BROKER, SOURCE_DEFAULT
from antiphon.model.node_settings import BY_KAFKA_NAME
from antiphon.node.config import ConsumerGroups
from tests.kafka.raw import RawClient, alter_configs, listening
from tests.node.in_process import eventually, in_virtual_time


async def page(
    client: RawClient, *names: str, cursor: tuple[str, int] | None = None, limit: int = 2000
) -> tuple[dict[str, list[int]], tuple[str, int] | None, Any]:
    """Topic -> partitions, where the next page begins, and the answer."""
    request = m.DescribeTopicPartitionsRequest(
        topics=[m.NamedTopic(name=name) for name in names],
        response_partition_limit=limit,
        cursor=m.PartitionCursor(topic_name=cursor[0], partition_index=cursor[1]) if cursor else None,
    )
    answer = await client.ask(request, 75, 0)
    end = answer.next_cursor
    found = {topic.name: [p.partition_index for p in topic.partitions] for topic in answer.topics}
    return found, (end.topic_name, end.partition_index) if end else None, answer


@in_virtual_time
async def test_partitions_come_in_pages() -> None:
    async with listening() as (served, connect):
        for name, shards in (("b", 3), ("a", 2)):
            await served.create(name, shards)
        client = await connect()
        assert (await page(client, "b", "a"))[:2] == ({"a": [0, 1], "b": [0, 1, 2]}, None)
        assert (await page(client, "b", "a", limit=3))[:2] == ({"a": [0, 1], "b": [0]}, ("b", 1))
        assert (await page(client, "b", "a", limit=2))[:2] == ({"a": [0, 1]}, ("b", 0))
        assert (await page(client, "b", "a", cursor=("b", 1)))[:2] == ({"b": [1, 2]}, None)
        assert (await page(client, "b", "a", cursor=("aa", 7)))[:2] == ({"b": [0, 1, 2]}, None)
        everything, end, answer = await page(client)
        assert list(everything) == sorted(everything)
        assert {"a", "b"} <= set(everything)
        assert end is None
        partition = answer.topics[list(everything).index("b")].partitions[0]
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (0, [0], [0])
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], []), (
            "Java takes no null"
        )
        unknown = (await page(client, "none", "a"))[2]
        errors = [topic.error_code for topic in unknown.topics]
        assert errors == [code.NONE, code.UNKNOWN_TOPIC_OR_PARTITION]
        refused = (await page(client, "a", cursor=("a", -1)))[2]
        assert [topic.error_code for topic in refused.topics] == [code.INVALID_REQUEST]


@in_virtual_time
async def test_the_quorum_is_told_by_its_leader_and_by_others() -> None:
    async with listening(4) as (served, connect):
        leader = served.first.gateway.metadata.controller
        recorded = served.first.gateway.metadata.voters
        assert recorded is not None
        voters = recorded.ensemble
        request = m.DescribeQuorumRequest(
            topics=[
                m.QuorumTopic(topic_name=name, partitions=[m.QuorumPartition(partition_index=0)])
                for name in ("__cluster_metadata", "other")
            ]
        )
        for node in range(4):
            answer = await (await connect(node)).ask(request, 55, 2)
            [quorum], [other] = (topic.partitions for topic in answer.topics)
            assert other.error_code == code.UNKNOWN_TOPIC_OR_PARTITION
            assert (quorum.error_code, quorum.leader_id) == (code.NONE, leader)
            assert [one.replica_id for one in quorum.current_voters] == list(voters)
            assert {one.replica_id for one in quorum.observers} == set(range(4)) - set(voters)
            ends = {one.replica_id: one.log_end_offset for one in quorum.current_voters}
            assert quorum.high_watermark > 0
            if node in voters:
                assert quorum.leader_epoch > 0
                assert ends[node] >= quorum.high_watermark
            if node == leader:
                assert min(ends.values()) > 0
            assert {one.node_id for one in answer.nodes} == set(voters)
            assert all(one.listeners[0].port for one in answer.nodes)


@in_virtual_time
async def test_features_have_the_level_that_they_have() -> None:
    async with listening() as (_, connect):
        client = await connect()

        async def update(version: int, *levels: tuple[str, int]) -> Any:
            updates = [m.FeatureUpdate(feature=name, max_version_level=level) for name, level in levels]
            request = m.UpdateFeaturesRequest(timeout_ms=1000, feature_updates=updates)
            return await client.ask(request, 57, version)

        good, bad = (CONDITIONAL_APPEND, 1), ("metadata.version", 20)
        assert (await update(2, good)).error_code == code.NONE
        for wrong in (bad, (CONDITIONAL_APPEND, 2), (CONDITIONAL_APPEND, 0)):
            failed = await update(2, good, wrong)
            assert failed.error_code == code.INVALID_UPDATE_VERSION
            assert wrong[0] in failed.error_message
        each = await update(0, good, bad)
        assert [one.error_code for one in each.results] == [code.NONE, code.INVALID_UPDATE_VERSION]


@in_virtual_time
async def test_resources_that_have_settings_are_listed() -> None:
    async with listening(2) as (served, connect):
        await served.create("t")
        client = await connect()

        async def listed(*types: int, version: int = 1) -> Any:
            return await client.ask(m.ListConfigResourcesRequest(resource_types=list(types)), 74, version)

        found = [(one.resource_type, one.resource_name) for one in (await listed()).config_resources]
        assert (2, "t") in found
        assert {(4, "0"), (4, "1")} <= set(found)
        brokers = (await listed(4)).config_resources
        assert {one.resource_name for one in brokers} == {"0", "1"}
        assert (await listed(16)).config_resources == []
        assert (await listed(77)).error_code == code.UNSUPPORTED_VERSION
        assert (await listed(version=0)).config_resources == []


@in_virtual_time
async def test_nodes_that_are_down_are_described_as_fenced_to_who_asks_for_them() -> None:
    async with listening(3) as (served, connect):
        client = await connect()
        served.nodes.kill(2)
        await eventually(lambda: not served.first.gateway.metadata.nodes[2].alive)
        for asks, expected in ((False, {0: False, 1: False}), (True, {0: False, 1: False, 2: True})):
            request = cluster.DescribeClusterRequest(
                include_cluster_authorized_operations=False, include_fenced_brokers=asks
            )
            answer = await client.ask(request, 60, 2)
            assert {one.broker_id: one.is_fenced for one in answer.brokers} == expected


@pytest.mark.parametrize(("kind", "name"), [(2, "t"), (4, "0")], ids=["topic", "broker"])
@in_virtual_time
async def test_throttles_that_nobody_set_can_be_taken_away(kind: int, name: str) -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client = await connect()

        async def change(operation: int, *names: str) -> int:
            changes = [(one, operation, None if operation else "1") for one in names]
            error: int = (await alter_configs(client, kind, name, changes)).error_code
            return error

        rate, replicas = "leader.replication.throttled.rate", "follower.replication.throttled.replicas"
        assert await change(1, rate, replicas) == code.NONE
        assert await change(0, rate) in {code.INVALID_CONFIG, code.INVALID_REQUEST}
        assert await change(1, "nonsense") in {code.INVALID_CONFIG, code.INVALID_REQUEST}


@pytest.mark.parametrize("version", [0, 2])
@in_virtual_time
async def test_alter_configs_sets_what_is_not_named_back(version: int) -> None:
    async with listening() as (served, connect):
        await served.create("t", config={"retention.ms": "1000", "segment.bytes": "2000000"})
        client = await connect()

        async def replace(validate_only: bool = False, kind: int = 2, **configs: str | None) -> int:
            settings = [
                admin.TopicSetting(name=name.replace("_", "."), value=value)
                for name, value in configs.items()
            ]
            resource = admin.ReplacedResource(resource_type=kind, resource_name="t", configs=settings)
            request = admin.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
            error: int = (await client.ask(request, 33, version)).responses[0].error_code
            return error

        def config() -> dict[str, str]:
            return served.first.gateway.topic("t").config

        before = dict(config())
        assert await replace(validate_only=True, retention_ms="5000") == code.NONE
        assert await replace(nonsense="1") == code.INVALID_CONFIG
        assert await replace(kind=4, retention_ms="5000") == code.INVALID_REQUEST
        assert config() == before
        assert await replace(retention_ms="5000") == code.NONE
        await eventually(lambda: config() == {"retention.ms": "5000"})
        assert await replace(retention_ms=None) == code.NONE
        await eventually(lambda: config() == {})


@in_virtual_time
async def test_settings_of_brokers_say_where_they_come_from() -> None:
    async with listening(2, num_partitions=3, racks=("a", "")) as (served, connect):
        client = await connect()

        async def described(node: int) -> dict[str, tuple[str | None, int]]:
            resource = admin.DescribeConfigsResource(
                resource_type=4, resource_name=str(node), configuration_keys=None
            )
            answer = await client.ask(admin.DescribeConfigsRequest(resources=[resource]), 32, 4)
            assert all(one.read_only != (one.name in BY_KAFKA_NAME) for one in answer.results[0].configs)
            return {one.name: (one.value, one.config_source) for one in answer.results[0].configs}

        own, other = await described(0), await described(1)
        assert own["num.partitions"] == ("3", SOURCE_BROKER)
        assert own["auto.create.topics.enable"] == ("true", SOURCE_DEFAULT)
        assert own["node.id"] == ("0", SOURCE_BROKER)
        assert own["broker.rack"] == ("a", SOURCE_BROKER)
        assert other["broker.rack"] == (None, SOURCE_DEFAULT)
        assert own["log.retention.ms"] == ("-1", SOURCE_DEFAULT)
        assert "num.partitions" not in other
        assert await described(7) == {}
        topic = admin.CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=[], configs=[]
        )
        await client.ask(admin.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 19, 7)
        assert len(served.first.gateway.topic("t").shards) == 3


@in_virtual_time
async def test_groups_have_the_settings_of_the_node() -> None:
    async with listening(1, consumer_groups=ConsumerGroups(session_timeout_ms=30_000)) as (_, connect):
        client = await connect()

        async def described(keys: list[str] | None) -> dict[str, tuple[str | None, int, bool]]:
            resource = admin.DescribeConfigsResource(
                resource_type=32, resource_name="nobody", configuration_keys=keys
            )
            (told,) = (await client.ask(admin.DescribeConfigsRequest(resources=[resource]), 32, 4)).results
            assert told.error_code == code.NONE
            return {one.name: (one.value, one.config_source, one.read_only) for one in told.configs}

        found = await described(None)
        assert {name: told for name, told in found.items() if name.startswith("consumer.")} == {
            "consumer.heartbeat.interval.ms": ("5000", SOURCE_DEFAULT, False),
            "consumer.session.timeout.ms": ("30000", SOURCE_BROKER, False),
        }
        assert list(await described(["consumer.session.timeout.ms"])) == ["consumer.session.timeout.ms"]
