"""What a node takes from whoever connected to its native port and has not said yet who that is."""

import asyncio
import struct
from typing import Any

import pytest

from antiphon.model.requests import (
    PROTOCOL_VERSION,
    Failure,
    GetMetadata,
    Hello,
    MetadataReply,
    TableGet,
)
from antiphon.native.session import STRANGER_BYTES
from antiphon.security.settings import Security
from antiphon.wire.frames import HEADER_BYTES_MAX, PREFIX
from tests.node.in_process import Nodes, cluster_of, in_virtual_time
from tests.node.test_client_memory import Client, connect


async def closes(client: Client) -> bool:
    try:
        async with asyncio.timeout(5):
            return not await client.reader.read(1)
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def announced(size_bytes: int) -> bytes:
    return PREFIX.pack(size_bytes, size_bytes - 4)


@in_virtual_time
async def test_a_long_frame_before_hello_ends_the_connection_by_its_first_bytes() -> None:
    async with cluster_of(1) as nodes:
        client = await connect(nodes, greets=False)
        client.writer.write(announced(STRANGER_BYTES + 1))
        assert await closes(client)


@in_virtual_time
async def test_after_hello_frames_may_be_long() -> None:
    async with cluster_of(1) as nodes:
        client = await connect(nodes)
        client.send(5, TableGet(1 << 40, (bytes(200_000),) * 9))
        answer = (await client.answered(2))[5]
        assert isinstance(answer, Failure)
        assert answer.code != "invalid_request"


@in_virtual_time
async def test_after_hello_and_before_a_login_they_may_not() -> None:
    async with cluster_of(1, security=Security(authentication=True)) as nodes:
        client = await connect(nodes)
        client.writer.write(announced(STRANGER_BYTES + 1))
        assert await closes(client)


async def answer_to(nodes: Nodes, header: bytes) -> tuple[Client, Any]:
    client = await connect(nodes)
    client.writer.write(PREFIX.pack(4 + len(header), len(header)) + header)
    return client, (await client.answered(2))[1]


@in_virtual_time
async def test_a_million_fields_that_nobody_knows_are_refused_and_the_connection_stays() -> None:
    async with cluster_of(1) as nodes:
        many = 2 * HEADER_BYTES_MAX
        header = b"\x92\x01\xdd" + struct.pack(">I", 3 + many) + b"\xabGetMetadata\xff\x00" + b"\xc0" * many
        client, answer = await answer_to(nodes, header)
        assert isinstance(answer, Failure)
        assert answer.code == "invalid_request"
        client.send(9, GetMetadata())
        assert isinstance((await client.answered(3))[9], MetadataReply)


@pytest.mark.parametrize("count", [1, 3])
@in_virtual_time
async def test_small_requests_may_come_in_one_piece_with_hello(count: int) -> None:
    async with cluster_of(1) as nodes:
        client = await connect(nodes, greets=False)
        client.send(1, Hello(PROTOCOL_VERSION, "t"), *[GetMetadata()] * count)
        assert len(await client.answered(1 + count)) == 1 + count
