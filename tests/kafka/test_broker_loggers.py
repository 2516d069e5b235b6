"""The level of a node's log as a resource of type BROKER_LOGGER, and groups with settings in the list of resources."""

from typing import Any

import pytest

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin as m
from antiphon.kafka.messages import described as d
from antiphon.model.access import CLUSTER_NAME, Operation, Resource
from tests.kafka.raw import RawClient, alter_configs, listening
from tests.kafka.test_access import as_user, eves, give, secured
from tests.kafka.test_share_groups import configure
from tests.node.in_process import in_virtual_time

LOGGER, GROUP = 8, 32
SET, RESET, APPEND = 0, 1, 2


async def described(client: RawClient, broker: str) -> m.DescribedResource:
    resource = m.DescribeConfigsResource(resource_type=LOGGER, resource_name=broker, configuration_keys=None)
    answer: Any = await client.ask(m.DescribeConfigsRequest(resources=[resource]), 32, 4)
    found: m.DescribedResource = answer.results[0]
    return found


async def alter(
    client: RawClient, broker: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> int:
    answer = await alter_configs(client, LOGGER, broker, changes, validate_only=validate_only)
    error: int = answer.error_code
    return error


async def listed(client: RawClient, kind: int) -> list[str]:
    answer: Any = await client.ask(d.ListConfigResourcesRequest(resource_types=[kind]), 74, 1)
    assert answer.error_code == code.NONE
    return [one.resource_name for one in answer.config_resources]


@in_virtual_time
async def test_the_level_of_a_nodes_log_is_shown_and_set() -> None:
    async with listening(2) as (served, connect):
        client = await connect(1)
        assert await listed(client, LOGGER) == ["0", "1"]
        (before,) = (await described(client, "1")).configs
        assert (before.name, before.value, before.config_source) == ("root", "INFO", 6)
        assert not before.read_only
        assert await alter(client, "1", ("root", SET, "warn"), validate_only=True) == code.NONE
        assert (await described(client, "1")).configs[0].value == "INFO"
        for level, own in (("warn", "warning"), ("ERROR", "error"), ("DEBUG", "debug")):
            assert await alter(client, "1", ("root", SET, level)) == code.NONE
            assert (await described(client, "1")).configs[0].value == level.upper()
            assert served.nodes.nodes[1].gateway.settings.values("log_level")[0].value == own
        assert (await described(await connect(0), "0")).configs[0].value == "INFO", "of that node only"


@pytest.mark.parametrize(
    ("broker", "changes", "error"),
    [
        ("0", [("root", SET, "DEBUG")], code.INVALID_REQUEST),
        ("", [("root", SET, "DEBUG")], code.INVALID_REQUEST),
        ("1", [("kafka.server", SET, "DEBUG")], code.INVALID_CONFIG),
        ("1", [("root", SET, "TRACE")], code.INVALID_CONFIG),
        ("1", [("root", SET, None)], code.INVALID_CONFIG),
        ("1", [("root", RESET, None)], code.INVALID_REQUEST),
        ("1", [("root", APPEND, "DEBUG")], code.INVALID_REQUEST),
        ("1", [("root", SET, "DEBUG"), ("root", SET, "INFO")], code.INVALID_REQUEST),
    ],
)
@in_virtual_time
async def test_what_is_no_logger_or_level_is_refused(broker: str, changes: list[Any], error: int) -> None:
    async with listening(2) as (served, connect):
        client = await connect(1)
        assert await alter(client, broker, *changes) == error
        if broker != "1":
            told = await described(client, broker)
            assert (told.error_code, told.configs) == (code.INVALID_REQUEST, [])
            assert "broker 1" in (told.error_message or "")
        assert served.nodes.nodes[1].gateway.settings.entries == {}


@in_virtual_time
async def test_alter_configs_replaces_no_logger() -> None:
    async with listening(1) as (served, connect):
        client = await connect()
        setting = m.TopicSetting(name="root", value="DEBUG")
        resource = m.ReplacedResource(resource_type=LOGGER, resource_name="0", configs=[setting])
        request = m.AlterConfigsRequest(resources=[resource], validate_only=False)
        answer: Any = await client.ask(request, 33, 2)
        assert answer.responses[0].error_code == code.INVALID_REQUEST
        assert served.first.settings.entries == {}


@in_virtual_time
async def test_loggers_take_the_rights_on_configs_of_the_cluster() -> None:
    async with secured() as (served, connect):
        eve = await as_user(connect, "eve")
        denied = code.CLUSTER_AUTHORIZATION_FAILED
        assert (await described(eve, "0")).error_code == denied
        assert await alter(eve, "0", ("root", SET, "DEBUG")) == denied
        await give(served, eves(Resource.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE_CONFIGS))
        assert (await described(eve, "0")).error_code == code.NONE
        assert await alter(eve, "0", ("root", SET, "DEBUG")) == denied
        await give(served, eves(Resource.CLUSTER, CLUSTER_NAME, Operation.ALTER_CONFIGS))
        assert await alter(eve, "0", ("root", SET, "DEBUG")) == code.NONE


@in_virtual_time
async def test_groups_with_settings_of_their_own_are_listed_wherever_they_are_kept() -> None:
    names = ["a/b", "50%2F", *(f"g{number}" for number in range(12))]
    async with listening(3) as (served, connect):
        client = await connect()
        assert await listed(client, GROUP) == []
        for name in names:
            assert await configure(client, name, record_lock_duration_ms="20000") == code.NONE
        leaders = {shard.leader for shard in served.first.gateway.topic("__groups").shards}
        assert len(leaders) > 1, "some are kept elsewhere"
        assert await listed(client, GROUP) == sorted(names)
        assert await configure(client, "g3", record_lock_duration_ms=None) == code.NONE
        assert "g3" not in await listed(client, GROUP)
