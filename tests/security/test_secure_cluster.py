"""A cluster that `antiphon up --secure` made, as real processes, and everybody who uses it: Kafka's clients, ours, the
commands, HTTPS, and `openssl s_client` as a judge from outside.
"""

import asyncio
import base64
import json
import os
import re
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

import antiphon
from antiphon.archive.job.plan import Limits
from antiphon.archive.job.run import ArchiveRun, addresses
from antiphon.archive.job.tasks import run_task
from antiphon.client.access import access_with
from antiphon.client.blocking import Cluster
from antiphon.lake.mirror import find_source
from antiphon.model.access import Acl, Operation, Resource
from antiphon.model.requests import AlterAcls
from antiphon.spark.jobs.audit_link import NodeLink
from antiphon.spark.jobs.audit_plan import Scope, plan_audit
from antiphon.spark.option_values import parse_servers
from antiphon.spark.read.options import parse_read
from antiphon.spark.servers import Servers, servers
from antiphon.tools.local_cluster import COMMAND, LocalCluster
from tests.cli import shell

pytestmark = pytest.mark.cluster

OAUTH = """
[security.oauth]
keys = "keys.json"
issuer = "https://issuer.example"
audience = "antiphon"
"""
CLIENT_VARIABLES = ("SERVERS", "TLS", "USER", "PASSWORD", "PASSWORD_FILE", "TOKEN")


class Secure:
    """The cluster, what `antiphon up` said of it, and who may ask it."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self.text = self.antiphon(
            "up", "--secure", "--nodes", "3", "--name", "logs.example", "--detach",
            "--kafka-port", "0", "--oxia-port", "0", "--native-port", "0", "--http-port", "0",
        )  # fmt: skip
        self.antiphon("down")
        self.key = ec.generate_private_key(ec.SECP256R1())
        self._take_tokens()
        self.cluster = LocalCluster.start(directory=directory, any_port=False, options=("--secure",))
        self.authority = directory / "authority.pem"
        self.password = (directory / "admin.password").read_text().strip()

    def _take_tokens(self) -> None:
        """As an operator does: in each node's settings, between two starts."""
        key = {**json.loads(ECAlgorithm.to_jwk(self.key.public_key())), "kid": "k1", "alg": "ES256"}
        for node_id in range(3):
            folder = self.dir / f"node-{node_id}"
            (folder / "keys.json").write_text(json.dumps({"keys": [key]}))
            text = (folder / "node.toml").read_text()
            mechanisms = 'sasl_mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]'
            text, found = re.subn(r"(?m)^(# )?sasl_mechanisms = .*$", mechanisms, text)
            assert found == 1
            (folder / "node.toml").write_text(text + OAUTH)

    def token(self, name: str) -> str:
        claims = {
            "sub": name,
            "iss": "https://issuer.example",
            "aud": "antiphon",
            "exp": int(time.time()) + 300,
        }
        return jwt.encode(claims, self.key, "ES256", headers={"kid": "k1"})

    def antiphon(self, *words: str, stdin: str = "", code: int = 0) -> str:
        """What a command says; it is told where the folder is, and nothing else."""
        done = shell.antiphon(*words, "--dir", str(self.dir), environment=bare(), stdin=stdin, timeout_s=40)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def kafka(
        self, user: str = "admin", password: str = "", mechanism: str = "SCRAM-SHA-256"
    ) -> dict[str, Any]:
        """Settings of librdkafka."""
        return {
            "bootstrap.servers": self.cluster.kafka,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password or self.password,
        }

    def aiokafka(self, mechanism: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.cluster.kafka,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=str(self.authority)),
            "sasl_mechanism": mechanism,
            **more,
        }

    def bearer(self, name: str) -> dict[str, Any]:
        """Settings of librdkafka, which asks for a token when it needs one."""
        told = {
            name: value for name, value in self.kafka(mechanism="OAUTHBEARER").items() if "sasl.u" not in name
        }
        del told["sasl.password"]
        return {**told, "oauth_cb": lambda _config: (self.token(name), time.time() + 300)}


def bare() -> dict[str, str]:
    """An environment without settings of a client."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {f"ANTIPHON_{v}" for v in CLIENT_VARIABLES}
    }


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    made = Secure(tmp_path_factory.mktemp("secure") / "cluster")
    yield made
    made.cluster.stop()


def block(text: str, title: str) -> str:
    """What is to be copied for a kind of client."""
    return text.split(f"\n-- {title}", 1)[1].split("\n", 1)[1].split("\n-- ", 1)[0]


def produce(settings: dict[str, Any], topic: str, values: list[bytes]) -> list[str]:
    """Errors of deliveries."""
    failed: list[str] = []
    producer = Producer({**settings, "acks": "all", "message.timeout.ms": 15_000})
    for value in values:
        producer.produce(
            topic, value, callback=lambda error, _m: failed.append(str(error)) if error else None
        )
    left = producer.flush(20)
    return failed + [f"{left} left"] * bool(left)


def consume(settings: dict[str, Any], topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**settings, "group.id": f"of {topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    until = time.monotonic() + 20
    while len(found) < count and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


async def aiokafka_round(settings: dict[str, Any], topic: str, values: list[bytes]) -> list[bytes]:
    async with AIOKafkaProducer(**settings) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)
    async with AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
        return [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in values]


VALUES = [b"one", b"two" * 50_000, b"three"]


def test_what_up_prints_works_as_it_is(secure: Secure) -> None:
    assert secure.password not in secure.text
    told: dict[str, Any] = {}
    exec(block(secure.text, "Python"), told)  # as a person does
    told["db"].create_topic("copied").append(b"zero")
    told["db"].close()
    target = parse_read({**told["spark_options"], "topic": "copied"}, streaming=False).target
    with Cluster(target.servers, target.timeout_ms) as cluster:
        assert cluster.topic("copied", table=False).name == "copied"
    assert produce(told["confluent"], "copied", VALUES) == []

    async def read() -> list[bytes | None]:
        async with AIOKafkaConsumer("copied", **told["aiokafka"], auto_offset_reset="earliest") as consumer:
            return [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(4)]

    assert asyncio.run(read()) == [b"zero", *VALUES]


def place(secure: Secure) -> Servers:
    """What jobs take for `servers`, as the guide says it."""
    return servers(secure.cluster.native, tls=str(secure.authority), user="admin", password=secure.password)


def test_the_archive_takes_the_settings(secure: Secure, tmp_path: Path) -> None:
    """All of it but Spark, which only spreads the tasks; then the commands that look at it."""
    with connect(secure) as db:
        topic = db.create_topic("kept")
        for number in range(20):
            topic.append(b"%d" % number, shard=0)
    found = addresses(place(secure))
    report = ArchiveRun(found, "kept", str(tmp_path), Limits()).run(lambda tasks: map(run_task, tasks))
    assert report.rows == 20
    assert "kept" in secure.antiphon("archive", "list", "kept")
    assert "1 of 1 files are whole" in secure.antiphon("archive", "verify", "kept")
    with connect(secure) as db:
        assert len(list(db.topic("kept").read(start=0))) == 20


def test_mirrors_and_audits_take_the_settings(secure: Secure) -> None:
    """What they do in the driver before Spark has anything to do, and what an audit reads in its tasks."""
    with connect(secure) as db:
        db.create_topic("seen").append(b"{}", shard=0)
        db.create_table("rows").put("k", b"{}")
    assert find_source(place(secure), "seen", table=False, timeout_ms=20_000)[1] == [0]
    assert find_source(place(secure), "rows", table=True, timeout_ms=20_000)[0].name == "rows"
    with pytest.raises(antiphon.AntiphonError):
        find_source(secure.cluster.native, "seen", table=False, timeout_ms=3_000)
    asked = parse_servers(place(secure))
    plan = plan_audit(asked, Scope(["seen", "__cluster"]))
    assert not plan.findings
    assert sorted(len(shard.replicas) for shard in plan.shards) == [3, 3]
    for shard in plan.shards:
        for replica in shard.replicas:
            link = NodeLink(replica.node, plan.nodes[replica.node], 20_000, access_with(asked))
            assert link.fetch(shard.shard_id, 0)[1]
            link.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_what_up_prints_for_shells_works_as_it_is(secure: Secure) -> None:
    lines = block(secure.text, "shell").strip().replace("antiphon status", "exec $COMMAND status")
    for text, expected in ((lines, "is healthy"), (block(secure.text, "curl"), '"uptime_ms"')):
        environment = {**bare(), "COMMAND": " ".join(COMMAND), "no_proxy": "*"}
        done = subprocess.run(
            ["sh", "-c", text],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=environment,
            cwd="/",
        )
        assert (done.returncode, expected in done.stdout) == (0, True), done.stdout + done.stderr


def test_no_secret_is_on_a_command_line_or_in_a_log(secure: Secure) -> None:
    secrets = [secure.password, (secure.dir / "peer.key").read_text().strip()]
    shown = [
        Path(f"/proc/{node.pid}/cmdline").read_bytes().decode() for node in secure.cluster.nodes.values()
    ]
    shown += [
        Path(f"/proc/{node.pid}/environ").read_bytes().decode() for node in secure.cluster.nodes.values()
    ]
    shown += [file.read_text() for node in secure.cluster.nodes.values() for file in node.dir.glob("node.*")]
    assert any("antiphon" in text for text in shown)
    assert not any(secret in text for secret in secrets for text in shown)
    loose = [file for file in secure.dir.rglob("*") if file.is_file() and file.stat().st_mode & 0o077]
    assert [file.name for file in loose if file.name != "keys.json"] == [], "the test wrote that one itself"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_confluent_kafka_with_a_password(secure: Secure, mechanism: str) -> None:
    topic = f"confluent-{mechanism.lower()}"
    assert produce(secure.kafka(mechanism=mechanism), topic, VALUES) == []
    assert consume(secure.kafka(mechanism=mechanism), topic, len(VALUES)) == VALUES


def test_confluent_kafka_with_a_wrong_password_or_without_tls(secure: Secure) -> None:
    for changed in ({"sasl.password": "guess"}, {"security.protocol": "SASL_PLAINTEXT"}):
        admin = AdminClient({**secure.kafka(), **changed, "log_level": 0})
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=1.5)
    assert AdminClient(secure.kafka()).list_topics(timeout=10).topics is not None


def test_confluent_kafka_with_a_token(secure: Secure) -> None:
    with connect(secure) as db:
        for topic in ("of-carol", "of-others"):
            db.create_topic(topic)
        rights = (
            Acl("User:carol", Resource.TOPIC, "of-carol", Operation.ALL),
            Acl("User:carol", Resource.GROUP, "*", Operation.READ),
        )
        db.run(db.aio.administer(AlterAcls(rights)))
    everybody_lets(secure.bearer("carol"), "of-carol")
    assert produce(secure.bearer("carol"), "of-carol", VALUES) == []
    assert consume(secure.bearer("carol"), "of-carol", len(VALUES)) == VALUES
    failed = produce(secure.bearer("carol"), "of-others", [b"x"])
    assert [error for error in failed if "TOPIC_AUTHORIZATION_FAILED" in error] != []


def everybody_lets(settings: dict[str, Any], topic: str) -> None:
    """Wait until every node knows of the client's rights: a new client asks the node that it is told of."""
    until = time.monotonic() + 20
    for node in settings["bootstrap.servers"].split(","):
        while True:
            admin = AdminClient({**settings, "bootstrap.servers": node})
            if admin.list_topics(topic, timeout=10).topics[topic].error is None:
                break
            assert time.monotonic() < until, f"{node} does not let the client see {topic}"


def connect(secure: Secure, user: str = "admin", password: str = "") -> "antiphon.Client":
    return antiphon.connect(
        secure.cluster.native, tls=secure.authority, user=user, password=password or secure.password
    )


def test_aiokafka_with_a_password_and_with_a_token(secure: Secure) -> None:
    class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
        async def token(self) -> str:
            return secure.token("admin")

    plain = {"sasl_plain_username": "admin", "sasl_plain_password": secure.password}
    for mechanism, more in (
        ("SCRAM-SHA-512", plain),
        ("OAUTHBEARER", {"sasl_oauth_token_provider": Tokens()}),
    ):
        settings = secure.aiokafka(mechanism, **more)
        assert asyncio.run(aiokafka_round(settings, f"aiokafka-{mechanism.lower()}", VALUES)) == VALUES


def test_users_and_lists_by_commands(secure: Secure, tmp_path: Path) -> None:
    said = secure.antiphon("user", "add", "alice", "--generate")
    password = said.rsplit(" ", 1)[1].strip()
    secure.antiphon("acl", "add", "--principal", "User:alice", "--name", "shared", "--operation", "read")
    assert "allow User:alice to read topic shared from *" in secure.antiphon("acl", "list")
    with connect(secure) as db:
        db.create_topic("shared").append(b"for all", shard=0)
    with connect(secure, user="alice", password=password) as db:
        until = time.monotonic() + 5
        while True:
            try:
                assert [record.value for record in db.topic("shared").read()] == [b"for all"]
                break
            except antiphon.AntiphonError:
                assert time.monotonic() < until, "another node has not heard of it"
                time.sleep(0.05)
        with pytest.raises(antiphon.AntiphonError, match="alice"):
            db.topic("shared").append(b"mine", shard=0)
    secure.antiphon("user", "remove", "alice")
    listed = tmp_path / "acls.toml"
    listed.write_text(secure.antiphon("acl", "list", "--toml"))
    assert 'principal = "User:alice"' in listed.read_text()
    secure.antiphon("acl", "remove", "--principal", "User:alice", "--name", "shared", "--operation", "read")
    assert "+ allow User:alice to read topic shared from *" in secure.antiphon("acl", "apply", str(listed))
    assert secure.antiphon("acl", "list", "--toml") == listed.read_text()
    with pytest.raises(antiphon.AntiphonError, match="authentication failed"):
        connect(secure, user="alice", password=password).close()


def fetch(secure: Secure, path: str, authorization: str = "") -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(secure.authority))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    request = urllib.request.Request(f"https://{secure.cluster.nodes[0].http}{path}")
    if authorization:
        request.add_header("Authorization", authorization)
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_https(secure: Secure) -> None:
    good, bad = (
        "Basic " + base64.b64encode(f"admin:{word}".encode()).decode() for word in (secure.password, "guess")
    )
    assert fetch(secure, "/healthz")[0] == 200
    assert fetch(secure, "/status")[0] == 401
    assert fetch(secure, "/status", bad)[0] == 401
    assert fetch(secure, "/status", good)[0] == 200
    assert fetch(secure, "/status", f"Bearer {secure.token('admin')}")[0] == 200
    assert fetch(secure, "/status", f"Bearer {secure.token('nobody')}")[0] == 403


def test_the_leader_is_killed_and_comes_back(secure: Secure) -> None:
    with connect(secure) as db:
        topic = db.create_topic("lively")
        leader = next(each for each in db.metadata().topics if each.name == "lively").shards[0].leader
        for number in range(50):
            topic.append(b"%d" % number, shard=0)
        secure.cluster.kill(leader)
        for number in range(50, 100):
            topic.append(b"%d" % number, shard=0)
        assert produce(secure.kafka(), "lively", [b"%d" % number for number in range(100, 150)]) == []
        secure.cluster.start_node(leader)
        found = [int(record.value or b"-1") for record in topic.read()]
        assert found == list(range(150))
        until = time.monotonic() + 20
        while not _caught_up(db, leader):
            assert time.monotonic() < until, "it proves who it is, and follows again"
            time.sleep(0.05)


def _caught_up(db: "antiphon.Client", node_id: int) -> bool:
    nodes = {node.node_id: node.alive for node in db.metadata().nodes}
    shard = next(each for each in db.metadata().topics if each.name == "lively").shards[0]
    return nodes[node_id] and shard.leader >= 0 and not db.node_status(node_id).metadata_unreadable


# -- the judge from outside ---------------------------------------------------------------------------------------

OPENSSL = shutil.which("openssl")
Shake = Callable[..., tuple[bool, str]]


def shake(address: str, authority: Path, *options: str) -> tuple[bool, str]:
    """Does a listener finish a handshake with these options, and what was said?"""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", address, "-CAfile", str(authority), "-verify_return_error", *options],
        input="Q\n", capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    return done.returncode == 0 and "Cipher is (NONE)" not in said, said


@pytest.mark.skipif(OPENSSL is None, reason="there is no openssl here")
@pytest.mark.parametrize("listener", ["native", "kafka", "http"])
def test_openssl_judges_the_listeners_for_clients(secure: Secure, listener: str) -> None:
    address, authority = getattr(secure.cluster.nodes[1], listener), secure.authority
    host = address.rpartition(":")[0]
    weak = ("-cipher", "ALL@SECLEVEL=0")
    for expected, options in (
        (True, ("-tls1_3", "-verify_ip", host)),
        (True, ("-tls1_2", "-verify_hostname", "logs.example")),
        (True, ("-tls1_2", "-cipher", "ECDHE+AESGCM")),
        (False, ("-tls1_2", "-verify_hostname", "others.example")),
        (False, ("-tls1_1", *weak)),
        (False, ("-tls1", *weak)),
        (False, ("-tls1_2", "-cipher", "AES128-SHA256:AES256-GCM-SHA384")),  # without forward secrecy
        (False, ("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES256-SHA")),  # CBC
        (False, ("-tls1_2", "-cipher", "aNULL:eNULL@SECLEVEL=0")),
    ):
        shaken, said = shake(address, authority, *options)
        assert shaken == expected, (options, said)
    assert not shake(address, secure.dir / "peers-authority.pem", "-tls1_3")[0], "another authority"
    session = secure.dir / f"{listener}.session"
    assert shake(address, authority, "-tls1_3", "-sess_out", str(session))[0]
    assert "Reused" not in shake(address, authority, "-tls1_3", "-sess_in", str(session))[1]


@pytest.mark.skipif(OPENSSL is None, reason="there is no openssl here")
def test_openssl_judges_the_listener_for_nodes(secure: Secure) -> None:
    folder = secure.dir / "node-0"
    peer = json.loads((secure.dir / "cluster.json").read_text())["nodes"][1]["peer"]
    authority = secure.dir / "peers-authority.pem"
    shown = ("-cert", str(folder / "peer.pem"), "-key", str(folder / "peer-tls.key"))
    others = ("-cert", str(folder / "node.pem"), "-key", str(folder / "node.key"))
    for expected, options in ((True, shown), (False, ()), (False, others)):
        shaken, said = shake(peer, authority, "-tls1_2", *options)
        assert shaken == expected, (options, said)
    said = shake(peer, authority, "-tls1_2", *shown)[1]
    assert f"antiphon {secure.cluster.cluster_id[:8]} authority of nodes" in said, (
        "whom it takes certificates of"
    )


def test_a_node_is_added(secure: Secure) -> None:
    node_id = secure.cluster.add_node()
    address = secure.cluster.nodes[node_id].native
    with antiphon.connect(address, tls=secure.authority, user="admin", password=secure.password) as db:
        until = time.monotonic() + 10
        while sum(node.alive for node in db.metadata().nodes) < 4:
            assert time.monotonic() < until
            time.sleep(0.05)
