"""Metrics of Kafka's clients: subscriptions as resources, who is asked for what, what is taken, kept, shown and refused."""

import asyncio
import gzip
import re
from typing import Any, Final

import pytest

from antiphon import system
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.client_metrics import clients as kept
from antiphon.kafka.client_metrics.otlp import FIELDS_MAX
from antiphon.kafka.handlers.telemetry import PUSH_BYTES_MAX, UNPACKED_BYTES_MAX, instance_text
from antiphon.kafka.messages import admin as m
from antiphon.kafka.messages import cluster, telemetry
from antiphon.kafka.messages import described as d
from antiphon.model.access import CLUSTER_NAME, Operation, Resource
from antiphon.model.client_metrics import SUBSCRIPTIONS_MAX, Subscription
from antiphon.records.compression import compress
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.pushed import CONNECTIONS, LATENCY, data_of, gauge, histogram, number, usual
from tests.kafka.raw import RawClient, alter_configs, listening
from tests.kafka.test_access import as_user, eves, give, secured
from tests.node.in_process import eventually, in_virtual_time

CLIENT_METRICS: Final = 16
SET, RESET, APPEND, SUBTRACT = 0, 1, 2, 3
OWN, DEFAULT = 7, 5
ME: Final = b"i" * 16
GZIP, ZSTD = 1, 4

Change = tuple[str, int, str | None]


async def alter(
    client: RawClient, name: str, *changes: Change, validate_only: bool = False
) -> tuple[int, str]:
    answer = await alter_configs(client, CLIENT_METRICS, name, changes, validate_only=validate_only)
    return answer.error_code, answer.error_message or ""


async def subscribe(client: RawClient, name: str = "all", **config: str) -> None:
    changes = [(one.replace("_", "."), SET, value) for one, value in config.items()]
    assert await alter(client, name, *changes) == (code.NONE, "")


async def described(client: RawClient, name: str, **how: Any) -> dict[str, m.DescribedSetting]:
    resource = m.DescribeConfigsResource(
        resource_type=CLIENT_METRICS, resource_name=name, configuration_keys=None
    )
    answer = await client.ask(m.DescribeConfigsRequest(resources=[resource], **how), 32, 4)
    assert answer.results[0].error_code == code.NONE
    return {one.name: one for one in answer.results[0].configs}


async def listed(client: RawClient, *types: int, version: int = 1) -> list[tuple[int, str]]:
    answer = await client.ask(d.ListConfigResourcesRequest(resource_types=list(types)), 74, version)
    assert answer.error_code == code.NONE
    return [(one.resource_type, one.resource_name) for one in answer.config_resources]


async def ask(client: RawClient, instance: bytes = ME) -> Any:
    request = telemetry.GetTelemetrySubscriptionsRequest(client_instance_id=instance)
    return await client.ask(request, 71, 0)


async def push(client: RawClient, subscription: int, metrics: bytes, **fields: Any) -> int:
    fields = {"client_instance_id": ME, "terminating": False, "compression_type": 0, **fields}
    request = telemetry.PushTelemetryRequest(subscription_id=subscription, metrics=metrics, **fields)
    error: int = (await client.ask(request, 72, 0)).error_code
    return error


def shown(served: KafkaNodes) -> list[str]:
    """The lines of clients' own metrics."""
    text = served.first.metrics.render().decode()
    return [line for line in text.splitlines() if re.match(r"(org_apache_kafka|kafka_client)_", line)]


# -- subscriptions as resources ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_subscription_is_set_described_listed_and_gone_with_its_last_setting() -> None:
    async with listening(3) as (served, connect):
        first, second = await connect(0), await connect(1)
        await subscribe(first, "slow", metrics="org.apache.kafka.producer.", interval_ms="5000")
        nodes = served.nodes.nodes.values()
        await eventually(lambda: all("slow" in node.gateway.subscriptions for node in nodes))
        told = await described(second, "slow", include_synonyms=True, include_documentation=True)
        assert {name: (one.value, one.config_source, one.config_type) for name, one in told.items()} == {
            "metrics": ("org.apache.kafka.producer.", OWN, 7),
            "interval.ms": ("5000", OWN, 3),
            "match": ("", DEFAULT, 7),
        }
        assert [(one.value, one.source) for one in told["interval.ms"].synonyms] == [
            ("5000", OWN),
            ("300000", DEFAULT),
        ]
        assert "milliseconds" in (told["interval.ms"].documentation or "")
        assert await listed(second, CLIENT_METRICS) == [(CLIENT_METRICS, "slow")]
        assert await listed(second, version=0) == [(CLIENT_METRICS, "slow")]
        assert (CLIENT_METRICS, "slow") in await listed(second)
        assert (await described(second, "none"))["metrics"].config_source == DEFAULT
        await alter(first, "slow", ("metrics", RESET, None))
        assert await listed(first, CLIENT_METRICS) == [(CLIENT_METRICS, "slow")]
        await alter(first, "slow", ("interval.ms", RESET, None), ("match", RESET, None))
        assert await listed(first, CLIENT_METRICS) == []
        await eventually(lambda: not any(node.gateway.subscriptions for node in nodes))


@in_virtual_time
async def test_lists_are_appended_to_and_subtracted_from() -> None:
    async with listening() as (_, connect):
        client = await connect()
        await subscribe(client, "s", metrics="a.,b.")
        assert await alter(client, "s", ("metrics", APPEND, "b.,c.")) == (code.NONE, "")
        assert (await described(client, "s"))["metrics"].value == "a.,b.,c."
        assert await alter(client, "s", ("metrics", SUBTRACT, "a.,c.")) == (code.NONE, "")
        assert (await described(client, "s"))["metrics"].value == "b."
        assert (await alter(client, "s", ("interval.ms", APPEND, "100")))[0] == code.INVALID_CONFIG
        replaced = m.ReplacedResource(
            resource_type=CLIENT_METRICS,
            resource_name="s",
            configs=[m.TopicSetting(name="interval.ms", value="100")],
        )
        answer = await client.ask(m.AlterConfigsRequest(resources=[replaced], validate_only=False), 33, 2)
        assert answer.responses[0].error_code == code.NONE
        told = await described(client, "s")
        assert [told[name].config_source for name in ("metrics", "interval.ms")] == [DEFAULT, OWN]


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("", ("metrics", SET, "*"), code.INVALID_REQUEST, "1 to 255 bytes"),
        ("x" * 256, ("metrics", SET, "*"), code.INVALID_REQUEST, "1 to 255 bytes"),
        ("s", ("push.ms", SET, "1"), code.INVALID_REQUEST, "there are interval.ms, match, metrics"),
        ("s", ("interval.ms", SET, "99"), code.INVALID_REQUEST, "from 100 to 3600000, not '99'"),
        ("s", ("interval.ms", SET, "3600001"), code.INVALID_REQUEST, "from 100 to 3600000"),
        ("s", ("interval.ms", SET, "1e3"), code.INVALID_CONFIG, "a whole number"),
        ("s", ("interval.ms", SET, None), code.INVALID_CONFIG, "set to nothing"),
        ("s", ("metrics", SET, "a.,a."), code.INVALID_CONFIG, "each once"),
        ("s", ("metrics", SET, "a.,,b."), code.INVALID_CONFIG, "a list of prefixes"),
        ("s", ("metrics", SET, "x" * 4097), code.INVALID_CONFIG, "4,096 bytes at most"),
        ("s", ("match", SET, "client_id"), code.INVALID_CONFIG, "no ATTRIBUTE=REGEX"),
        ("s", ("match", SET, "colour=red"), code.INVALID_CONFIG, "client_source_port"),
        ("s", ("match", SET, "client_id=(a"), code.INVALID_CONFIG, "no regular expression of RE2"),
        ("s", ("match", SET, r"client_id=(a)\1"), code.INVALID_CONFIG, "no regular expression of RE2"),
        ("s", ("match", SET, r"client_id=\pL{200}"), code.INVALID_CONFIG, "no regular expression of RE2"),
        ("s", ("match", SET, "client_id=" + "a" * 1025), code.INVALID_CONFIG, "1,024 bytes at most"),
        ("s", ("match", SET, "client_id=a,client_id=b"), code.INVALID_CONFIG, "names client_id twice"),
        ("s", ("match", 9, "client_id=a"), code.INVALID_REQUEST, "no operation"),
    ],
)
@in_virtual_time
async def test_what_cannot_be_is_refused_and_says_why(
    name: str, change: Change, error: int, words: str
) -> None:
    async with listening() as (served, connect):
        client = await connect()
        for validate_only in (False, True):
            found, message = await alter(client, name, change, validate_only=validate_only)
            assert found == error
            assert words.replace("no regular", "not a regular") in message
        assert served.first.gateway.subscriptions == {}
        twice = (("metrics", SET, "a."), ("metrics", SET, "b."))
        assert (await alter(client, "s", *twice))[0] == code.INVALID_REQUEST
        assert await alter(client, "s", ("metrics", SET, "*"), validate_only=True) == (code.NONE, "")
        assert served.first.gateway.subscriptions == {}


@in_virtual_time
async def test_there_are_so_many_subscriptions_and_no_more() -> None:
    async with listening() as (served, connect):
        client = await connect()
        for number_ in range(SUBSCRIPTIONS_MAX):
            await subscribe(client, f"s{number_}", metrics="*")
        refused = await alter(client, "one-more", ("metrics", SET, "*"))
        assert refused == (code.INVALID_REQUEST, "there are 100 subscriptions to clients' metrics already")
        await subscribe(client, "s7", metrics="a.")  # those that are there change all the same
        assert len(served.first.gateway.subscriptions) == SUBSCRIPTIONS_MAX
        assert (await alter(client, "s7", ("metrics", RESET, None)))[0] == code.NONE
        await subscribe(client, "one-more", metrics="*")


@in_virtual_time
async def test_it_takes_the_rights_of_the_clusters_configs() -> None:
    async with secured() as (served, connect):
        eve = await as_user(connect, "eve")
        change = ("metrics", SET, "*")
        assert (await alter(eve, "s", change))[0] == code.CLUSTER_AUTHORIZATION_FAILED
        resource = m.DescribeConfigsResource(
            resource_type=CLIENT_METRICS, resource_name="s", configuration_keys=None
        )
        told = await eve.ask(m.DescribeConfigsRequest(resources=[resource]), 32, 4)
        assert told.results[0].error_code == code.CLUSTER_AUTHORIZATION_FAILED
        await give(served, eves(Resource.CLUSTER, CLUSTER_NAME, Operation.ALTER_CONFIGS))
        assert await alter(eve, "s", change) == (code.NONE, "")
        assert (await ask(eve)).requested_metrics == ["*"], "whoever is logged in may push"


# -- what a client is asked for ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_client_is_told_all_that_matches_it_and_the_shortest_interval() -> None:
    async with listening(2) as (served, connect):
        admin, client, other = await connect(0), await connect(0), await connect(1)
        nothing = await ask(client, bytes(16))
        assert (nothing.requested_metrics, nothing.push_interval_ms) == ([], 300_000)
        assert nothing.client_instance_id != bytes(16)
        await subscribe(admin, "a", metrics="a.,b.", interval_ms="60000")
        await subscribe(
            admin, "b", metrics="b.,c.", interval_ms="20000", match="client_software_name=apache.*"
        )
        mine = f"client_source_address=[0-9.a-z-]+,client_instance_id={instance_text(ME)}"
        await subscribe(admin, "c", metrics="d.", interval_ms="30000", match=mine)
        nodes = served.nodes.nodes.values()
        await eventually(lambda: all(len(node.gateway.subscriptions) == 3 for node in nodes))
        told = await ask(client)
        assert (told.error_code, told.requested_metrics) == (code.NONE, ["a.", "b.", "d."])
        assert told.push_interval_ms == 30_000
        assert told.accepted_compression_types == [4, 3, 1, 2]
        assert (told.telemetry_max_bytes, told.delta_temporality) == (PUSH_BYTES_MAX, False)
        same = await ask(other)
        assert same.subscription_id == told.subscription_id, "whichever node is asked"
        ids = {(await ask(client, letter * 16)).subscription_id for letter in (b"x", b"y", b"z")}
        assert len(ids) == 3, "each client has its own"
        software = cluster.ApiVersionsRequest(
            client_software_name="apache-kafka-java", client_software_version="4.3.1"
        )
        await client.ask(software, 18, 3)
        told = await ask(client, b"k" * 16)
        assert (told.requested_metrics, told.push_interval_ms) == (["a.", "b.", "c."], 20_000)
        await subscribe(admin, "all", metrics="*", match="client_software_version=4[.].*")
        assert (await ask(client, b"l" * 16)).requested_metrics == ["*"]
        await subscribe(admin, "all", match="client_software_version=4")
        assert (await ask(client, b"m" * 16)).requested_metrics == ["a.", "b.", "c."], "not the whole of it"


@in_virtual_time
async def test_a_client_may_ask_once_an_interval_and_when_anything_changed() -> None:
    async with listening() as (_, connect):
        client = await connect()
        await subscribe(client, metrics="*", interval_ms="10000")
        first = await ask(client)
        again = await ask(client)
        assert again.error_code == code.THROTTLING_QUOTA_EXCEEDED
        assert (again.requested_metrics, again.subscription_id) == ([], 0)
        await asyncio.sleep(10.0)
        assert (await ask(client)).subscription_id == first.subscription_id
        await subscribe(client, interval_ms="20000")
        changed = await ask(client)
        assert (changed.error_code, changed.push_interval_ms) == (code.NONE, 20_000)
        assert changed.subscription_id != first.subscription_id
        assert await push(client, first.subscription_id, usual()) == code.UNKNOWN_SUBSCRIPTION_ID
        assert (await ask(client)).error_code == code.NONE, "it was told to"
        assert await push(client, changed.subscription_id, usual()) == code.NONE


# -- what is pushed ---------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_what_is_pushed_is_shown_until_the_client_is_silent() -> None:
    async with listening() as (served, connect):
        client = await connect()
        await subscribe(client, metrics="org.apache.kafka.producer.", interval_ms="10000")
        told = await ask(client)
        assert await push(client, told.subscription_id, usual()) == code.NONE
        name = f'client_id="",client_instance_id="{instance_text(ME)}",client_rack="r1"'
        assert shown(served) == [
            f"org_apache_kafka_producer_connection_creation_total{{{name}}} 3.0",
            f'org_apache_kafka_producer_node_request_latency_avg{{{name},node_id="1"}} 1.5',
        ]
        text = served.first.metrics.render().decode()
        assert f"# TYPE {LATENCY.replace('.', '_')} gauge\n" in text
        for line in ("clients 1.0", "points 2.0", "pushes_total 1.0"):
            assert f"antiphon_client_metrics_{line}" in text
        await asyncio.sleep(10.0)
        assert await push(client, told.subscription_id, usual(4)) == code.NONE
        assert shown(served)[0].endswith(" 4.0")
        await asyncio.sleep(29.0)
        assert len(shown(served)) == 2
        await asyncio.sleep(2.0)
        assert shown(served) == []
        assert "antiphon_client_metrics_clients 0.0" in served.first.metrics.render().decode()


@in_virtual_time
async def test_a_client_that_ends_pushes_once_more_and_leaves_nothing() -> None:
    async with listening() as (served, connect):
        client = await connect()
        await subscribe(client, metrics="*")
        subscription = (await ask(client)).subscription_id
        assert await push(client, subscription, usual()) == code.NONE
        assert await push(client, subscription, usual()) == code.THROTTLING_QUOTA_EXCEEDED
        assert await push(client, subscription, usual(), terminating=True) == code.NONE
        assert shown(served) == []
        assert await push(client, subscription, usual(), terminating=True) == code.INVALID_REQUEST


@in_virtual_time
async def test_nothing_is_kept_of_what_is_not_wanted() -> None:
    async with listening() as (served, connect):
        client = await connect()
        nothing = await ask(client)
        assert await push(client, nothing.subscription_id, b"whatever") == code.NONE
        await subscribe(client, metrics=CONNECTIONS)
        told = await ask(client)
        both = usual() + data_of(histogram(CONNECTIONS), gauge("com.acme.x", number(1)))
        assert await push(client, told.subscription_id, both) == code.NONE
        assert len(shown(served)) == 1
        assert (await alter(client, "all", ("metrics", RESET, None)))[0] == code.NONE
        await ask(client)
        assert shown(served) == []


@pytest.mark.parametrize("codec", range(5))
@in_virtual_time
async def test_every_codec_that_is_offered_is_read(codec: int) -> None:
    async with listening() as (served, connect):
        client = await connect()
        await subscribe(client, metrics="*")
        told = await ask(client)
        assert await push(client, told.subscription_id, compress(codec, usual()), compression_type=codec) == 0
        assert len(shown(served)) == 2


def a_million_fields() -> bytes:
    return b"\x78\x01" * (FIELDS_MAX + 1)


@pytest.mark.parametrize(
    ("metrics", "codec", "error"),
    [
        (b"\x0a", 0, code.INVALID_RECORD),  # a length that is missing
        (b"\x0a\xff\xff\xff\xff\x0f", 0, code.INVALID_RECORD),  # and one beyond the end
        (usual()[:-1], 0, code.INVALID_RECORD),
        (usual() + b"\xff" * 11, 0, code.INVALID_RECORD),
        (b"\x0b" * 100_000, 0, code.INVALID_RECORD),  # groups in groups
        (data_of(gauge("x", number(1))).replace(b"x", b"\xff"), 0, code.INVALID_RECORD),  # no UTF-8
        (b"no gzip", GZIP, code.INVALID_RECORD),
        (compress(ZSTD, usual())[:-3], ZSTD, code.INVALID_RECORD),
        (gzip.compress(bytes(UNPACKED_BYTES_MAX + 1)), GZIP, code.TELEMETRY_TOO_LARGE),
        (bytes(PUSH_BYTES_MAX + 1), 0, code.TELEMETRY_TOO_LARGE),
        (a_million_fields(), 0, code.TELEMETRY_TOO_LARGE),
        (usual(), 5, code.UNSUPPORTED_COMPRESSION_TYPE),
    ],
    ids=range(12),
)
@in_virtual_time
async def test_what_is_malformed_or_too_much_is_refused_and_what_was_there_stays(
    metrics: bytes, codec: int, error: int
) -> None:
    async with listening() as (served, connect):
        client = await connect()
        await subscribe(client, metrics="*", interval_ms="10000")
        told = await ask(client)
        assert await push(client, told.subscription_id, usual()) == code.NONE
        before = shown(served)
        await asyncio.sleep(10.0)
        assert await push(client, told.subscription_id, metrics, compression_type=codec) == error
        assert shown(served) == before
        assert "antiphon_client_metrics_refused_total 1.0" in served.first.metrics.render().decode()
        assert (await ask(client)).error_code == (
            code.NONE if error == code.UNSUPPORTED_COMPRESSION_TYPE else code.THROTTLING_QUOTA_EXCEEDED
        )
        await asyncio.sleep(10.0)
        assert await push(client, told.subscription_id, usual(5)) == code.NONE


@in_virtual_time
async def test_a_push_names_a_client_and_its_subscription() -> None:
    async with listening() as (_, connect):
        client = await connect()
        await subscribe(client, metrics="*")
        told = await ask(client)
        assert await push(client, told.subscription_id, usual(), client_instance_id=bytes(16)) == (
            code.INVALID_REQUEST
        )
        wrong = told.subscription_id ^ 1
        assert await push(client, wrong, usual()) == code.UNKNOWN_SUBSCRIPTION_ID
        assert await push(client, told.subscription_id, usual()) == code.THROTTLING_QUOTA_EXCEEDED
        stranger = await push(client, told.subscription_id, usual(), client_instance_id=b"j" * 16)
        assert stranger == code.UNKNOWN_SUBSCRIPTION_ID, "another client's is not its own"


@in_virtual_time
async def test_a_client_may_push_to_a_node_that_it_never_asked() -> None:
    async with listening(2) as (served, connect):
        first, second = await connect(0), await connect(1)
        await subscribe(first, metrics="*")
        nodes = served.nodes.nodes.values()
        await eventually(lambda: all(node.gateway.subscriptions for node in nodes))
        told = await ask(first)
        assert await push(second, told.subscription_id, usual()) == code.NONE


@in_virtual_time
async def test_figures_and_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "CLIENTS_MAX", 3)
    monkeypatch.setattr(kept, "POINTS_MAX", 40)
    monkeypatch.setattr(kept, "CLIENT_POINTS_MAX", 15)
    async with listening() as (served, connect):
        client = await connect()
        await subscribe(client, metrics="*")
        many = data_of(gauge("org.apache.kafka.x", *(number(1, partition=at) for at in range(100))))
        for letter, room in (("a", 15), ("b", 12), ("c", 6)):
            instance = letter.encode() * 16
            told = await ask(client, instance)
            assert await push(client, told.subscription_id, many, client_instance_id=instance) == code.NONE
            of_it = [line for line in shown(served) if instance_text(instance) in line]
            assert len(of_it) == room
        text = served.first.metrics.render().decode()
        assert "antiphon_client_metrics_points 33.0" in text
        assert "antiphon_client_metrics_left_out_total 267.0" in text
        await ask(client, b"d" * 16)
        text = served.first.metrics.render().decode()
        assert "antiphon_client_metrics_clients 3.0" in text
        assert "antiphon_client_metrics_points 18.0" in text, "the one that was silent for longest is gone"


@in_virtual_time
async def test_what_clients_are_called_and_tell_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_BYTES_MAX", 20_000)
    async with listening() as (served, connect):
        client = await connect()
        await subscribe(client, metrics="*")
        context = RequestContext(0, flexible=True, client_id="c" * 32_000, client_host="h")
        handler = served.nodes.servers[0].kafka._handlers.telemetry  # type: ignore[union-attr]
        many = data_of(gauge("org.apache.kafka.x", *(number(1, partition=at) for at in range(500))))
        for at in range(20):
            instance = bytes([at + 1]) * 16
            asked = telemetry.GetTelemetrySubscriptionsRequest(client_instance_id=instance)
            told = await handler.subscriptions(asked, context)
            pushed = telemetry.PushTelemetryRequest(
                client_instance_id=instance,
                subscription_id=told.subscription_id,
                terminating=False,
                compression_type=0,
                metrics=many,
            )
            assert (await handler.push(pushed, context)).error_code == code.NONE
        names = [len(one.attributes["client_id"]) for one in handler.clients.all(system.monotonic_s())]
        assert names == [257] * 20
        assert len(handler.clients.rendered(system.monotonic_s())) < 20_200
        assert handler.clients.kept_bytes <= 20_000


def test_who_makes_up_clients_drives_out_its_own() -> None:
    clients = kept.Clients(lambda: {"s": Subscription("s", {"metrics": "*"})})
    honest = clients.client("honest", "10.0.0.1", {}, 0.0)
    for at in range(kept.CLIENTS_MAX + 50):
        clients.client(f"made up {at}", "10.0.0.2", {}, 1.0 + at / 1e6)
    assert len(clients) == kept.CLIENTS_MAX
    assert clients.client("honest", "10.0.0.1", {}, 2.0) is honest
    before = system.monotonic_s()
    clients.client("one more", "10.0.0.2", {}, 2.0)
    assert system.monotonic_s() - before < 0.5


def test_a_subscription_of_a_later_version_does_not_count() -> None:
    known = {
        "later": Subscription("later", {"metrics": "a.", "colour": "red", "interval.ms": "soon"}),
        "here": Subscription("here", {"metrics": "b."}),
    }
    clients = kept.Clients(lambda: known)
    assert clients.client("x", "h", {}, 0.0).subscribed.metrics == ("b.",)


def test_a_long_text_matches_nothing() -> None:
    known = {"s": Subscription("s", {"metrics": "a.", "match": "client_id=.*"})}
    clients = kept.Clients(lambda: known)
    assert clients.client("x", "h", {"client_id": "c" * 256}, 0.0).subscribed.metrics == ("a.",)
    assert clients.client("y", "h", {"client_id": "c" * 257}, 0.0).subscribed.metrics == ()
