"""A browser without eyes: asks nodes in virtual time for pages of the dashboard."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from antiphon.node.config import Ports
from tests.node.in_process import KAFKA_PORT, NATIVE_PORT, Nodes, cluster_of

HTTP_PORT = 7480


class Page(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


@asynccontextmanager
async def served(count: int = 3, **config: Any) -> AsyncIterator[Nodes]:
    """Whole nodes in virtual time, each with its dashboard."""
    async with cluster_of(count, ports=Ports(NATIVE_PORT, KAFKA_PORT, -1, HTTP_PORT), **config) as nodes:
        yield nodes


async def send(request: bytes, node: int = 0) -> Page:
    reader, writer = await asyncio.open_connection(f"node-{node}", HTTP_PORT, limit=2**23)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    named = (line.partition(": ") for line in lines)
    return Page(int(first.split()[1]), {name.lower(): value for name, _, value in named}, body.decode())


async def page(path: str, node: int = 0, **headers: str) -> Page:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return await send(
        f"GET {path} HTTP/1.1\r\nHost: node-{node}\r\n{more}Connection: close\r\n\r\n".encode(), node
    )
