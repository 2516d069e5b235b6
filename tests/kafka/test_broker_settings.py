"""Settings of brokers at Kafka's listener: what is described, from where, and what becomes of changes."""

from typing import Any

import pytest

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin as m
from antiphon.model.access import CLUSTER_NAME, Operation, Resource
from antiphon.model.node_settings import ALL_NODES, BY_KAFKA_NAME, NODE_SETTINGS, AlterNodeSettings
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.raw import RawClient, alter_configs, listening
from tests.kafka.test_access import as_user, eves, give, secured
from tests.kafka.test_consumer_groups import Member
from tests.kafka.test_consumer_groups import a_group as consumer_group
from tests.kafka.test_share_groups import RELEASE
from tests.kafka.test_share_groups import Member as ShareMember
from tests.kafka.test_share_groups import a_group as share_group
from tests.node.in_process import eventually, in_virtual_time

BROKER = 4
NODE, ALL, FILE, DEFAULT = 2, 3, 4, 5
SET, RESET, APPEND = 0, 1, 2


async def described(
    client: RawClient, name: str, version: int = 4, **how: Any
) -> dict[str, m.DescribedSetting]:
    resource = m.DescribeConfigsResource(resource_type=BROKER, resource_name=name, configuration_keys=None)
    answer = await client.ask(m.DescribeConfigsRequest(resources=[resource], **how), 32, version)
    assert answer.results[0].error_code == code.NONE
    return {one.name: one for one in answer.results[0].configs}


async def alter(
    client: RawClient, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    answer = await alter_configs(client, BROKER, name, changes, validate_only=validate_only)
    assert (answer.resource_type, answer.resource_name) == (BROKER, name)
    return answer.error_code, answer.error_message


async def replace(client: RawClient, name: str, version: int = 2, **configs: str | None) -> int:
    settings = [m.TopicSetting(name=one.replace("_", "."), value=to) for one, to in configs.items()]
    resource = m.ReplacedResource(resource_type=BROKER, resource_name=name, configs=settings)
    answer = await client.ask(m.AlterConfigsRequest(resources=[resource], validate_only=False), 33, version)
    error: int = answer.responses[0].error_code
    return error


def set_for(served: KafkaNodes, node: int = ALL_NODES) -> dict[str, str]:
    entry = served.first.settings.entries.get(node)
    return {} if entry is None else entry.values


@in_virtual_time
async def test_a_broker_tells_each_value_and_where_it_stands() -> None:
    async with listening(2, num_partitions=3) as (served, connect):
        first, second = await connect(0), await connect(1)
        assert await alter(first, "", ("num.partitions", SET, "5")) == (code.NONE, None)
        assert await alter(first, "1", ("num.partitions", SET, "7")) == (code.NONE, None)
        nodes = served.nodes.nodes
        await eventually(lambda: nodes[1].view.version == nodes[0].view.version)
        own = await described(first, "0", include_synonyms=True, include_documentation=True)
        assert own.keys() >= BY_KAFKA_NAME.keys()
        told = own["num.partitions"]
        assert (told.value, told.config_source, told.config_type, told.read_only) == ("5", ALL, 3, False)
        assert [(one.name, one.value, one.source) for one in told.synonyms] == [
            ("num.partitions", "5", ALL),
            ("num.partitions", "3", FILE),
            ("num.partitions", "1", DEFAULT),
        ]
        assert "num_partitions of node.toml" in (told.documentation or "")
        assert own["log.cleaner.io.max.bytes.per.second"].config_type == 5
        assert (own["auto.create.topics.enable"].config_type, own["log_level"].config_type) == (1, 2)
        assert own["node.id"].read_only
        other = await described(first, "1")
        assert (other["num.partitions"].value, other["num.partitions"].config_source) == ("7", NODE)
        assert "log_level" not in other, "only that node knows what its file says"
        asked_itself = (await described(second, "1", include_synonyms=True))["num.partitions"]
        assert [one.source for one in asked_itself.synonyms] == [NODE, ALL, FILE, DEFAULT]
        assert (await described(first, "1"))["num.partitions"].synonyms == []
        everyone = await described(second, "")
        assert {name: (one.value, one.config_source) for name, one in everyone.items()} == {
            "num.partitions": ("5", ALL)
        }
        assert await described(first, "9" * 30) == await described(first, "x") == {}


@in_virtual_time
async def test_a_change_is_made_checked_and_taken_back() -> None:
    async with listening(1) as (served, connect):
        client = await connect()
        checked = await alter(client, "", ("num.partitions", SET, "5"), validate_only=True)
        assert checked == (code.NONE, None)
        assert set_for(served) == {}
        both = (("num.partitions", SET, " 5 "), ("auto.create.topics.enable", SET, "FALSE"))
        assert await alter(client, "0", *both) == (code.NONE, None)
        assert set_for(served, 0) == {"auto_create_topics": "false", "num_partitions": "5"}
        assert served.first.config.num_partitions == 5
        asked = m.CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=[], configs=[]
        )
        await client.ask(m.CreateTopicsRequest(topics=[asked], timeout_ms=5000), 19, 7)
        assert len(served.first.gateway.topic("t").shards) == 5
        assert await alter(client, "0", ("num.partitions", RESET, None)) == (code.NONE, None)
        assert set_for(served, 0) == {"auto_create_topics": "false"}
        assert await alter(client, "0", ("scrub.bytes_per_s", SET, "0")) == (code.NONE, None), (
            "by its own name"
        )
        throttle = ("leader.replication.throttled.rate", RESET, None)
        assert await alter(client, "0", throttle) == (code.NONE, None), "there never is one"


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("0", ("listeners", SET, "x"), code.INVALID_REQUEST, "set it in node.toml and restart the node"),
        ("0", ("log.retention.ms", SET, "5"), code.INVALID_REQUEST, "cannot be changed while a node runs"),
        ("0", ("num.partitions", SET, "0"), code.INVALID_CONFIG, "a whole number from 1"),
        ("0", ("num.partitions", SET, None), code.INVALID_CONFIG, "set to nothing"),
        ("0", ("num.partitions", APPEND, "1"), code.INVALID_CONFIG, "no list"),
        ("one", ("num.partitions", SET, "1"), code.INVALID_REQUEST, "is no broker"),
        ("-1", ("num.partitions", SET, "1"), code.INVALID_REQUEST, "is no broker"),
        ("7", ("num.partitions", SET, "1"), code.INVALID_CONFIG, "there is no node 7; there are 0"),
    ],
)
@in_virtual_time
async def test_what_cannot_be_is_refused_by_name(
    name: str, change: tuple[str, int, str | None], error: int, words: str
) -> None:
    async with listening(1) as (served, connect):
        client = await connect()
        for validate_only in (False, True):
            found, message = await alter(client, name, change, validate_only=validate_only)
            assert found == error
            assert words in (message or "")
        assert served.first.settings.entries == {}


@in_virtual_time
async def test_a_name_and_its_other_name_are_one_setting() -> None:
    async with listening(1) as (served, connect):
        client = await connect()
        twice = (("num.partitions", SET, "2"), ("num_partitions", SET, "3"))
        assert (await alter(client, "", *twice))[0] == code.INVALID_REQUEST
        assert set_for(served) == {}


@pytest.mark.parametrize("version", [0, 2])
@in_virtual_time
async def test_alter_configs_takes_back_what_is_not_named(version: int) -> None:
    async with listening(1) as (served, connect):
        client = await connect()
        for name, scope in (("", ALL_NODES), ("0", 0)):
            assert (
                await replace(client, name, version, num_partitions="4", log_cleaner_backoff_ms="5")
                == code.NONE
            )
            assert set_for(served, scope) == {"cleaner.backoff_ms": "5", "num_partitions": "4"}
            assert await replace(client, name, version, num_partitions="6") == code.NONE
            assert set_for(served, scope) == {"num_partitions": "6"}
            assert (
                await replace(client, name, version, num_partitions="6", listeners="x")
                == code.INVALID_REQUEST
            )
            assert await replace(client, "none", version) == code.INVALID_REQUEST
            assert set_for(served, scope) == {"num_partitions": "6"}
            assert await replace(client, name, version) == code.NONE
            assert set_for(served, scope) == {}


def test_names_lead_to_one_setting() -> None:
    assert len(BY_KAFKA_NAME) == len(NODE_SETTINGS)
    assert not BY_KAFKA_NAME.keys() & NODE_SETTINGS.keys() - {
        name for name, one in NODE_SETTINGS.items() if not one.kafka
    }


@in_virtual_time
async def test_it_takes_the_right_to_alter_the_clusters_configs() -> None:
    async with secured() as (served, connect):
        eve = await as_user(connect, "eve")
        change = ("num.partitions", SET, "3")
        assert (await alter(eve, "0", change))[0] == code.CLUSTER_AUTHORIZATION_FAILED
        assert await replace(eve, "", num_partitions="3") == code.CLUSTER_AUTHORIZATION_FAILED
        resource = m.DescribeConfigsResource(resource_type=BROKER, resource_name="", configuration_keys=None)
        told = await eve.ask(m.DescribeConfigsRequest(resources=[resource]), 32, 4)
        assert told.results[0].error_code == code.CLUSTER_AUTHORIZATION_FAILED
        await give(served, eves(Resource.CLUSTER, CLUSTER_NAME, Operation.ALTER_CONFIGS))
        assert (await alter(eve, "0", change))[0] == code.NONE
        assert set_for(served, 0) == {"num_partitions": "3"}


async def set_for_all(served: KafkaNodes, **config: str) -> None:
    wanted: dict[str, str | None] = {name.replace("__", "."): value for name, value in config.items()}
    await served.first.gateway.administer(AlterNodeSettings(config=wanted))


@in_virtual_time
async def test_groups_that_have_members_follow() -> None:
    async with consumer_group() as (served, connect):
        client = await connect(0)
        for name in "123":
            await Member(client, name).heartbeat()
        assert (await Member(client, "4").ask()).error_code == code.GROUP_MAX_SIZE_REACHED
        await set_for_all(served, consumer_groups__max_size="4", consumer_groups__heartbeat_interval_ms="77")
        told = await Member(client, "4").heartbeat()
        assert told.heartbeat_interval_ms == 77


@in_virtual_time
async def test_share_partitions_in_use_follow_unless_their_group_says_otherwise() -> None:
    async with share_group() as scene:
        await scene.append(1)
        one = await scene.member()
        assert await one.take() == [(0, 0, 1)]
        await set_for_all(scene.served, share_groups__delivery_count_limit="2", share_groups__max_size="1")
        two = ShareMember(one.client, scene.topic_id, "2")
        assert (await two.heartbeat()).error_code == code.GROUP_MAX_SIZE_REACHED
        assert await one.accept(0, 0, RELEASE) == code.NONE
        assert await one.take() == [(0, 0, 2)]
        assert await one.accept(0, 0, RELEASE) == code.NONE
        assert await one.take() == [], "three was the limit before"
        await set_for_all(scene.served, share_groups__record_lock_duration_ms="5000")
        shares = scene.served.listener._shares
        assert [share.settings.bounds.record_lock_duration_ms for share in shares] == [5_000]
