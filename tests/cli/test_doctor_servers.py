"""What the doctor says of addresses, logins and nodes; what commands say of addresses that do not answer."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon.cli.main import app
from antiphon.errors import AccessDeniedError, AntiphonError, UnavailableError
from antiphon.model.requests import HelloReply
from antiphon.tools import cluster_health, doctor_servers
from antiphon.tools.doctor_servers import Heard, examine_servers, who_listens
from antiphon.tools.local_cluster import LocalCluster
from antiphon.tools.node_clocks import Difference
from antiphon.wire.frames import encode_message

VARIABLES = ("SERVERS", "TLS", "TLS_CERTIFICATE", "TLS_KEY", "USER", "PASSWORD", "PASSWORD_FILE", "TOKEN")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(f"ANTIPHON_{name}", raising=False)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Somebody who answers everything with this; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    asked, _ = server.accept()
                except OSError:
                    return
                with asked:
                    asked.settimeout(5)
                    try:
                        if asked.recv(4096) and answer:
                            asked.sendall(answer)
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


KAFKA = b"\x00\x00\x00\x0a" + (7_777).to_bytes(4, "big") + bytes(6)
NATIVE = b"".join(encode_message(1, HelloReply(1, "c", 0)))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (KAFKA, "is a port for Kafka clients"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is a port for HTTP clients"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "is a port for Oxia clients"),
        (b"220 mail\r\n", "is no node of Antiphon"),
    ],
)
def test_another_port_is_called_by_its_name(answer: bytes, said: str) -> None:
    with answering(answer) as address:
        wrong, unreachable = examine_servers(address)
        assert said in wrong["what"]
        assert (wrong["level"], unreachable["what"]) == ("wrong", "the cluster cannot be reached")
        assert said in doctor_servers.why_unreachable(address)


def test_an_address_that_is_none_and_one_where_nobody_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    found = examine_servers(f"localhost,{address}")
    assert [one["level"] for one in found] == ["wrong", "note", "wrong"]
    assert "an address is host:port" in found[0]["what"]
    assert found[1]["what"] == f"nobody listens at {address}"
    assert doctor_servers.why_unreachable(address) == ""


def test_tls_that_nobody_speaks_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with answering(NATIVE) as address:
        monkeypatch.setenv("ANTIPHON_TLS", "on")
        (said,) = examine_servers(address)
        assert said["what"] == f"{address} speaks no TLS, and ANTIPHON_TLS asks for it"
        monkeypatch.setenv("ANTIPHON_TLS", str(tmp_path / "nothing.pem"))
        (said,) = examine_servers(address)
        assert "cannot read" in said["what"]
        assert "ANTIPHON_TLS" in said["do"]


def test_nodes_of_several_versions() -> None:
    nodes: list[dict[str, Any]] = [{"id": number, "version": None} for number in range(4)]
    assert doctor_servers.versions(nodes) == []
    for node, version in zip(nodes, ("0.2", "0.1", "0.2", None), strict=True):
        node["version"] = version
    (said,) = doctor_servers.versions(nodes)
    assert (said["level"], said["what"]) == (
        "note",
        "nodes run different versions: 0.1: node 1; 0.2: node 0, 2",
    )
    assert "antiphon upgrade --check" in said["do"]


def test_clocks_that_are_off() -> None:
    off = doctor_servers.judge_clocks([Difference(0, 0.1, 0.0), Difference(1, -9.0, 0.1)])
    assert [(one["level"], one["what"]) for one in off] == [
        ("wrong", "clocks: node 1 is 9.0 s behind of this machine")
    ]
    assert [one["level"] for one in doctor_servers.judge_clocks([Difference(0, 0.1, 0.0)])] == ["ok"]


def test_shards_without_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"problems": ["t/0 is Offline"], "findings": [], "healthy": False, "nodes": [], "shards": 1}
    monkeypatch.setattr(cluster_health, "collect", lambda _: told)
    monkeypatch.setattr(doctor_servers, "_clocks", lambda _: [])
    with answering(NATIVE) as address:
        (said,) = examine_servers(address)
    assert (said["level"], said["what"]) == ("wrong", "t/0 is Offline")
    assert "antiphon shard recover" in said["do"]


@pytest.mark.parametrize(
    ("error", "said", "do"),
    [
        (AccessDeniedError("bob lacks DESCRIBE"), "this login may not ask: bob lacks DESCRIBE", "acl add"),
        (UnavailableError("no coordinator"), "the cluster does not answer: no coordinator", "node.log"),
    ],
)
def test_a_cluster_that_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, error: AntiphonError, said: str, do: str
) -> None:
    def refuse(_: str) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(cluster_health, "collect", refuse)
    with answering(NATIVE) as address:
        (found,) = examine_servers(address)
    assert (found["level"], found["what"]) == ("wrong", said)
    assert do in found["do"]


def test_what_a_node_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"node": 1, "shard_id": 4, "kind": "damaged", "what": "a bit flipped", "do": "antiphon scrub"}
    findings = [one | {"since_ms": 1, "mended_ms": mended} for mended in (0, 2)]
    told = {
        "problems": [cluster_health.line_of(findings[0])],
        "findings": findings,
        "healthy": False,
        "nodes": [],
    }
    monkeypatch.setattr(cluster_health, "collect", lambda _: told)
    monkeypatch.setattr(doctor_servers, "_clocks", lambda _: [])
    with answering(NATIVE) as address:
        wrong, mended = examine_servers(address)
    assert wrong["what"].startswith("node 1, shard 4: damaged since 1970-01-01")
    assert (wrong["level"], wrong["do"]) == ("wrong", "antiphon scrub")
    assert (mended["level"], "; mended 1970-01-01" in mended["what"]) == ("note", True)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("secure") / "c"
    with LocalCluster.start(nodes=1, directory=directory, options=("--secure",)) as running:
        yield running


@pytest.mark.cluster
def test_a_secure_cluster_without_and_with_what_it_asks_for(
    secure: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def says(address: str) -> tuple[str, str]:
        found = examine_servers(address)
        wrong = next((one for one in found if one["level"] == "wrong"), {"what": "", "do": ""})
        return wrong["what"], wrong["do"]

    listens = {
        name: who_listens("127.0.0.1", int(getattr(secure, name).rpartition(":")[2]))
        for name in ("native", "kafka", "http", "oxia")
    }
    assert listens["native"] == Heard("native", tls=True)
    assert listens["kafka"] == Heard("Kafka", tls=True)
    assert listens["http"] == Heard("HTTP", tls=True)
    assert listens["oxia"] in {Heard("Oxia", tls=True), Heard("", tls=True)}, "it wants ALPN"
    assert "takes TLS only, and nothing says whom to trust" in says(secure.native)[0]
    assert "port for Kafka clients" in says(secure.kafka)[0]
    monkeypatch.setenv("ANTIPHON_TLS", "on")
    assert "is not trusted" in says(secure.native)[0]
    monkeypatch.setenv("ANTIPHON_TLS", str(secure.dir / "authority.pem"))
    what, do = says(secure.native)
    assert what.startswith("the login is not taken")
    assert do.startswith("set ANTIPHON_USER and ANTIPHON_PASSWORD_FILE")
    monkeypatch.setenv("ANTIPHON_USER", "admin")
    monkeypatch.setenv("ANTIPHON_PASSWORD_FILE", str(secure.dir / "nowhere"))
    assert "cannot read" in "".join(says(secure.native))
    for text in ("wrong", (secure.dir / "authority.pem").read_text()):
        (tmp_path / "password").write_text(text)
        monkeypatch.setenv("ANTIPHON_PASSWORD_FILE", str(tmp_path / "password"))
        what, do = says(secure.native)
        assert what.startswith("the login is not taken")
        assert "password or token of admin" in do
        assert ("characters that none may have" in what) == (text != "wrong")
    monkeypatch.setenv("ANTIPHON_PASSWORD_FILE", str(secure.dir / "admin.password"))
    assert says(secure.native) == ("", "")


@pytest.mark.cluster
def test_a_command_says_that_it_was_given_the_kafka_port(secure: LocalCluster) -> None:
    done = CliRunner().invoke(app, ["status", "--servers", secure.kafka])
    assert done.exit_code == 1
    assert f"{secure.kafka} is a port for Kafka clients" in done.stderr
    assert "Traceback" not in done.stderr
