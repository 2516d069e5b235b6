"""What `antiphon up --secure` makes in a folder, without a node: files, certificates, who finds the way, what is refused."""

import os
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer

from antiphon.cli.declare import server_addresses
from antiphon.cli.output import reports_errors
from antiphon.client.local_folder import LocalClusterFile
from antiphon.errors import InvalidRequestError
from antiphon.node.config import load_config
from antiphon.security import authority
from antiphon.security.exposure import is_loopback, refuse_believing, refuse_exposure
from antiphon.security.settings import Security, Tls
from antiphon.security.tls import server_context
from antiphon.tools import client_examples, doctor, local_start, node_process, secure_folder
from antiphon.tools.cluster_files import make_key, save_cluster

CERTIFICATES = ("node.pem", "node.key", "peer.pem", "peer-tls.key")


def made(directory: Path, nodes: int = 2, *names: str, host: str = "127.0.0.1") -> LocalClusterFile:
    """A secure cluster as `antiphon up --secure` prepares it."""
    cluster = local_start.cluster_to_start(directory, nodes, host, "oxia", secure=True)
    local_start.note_security(cluster, list(names), insecure=False)
    for node in cluster.nodes:
        node.native, node.kafka, node.http, node.peer = (f"{host}:{7400 + node.id + i}" for i in range(4))
    prepare(directory, cluster)
    return cluster


def prepare(directory: Path, cluster: LocalClusterFile) -> None:
    make_key(directory, cluster)
    save_cluster(directory, cluster)
    secure_folder.secure_cluster(directory, cluster)
    for node in cluster.nodes:
        node_process.prepare(cluster, node)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()
    }


def test_every_file_is_private_and_the_password_is_in_one(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    made(directory)
    found = contents(directory)
    assert {stat.S_IMODE((directory / name).stat().st_mode) for name in found} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_dir()} == {0o700}
    password = found["admin.password"].strip()
    assert len(password) >= 20
    assert [name for name, data in found.items() if password in data] == ["admin.password"]
    assert "node-0/first-user" in found
    assert "node-1/first-user" not in found
    config = load_config(directory / "node-1")
    assert config.security.authentication
    assert config.security.tls.on
    assert config.security.peer_tls.on
    server_context(config.security.tls, config.dir)


def test_what_is_there_is_gone_on_with(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    cluster = made(directory)
    before = contents(directory)
    again = local_start.cluster_to_start(directory, None, "127.0.0.1", "oxia", secure=True)
    prepare(directory, again)
    assert contents(directory) == before
    cluster.founded = True
    (directory / "node-0" / "first-user").unlink()
    prepare(directory, cluster)
    assert not (directory / "node-0" / "first-user").exists(), "the cluster has its users"


@pytest.mark.parametrize("lost", ["node.pem", "node.key", "authority.pem"])
def test_what_a_broken_off_start_left_out_is_made(tmp_path: Path, lost: str) -> None:
    directory = tmp_path / "cluster"
    cluster = made(directory)
    (directory / "node-1" / lost).unlink()
    prepare(directory, cluster)
    config = load_config(directory / "node-1")
    server_context(config.security.tls, config.dir)


def test_a_key_without_its_certificate_is_made_anew(tmp_path: Path) -> None:
    """As a start leaves it that ended between the two."""
    directory = tmp_path / "cluster"
    cluster = made(directory)
    (directory / "node-1" / "node.key").write_bytes((directory / "node-0" / "node.key").read_bytes())
    prepare(directory, cluster)
    config = load_config(directory / "node-1")
    server_context(config.security.tls, config.dir)


def test_an_authority_that_is_gone_is_told_of(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    cluster = made(directory)
    cluster.founded = True
    (directory / "node-0" / "node.pem").unlink()
    key = directory / "authority.key"
    key.rename(directory / "elsewhere")
    with pytest.raises(InvalidRequestError, match=r"node\.pem has to be made.*authority\.key cannot be read"):
        prepare(directory, cluster)
    (directory / "authority.pem").unlink()
    with pytest.raises(InvalidRequestError, match=r"authority\.pem is gone: put it back"):
        prepare(directory, cluster)


def test_certificates_are_made_anew_for_a_new_name_and_before_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "cluster"
    cluster = made(directory)
    first = contents(directory)
    cluster.names = ["logs.example"]
    prepare(directory, cluster)
    second = contents(directory)
    assert first["node-0/node.pem"] != second["node-0/node.pem"]
    assert authority.is_good_for(second["node-0/node.pem"], ["logs.example", "localhost", "127.0.0.1", "::1"])
    prepare(directory, cluster)
    assert contents(directory) == second, "nothing has changed"
    now = authority._now() + timedelta(days=authority.CERTIFICATE_DAYS - authority.RENEW_DAYS + 1)
    monkeypatch.setattr(authority, "_now", lambda: now)
    prepare(directory, cluster)
    third = contents(directory)
    assert all(third[f"node-1/{name}"] != second[f"node-1/{name}"] for name in CERTIFICATES)


def test_certificates_of_another_authority_are_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    cluster = made(directory)
    issued = authority.issue(authority.new_authority("of the company"), "node 0", ["elsewhere"])
    (directory / "node-0" / "node.pem").write_bytes(issued.certificate)
    (directory / "node-0" / "node.key").write_bytes(issued.key)
    prepare(directory, cluster)
    assert (directory / "node-0" / "node.pem").read_bytes() == issued.certificate


def test_nodes_trust_no_certificate_of_a_client_and_clients_none_of_a_peer(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    made(directory)
    found = contents(directory)
    assert authority.is_from(found["node-0/node.pem"], found["authority.pem"])
    assert authority.is_from(found["node-0/peer.pem"], found["peers-authority.pem"])
    assert not authority.is_from(found["node-0/node.pem"], found["peers-authority.pem"])
    assert not authority.is_from(found["node-0/peer.pem"], found["authority.pem"])


def test_where_nodes_listen_everywhere_clients_are_told_a_name(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    cluster = made(directory, 1, "logs.example", "other.example", host="0.0.0.0")
    config = load_config(directory / "node-0")
    assert (config.listen_host, config.public_host) == ("0.0.0.0", "logs.example")
    assert secure_folder.client_settings(directory, cluster)["ANTIPHON_SERVERS"] == "logs.example:7400"
    assert "https://logs.example:7402/status" in client_examples.curl(directory, cluster)
    named = (directory / "node-0" / "node.pem").read_bytes()
    assert authority.is_good_for(named, ["logs.example", "other.example", "localhost"])
    config.advertised_host = "by.hand"
    node_process.write_config(config, directory / "node-0")
    assert node_process.node_config(cluster, cluster.nodes[0]).public_host == "by.hand"


def test_a_cluster_without_is_not_made_secure(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    save_cluster(directory, local_start.cluster_to_start(directory, 1, "127.0.0.1", "oxia", secure=False))
    with pytest.raises(InvalidRequestError, match="made without --secure"):
        local_start.cluster_to_start(directory, None, "127.0.0.1", "oxia", secure=True)


# -- clients ------------------------------------------------------------------------------------------------------


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of a client, and none left behind."""
    for name in ("SERVERS", "TLS", "USER", "PASSWORD", "PASSWORD_FILE", "TOKEN"):
        monkeypatch.setenv(f"ANTIPHON_{name}", "")
        monkeypatch.delenv(f"ANTIPHON_{name}")


@pytest.mark.usefixtures("clean")
def test_commands_find_their_way(tmp_path: Path) -> None:
    cluster = made(tmp_path)
    own, other = cluster.nodes[1].native, "10.1.2.3:7400"
    assert server_addresses(other, tmp_path) == other
    assert "ANTIPHON_TLS" not in os.environ, "another cluster is meant"
    assert server_addresses(own, tmp_path) == own
    assert os.environ["ANTIPHON_TLS"] == str(tmp_path / "authority.pem")
    secure_folder.forget_settings()
    assert "ANTIPHON_USER" not in os.environ
    assert server_addresses(None, tmp_path) == f"{cluster.nodes[0].native},{own}"
    assert os.environ["ANTIPHON_USER"] == "admin"
    assert os.environ["ANTIPHON_PASSWORD_FILE"] == str(tmp_path / "admin.password")


@pytest.mark.usefixtures("clean")
def test_what_the_environment_says_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    monkeypatch.setenv("ANTIPHON_USER", "alice")
    monkeypatch.setenv("ANTIPHON_TLS", "on")
    server_addresses(None, tmp_path)
    assert (os.environ["ANTIPHON_USER"], os.environ["ANTIPHON_TLS"]) == ("alice", "on")
    assert "ANTIPHON_PASSWORD_FILE" not in os.environ


def test_the_doctor_looks_at_secrets_and_certificates(tmp_path: Path) -> None:
    cluster = made(tmp_path)
    said = doctor.examine(None, cluster)
    assert any("certificates are good until" in each["what"] for each in said if each["level"] == "ok")
    (tmp_path / "node-0" / "node.key").chmod(0o640)
    (tmp_path / "node-1").chmod(0o755)
    (tmp_path / "node-1" / "peer.pem").write_text("nothing")
    wrong = [each["what"] for each in doctor.examine(None, cluster) if each["level"] == "wrong"]
    assert any("node.key is a secret" in what for what in wrong)
    assert any("node-1 is a node's, and others" in what for what in wrong)
    assert any("a certificate cannot be read" in what for what in wrong)


def test_without_the_library_for_certificates_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    @reports_errors
    def command() -> None:
        raise ModuleNotFoundError(name="cryptography.x509")

    with pytest.raises(typer.Exit):
        command()
    assert "cryptography, which makes certificates, is not installed: pip install" in capsys.readouterr().err


# -- who listens where --------------------------------------------------------------------------------------------

TLS = Tls("c.pem", "c.key", "a.pem")
MUTUAL = Tls("c.pem", "c.key", "a.pem", "required")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("no-such-host.invalid", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


@pytest.mark.parametrize(
    ("lacks", "security"),
    [
        ("without TLS for clients .*, authentication", Security()),
        ("without TLS for clients", Security(authentication=True)),
        ("without authentication", Security(tls=TLS)),
        ("without TLS among the nodes", Security(authentication=True, tls=TLS, peer_key="k")),
        (None, Security(authentication=True, tls=TLS, peer_key="k", peer_tls=TLS)),
        (None, Security(authentication=True, tls=TLS)),
        (None, Security(tls=MUTUAL)),
        (None, Security(insecure=True)),
    ],
)
def test_what_listens_for_others_takes_tls_and_asks(lacks: str | None, security: Security) -> None:
    refuse_exposure("127.0.0.1", security)
    if lacks is None:
        refuse_exposure("0.0.0.0", security)
        return
    with pytest.raises(InvalidRequestError, match=lacks) as caught:
        refuse_exposure("0.0.0.0", security)
    for words in ("asked to listen on 0.0.0.0", "antiphon up --secure", "--insecure"):
        assert words in caught.value.message


def asked(directory: Path, host: str, **said: Any) -> LocalClusterFile:
    cluster = local_start.cluster_to_start(directory, 1, host, "oxia", secure=said.pop("secure", False))
    local_start.note_security(cluster, [], insecure=said.pop("insecure", False))
    return cluster


def test_up_refuses_before_anything_is_written(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with pytest.raises(InvalidRequestError, match=r"asked to listen on 0\.0\.0\.0"):
        asked(directory, "0.0.0.0")
    assert not directory.exists()
    assert asked(directory, "0.0.0.0", secure=True).secure
    cluster = asked(directory, "0.0.0.0", insecure=True)
    node = cluster.nodes[0]
    node.native = node.kafka = node.http = node.peer = "0.0.0.0:7400"
    prepare(directory, cluster)
    assert load_config(directory / "node-0").security.insecure, "so it may start alone too"
    assert local_start.cluster_to_start(directory, 1, "0.0.0.0", "oxia", secure=False).insecure


def test_several_nodes_that_ask_clients_prove_themselves_too(tmp_path: Path) -> None:
    text = """
    cluster_id = "c"
    node_id = 0
    nodes = [{id = 0, native = "h:1"}, {id = 1, native = "h:2"}]
    [security]
    """
    for setting in ("authentication = true", 'tls = {certificate = "c", key = "k"}'):
        (tmp_path / "node.toml").write_text(text + setting)
        with pytest.raises(InvalidRequestError, match=r"Set security\.peer_key or security\.peer_tls"):
            load_config(tmp_path)
    (tmp_path / "node.toml").write_text(
        text.replace(', {id = 1, native = "h:2"}', "") + "authentication = true"
    )
    assert load_config(tmp_path).security.authentication, "one node alone"


def test_a_node_that_is_started_alone_refuses_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "node.toml").write_text("""
    cluster_id = "c"
    node_id = 0
    listen_host = "0.0.0.0"
    nodes = [{id = 0, native = "h:1"}]
    """)
    before = sorted(folder.iterdir())
    with pytest.raises(InvalidRequestError, match="asked to listen on"):
        node_process.run_from_file(folder, {}, bootstrap=True, insecure=False)
    assert sorted(folder.iterdir()) == before, "nothing has begun"
    started: list[bool] = []
    monkeypatch.setattr(
        "antiphon.server.process.run_node", lambda config: started.append(config.security.insecure)
    )
    node_process.run_from_file(folder, {}, bootstrap=True, insecure=True)
    assert started == [True]


def test_what_strangers_produce_is_unpacked_and_looked_at(tmp_path: Path) -> None:
    made(tmp_path / "secure")
    assert load_config(tmp_path / "secure" / "node-0").record_validation == "full"


def test_nodes_of_one_machine_that_prove_nothing_do_not_start_unless_that_is_said() -> None:
    with pytest.raises(InvalidRequestError, match="names 3 nodes, and nothing proves"):
        refuse_believing(3, Security())
    refuse_believing(1, Security())
    for security in (Security(insecure=True), Security(peer_key="k"), Security(peer_tls=TLS)):
        refuse_believing(3, security)
