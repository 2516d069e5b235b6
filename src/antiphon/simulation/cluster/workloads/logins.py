"""Connections, and logins on them, that a workload makes by itself: it wants to know what each of them was told."""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.client.connection import Connection, open_connection
from antiphon.errors import (
    AccessDeniedError,
    AntiphonError,
    NotLeaderError,
    OverloadedError,
    UnauthenticatedError,
    UnknownShardError,
)
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import API_VERSIONS, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from antiphon.kafka.messages import cluster as cm
from antiphon.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from antiphon.model.requests import Fetch
from antiphon.security.account import Account
from antiphon.security.client_login import ClientLogin
from antiphon.security.passwords import SHA_256
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.kafka_client import Connection as KafkaConnection
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.cluster.world import KAFKA_PORT, NATIVE_PORT

if TYPE_CHECKING:
    from antiphon.simulation.cluster.kafka_client import Address
    from antiphon.simulation.runtime.process import Process

PROGRAM: Final = "tenants"  # all of them are the same one
UNKNOWN_SHARD: Final = 1 << 40  # that there is none is an answer, too
HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 1
VERSIONS_VERSION: Final = 3
PRODUCE_VERSION: Final = 9
_VERSIONS: Final = cm.ApiVersionsRequest(client_software_name=PROGRAM, client_software_version="1")
_NOTHING: Final = m.produce_one("nobody-may", b"")


async def log_in_to_kafka(
    kafka: "KafkaClient", address: "Address", account: "Account"
) -> KafkaConnection | None:
    """Log in on the client's connection to a node, which is made where there is none; None: the login is said to be wrong.

    Raises NoAnswerError, also where the node hangs up instead of an answer.
    """
    found = await kafka.connection(address)
    await kafka.send(found, SASL_HANDSHAKE, HANDSHAKE_VERSION, SaslHandshakeRequest(mechanism=SHA_256))
    login = ClientLogin(account, [SHA_256], f"{address[0]}")
    message: bytes | None = login.first()
    while message is not None:
        request = SaslAuthenticateRequest(auth_bytes=message)
        told = await kafka.send(found, SASL_AUTHENTICATE, AUTHENTICATE_VERSION, request)
        if told.error_code == code.SASL_AUTHENTICATION_FAILED:
            return None
        message = login.next(told.auth_bytes)
    return found


class Asker:
    """A connection to a node, by either protocol, that asks small questions.

    `throttle_ms`: what the last answer of Kafka's protocol said of waiting.
    """

    def __init__(self, way: "Connection | tuple[KafkaClient, KafkaConnection]") -> None:
        self._way = way
        self.throttle_ms = 0

    @property
    def is_over(self) -> bool:
        """Has the other side hung up, or this one?"""
        if isinstance(self._way, Connection):
            return self._way.lost is not None
        return self._way[1].closed

    async def ask(self, shard_id: int, *, writes: bool = False) -> bool:
        """Was a question answered? Whatever the answer is: no right is needed to be told that there is none."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                if isinstance(self._way, Connection):
                    await self._way.request(Fetch(shard_id, 0))
                else:
                    await self._ask_kafka(*self._way, writes=writes)
        except (AccessDeniedError, NotLeaderError, UnknownShardError):
            return True
        except (AntiphonError, NoAnswerError, TimeoutError):
            return False
        return True

    async def _ask_kafka(self, kafka: "KafkaClient", connection: "KafkaConnection", *, writes: bool) -> None:
        if writes:
            await kafka.send(connection, PRODUCE, PRODUCE_VERSION, _NOTHING, PATIENCE_S)
            return
        told = await kafka.send(connection, API_VERSIONS, VERSIONS_VERSION, _VERSIONS, PATIENCE_S)
        self.throttle_ms = told.throttle_time_ms

    async def close(self) -> None:
        """Hang up."""
        if isinstance(self._way, Connection):
            await self._way.close()
        else:
            self._way[0].close()


async def connect(process: "Process", host: str, *, kafka: bool) -> Asker:
    """Connect where nobody has to log in, and ask something. Raises NoAnswerError."""
    address = (host, KAFKA_PORT)
    if kafka:
        client = KafkaClient([address], process.random, PROGRAM)
        made = Asker((client, await client.connection(address)))
    else:
        try:
            made = Asker(await open_connection(f"{host}:{NATIVE_PORT}", PROGRAM, None))
        except AntiphonError as error:
            raise NoAnswerError(str(error)) from error
    if not await made.ask(UNKNOWN_SHARD):
        await made.close()
        raise NoAnswerError(f"{host} has hung up")
    return made


async def log_in(process: "Process", host: str, account: Account, *, kafka: bool) -> Asker:
    """Log in on a new connection.

    Raises UnauthenticatedError where the node says that the login is wrong, OverloadedError where it says that the user has
    too many connections (Kafka's protocol has no word for that), and NoAnswerError where it says neither.
    """
    if kafka:
        address = (host, KAFKA_PORT)
        client = KafkaClient([address], process.random, PROGRAM)
        try:
            found = await log_in_to_kafka(client, address, account)
            if found is None:
                raise UnauthenticatedError("authentication failed")
            return Asker((client, found))
        except BaseException:
            client.close()
            raise
    try:
        async with asyncio.timeout(PATIENCE_S):
            return Asker(await open_connection(f"{host}:{NATIVE_PORT}", PROGRAM, None, account))
    except (UnauthenticatedError, OverloadedError):
        raise
    except (AntiphonError, TimeoutError) as error:
        raise NoAnswerError(str(error)) from error
