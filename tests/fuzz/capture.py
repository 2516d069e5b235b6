"""Makes the kept inputs of listeners from what real clients send: `python -m tests.fuzz.capture`.

Real nodes write down what Confluent's client, aiokafka and Antiphon's own client send them: whole connections up to
`CONNECTION_MESSAGES`, and each kind of request once.
"""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import antiphon
from antiphon.kafka.connection import Connection
from antiphon.model.requests import AlterUser, Hello
from antiphon.native.keyed_session import KeyedSession
from antiphon.native.session import NativeSession
from antiphon.security.passwords import credentials
from antiphon.security.settings import Security
from antiphon.wire.frames import Frame, decode_request
from tests.fuzz.target import CORPUS, name_of
from tests.fuzz.targets.nodes import FRAMED, GREETED, input_of
from tests.kafka.served import Served, serve

CONNECTION_MESSAGES: Final = 10
MESSAGE_BYTES_MAX: Final = 1500
INPUT_BYTES_MAX: Final = 4000
PASSWORD: Final = "of root"
REQUESTS: Final = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n",
    b"GET /status?a=b HTTP/1.1\r\n\r\nGET /topics HTTP/1.1\r\n\r\n",
    b"HEAD /healthz HTTP/1.0\r\n\r\n",
    b"POST /topics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /topics HTTP/1.1\r\nAuthorization: Basic cm9vdDpvZiByb290\r\n\r\n",
    b"GET /topics HTTP/1.1\r\nAuthorization: Bearer a.b.c\r\n\r\n",
    b"GET /nothing HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"\x16\x03\x01\x00\x05hello",
)


class Captured:
    """What arrived on each connection, by listener."""

    def __init__(self) -> None:
        self.kafka: defaultdict[int, list[bytes]] = defaultdict(list)
        self.native: defaultdict[int, list[bytes]] = defaultdict(list)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this is open, requests are written down on their way."""
        handle, received = Connection._handle, NativeSession.received
        kept: list[Any] = []  # so that no two connections get one id

        def kafka(connection: Connection, frame: memoryview) -> None:
            kept.append(connection)
            self.kafka[id(connection)].append(bytes(frame))
            handle(connection, frame)

        def native(session: NativeSession, connection: Any, frame: Frame) -> None:
            if not isinstance(session, KeyedSession) and session.peer_id is None:
                kept.append(session)
                head = len(frame.header).to_bytes(2, "big")
                self.native[id(session)].append(head + bytes(frame.header) + bytes(frame.payload))
            received(session, connection, frame)

        with patch.object(Connection, "_handle", kafka), patch.object(NativeSession, "received", native):
            yield


def use_kafka(address: str, login: dict[str, Any]) -> None:
    """What Confluent's client sends: metadata, produce, a group, admin requests."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

    common = {"bootstrap.servers": address, **login}
    producer = Producer({**common, "enable.idempotence": True})
    for codec in range(3):
        producer.produce("log", b"value %d" % codec, b"key", partition=0)
    producer.flush(10)
    group = {"group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer({**common, **group, "session.timeout.ms": 6000, "heartbeat.interval.ms": 200})
    consumer.subscribe(["log"])
    for _ in range(10):
        consumer.poll(0.2)
    consumer.commit(offsets=[TopicPartition("log", 0, 1)], asynchronous=False)
    consumer.committed([TopicPartition("log", 0)], timeout=5)
    consumer.close()
    admin = AdminClient(common)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "log")
    asked = (
        *admin.create_topics([NewTopic("made", 1)], request_timeout=5).values(),
        *admin.describe_configs([resource]).values(),
        *admin.describe_consumer_groups(["readers"]).values(),
        admin.list_consumer_groups(),
        admin.describe_cluster(),
        *admin.delete_topics(["made"]).values(),
        *admin.delete_consumer_groups(["readers"]).values(),
    )
    for answer in asked:
        answer.exception(timeout=10)


def use_aiokafka(address: str, login: dict[str, Any]) -> None:
    """What aiokafka sends: the same in other versions."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=address, compression_type="gzip", **login) as producer:
            await producer.send_and_wait("log", b"value", key=b"key", headers=[("h", b"x")], partition=0)
        consumer = AIOKafkaConsumer(
            "log", bootstrap_servers=address, group_id="others", auto_offset_reset="earliest", **login
        )
        async with consumer:
            await asyncio.wait_for(consumer.getone(), 10)

    asyncio.run(run())


def use_native(address: str, login: dict[str, Any]) -> None:
    """What Antiphon's own client sends."""
    with antiphon.connect(address, **login) as db:
        db.create_topic("other", shards=1)
        topic = db.topic("log")
        at = topic.append(b"value", key=b"key", shard=0)
        topic.offsets(0)
        list(topic.read(0, at.offset))
        db.create_table("book", shards=1)
        table = db.table("book")
        version = table.put("key", b"value")
        table.put("key", b"again", expected_version=version.id)
        table.get("key")
        list(table.scan())
        table.delete("key")
        table.delete_range("a", "b")
        db.alter_topic("log", config={"retention.ms": "-1"})
        db.delete_table("book")


def keep(target: str, inputs: "list[bytes]") -> None:
    """Write the inputs of a target to its folder."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        if len(data) <= INPUT_BYTES_MAX:
            (folder / name_of(data)).write_bytes(data)


def prefixes(connections: "dict[int, list[bytes]]", how: int) -> list[bytes]:
    """The beginnings of connections, without what is very long."""
    return [
        input_of(how, *[one for one in messages[:CONNECTION_MESSAGES] if len(one) <= MESSAGE_BYTES_MAX])
        for messages in connections.values()
    ]


def kinds(messages: "list[bytes]", key: Any) -> list[bytes]:
    """The first message of each kind."""
    found: dict[Any, bytes] = {}
    for message in messages:
        if len(message) <= MESSAGE_BYTES_MAX:
            found.setdefault(key(message), message)
    return list(found.values())


def native_kind(message: bytes) -> type:
    """What a native message is about."""
    size = int.from_bytes(message[:2], "big")
    return type(decode_request(message[2 : 2 + size])[1])


def used(served: Served, captured: Captured, logins: "list[tuple[dict[str, Any], dict[str, Any]]]") -> None:
    """All clients, with each login."""
    for confluent, aiokafka in logins:
        use_kafka(served.address, confluent)
        use_aiokafka(served.address, aiokafka)


def capture() -> None:
    """Everything; the folders of the targets are filled."""
    captured = Captured()
    with tempfile.TemporaryDirectory() as folder, captured.listening(), serve(Path(folder)) as served:
        served.create("log", 2)
        used(served, captured, [({}, {})])
        use_native(served.node.meta().native, {})
    kafka = kinds([one for many in captured.kafka.values() for one in many], lambda one: one[:4])
    native = kinds([one for many in captured.native.values() for one in many], native_kind)
    keep("kafka-requests", kafka)
    keep("kafka", [input_of(FRAMED, one) for one in kafka] + prefixes(captured.kafka, FRAMED))
    keep("native", [input_of(FRAMED | GREETED, one) for one in native if native_kind(one) is not Hello])
    keep("native", prefixes(captured.native, FRAMED))
    captured = Captured()
    security = Security(authentication=True, super_users=["User:root"])
    with (
        tempfile.TemporaryDirectory() as folder,
        captured.listening(),
        serve(Path(folder), security=security) as served,
    ):
        made = AlterUser("root", credentials(PASSWORD))
        served.call(lambda: served.node.gateway.administer(made))
        served.create("log", 2)
        used(served, captured, [_login(name) for name in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")])
        use_native(served.node.meta().native, {"user": "root", "password": PASSWORD})
    keep("kafka-login", prefixes(captured.kafka, FRAMED)[:30])
    keep("native-login", prefixes(captured.native, FRAMED))
    for target in ("http", "http-login"):
        keep(target, [input_of(0, one) for one in REQUESTS] + [input_of(0, *REQUESTS[:4])])


def _login(mechanism: str) -> tuple[dict[str, Any], dict[str, Any]]:
    confluent = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    aiokafka = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    return (
        {**confluent, "sasl.username": "root", "sasl.password": PASSWORD},
        {**aiokafka, "sasl_plain_username": "root", "sasl_plain_password": PASSWORD},
    )


if __name__ == "__main__":
    capture()
