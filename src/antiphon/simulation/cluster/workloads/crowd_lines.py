"""Connections of crowds, by any of the four listeners, on which small questions are asked until one side hangs up."""

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from antiphon.oxia import messages as om
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.oxia_client import CallError, NoEndError
from antiphon.simulation.cluster.workloads import logins
from antiphon.simulation.cluster.workloads.lines import OK, oxia_client
from antiphon.simulation.cluster.workloads.logins import UNKNOWN_SHARD
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.cluster.world import HTTP_PORT

if TYPE_CHECKING:
    from antiphon.simulation.cluster.oxia_client import Connection as OxiaConnection
    from antiphon.simulation.cluster.oxia_client import OxiaClient
    from antiphon.simulation.runtime.process import Process

NATIVE, KAFKA, HTTP, OXIA = "native", "kafka", "http", "oxia"
LENGTH: Final = b"content-length:"


class Line(Protocol):
    """A connection that stands."""

    @property
    def is_over(self) -> bool:
        """Has the other side hung up, or this one?"""

    async def ask(self, shard_id: int) -> bool:
        """Was a question answered, to which a shard that does not exist is as good as any?"""

    async def close(self) -> None:
        """Hang up."""


class _HttpLine(asyncio.Protocol):
    """One request after the other on one connection, which the listener ends after half a minute."""

    def __init__(self, host: str) -> None:
        self._request = f"GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[int] | None = None
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = transport  # type: ignore[assignment]  # TCP gives a Transport

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._received += data
        head, found, body = bytes(self._received).partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(LENGTH)]
        if found and lengths and len(body) >= (size := int(lengths[0].removeprefix(LENGTH))):
            del self._received[: len(head) + len(found) + size]
            self._told(int(head.split(b" ", 2)[1]))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """See asyncio."""
        self.is_over = True
        self._told(0)

    def _told(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)

    async def ask(self, shard_id: int) -> bool:  # noqa: ARG002 - as the others
        """See `Line`."""
        if self.is_over or self._transport is None:
            return False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._answer == OK
        except TimeoutError:
            return False

    async def close(self) -> None:
        """See `Line`."""
        self.is_over = True
        if self._transport is not None:
            self._transport.abort()


class _OxiaLine:
    """Calls on one connection of Oxia's protocol."""

    def __init__(self, client: "OxiaClient", connection: "OxiaConnection") -> None:
        self._client = client
        self._connection = connection

    @property
    def is_over(self) -> bool:
        """See `Line`."""
        return self._connection.closed

    async def ask(self, shard_id: int) -> bool:
        """See `Line`."""
        if self.is_over:
            return False
        try:
            await self._client.call("Read", om.ReadRequest(shard=shard_id, gets=[]), om.ReadResponse)
        except CallError:
            return True
        except NoEndError:
            return False
        return True

    async def close(self) -> None:
        """See `Line`."""
        self._client.hang_up()


async def connect(process: "Process", host: str, listener: str) -> Line:
    """Connect where nobody has to log in, and ask something. Raises NoAnswerError."""
    if listener in {NATIVE, KAFKA}:
        return await logins.connect(process, host, kafka=listener == KAFKA)
    made: _HttpLine | _OxiaLine
    try:
        if listener == HTTP:
            dial = asyncio.get_running_loop().create_connection(lambda: _HttpLine(host), host, HTTP_PORT)
            _, made = await asyncio.wait_for(dial, PATIENCE_S)
        else:
            client = oxia_client(process, host)
            made = _OxiaLine(client, await client.connection())
    except (OSError, TimeoutError, NoEndError) as error:
        raise NoAnswerError(str(error)) from error
    if not await made.ask(UNKNOWN_SHARD):
        await made.close()
        raise NoAnswerError(f"{host} has hung up")
    return made
