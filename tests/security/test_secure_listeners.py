"""A node whose listeners take TLS only, and clients that people have: confluent-kafka, aiokafka, openssl, curl."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from antiphon.security.settings import Security, Tls
from antiphon.server.server import Server
from tests.node.loop_in_thread import LoopInThread
from tests.node.real_nodes import Nodes
from tests.security.certificates import authority, server_files


class Secure(LoopInThread):
    """One node on a loop in a thread, with TLS on all three listeners; `encrypts` of False: without."""

    def __init__(
        self,
        directory: Path,
        *,
        client_auth: str = "none",
        encrypts: bool = True,
        security: Security | None = None,
    ) -> None:
        super().__init__()
        self.directory = directory
        self.authority = directory / "node-0" / "authority.pem"
        if security is None:
            tls = server_files(directory / "node-0", client_auth)
            security = Security(tls=tls if encrypts else Tls())
        self.call(self._start(security))

    async def _start(self, security: Security) -> None:
        self.nodes = Nodes(self.directory, 1, {}, kafka=True, http=True, security=security)
        await self.nodes.start_all()
        meta = self.nodes.nodes[0].meta()
        self.native, self.kafka, self.http = meta.native, meta.kafka, meta.http

    @property
    def server(self) -> Server:
        return self.nodes.servers[0]

    def stop(self) -> None:
        self.call(self.nodes.close())
        super().stop()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    made = Secure(tmp_path_factory.mktemp("secure"))
    yield made
    made.stop()


VALUES = [bytes([65 + i % 26]) * size for i, size in enumerate((1, 100, 70_000, 900_000, 3))]


def test_confluent_kafka_writes_and_reads(secure: Secure) -> None:
    settings = {
        "bootstrap.servers": secure.kafka,
        "security.protocol": "SSL",
        "ssl.ca.location": str(secure.authority),
    }
    producer = Producer({**settings, "enable.idempotence": True})
    for value in VALUES:
        producer.produce("confluent", value)
    assert producer.flush(20) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["confluent"])
    found: list[bytes] = []
    for _ in range(300):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
        if len(found) == len(VALUES):
            break
    consumer.close()
    assert found == VALUES


def test_confluent_kafka_refuses_a_node_that_another_authority_signed(secure: Secure, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_bytes(authority("another authority").certificate)
    failures: list[str] = []
    producer = Producer({
        "bootstrap.servers": secure.kafka,
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "other.pem"),
        "error_cb": lambda error: failures.append(str(error)),
    })  # fmt: skip
    producer.produce("confluent", b"x")
    for _ in range(200):
        producer.poll(0.05)
        if failures:
            break
    producer.purge()
    assert "SSL" in "".join(failures)


def test_aiokafka_writes_and_reads(secure: Secure) -> None:
    async def test() -> list[bytes]:
        context = ssl.create_default_context(cafile=str(secure.authority))
        settings = {"bootstrap_servers": secure.kafka, "security_protocol": "SSL", "ssl_context": context}
        producer = AIOKafkaProducer(**settings, max_request_size=2_000_000)
        await producer.start()
        for value in VALUES:
            await producer.send_and_wait("aiokafka", value)
        await producer.stop()
        consumer = AIOKafkaConsumer("aiokafka", **settings, auto_offset_reset="earliest")
        await consumer.start()
        found = [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in VALUES]
        await consumer.stop()
        return found

    assert asyncio.run(test()) == VALUES


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl_asks_for_the_health(secure: Secure) -> None:
    url = f"https://{secure.http}/healthz"
    done = subprocess.run(
        ["curl", "-sS", "--noproxy", "*", "--cacert", str(secure.authority), url],
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b'"healthy":true' in done.stdout
    plain = subprocess.run(
        ["curl", "-sS", "--noproxy", "*", f"http://{secure.http}/healthz"],
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert plain.returncode != 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
@pytest.mark.parametrize(("version", "taken"), [("-tls1_3", True), ("-tls1_2", True), ("-tls1_1", False)])
def test_openssl_shakes_hands(secure: Secure, version: str, taken: bool) -> None:
    for address in (secure.native, secure.kafka, secure.http):
        done = subprocess.run(
            ["openssl", "s_client", "-connect", address, "-CAfile", str(secure.authority), version],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        assert (
            b"Verify return code: 0 (ok)" in done.stdout and b"Cipher is (NONE)" not in done.stdout
        ) == taken


def test_metrics_count_handshakes(secure: Secure) -> None:
    text = secure.server.node.metrics.render().decode()
    assert "antiphon_tls_handshakes_failed_total" in text
    assert secure.server.node.metrics.tls_handshakes > 0
