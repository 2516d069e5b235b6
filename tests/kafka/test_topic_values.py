"""What topics have that set nothing: the value of the node, where it has one, and where that stands."""

from typing import Any

from antiphon.kafka.messages import admin as m
from antiphon.model.metadata import Kind
from antiphon.model.node_settings import FOR_TOPICS
from tests.kafka.raw import RawClient, alter_configs, ask, listening
from tests.node.in_process import eventually, in_virtual_time

TOPIC, BROKER = 2, 4
OWN, NODE, ALL, FILE, DEFAULT = 1, 2, 3, 4, 5
Values = list[tuple[str, str, int]]


async def create(client: RawClient, name: str, **config: str) -> dict[str, tuple[str, int]]:
    """Name, value and source of the settings in the answer of CreateTopics."""
    configs = [
        m.TopicSetting(name=setting.replace("_", "."), value=value) for setting, value in config.items()
    ]
    topic = m.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=configs
    )
    answer = await ask(client, m.CreateTopicsRequest(topics=[topic], timeout_ms=5_000, validate_only=False))
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message
    return {one.name: (one.value, one.config_source) for one in answer.topics[0].configs}


async def described(client: RawClient, name: str) -> dict[str, tuple[str, int, Values]]:
    """Value, source and synonyms of each setting of a topic."""
    resource = m.DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
    answer: Any = await ask(client, m.DescribeConfigsRequest(resources=[resource], include_synonyms=True))
    return {
        one.name: (one.value, one.config_source, [(s.name, s.value, s.source) for s in one.synonyms])
        for one in answer.results[0].configs
    }


@in_virtual_time
async def test_a_topic_that_sets_nothing_has_what_its_node_says() -> None:
    async with listening(2, record_validation="full", flush="interval", flush_interval_ms=250) as (
        served,
        connect,
    ):
        client = await connect()
        made = await create(client, "plain")
        assert {name: made[name] for name in (*FOR_TOPICS, "segment.ms")} == {
            "flush": ("interval", FILE),
            "flush.ms": ("250", FILE),
            "record.validation": ("full", FILE),
            "segment.ms": ("604800000", DEFAULT),
        }
        told = await described(client, "plain")
        assert told["flush"] == (
            "interval",
            FILE,
            [("flush", "interval", FILE), ("flush", "always", DEFAULT)],
        )
        assert told["flush.ms"] == (
            "250",
            FILE,
            [("log.flush.interval.ms", "250", FILE), ("log.flush.interval.ms", "100", DEFAULT)],
        )
        await alter_configs(client, BROKER, "", [("record_validation", 0, "shallow")])
        await alter_configs(client, BROKER, "0", [("flush.interval.ms", 0, "30")])
        nodes = served.nodes.nodes
        await eventually(lambda: nodes[1].view.version == nodes[0].view.version)
        assert (await described(client, "plain"))["record.validation"] == (
            "shallow",
            ALL,
            [
                ("record_validation", "shallow", ALL),
                ("record_validation", "full", FILE),
                ("record_validation", "uncompressed", DEFAULT),
            ],
        )


@in_virtual_time
async def test_the_bound_that_nodes_have_for_logs_of_tables_is_not_told_of_topics_and_the_clusters_own() -> (
    None
):
    async with listening(1, table_log_bytes=5_000_000) as (served, connect):
        client = await connect()
        await create(client, "topic")
        await served.create("table", kind=Kind.TABLE)
        await served.create("__own", kind=Kind.TABLE, internal=True)
        of_node = [("table_log_bytes", "5000000", FILE), ("table_log_bytes", "-1", DEFAULT)]
        assert (await described(client, "table"))["retention.bytes"] == ("5000000", FILE, of_node)
        for name in ("topic", "__own"):
            assert (await described(client, name))["retention.bytes"][:2] == ("-1", DEFAULT)


@in_virtual_time
async def test_what_a_topic_sets_goes_before_what_its_node_says() -> None:
    async with listening(1, record_validation="full") as (_, connect):
        client = await connect()
        made = await create(client, "own", record_validation="shallow")
        assert made["record.validation"] == ("shallow", OWN)
        assert made["flush"] == ("always", DEFAULT)
        told = await described(client, "own")
        assert told["record.validation"] == (
            "shallow",
            OWN,
            [
                ("record.validation", "shallow", OWN),
                ("record_validation", "full", FILE),
                ("record_validation", "uncompressed", DEFAULT),
            ],
        )
        assert told["flush"] == ("always", DEFAULT, [("flush", "always", DEFAULT)])
