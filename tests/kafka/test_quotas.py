"""Quotas at the Kafka listener: answers say how long to wait, and the connection is not read meanwhile (KIP-219)."""

import asyncio
from typing import Any

from antiphon.gateway.quotas import Use
from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin, cluster
from antiphon.kafka.messages import quotas as m
from antiphon.model.quotas import DEFAULT, LIMITS, Quota
from antiphon.model.requests import AlterQuota
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.raw import RawClient, batch, fetch, listening, produce, produce_body
from tests.node.in_process import eventually, in_virtual_time

TOLERANCE_S = 0.5


async def limit(running: KafkaNodes, quota: Quota) -> None:
    """Set a quota, and wait until all nodes know."""
    await running.first.gateway.administer(AlterQuota(quota))
    await eventually(
        lambda: all(
            node.gateway.access.quotas.get(quota.key) == quota for node in running.nodes.nodes.values()
        )
    )


def now_s() -> float:
    return asyncio.get_running_loop().time()


def ms(answer: Any) -> float:
    return float(answer.throttle_time.total_seconds() * 1000)


async def created(client: RawClient, *names: str, version: int = 7, partitions: int = 1) -> Any:
    wanted = [
        admin.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        for name in names
    ]
    return await client.ask(admin.CreateTopicsRequest(topics=wanted, timeout_ms=1000), 19, version)


@in_virtual_time
async def test_a_producer_over_its_quota_is_told_and_not_read() -> None:
    async with listening() as (running, connect):
        await running.create("t")
        client, other = await connect(), await connect()
        assert ms((await produce(client, "t", batch(b"x" * 10_000)))[1]) == 0
        await limit(running, Quota("ANONYMOUS", producer_byte_rate=1000.0))
        assert ms((await produce(client, "t", batch(b"x" * 5_000)))[1]) == 0, "ten seconds' worth at once"
        began_s = now_s()
        done, answer = await produce(client, "t", batch(b"x" * 10_000))
        assert done.error_code == code.NONE, "what came is taken"
        assert now_s() - began_s < TOLERANCE_S, "and answered at once"
        told_s = ms(answer) / 1000
        assert 4.5 < told_s < 6.0
        sent = client.send(0, 10, produce_body("t", batch(b"y")))
        again = client.send(3, 9, b"\x00\x00\x00\x00\x00")
        await asyncio.sleep(told_s - TOLERANCE_S)
        assert running.end("t") == 3, "the next request waits"
        await client.receive(sent)
        await client.receive(again)
        assert abs(now_s() - began_s - told_s) < TOLERANCE_S
        assert ms((await produce(other, "t", batch(b"x" * 100)))[1]) > 0, "all clients of a user share it"
        quotas = running.listener._config.quotas
        assert quotas.waits[Use.PRODUCE] >= 2
        text = running.first.metrics.render().decode()
        assert "antiphon_quota_produce_throttled_seconds_total " in text


@in_virtual_time
async def test_no_answer_is_wanted_and_the_client_waits_all_the_same() -> None:
    async with listening() as (running, connect):
        await running.create("t")
        await limit(running, Quota(DEFAULT, producer_byte_rate=1000.0))
        client = await connect()
        began_s = now_s()
        client.send(0, 10, produce_body("t", batch(b"x" * 12_000), acks=0))
        await produce(client, "t", batch(b"x"))
        assert 1.5 < now_s() - began_s < 3.5


@in_virtual_time
async def test_a_consumer_over_its_quota_gets_nothing_at_once() -> None:
    async with listening() as (running, connect):
        await running.create("t")
        for _ in range(4):
            await running.append("t", batch(b"x" * 10_000))
        await limit(running, Quota(None, DEFAULT, consumer_byte_rate=1000.0))
        client, other = await connect(), await connect()
        first = await fetch(client, "t", 0)
        assert first.records is not None, "the first batch comes, however large it is"
        began_s = now_s()
        empty = await fetch(other, "t", 1)
        assert not empty.responses, "nothing is read"
        assert ms(empty) > 0
        assert now_s() - began_s < TOLERANCE_S
        await asyncio.sleep(1.0)
        full = await fetch(other, "t", 1)
        assert full.records is not None
        assert (await fetch(await connect(), "t", 2)).throttle_time.total_seconds() > 9


@in_virtual_time
async def test_no_answer_is_larger_than_the_quota_holds() -> None:
    async with listening() as (running, connect):
        await running.create("t")
        for _ in range(40):
            await running.append("t", batch(b"x" * 1_000))
        await limit(running, Quota(DEFAULT, consumer_byte_rate=500.0))
        found = await fetch(await connect(), "t", 0)
        assert 3_000 < sum(len(part) for part in [found.records]) < 6_000


@in_virtual_time
async def test_partitions_that_come_and_go_are_counted() -> None:
    """Newer versions are refused over the quota, older ones carried out and told to wait (KIP-599)."""
    async with listening() as (running, connect):
        await limit(running, Quota("ANONYMOUS", controller_mutation_rate=0.5))
        client = await connect()
        made = await created(client, "a", "b", partitions=3)
        assert [topic.error_code for topic in made.topics] == [0, 0]
        assert made.throttle_time_ms == 0
        made = await created(client, "c", "d")
        assert [topic.error_code for topic in made.topics] == [code.THROTTLING_QUOTA_EXCEEDED] * 2
        assert 1000 < made.throttle_time_ms < 3000
        told = await client.ask(
            cluster.MetadataRequest(topics=[cluster.MetadataRequestTopic(name="n")]), 3, 9
        )
        assert told.topics[0].error_code == 0, "the bucket has filled meanwhile"
        await created(client, "e", "f", version=7)
        old = await created(await connect(), "g", version=4)
        assert (old.topics[0].error_code, old.throttle_time_ms > 0) == (0, True)
        names = {topic.name for topic in running.first.gateway.metadata.topics}
        assert {"a", "b", "g"} <= names
        assert not names & {"c", "d"}
        gone = admin.DeleteTopicsRequest(
            topics=[admin.DeletableTopic(name="a", topic_id=bytes(16))], timeout_ms=1000
        )
        refused = await (await connect()).ask(gone, 20, 6)
        assert refused.responses[0].error_code == code.THROTTLING_QUOTA_EXCEEDED
        more = admin.CreatePartitionsRequest(
            topics=[admin.GrowingTopic(name="a", count=9, assignments=None)],
            timeout_ms=1000,
            validate_only=False,
        )
        grown = await (await connect()).ask(more, 37, 3)
        assert grown.results[0].error_code == code.THROTTLING_QUOTA_EXCEEDED
        wanted = cluster.MetadataRequest(topics=[cluster.MetadataRequestTopic(name="o")])
        hidden = await (await connect()).ask(wanted, 3, 9)
        assert hidden.topics[0].error_code == code.UNKNOWN_TOPIC_OR_PARTITION
        assert hidden.throttle_time_ms > 0


@in_virtual_time
async def test_a_client_that_is_gone_waits_no_more() -> None:
    async with listening() as (running, connect):
        await running.create("t")
        await limit(running, Quota(DEFAULT, producer_byte_rate=100.0))
        client = await connect()
        await produce(client, "t", batch(b"x" * 10_000))
        quotas = running.listener._config.quotas
        assert quotas.muted == 1
        for connection in list(running.listener._connections):
            connection.abort()
        await asyncio.sleep(0.1)
        assert (quotas.muted, running.listener.connections) == (0, 0)


@in_virtual_time
async def test_a_quota_that_is_raised_frees_who_waits() -> None:
    async with listening() as (running, connect):
        await running.create("t")
        await limit(running, Quota(DEFAULT, producer_byte_rate=100.0))
        client = await connect()
        await produce(client, "t", batch(b"x" * 10_000))
        sent = client.send(0, 10, produce_body("t", batch(b"y")))
        await running.first.gateway.administer(AlterQuota(Quota(DEFAULT), LIMITS[:4]))
        began_s = now_s()
        await client.receive(sent)
        assert now_s() - began_s < 2.0


# -- DescribeClientQuotas and AlterClientQuotas -------------------------------------------------------------------------


def part(kind: str, name: str | None) -> m.EntityPart:
    return m.EntityPart(entity_type=kind, entity_name=name)


async def altered(client: RawClient, entity: list[m.EntityPart], *ops: m.QuotaOp, **how: Any) -> int:
    request = m.AlterClientQuotasRequest(
        entries=[m.AlteredEntry(entity=entity, ops=list(ops))], validate_only=how.get("validate_only", False)
    )
    answer = await client.ask(request, 49, how.get("version", 1))
    assert (answer.entries[0].error_message is None) == (answer.entries[0].error_code == 0)
    return int(answer.entries[0].error_code)


def to(key: str, value: float) -> m.QuotaOp:
    return m.QuotaOp(key=key, value=value, remove=False)


async def described(client: RawClient, *filters: tuple[str, int, str | None], strict: bool = False) -> Any:
    components = [m.QuotaFilter(entity_type=kind, match_type=how, match=name) for kind, how, name in filters]
    answer = await client.ask(m.DescribeClientQuotasRequest(components=components, strict=strict), 48, 1)
    if answer.error_code:
        return answer.error_code
    return {
        tuple((one.entity_type, one.entity_name) for one in entry.entity): {
            v.key: v.value for v in entry.values
        }
        for entry in answer.entries
    }


@in_virtual_time
async def test_quotas_are_altered_and_described() -> None:
    async with listening() as (running, connect):
        client = await connect()
        alice, everyone = part("user", "alice"), part("user", None)
        app, ip = part("client-id", "app"), part("ip", "::FFFF:192.0.2.1")
        assert await altered(client, [alice], to("producer_byte_rate", 10), version=0) == 0
        assert await altered(client, [app, alice], to("consumer_byte_rate", 20)) == 0
        assert await altered(client, [everyone], to("request_percentage", 0.5)) == 0
        assert await altered(client, [ip], to("connection_creation_rate", 7)) == 0
        assert await altered(client, [app], to("request_percentage", 5), validate_only=True) == 0
        await eventually(lambda: len(running.first.gateway.access.quotas) == 4)
        of_alice, pair = (("user", "alice"),), (("user", "alice"), ("client-id", "app"))
        of_all, of_ip = (("user", None),), (("ip", "192.0.2.1"),)
        assert await described(client) == {
            of_alice: {"producer_byte_rate": 10.0},
            pair: {"consumer_byte_rate": 20.0},
            of_all: {"request_percentage": 0.5},
            of_ip: {"connection_creation_rate": 7.0},
        }
        assert (await described(client, ("user", 0, "alice"))).keys() == {of_alice, pair}
        assert (await described(client, ("user", 0, "alice"), strict=True)).keys() == {of_alice}
        assert (await described(client, ("user", 1, None))).keys() == {of_all}
        assert (await described(client, ("user", 2, None))).keys() == {of_alice, pair, of_all}
        assert (await described(client, ("ip", 0, "192.0.2.1"))).keys() == {of_ip}
        assert (await described(client, ("client-id", 0, "app"), ("user", 2, None))).keys() == {pair}
        assert await altered(client, [part("user", "bob")], to("connections", 5)) == 0
        assert await altered(client, [alice, app], to("connections", 5)) == code.INVALID_REQUEST
        assert await described(client, ("user", 0, "bob")) == {(("user", "bob"),): {"connections": 5.0}}
        await eventually(lambda: len(running.first.gateway.access.quotas) == 5)
        assert await altered(client, [alice], m.QuotaOp(key="producer_byte_rate", value=0, remove=True)) == 0
        await eventually(lambda: len(running.first.gateway.access.quotas) == 4)


@in_virtual_time
async def test_what_means_nothing_is_refused() -> None:
    async with listening() as (running, connect):
        client = await connect()
        alice, wrong = part("user", "alice"), code.INVALID_REQUEST
        for entity in (
            [],
            [alice, alice],
            [part("group", "g")],
            [part("user", "")],
            [alice, part("ip", "192.0.2.1")],
            [part("ip", "example.org")],
        ):
            key = (
                "connection_creation_rate"
                if any(one.entity_type == "ip" for one in entity)
                else "producer_byte_rate"
            )
            assert await altered(client, entity, to(key, 1)) == wrong
        for ops in (
            [to("no_such_rate", 1)],
            [to("producer_byte_rate", 0)],
            [to("producer_byte_rate", 1.5)],
            [to("connection_creation_rate", 1)],
            [to("request_percentage", float("nan"))],
            [to("request_percentage", 1), to("request_percentage", 2)],
        ):
            assert await altered(client, [alice], *ops) == wrong
            assert await altered(client, [alice], *ops, validate_only=True) == wrong
        for filters in (
            [("group", 2, None)],
            [("user", 9, None)],
            [("user", 0, None)],
            [("user", 1, "alice")],
            [("user", 2, None), ("user", 1, None)],
            [("user", 2, None), ("ip", 2, None)],
        ):
            assert await described(client, *filters) == wrong
        assert not running.first.gateway.access.quotas
