"""Settings that are changed while nodes run: which value counts at which node, and that it is in effect there."""

import asyncio
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import structlog

from antiphon.coordination.migration_policy import MigrationPolicy
from antiphon.errors import InvalidRequestError, LimitReachedError
from antiphon.model.metadata import Kind
from antiphon.model.node_settings import (
    ALL_NODES,
    BOOLEANS,
    NODE_SETTINGS,
    AlterNodeSettings,
    GetNodeSettings,
    NodeSettings,
    NodeSettingsReply,
    Source,
    text_of,
)
from antiphon.model.requests import CreateTopic, DrainNode, Put, RemoveNode, TableGet, TableWrite
from antiphon.node import logs
from antiphon.node.config import Cleaner, Limits, LogFiles, Member, NodeConfig, Ports, check_config
from antiphon.node.node import Node
from antiphon.records.intake import VALIDATIONS
from tests.node.in_process import Nodes, ask, cluster_of, eventually, in_virtual_time, take_for_earlier

POLICIES = tuple(policy.value for policy in MigrationPolicy)
DEFAULTS = NodeConfig(cluster_id="c", node_id=0, nodes=[Member(0, "here:1")])


def value(config: NodeConfig, name: str) -> Any:
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found


async def change(nodes: Nodes, node: int = ALL_NODES, at: int = 0, **config: Any) -> None:
    """Change settings by their names with `__` for the dot; returns when each node that runs has heard of it."""
    wanted = {name.replace("__", "."): None if one is None else text_of(one) for name, one in config.items()}
    await nodes.nodes[at].gateway.administer(AlterNodeSettings(node, wanted))
    version = nodes.nodes[at].view.version
    await eventually(lambda: all(one.view.version >= version for one in nodes.nodes.values()))


@pytest.mark.parametrize("name", NODE_SETTINGS)
def test_the_table_says_what_a_nodes_file_may_say(name: str) -> None:
    setting, section, own = NODE_SETTINGS[name], *name.rpartition(".")[::2]
    assert text_of(value(DEFAULTS, name)) == setting.default
    assert setting.problem(setting.default) is None
    assert setting.read(setting.default) == value(DEFAULTS, name)
    if setting.words:
        assert setting.words in {BOOLEANS, VALIDATIONS, POLICIES, ("debug", "info", "warning", "error")}
        return
    of = type(getattr(DEFAULTS, section)) if section else NodeConfig
    meta = next(
        one for one in get_args(get_type_hints(of, include_extras=True)[own]) if not isinstance(one, type)
    )
    assert (setting.least, setting.most) == (meta.ge, _INT_MAX.get(name, meta.le))
    assert setting.problem(str(setting.least)) is None
    for wrong in (str(setting.least - 1), str(setting.most + 1), "", " 1", "1e3", "+1", "one"):
        assert setting.problem(wrong), wrong


_INT_MAX = {"limits.connections": 10_000_000}  # where the file has no bound


@in_virtual_time
async def test_a_nodes_own_value_goes_before_that_for_all_and_this_before_its_file() -> None:
    async with cluster_of(3, num_partitions=3) as nodes:

        def told() -> list[tuple[int, Source]]:
            return [
                (node.config.num_partitions, node.settings.values("num_partitions")[0].source)
                for node in nodes.nodes.values()
            ]

        assert told() == [(3, Source.FILE)] * 3
        await change(nodes, num_partitions=5)
        assert told() == [(5, Source.ALL)] * 3
        await change(nodes, node=1, at=2, num_partitions=7)
        assert told() == [(5, Source.ALL), (7, Source.NODE), (5, Source.ALL)]
        assert [one.value for one in nodes.nodes[1].settings.values("num_partitions")] == ["7", "5", "3", "1"]
        await change(nodes, num_partitions=None)
        assert told() == [(3, Source.FILE), (7, Source.NODE), (3, Source.FILE)]
        await change(nodes, node=1, num_partitions=None)
        assert told() == [(3, Source.FILE)] * 3
        assert nodes.nodes[0].view.node_settings == {}
        assert nodes.nodes[0].settings.values("log_level")[0] == ("info", Source.DEFAULT)


@in_virtual_time
async def test_it_holds_over_restarts_and_for_nodes_that_come_later() -> None:
    async with cluster_of(3) as nodes:
        await change(nodes, limits__topics=77, cleaner__backoff_ms=50)
        await change(nodes, node=2, limits__topics=88)
        await nodes.restart_all()
        await eventually(lambda: [one.config.limits.topics for one in nodes.nodes.values()] == [77, 77, 88])
        assert {one.config.cleaner.backoff_ms for one in nodes.nodes.values()} == {50}
        nodes.kill(1)
        await change(nodes, limits__topics=99)
        late = await nodes.start(1)
        assert await late.joined(20)
        await eventually(lambda: late.config.limits.topics == 99)
        assert nodes.told_limits.topics == Limits().topics, "what a file says stays as it is"


@in_virtual_time
async def test_what_cannot_be_changed_is_refused_with_the_reason() -> None:
    async with cluster_of(1) as nodes:
        gateway = nodes.nodes[0].gateway
        cases: tuple[tuple[dict[str, str | None], int, str], ...] = (
            ({"timings.tick": "10"}, ALL_NODES, "set it in node.toml and restart the node"),
            ({"num_partitions": "0"}, ALL_NODES, "num_partitions is a whole number from 1 to"),
            ({"auto_create_topics": "yes"}, ALL_NODES, "auto_create_topics is true or false, not 'yes'"),
            ({"num_partitions": "2", "nonsense": None}, ALL_NODES, "'nonsense' cannot be changed"),
            ({"num_partitions": "2"}, 7, "there is no node 7; there are 0"),
            ({"num_partitions": "2"}, -2, "there is no node -2"),
        )
        for config, node, words in cases:
            for dry in (False, True):
                with pytest.raises(InvalidRequestError) as refused:
                    await gateway.administer(AlterNodeSettings(node, config, dry))
                assert words in refused.value.message
        await gateway.administer(AlterNodeSettings(ALL_NODES, {"num_partitions": "2"}, validate_only=True))
        assert nodes.nodes[0].view.node_settings == {}


@in_virtual_time
async def test_a_node_of_an_earlier_version_has_it_refused() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        take_for_earlier(node, 8)
        with pytest.raises(
            InvalidRequestError, match=r"nodes 0 are of a version that goes by its node\.toml alone"
        ):
            await node.gateway.administer(AlterNodeSettings(ALL_NODES, {"num_partitions": "2"}))


@in_virtual_time
async def test_a_node_that_is_removed_leaves_no_settings() -> None:
    async with cluster_of(4) as nodes:
        await change(nodes, node=3, num_partitions=4)
        await change(nodes, num_partitions=5)
        first = nodes.nodes[0]
        await first.gateway.administer(DrainNode(3))
        await eventually(lambda: all(3 not in shard.everybody for _, shard in first.view.all_shards()))
        await nodes.stop(3)
        await eventually(lambda: not first.view.nodes[3].alive)
        await first.gateway.administer(RemoveNode(3))
        assert first.view.node_settings == {ALL_NODES: NodeSettings(ALL_NODES, {"num_partitions": "5"})}


@in_virtual_time
async def test_a_node_tells_its_own_and_what_is_set_for_others() -> None:
    async with cluster_of(2) as nodes:
        await change(nodes, node=1, num_partitions=4)
        await change(nodes, log_level="error")
        told = await ask("node-1:7400", GetNodeSettings())
        assert isinstance(told, NodeSettingsReply)
        assert told.node == 1
        assert told.entries == (
            NodeSettings(ALL_NODES, {"log_level": "error"}),
            NodeSettings(1, {"num_partitions": "4"}),
        )
        assert told.values.keys() == NODE_SETTINGS.keys()
        assert told.values["num_partitions"] == (("4", "node"), ("1", "default"))
        assert told.values["log_level"] == (("error", "all"), ("info", "default"))


@in_virtual_time
async def test_what_a_later_version_set_does_not_count() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        node.settings.take({ALL_NODES: NodeSettings(ALL_NODES, {"num_partitions": "many", "new.one": "1"})})
        assert node.config.num_partitions == 1
        assert node.settings.values("num_partitions") == [("1", Source.DEFAULT)]


# -- what takes effect ------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_topics_follow_where_they_say_nothing_of_their_own() -> None:
    async with cluster_of(1, flush="interval") as nodes:
        node = nodes.nodes[0]
        plain = node.hosts[await nodes.new_shard("plain")]
        own = node.hosts[
            await nodes.new_shard("own", config={"flush.ms": "7", "record.validation": "shallow"})
        ]
        await change(nodes, flush_interval_ms=5_000, record_validation="full")
        for host, flush_s, validation in ((plain, 5.0, "full"), (own, 0.007, "shallow")):
            assert host.log.queue.flush_interval_s == flush_s
            assert host.state.settings is not None
            assert host.state.settings.intake.validation == validation
        await change(nodes, flush_interval_ms=None, record_validation=None)
        assert plain.log.queue.flush_interval_s == 0.1
        assert plain.state.settings is not None
        assert plain.state.settings.intake.validation == "uncompressed"


@in_virtual_time
async def test_logs_of_tables_are_bounded_where_the_tables_say_nothing_of_their_own() -> None:
    """What is above goes once it is in the store, on disk. A topic, and what belongs to the cluster, keep all."""
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        made = [
            await node.gateway.create_topic(
                CreateTopic(name, kind=kind, replicas=1, config=config, internal=own)
            )
            for name, kind, config, own in (
                ("bounded", Kind.TABLE, {}, False),
                ("large", Kind.TABLE, {"retention.bytes": "-1"}, False),
                ("__own", Kind.TABLE, {}, True),
                ("topic", Kind.TOPIC, {}, False),
            )
        ]
        await change(nodes, table_log_bytes=2_000_000)
        logs = [(await nodes.leader(topic.shards[0].shard_id)).log for topic in made]
        assert [log.config.retention_bytes for log in logs] == [2_000_000, -1, 64 << 20, -1]
        bounded = made[0].shards[0].shard_id
        for number in range(80):
            put = Put(b"k%d" % (number % 7), bytes(100_000))
            await node.gateway.table_write(TableWrite(bounded, (put,)))
        assert logs[0].size_bytes > 8_000_000
        node.shards.apply_retention()
        await eventually(lambda: logs[0].size_bytes < 3_200_000)
        rows = await node.gateway.table_get(TableGet(bounded, (b"k0", b"k6"), include_value=True))
        assert [row.value for row in rows.rows if row is not None] == [bytes(100_000)] * 2
        await change(nodes, table_log_bytes=None)
        assert logs[0].config.retention_bytes == -1


@in_virtual_time
async def test_bounds_of_what_clients_make_count_at_once_also_where_the_leader_changes() -> None:
    async with cluster_of(3) as nodes:
        gateway = nodes.nodes[0].gateway
        await change(nodes, limits__topics=2, limits__partitions=50, limits__request_partitions=4)

        async def refused(request: CreateTopic, limit: str, by: Node) -> None:
            with pytest.raises(LimitReachedError) as error:
                await by.gateway.administer(request)
            assert error.value.details["limit"] == limit
            with pytest.raises(LimitReachedError):
                by.gateway.rehearse(by.gateway.metadata, request)

        await gateway.create_topic(CreateTopic("a"))  # with the table `default`, the second one
        await refused(CreateTopic("b"), "topics", nodes.nodes[0])
        nodes.kill(nodes.nodes[0].view.controller)
        other = next(iter(nodes.nodes.values()))
        await eventually(lambda: other.view.controller in nodes.nodes)
        await refused(CreateTopic("b"), "topics", other)
        await change(nodes, at=other.node_id, limits__topics=None)
        await refused(CreateTopic("b", shards=5), "request_partitions", other)
        with pytest.raises(LimitReachedError):
            other.gateway.check_request(5)
        await change(nodes, at=other.node_id, limits__request_partitions=None, limits__node_replicas=1)
        await refused(CreateTopic("b"), "node_replicas", other)
        await change(nodes, at=other.node_id, limits__node_replicas=None)
        await refused(CreateTopic("b", shards=50), "partitions", other)
        await other.gateway.create_topic(CreateTopic("b"))


@in_virtual_time
async def test_the_cleaner_and_the_scrub_do_not_sit_out_a_pause_of_before() -> None:
    async with cluster_of(1, cleaner=Cleaner(backoff_ms=86_400_000)) as nodes:
        node = nodes.nodes[0]
        cleaner, scrub, loop = node.care.cleaner, node.care.scrub, asyncio.get_running_loop()
        looks: list[float] = []
        before = cleaner._most_due

        def look() -> Any:
            looks.append(loop.time())
            return before()

        cleaner._most_due = look  # type: ignore[method-assign]
        await asyncio.sleep(5.0)
        assert looks == []
        await change(nodes, cleaner__backoff_ms=1_000)
        await asyncio.sleep(5.0)
        assert len(looks) in {5, 6}
        await change(nodes, scrub__bytes_per_s=1, scrub__interval_s=60)
        slow = asyncio.ensure_future(scrub._keep_to_rate(1 << 20, 0))
        await asyncio.sleep(5.0)
        assert not slow.done()
        assert (scrub.status.bytes_per_s, scrub.status.interval_s) == (1, 60)
        await change(nodes, scrub__bytes_per_s=1 << 30)
        await asyncio.sleep(0)
        assert slow.done()
        await change(nodes, cleaner__bytes_per_s=1)
        slow = asyncio.ensure_future(cleaner._rest(1 << 20, 0.0))
        await asyncio.sleep(5.0)
        assert not slow.done()
        await change(nodes, cleaner__bytes_per_s=0)
        await asyncio.sleep(0)
        assert slow.done()


@in_virtual_time
async def test_listeners_and_coordinators_go_by_the_new_values() -> None:
    async with cluster_of(1, ports=Ports(7400, 9092, -1, -1)) as nodes:
        server = nodes.servers[0]
        await change(
            nodes,
            auto_create_topics=False,
            num_partitions=4,
            limits__topics_on_demand=9,
            limits__connections=20,
            transactions__timeout_max_ms=1_234,
            transactions__id_expiration_s=61,
            consumer_groups__session_timeout_ms=7_000,
            consumer_groups__heartbeat_interval_ms=70,
            consumer_groups__max_size=3,
            share_groups__session_timeout_ms=8_000,
            share_groups__heartbeat_interval_ms=80,
            share_groups__max_size=4,
            share_groups__record_lock_duration_ms=900,
            share_groups__delivery_count_limit=3,
            share_groups__partition_max_record_locks=101,
        )
        kafka = server.kafka
        assert kafka is not None
        topics = kafka.topics
        assert (topics.auto_create, topics.shards, topics.topics_max) == (False, 4, 9)
        bounds = server.transactions.coordinator.bounds
        assert (bounds.timeout_ms_max, bounds.expire_ms) == (1_234, 61_000)
        groups = kafka._coordinator
        assert groups.consumers.bounds[:3] == (70, 7_000, 3)
        assert groups.shares.bounds[:3] == (80, 8_000, 4)
        assert groups.shares.bounds.assignors == ("simple",)
        assert kafka._shares.config.records == (900, 3, 101)
        assert server.native.limits.connections == 20
        assert server.native._addresses.most == 10
        assert b"antiphon_native_connections_limit 20" in server.node.metrics.render()
        await change(nodes, limits__connections=10_000_000)
        assert 20 < server.native.limits.connections < 10_000_000, "no more than the process has files for"


@in_virtual_time
async def test_what_is_read_at_each_use_is_read_from_what_changes() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        table = await nodes.new_shard("rows", Kind.TABLE)
        await change(nodes, sessions__per_shard=0, limits__producers=1, cleaner__memory=4096)
        assert node.hosts[table].state.services.session_bounds.per_shard == 0
        assert node.limits.producers == 1
        assert node.care.cleaner._settings.memory == 4096
        first = await nodes.new_shard()
        for producer in range(3):
            await nodes.append(first, b"%d" % producer)
        assert check_config(node.config) is node.config


@pytest.fixture
def own_logging() -> Iterator[None]:
    before = structlog.get_config()
    try:
        yield
    finally:
        structlog.configure(**before)


@pytest.mark.usefixtures("own_logging")
def test_the_level_counts_for_loggers_that_are_bound_already(tmp_path: Any) -> None:
    file = logs.open_log(tmp_path, "info", 1, LogFiles())
    bound = structlog.get_logger().bind(shard=7)
    bound.debug("one")
    logs.set_level("debug")
    bound.debug("two")
    logs.set_level("error")
    bound.warning("three")
    structlog.get_logger().exception("four")
    file.close()
    text = (tmp_path / "node.log").read_text()
    assert [word for word in ("one", "two", "three", "four") if f'"{word}"' in text] == ["two", "four"]
