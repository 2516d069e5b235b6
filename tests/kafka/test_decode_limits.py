"""What may be in a request before anything is done for it: frames of strangers, texts, names of topics, elements."""

import asyncio
import struct
from typing import Any

import pytest
from structlog.testing import capture_logs

from antiphon.errors import ProtocolViolationError
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import ELEMENTS_OF, FEW
from antiphon.kafka.apis import APIS
from antiphon.kafka.connection import STRANGER_BYTES
from antiphon.kafka.framing import TAGS_MAX
from antiphon.kafka.messages import admin, cluster, consumer_groups, groups
from antiphon.kafka.primitives import (
    ELEMENTS_MAX,
    TEXT_BYTES_MAX,
    TOPIC_LETTERS_MAX,
    Reader,
    put_compact_nullable_string,
)
from antiphon.kafka.schema import Message, codec, encode
from tests.kafka.raw import batch, listening, produce
from tests.kafka.test_access import as_user, secured
from tests.node.in_process import in_virtual_time

LARGE = STRANGER_BYTES + 1


@pytest.mark.parametrize("begins_with", ["nothing", "ApiVersions"])
@in_virtual_time
async def test_a_large_frame_before_a_login_ends_the_connection(begins_with: str) -> None:
    async with secured() as (served, connect):
        stranger = await connect()
        if begins_with == "ApiVersions":
            await stranger.receive(stranger.send(18, 0, b""))
        with capture_logs() as lines:
            stranger.writer.write(struct.pack(">i", LARGE) + struct.pack(">hhih", 36, 2, 1, -1))
            async with asyncio.timeout(1):  # nothing of the rest has to come
                assert await stranger.is_closed()
        (line,) = (one for one in lines if one["event"] == "kafka connection closed")
        assert "before a login" in line["reason"]
        assert line["client"]
        eve = await as_user(connect, "root")
        await served.create("t")
        done, _ = await produce(eve, "t", batch(bytes(LARGE)))
        assert done.error_code == code.NONE, "who has logged in may send more"


@in_virtual_time
async def test_without_logins_nobody_is_a_stranger() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        done, _ = await produce(await connect(), "t", batch(bytes(LARGE)))
        assert done.error_code == code.NONE


def test_texts_are_as_long_as_kafkas_at_most() -> None:
    for length, is_taken in ((TEXT_BYTES_MAX, True), (TEXT_BYTES_MAX + 1, False)):
        out = bytearray()
        put_compact_nullable_string(out, "x" * length)
        if is_taken:
            assert Reader(memoryview(out)).compact_nullable_string() == "x" * length
        else:
            with pytest.raises(ProtocolViolationError, match=f"a text of {length} bytes"):
                Reader(memoryview(out)).compact_nullable_string()


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (lambda name: cluster.MetadataRequest(topics=[cluster.MetadataRequestTopic(name=name)]), 9),
        (lambda name: admin.DeleteTopicsRequest(topic_names=[name], timeout_ms=1), 5),
        (lambda name: groups.OffsetCommitRequest(
            group_id="g", topics=[groups.CommitTopic(name=name, partitions=[])]
        ), 8),
        (lambda name: consumer_groups.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=[name]
        ), 0),
    ],
)  # fmt: skip
def test_names_of_topics_are_looked_at_up_to_a_length(message: Any, version: int) -> None:
    for letters, is_taken in ((TOPIC_LETTERS_MAX, True), (TOPIC_LETTERS_MAX + 1, False)):
        made = message("x" * letters)
        data = memoryview(encode(made, version, flexible=True))
        kind: type[Message] = type(made)
        read = codec(kind, version, True).read
        if is_taken:
            assert read(Reader(data)) == made
        else:
            with pytest.raises(ProtocolViolationError, match="a topic's name of more than"):
                read(Reader(data))


@in_virtual_time
async def test_a_name_that_is_too_long_for_kafka_is_refused_by_name() -> None:
    async with listening() as (_, connect):
        topic = admin.CreatableTopic(
            name="x" * 250, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        request = admin.CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
        told = await (await connect()).ask(request, 19, 5)
        assert [one.error_code for one in told.topics] == [code.INVALID_TOPIC_EXCEPTION]


def joining(protocols: int) -> groups.JoinGroupRequest:
    return groups.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[groups.JoinProtocol(name=f"p{n}", metadata=b"") for n in range(protocols)],
    )


@in_virtual_time
async def test_each_api_has_its_own_bound_on_elements() -> None:
    async with listening() as (_, connect):
        await (await connect()).ask(joining(900), 11, 3)  # whatever is said: it was read
        client = await connect()
        with capture_logs() as lines:
            client.send(11, 3, encode(joining(1_001), 3, flexible=False))
            assert await client.is_closed()
        assert "more elements than are accepted" in lines[-1]["reason"]
    assert set(ELEMENTS_OF) <= set(APIS)
    assert max(ELEMENTS_OF.values()) < ELEMENTS_MAX


@in_virtual_time
async def test_headers_have_few_fields_that_nobody_knows() -> None:
    async with listening() as (_, connect):
        for tags, is_taken in ((FEW, True), (TAGS_MAX + 1, False)):
            client = await connect()
            header = struct.pack(">hhih", 60, 0, 1, -1) + bytes([tags]) + b"\x63\x00" * tags
            body = header + encode(
                cluster.DescribeClusterRequest(include_cluster_authorized_operations=False), 0, flexible=True
            )
            client.writer.write(struct.pack(">i", len(body)) + body)
            if is_taken:
                await client.receive(1)
            else:
                assert await client.is_closed()
