"""Who guesses passwords has one guess a second on each connection, however many he sends at once, at every listener."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.client.connection import Connection
from antiphon.errors import UnauthenticatedError, UnavailableError
from antiphon.gateway.password_thread import PasswordThread
from antiphon.kafka.messages import security
from antiphon.kafka.schema import encode
from antiphon.model.requests import PROTOCOL_VERSION, AlterUser, Authenticate, Hello
from antiphon.node.config import Ports
from antiphon.oxia import messages as m
from antiphon.oxia.status import UNAUTHENTICATED
from antiphon.security import passwords
from antiphon.security.authenticator import FAILED_DELAY_S, Authenticator
from antiphon.security.settings import Security
from antiphon.simulation.cluster.oxia_client import SERVICES, CallError, OxiaClient
from tests.kafka.raw import RawClient
from tests.node.in_process import KAFKA_PORT, NATIVE_PORT, Nodes, cluster_of, eventually, in_virtual_time

HTTP_PORT, OXIA_PORT = 7480, 6648
RIGHT = "of root"
GUESSES = [f"guess {number}" for number in range(20)] + [RIGHT]  # the right one is the last
SECURITY = Security(authentication=True, super_users=["User:root"])


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The passwords that a node has looked at; each of them was checked in its thread for that."""
    seen: list[str] = []
    in_thread: list[str] = []
    before = Authenticator.check_password

    def look(self: Authenticator, name: str, password: str, *part: Any) -> object:
        seen.append(password)
        return before(self, name, password, *part)

    run = PasswordThread.run

    async def noted(self: PasswordThread, address: str, work: Any, found: Any, password: str) -> object:
        in_thread.append(password)
        return await run(self, address, work, found, password)

    monkeypatch.setattr(Authenticator, "check_password", look)
    monkeypatch.setattr(PasswordThread, "run", noted)
    with patch("antiphon.security.session.is_loopback", lambda _host: True):  # PLAIN is taken
        yield seen
    assert seen == in_thread, "a password takes milliseconds, which the event loop is not to wait for"


@asynccontextmanager
async def guarded() -> AsyncIterator[Nodes]:
    ports = Ports(NATIVE_PORT, KAFKA_PORT, OXIA_PORT, HTTP_PORT)
    async with cluster_of(1, security=SECURITY, ports=ports) as nodes:
        made = AlterUser("root", passwords.credentials(RIGHT))
        await nodes.nodes[0].gateway.administer(made)
        await eventually(lambda: "root" in nodes.nodes[0].view.access.users)
        yield nodes


def plain(password: str) -> bytes:
    return f"\0root\0{password}".encode()


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"root:{password}".encode()).decode()


@in_virtual_time
async def test_over_http(checked: list[str]) -> None:
    async with guarded() as nodes:
        reader, writer = await asyncio.open_connection("node-0", HTTP_PORT)
        began_s = asyncio.get_running_loop().time()
        for guess in GUESSES:
            writer.write(f"GET /status HTTP/1.1\r\nAuthorization: {basic(guess)}\r\n\r\n".encode())
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert asyncio.get_running_loop().time() - began_s >= FAILED_DELAY_S
        assert (checked, nodes.nodes[0].metrics.logins_failed) == (GUESSES[:1], 1)
        writer.close()


@in_virtual_time
async def test_at_the_native_listener(checked: list[str]) -> None:
    async with guarded() as nodes:
        connection = Connection("node-0:7400")
        await asyncio.get_running_loop().create_connection(lambda: connection, "node-0", NATIVE_PORT)
        await connection.request(Hello(PROTOCOL_VERSION, "t"))
        asked = [connection.request(Authenticate(plain(guess), "PLAIN")) for guess in GUESSES]
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(told[0], UnauthenticatedError)
        assert all(isinstance(one, UnauthenticatedError | UnavailableError) for one in told)
        assert (checked, nodes.nodes[0].metrics.logins_failed) == (GUESSES[:1], 1)


@pytest.mark.parametrize("version", [0, 1])  # of SaslHandshake: bare messages, and requests
@in_virtual_time
async def test_at_the_kafka_listener(checked: list[str], version: int) -> None:
    async with guarded() as nodes:
        client = RawClient(*await asyncio.open_connection("node-0", KAFKA_PORT))
        handshake = security.SaslHandshakeRequest(mechanism="PLAIN")
        for guess in GUESSES:
            client.send(17, version, encode(handshake, version, flexible=False))
            if version:
                asked = security.SaslAuthenticateRequest(auth_bytes=plain(guess))
                client.send(36, 1, encode(asked, 1, flexible=False))
            else:
                client.writer.write(len(plain(guess)).to_bytes(4, "big") + plain(guess))
        answers = await client.reader.read()
        assert (checked, nodes.nodes[0].metrics.logins_failed) == (GUESSES[:1], 1)
        assert len(answers) < 1_000
        client.writer.close()


@in_virtual_time
async def test_at_the_oxia_listener(checked: list[str]) -> None:
    async with guarded() as nodes:
        client = OxiaClient([("node-0", OXIA_PORT)], Random(1), "grpc-go/1", SERVICES[1])

        async def guess(password: str) -> int:
            client.metadata = {"authorization": basic(password)}
            try:
                await client.call("Read", m.ReadRequest(shard=1, gets=[]), m.ReadResponse, 60.0)
            except CallError as error:
                return error.code
            return 0

        await client.connection()
        began_s = asyncio.get_running_loop().time()
        told = await asyncio.gather(*map(guess, GUESSES[:5]))
        assert told == [UNAUTHENTICATED] * 5
        assert asyncio.get_running_loop().time() - began_s >= 5 * FAILED_DELAY_S
        assert (checked, nodes.nodes[0].metrics.logins_failed) == (GUESSES[:5], 5)
        assert await guess(RIGHT) != UNAUTHENTICATED, "the connection is also that of others"
        client.hang_up()


@in_virtual_time
async def test_a_user_that_is_made_meanwhile_can_log_in_on_the_same_connection_of_oxia() -> None:
    async with guarded() as nodes:
        client = OxiaClient([("node-0", OXIA_PORT)], Random(1), "grpc-go/1", SERVICES[1])
        client.metadata = {"authorization": "Basic " + base64.b64encode(b"eve:of eve").decode()}
        asked = m.ReadRequest(shard=1, gets=[])
        with pytest.raises(CallError, match=f"^{UNAUTHENTICATED} "):
            await client.call("Read", asked, m.ReadResponse)
        await nodes.nodes[0].gateway.administer(AlterUser("eve", passwords.credentials("of eve")))
        await eventually(lambda: "eve" in nodes.nodes[0].view.access.users)
        await client.call("Read", asked, m.ReadResponse)
        client.hang_up()
