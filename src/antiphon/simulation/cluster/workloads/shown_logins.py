"""Connections to the listeners that look at what each request shows: HTTP's and Oxia's.

They are as the others of `logins`: one connection that asks small questions. The first one says who asks; whoever has too
many connections is told so by the answer to it.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.errors import OverloadedError, UnauthenticatedError
from antiphon.oxia import messages as om
from antiphon.oxia.status import UNAUTHENTICATED
from antiphon.simulation.cluster.kafka_client import NoAnswerError
from antiphon.simulation.cluster.oxia_client import CallError, NoEndError, OxiaClient
from antiphon.simulation.cluster.workloads.lines import TOO_MANY, UNAUTHORIZED, Shown, oxia_client, page_of
from antiphon.simulation.cluster.workloads.logins import Asker, log_in
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.cluster.world import HTTP_PORT

if TYPE_CHECKING:
    from antiphon.security.account import Account
    from antiphon.simulation.runtime.process import Process

WAYS: Final = ("kafka", "native", "http", "oxia")
RECEIVE_BYTES: Final = 65_536
NO_PLACE: Final = "connections open at this node"  # says the answer to who has too many


class HttpAsker:
    """A connection over HTTP that stays."""

    def __init__(
        self, host: str, shown: Shown, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer
        head = f"GET /topics HTTP/1.1\r\nHost: {host}\r\nAuthorization: {shown.authorization}\r\n\r\n"
        self._request = head.encode()

    @property
    def is_over(self) -> bool:
        """See `Asker`."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def ask(self, shard_id: int, *, writes: bool = False) -> bool:  # noqa: ARG002 - as of the others
        """See `Asker`."""
        try:
            return (await self.page())[0] not in {0, TOO_MANY}
        except NoAnswerError:
            return False

    async def page(self) -> tuple[int, bytes]:
        """Status and content of the answer to one request. Raises NoAnswerError."""
        answer = b""
        try:
            async with asyncio.timeout(PATIENCE_S):
                self._writer.write(self._request)
                while not (found := page_of(answer))[0]:
                    data = await self._reader.read(RECEIVE_BYTES)
                    if not data:
                        raise NoAnswerError("the node has hung up")
                    answer += data
        except (OSError, TimeoutError) as error:
            raise NoAnswerError(str(error)) from error
        return found

    async def close(self) -> None:
        """Hang up."""
        self._writer.transport.abort()


class OxiaAsker:
    """A connection of Oxia's protocol."""

    def __init__(self, client: OxiaClient) -> None:
        self._client = client
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """See `Asker`: whether the node has hung up shows when it is asked."""
        return self._is_over

    async def ask(self, shard_id: int, *, writes: bool = False) -> bool:  # noqa: ARG002 - as of the others
        """See `Asker`."""
        try:
            await self.read(shard_id)
        except CallError as error:
            return NO_PLACE not in str(error)
        except NoEndError:
            self._is_over = True
            return False
        return True

    async def read(self, shard_id: int) -> None:
        """Raises CallError, NoEndError."""
        if self._is_over:
            raise NoEndError("the connection is closed")
        request = om.ReadRequest(shard=shard_id, gets=[om.GetRequest(key=b"k")])
        await self._client.call("Read", request, om.ReadResponse, PATIENCE_S)

    async def close(self) -> None:
        """Hang up."""
        self._is_over = True
        self._client.hang_up()


AnyAsker = Asker | HttpAsker | OxiaAsker


async def log_in_by(process: "Process", host: str, account: "Account", way: str) -> AnyAsker:
    """`log_in` by one of `WAYS`, with the same errors; by HTTP and Oxia's protocol the process has to be shielded."""
    if way == "http":
        return await _log_in_by_http(host, account)
    if way == "oxia":
        return await _log_in_by_oxia(process, host, account)
    return await log_in(process, host, account, kafka=way == "kafka")


async def _log_in_by_http(host: str, account: "Account") -> HttpAsker:
    try:
        async with asyncio.timeout(PATIENCE_S):
            streams = await asyncio.open_connection(host, HTTP_PORT)
    except (OSError, TimeoutError) as error:
        raise NoAnswerError(str(error)) from error
    made = HttpAsker(host, Shown(account.user, account.password), *streams)
    try:
        status, said = await made.page()
        if status == TOO_MANY:
            raise OverloadedError(said.decode())
        if status == UNAUTHORIZED:
            raise UnauthenticatedError(said.decode())
    except BaseException:
        await made.close()
        raise
    return made


async def _log_in_by_oxia(process: "Process", host: str, account: "Account") -> OxiaAsker:
    client = oxia_client(process, host)
    client.metadata = {"authorization": Shown(account.user, account.password).authorization}
    made = OxiaAsker(client)
    try:
        await made.read(0)
    except CallError as error:
        if NO_PLACE in str(error):
            await made.close()
            raise OverloadedError(str(error)) from error
        if error.code == UNAUTHENTICATED:
            await made.close()
            raise UnauthenticatedError(str(error)) from error
    except NoEndError as error:
        await made.close()
        raise NoAnswerError(str(error)) from error
    return made
