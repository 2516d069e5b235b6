"""Nothing expires unless a topic asks for it, and who appends records that have expired already is heard of."""

import pytest
import structlog

from antiphon import system
from antiphon.model.requests import CreateTopic
from antiphon.node.node import Node
from antiphon.records.builder import RecordInput, build_batch
from tests.node.in_process import cluster_of, in_virtual_time

DAY_MS = 24 * 3600 * 1000


def clicks(age_ms: int) -> bytearray:
    """Three records that are so old."""
    stamp_ms = system.wall_ms() - age_ms
    records: list[RecordInput] = [(None, b"click %d" % number, [], stamp_ms) for number in range(3)]
    return build_batch(records)


async def new_topic(node: Node, **config: str) -> int:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    topic = await node.gateway.create_topic(CreateTopic("clicks", replicas=1, config=settings))
    return topic.shards[0].shard_id


@in_virtual_time
async def test_a_topic_that_was_told_nothing_keeps_records_of_last_year() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        shard_id = await new_topic(node)
        await node.gateway.append(shard_id, clicks(8 * DAY_MS))
        await node.gateway.append(shard_id, clicks(400 * DAY_MS))
        node.shards.apply_retention()
        assert (node.hosts[shard_id].log.log_start, node.metrics.expired_appends) == (0, 0)


@in_virtual_time
async def test_records_that_have_expired_already_are_counted_and_told_of_once_a_minute() -> None:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        shard_id = await new_topic(node, retention_ms=str(7 * DAY_MS))
        await node.gateway.append(shard_id, clicks(0))
        await node.gateway.append(shard_id, clicks(6 * DAY_MS))
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                await node.gateway.append(shard_id, clicks(8 * DAY_MS))
        told = [line for line in lines if line["event"] == "expired_records_appended"]
        assert [(line["log_level"], line["shard"], line["retention_ms"]) for line in told] == [
            ("warning", shard_id, 7 * DAY_MS)
        ]
        assert told[0]["age_ms"] == pytest.approx(8 * DAY_MS, abs=60_000)
        assert node.metrics.expired_appends == 3
        assert b"antiphon_expired_appends_total 3.0" in node.metrics.render()


@in_virtual_time
async def test_the_age_of_records_is_what_retention_goes_by() -> None:
    """As in Kafka: by the newest timestamp of a segment, whenever it was appended."""
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        shard_id = await new_topic(node, retention_ms=str(7 * DAY_MS))
        await node.gateway.append(shard_id, clicks(8 * DAY_MS))
        node.shards.apply_retention()
        assert node.hosts[shard_id].log.log_start == 3
