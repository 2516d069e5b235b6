"""Connections of somebody who shows who he is in any way there is, at any of a node's four listeners, and asks to read.

What is asked is answered by `Told`. The native and Kafka's listener take one login for a connection; HTTP's and Oxia's look
at what each request shows.
"""

import asyncio
import base64
import json
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.client.connection import Connection, open_connection
from antiphon.errors import (
    AccessDeniedError,
    AntiphonError,
    NotLeaderError,
    UnauthenticatedError,
    UnknownShardError,
)
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import FETCH, SASL_AUTHENTICATE, SASL_HANDSHAKE
from antiphon.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from antiphon.model.requests import PROTOCOL_VERSION, Failure, Fetch, Hello
from antiphon.oxia import messages as om
from antiphon.oxia.status import PERMISSION_DENIED, UNAUTHENTICATED
from antiphon.security.account import Account
from antiphon.security.authenticator import OAUTHBEARER, PLAIN
from antiphon.security.client_login import ClientLogin
from antiphon.security.passwords import SHA_256
from antiphon.simulation.cluster import kafka_messages as m
from antiphon.simulation.cluster.kafka_client import Connection as KafkaConnection
from antiphon.simulation.cluster.kafka_client import KafkaClient, NoAnswerError
from antiphon.simulation.cluster.oxia_client import SERVICES, CallError, NoEndError, OxiaClient
from antiphon.simulation.cluster.workloads.http import page_or_nothing
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.cluster.world import KAFKA_PORT, NATIVE_PORT, OXIA_PORT
from antiphon.wire.frames import FrameDecoder, decode_reply, encode_message

if TYPE_CHECKING:
    from antiphon.simulation.runtime.process import Process

PROGRAM: Final = "identities"
TOPIC: Final = "of-identities"
TABLE: Final = "identities"
HANDSHAKE_VERSION, AUTHENTICATE_VERSION, FETCH_VERSION = 1, 1, 12
RECEIVE_BYTES: Final = 65_536
OK, UNAUTHORIZED, TOO_MANY = 200, 401, 429
LET_IN: Final = {code.NONE, code.NOT_LEADER_OR_FOLLOWER}


class Told(Enum):
    """What somebody is told who asks to read."""

    LET = "let"
    DENIED = "denied"  # the node knows who it is, and he has no right
    REFUSED = "refused"  # the node does not take him for who he says
    NOTHING = "nothing"


class Shown(NamedTuple):
    """With what a client proves who it is: a password, a token, or nothing (and perhaps a certificate).

    `mechanism`: how Kafka's client sends a password.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    mechanism: str = SHA_256

    @property
    def authorization(self) -> str:
        """As a header says it; empty: it says nothing."""
        if self.token:
            return f"Bearer {self.token}"
        if not self.user:
            return ""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class Place(NamedTuple):
    """Where to ask: a node, the shard of the topic, that of the table."""

    host: str
    topic_shard: int
    table_shard: int


class KafkaLine:
    """A connection to Kafka's listener.

    Attributes:
        logs_in_once: does it ask for the first time as who logs in, and then goes on?
        lifetime_ms: what the node has said of how long the login holds; 0: nothing.
    """

    logs_in_once = True

    def __init__(self, process: "Process", place: Place, shown: Shown) -> None:
        self._address = (place.host, KAFKA_PORT)
        self._shown = shown
        self.kafka = KafkaClient([self._address], process.random, PROGRAM)
        self.connection: KafkaConnection | None = None
        self.lifetime_ms = 0

    async def ask(self) -> Told:
        """Log in, if that has not been done, and read."""
        try:
            if self.connection is None:
                self.connection = await self.kafka.connection(self._address)
                if not await self._log_in(self.connection):
                    return Told.REFUSED
            return await self._read(self.connection)
        except NoAnswerError:
            return Told.NOTHING

    async def _log_in(self, connection: KafkaConnection) -> bool:
        shown = self._shown
        if not shown.authorization:
            return True
        mechanism = OAUTHBEARER if shown.token else shown.mechanism
        request = SaslHandshakeRequest(mechanism=mechanism)
        told = await self.kafka.send(connection, SASL_HANDSHAKE, HANDSHAKE_VERSION, request)
        if told.error_code:
            return False
        login: ClientLogin | None = None
        message: bytes | None = f"\0{shown.user}\0{shown.password}".encode()
        if mechanism != PLAIN:
            account = Account(shown.user, shown.password, shown.token)
            login = ClientLogin(account, [mechanism], self._address[0])
            message = login.first()
        while message is not None:
            step = SaslAuthenticateRequest(auth_bytes=message)
            told = await self.kafka.send(connection, SASL_AUTHENTICATE, AUTHENTICATE_VERSION, step)
            if told.error_code:
                return False
            message = None if login is None else login.next(told.auth_bytes)
        self.lifetime_ms = told.session_lifetime_ms
        return True

    async def _read(self, connection: KafkaConnection) -> Told:
        request = m.fetch_one(TOPIC, 0, 0, 1000, total_bytes=1000, min_bytes=0)
        answer = await self.kafka.send(connection, FETCH, FETCH_VERSION, request)
        error = answer.topics[0].partitions[0].error_code if answer.topics else code.UNKNOWN_SERVER_ERROR
        if error == code.TOPIC_AUTHORIZATION_FAILED:
            return Told.DENIED
        return Told.LET if error in LET_IN else Told.NOTHING

    async def close(self) -> None:
        """Hang up."""
        self.kafka.close()


class NativeLine:
    """A connection to the native listener."""

    logs_in_once = True
    lifetime_ms = 0

    def __init__(self, process: "Process", place: Place, shown: Shown) -> None:  # noqa: ARG002 - as the others
        self._place = place
        self._account = Account(shown.user, shown.password, shown.token)
        self.connection: Connection | None = None

    async def ask(self) -> Told:
        """See `KafkaLine`."""
        if self._account.is_empty and self.connection is None:
            said = await ask_as_nobody(self._place)
            if said is not Told.LET:
                return said
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self.connection is None:
                    address = f"{self._place.host}:{NATIVE_PORT}"
                    self.connection = await open_connection(address, PROGRAM, None, self._account)
        except UnauthenticatedError:
            return Told.REFUSED
        except (AntiphonError, TimeoutError):
            return Told.NOTHING
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.connection.request(Fetch(self._place.topic_shard, 0))
        except AccessDeniedError:
            return Told.DENIED
        except (NotLeaderError, UnknownShardError):
            return Told.LET
        except (AntiphonError, TimeoutError):
            return Told.NOTHING
        return Told.LET

    async def close(self) -> None:
        """Hang up."""
        if self.connection is not None:
            await self.connection.close()


async def ask_as_nobody(place: Place) -> Told:
    """Say hello at the native listener, and ask at once. REFUSED: it asks for a login; LET: for none."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(place.host, NATIVE_PORT)
            try:
                writer.writelines(encode_message(1, Hello(PROTOCOL_VERSION, PROGRAM)))
                writer.writelines(encode_message(2, Fetch(place.topic_shard, 0)))
                return await _second_answer(reader)
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, AntiphonError):
        return Told.NOTHING


async def _second_answer(reader: asyncio.StreamReader) -> Told:
    frames = FrameDecoder()
    while data := await reader.read(RECEIVE_BYTES):
        for frame in frames.feed(data):
            number, body = decode_reply(frame.header)
            if number == 2:
                return (
                    Told.REFUSED if isinstance(body, Failure) and body.code == "unauthenticated" else Told.LET
                )
    return Told.NOTHING


class HttpLine:
    """Requests over HTTP, each on a connection of its own: the topics that the client may see."""

    logs_in_once = False
    lifetime_ms = 0

    def __init__(self, process: "Process", place: Place, shown: Shown) -> None:  # noqa: ARG002 - as the others
        self._host = place.host
        said = shown.authorization
        self._header = f"Authorization: {said}\r\n" if said else ""

    async def ask(self) -> Told:
        """See `KafkaLine`."""
        status, body = page_of(await page_or_nothing(self._host, "/topics", self._header))
        if status == UNAUTHORIZED:
            return Told.REFUSED
        if status != OK:
            return Told.NOTHING
        return Told.LET if any(one["name"] == TOPIC for one in json.loads(body)) else Told.DENIED

    async def close(self) -> None:
        """See `KafkaLine`: there is nothing to be closed."""


def page_of(answer: bytes) -> tuple[int, bytes]:
    """Status and content of an answer; status 0 where the node went away in the middle of it."""
    head, found, body = answer.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if not found or not lengths or len(body) < int(lengths[0].split(b":")[1]):
        return 0, b""
    return int(head.split(b" ", 2)[1]), body


class OxiaLine:
    """Calls of Oxia's protocol on one connection: that of `client`, or a new one."""

    logs_in_once = False
    lifetime_ms = 0

    def __init__(
        self, process: "Process", place: Place, shown: Shown, client: OxiaClient | None = None
    ) -> None:
        self._shard = place.table_shard
        self.client = client or oxia_client(process, place.host)
        said = shown.authorization
        self.client.metadata = {"authorization": said} if said else {}

    async def ask(self) -> Told:
        """See `KafkaLine`."""
        request = om.ReadRequest(shard=self._shard, gets=[om.GetRequest(key=b"k")])
        try:
            await self.client.call("Read", request, om.ReadResponse)
        except NoEndError:
            return Told.NOTHING
        except CallError as error:
            told = {UNAUTHENTICATED: Told.REFUSED, PERMISSION_DENIED: Told.DENIED}
            return told.get(error.code, Told.NOTHING)
        return Told.LET

    async def close(self) -> None:
        """Hang up."""
        self.client.hang_up()


def oxia_client(process: "Process", host: str) -> OxiaClient:
    """A client that asks one node."""
    return OxiaClient([(host, OXIA_PORT)], process.random, "grpc-go/1", SERVICES[0])


Line = KafkaLine | NativeLine | HttpLine | OxiaLine
LINES: Final[tuple[type[Line], ...]] = (KafkaLine, NativeLine, HttpLine, OxiaLine)
