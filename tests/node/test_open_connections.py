"""The quota `connections` at every listener, in virtual time: who is turned away, how, and who never is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import pytest
import structlog

from antiphon.client.connection import Connection, open_connection
from antiphon.errors import OverloadedError
from antiphon.gateway.quotas import Use
from antiphon.kafka.api import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from antiphon.kafka.messages.cluster import ApiVersionsRequest
from antiphon.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from antiphon.model.access import Acl, Operation, Resource
from antiphon.model.quotas import DEFAULT, Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser, GetStatus
from antiphon.node.config import Ports
from antiphon.security.account import Account
from antiphon.security.client_login import ClientLogin
from antiphon.security.passwords import credentials
from antiphon.security.settings import Security
from tests.kafka.raw import RawClient
from tests.node.in_process import KAFKA_PORT, Nodes, cluster_of, eventually, in_virtual_time

HTTP_PORT = 7480
PORTS = Ports(7400, KAFKA_PORT, -1, HTTP_PORT)
ROOT, EVE, BOB = (Account(name, f"of {name}") for name in ("root", "eve", "bob"))
SECURITY = Security(authentication=True, super_users=["User:root"])


async def limit(nodes: Nodes, quota: Quota, gone: tuple[str, ...] = ()) -> None:
    await nodes.nodes[0].gateway.administer(AlterQuota(quota, gone))
    after = quota if quota.limits else None
    await eventually(
        lambda: all(node.gateway.access.quotas.get(quota.key) == after for node in nodes.nodes.values())
    )


@asynccontextmanager
async def secured() -> AsyncIterator[Nodes]:
    async with cluster_of(1, security=SECURITY, ports=PORTS) as nodes:
        gateway = nodes.nodes[0].gateway
        for account in (ROOT, EVE, BOB):
            await gateway.administer(AlterUser(account.user, credentials(account.password)))
        see = (Acl(f"User:{one}", Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE) for one in ("eve",))
        await gateway.administer(AlterAcls(tuple(see)))
        await eventually(lambda: "bob" in nodes.nodes[0].view.access.users)
        yield nodes


class Clients:
    """What connects, and hangs up at the end."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._natives: list[Connection] = []

    async def native(self, account: Account | None = None, node: int = 0) -> Connection:
        self._natives.append(await open_connection(f"node-{node}:7400", "test", None, account))
        return self._natives[-1]

    async def kafka(self) -> RawClient:
        return RawClient(*await self._open(KAFKA_PORT))

    async def page(self, path: str, login: str = "") -> str:
        """The head of the answer. The connection stays open, if the node leaves it open."""
        reader, writer = await self._open(HTTP_PORT)
        told = f"Authorization: Basic {login}\r\n" if login else ""
        writer.write(f"GET {path} HTTP/1.1\r\n{told}\r\n".encode())
        return (await reader.readuntil(b"\r\n\r\n")).decode()

    async def _open(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("node-0", port)
        self._writers.append(writer)
        return reader, writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()
        for client in self._natives:
            await client.close()


async def logs_in(client: RawClient, account: Account, *, bare: bool = False) -> bool:
    """Is the login answered? False: the node hung up where it should have told that it succeeded."""
    handshake = SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
    assert (await client.ask(handshake, SASL_HANDSHAKE, 0 if bare else 1)).error_code == 0
    login = ClientLogin(account, ("SCRAM-SHA-256",), "node-0")
    message: bytes | None = login.first()
    try:
        while message is not None:
            if bare:
                client.writer.write(len(message).to_bytes(4, "big") + message)
                message = login.next(await client.frame())
            else:
                told = await client.ask(SaslAuthenticateRequest(auth_bytes=message), SASL_AUTHENTICATE, 1)
                assert told.error_code == 0
                message = login.next(told.auth_bytes)
    except asyncio.IncompleteReadError:
        return False
    return login.is_proved


@in_virtual_time
async def test_all_listeners_together_without_logins() -> None:
    async with cluster_of(2, ports=PORTS) as nodes, Clients() as clients:
        quotas = nodes.servers[0].quotas
        first = await clients.native()
        await limit(nodes, Quota(DEFAULT, connections=3.0))
        second, third = await clients.kafka(), await clients.native()
        await second.ask(ApiVersionsRequest(), API_VERSIONS, 1)
        with (
            structlog.testing.capture_logs() as lines,
            pytest.raises(OverloadedError, match="'ANONYMOUS' has 3"),
        ):
            await clients.native()
        told_of = [line for line in lines if line["event"] == "too_many_connections_of_a_user"]
        assert [(one["user"], one["open"], one["limit"]) for one in told_of] == [("ANONYMOUS", 3, 3.0)]
        assert await (await clients.kafka()).is_closed()
        told = await clients.page("/topics")
        assert told.startswith("HTTP/1.1 429 ")
        assert "Retry-After: 1\r\n" in told
        assert "Connection: close\r\n" in told
        assert (await clients.page("/healthz")).startswith("HTTP/1.1 200 "), (
            "monitors always hear how the node is"
        )
        assert quotas.waits[Use.OPEN_CONNECTION] == 3
        text = nodes.nodes[0].metrics.render().decode()
        assert "antiphon_quota_open_connection_throttled_total 3" in text
        await first.request(GetStatus())
        await second.ask(ApiVersionsRequest(), API_VERSIONS, 1)
        await clients.native(node=1)
        await third.close()
        await eventually(lambda: quotas._places["ANONYMOUS"] == 2)
        assert (await clients.page("/topics")).startswith("HTTP/1.1 200 ")
        with pytest.raises(OverloadedError):
            await clients.native()
        await limit(nodes, Quota(DEFAULT), ("connections",))
        await clients.native()
        await clients.native()
    assert not quotas._places


@in_virtual_time
async def test_nodes_come_and_go_as_they_like() -> None:
    async with cluster_of(3) as nodes:
        await limit(nodes, Quota(DEFAULT, connections=1.0))
        nodes.kill(1)
        await nodes.start(1)
        await eventually(nodes.nodes[1].agent.registered.is_set)
        assert not any(server.quotas.waits[Use.OPEN_CONNECTION] for server in nodes.servers.values())


@in_virtual_time
async def test_a_login_is_refused_where_its_user_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.security.session.is_loopback", lambda _: True)  # so that Basic is taken
    async with secured() as nodes, Clients() as clients:
        await limit(nodes, Quota("eve", connections=2.0))
        quotas = nodes.servers[0].quotas
        first, second = await clients.native(EVE), await clients.kafka()
        assert await logs_in(second, EVE)
        with pytest.raises(OverloadedError, match=r"'eve' has 2 connections open .* may have 2"):
            await clients.native(EVE)
        for bare in (False, True):
            assert not await logs_in(await clients.kafka(), EVE, bare=bare), (
                "hung up on, as above a limit of Kafka's"
            )
        eve, root = "ZXZlOm9mIGV2ZQ==", "cm9vdDpvZiByb290"
        assert (await clients.page("/topics", eve)).startswith("HTTP/1.1 429 ")
        assert quotas.waits[Use.OPEN_CONNECTION] == 4
        assert await logs_in(second, EVE), "who logs in again has a place already"
        for account in (BOB, BOB, BOB, ROOT):
            await clients.native(account)
        assert (await clients.page("/topics", root)).startswith("HTTP/1.1 200 ")
        await first.close()
        await eventually(lambda: quotas._places["eve"] == 1)
        assert (await clients.page("/topics", eve)).startswith("HTTP/1.1 200 ")


@in_virtual_time
async def test_super_users_always_have_a_place() -> None:
    """Or nobody could take a quota back that shuts everybody out."""
    async with secured() as nodes, Clients() as clients:
        await limit(nodes, Quota(DEFAULT, connections=1.0))
        await clients.native(BOB)
        with pytest.raises(OverloadedError):
            await clients.native(BOB)
        for _ in range(3):
            client = await clients.native(ROOT)
        await client.request(AlterQuota(Quota(DEFAULT), ("connections",)))
        await eventually(lambda: not nodes.nodes[0].gateway.access.quotas)
        await clients.native(BOB)
