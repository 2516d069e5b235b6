"""`connect()` without a word: where a client finds a cluster, and what it says where there is none."""

from pathlib import Path

import pytest

import antiphon
import antiphon.aio
from antiphon.client.account import Account, use_account
from antiphon.client.aio import AsyncClient
from antiphon.client.finding import Way, find_way
from antiphon.client.local_folder import DEFAULT_DIR, LocalNode
from antiphon.client.tls import context_for, tls_of
from antiphon.errors import InvalidRequestError, UnreachableError
from antiphon.tools.cluster_files import new_cluster, save_cluster
from tests.cli.test_secure_folder import made
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import FailingNodes


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty working directory, and an environment that says nothing."""
    for name in ("SERVERS", "TLS", "USER", "PASSWORD", "PASSWORD_FILE", "TOKEN"):
        monkeypatch.delenv(f"ANTIPHON_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


def folder_with(*addresses: str) -> Path:
    """The directory of a cluster whose nodes listen there, where `antiphon up` would make it."""
    directory = DEFAULT_DIR.absolute()
    cluster = new_cluster(directory, len(addresses), "127.0.0.1", "oxia")
    cluster.nodes = [
        LocalNode(node.id, node.dir, native) for node, native in zip(cluster.nodes, addresses, strict=True)
    ]
    save_cluster(directory, cluster)
    return directory


def test_the_environment_goes_before_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = folder_with("127.0.0.1:1", "127.0.0.1:2")
    assert find_way(None, None) == Way("127.0.0.1:1,127.0.0.1:2", directory=directory)
    monkeypatch.setenv("ANTIPHON_SERVERS", "elsewhere:7400")
    assert find_way(None, None) == Way("elsewhere:7400")


def test_where_there_is_none_the_error_says_what_was_looked_for(tmp_path: Path) -> None:
    for connect in (antiphon.connect, antiphon.aio.connect):
        with pytest.raises(UnreachableError, match="ANTIPHON_SERVERS is not set") as caught:
            connect()
        assert f"no antiphon-data/cluster.json in {tmp_path}" in str(caught.value)
        assert "`antiphon up`" in str(caught.value)


def test_nodes_that_are_stopped_are_said_to_be_started() -> None:
    directory = folder_with("127.0.0.1:1")
    with pytest.raises(UnreachableError, match="no node answered at 127") as caught:
        antiphon.connect(connect_timeout_s=0.1)
    assert str(caught.value).endswith(
        f"{directory}/cluster.json names these nodes: start them with `antiphon up`"
    )


@in_a_cluster
async def test_a_cluster_in_the_working_directory_is_found(cluster: FailingNodes, db: AsyncClient) -> None:
    folder_with(*cluster.servers.split(","))
    async with antiphon.aio.connect() as found:
        assert (await found.table("default")).shards > 0
    for host in (await (client := await antiphon.aio.connect()).metadata()).nodes:
        assert host.native in cluster.servers
    await client.close()


def test_a_secure_cluster_has_the_login_and_the_authority() -> None:
    directory = DEFAULT_DIR.absolute()
    cluster = made(directory)
    password = (directory / "admin.password").read_text().strip()
    way = find_way(None, None)
    assert way.servers == ",".join(node.native for node in cluster.nodes)
    assert way.account == Account("admin", password)
    assert context_for(way.tls, "127.0.0.1", 7400) is not None


def test_servers_of_the_environment_that_are_its_nodes_have_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = made(DEFAULT_DIR.absolute())
    monkeypatch.setenv("ANTIPHON_SERVERS", cluster.nodes[1].native)
    assert find_way(None, None).account is not None
    monkeypatch.setenv("ANTIPHON_SERVERS", "10.1.2.3:7400")
    assert find_way(None, None) == Way("10.1.2.3:7400")


def test_what_the_program_or_the_environment_says_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made(DEFAULT_DIR.absolute())
    alice, without = Account("alice", "secret"), tls_of(False)
    way = find_way(alice, without)
    assert (way.account, way.tls) == (alice, without)
    monkeypatch.setenv("ANTIPHON_USER", "bob")
    monkeypatch.setenv("ANTIPHON_TLS", "off")
    way = find_way(None, None)
    assert (way.account, way.tls) == (None, None), "the environment counts"


def test_an_account_of_the_task_goes_first_too() -> None:
    made(DEFAULT_DIR.absolute())
    use_account(Account(token="abc"))
    try:
        assert find_way(None, None).account is None
    finally:
        use_account(Account())


def test_a_password_that_cannot_be_read_is_said() -> None:
    made(DEFAULT_DIR.absolute())
    (DEFAULT_DIR / "admin.password").unlink()
    with pytest.raises(InvalidRequestError, match=r"admin\.password.*user="):
        find_way(None, None)
