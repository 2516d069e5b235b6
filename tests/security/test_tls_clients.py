"""Our own clients (asynchronous, synchronous, Spark's blocking one) at a node that takes TLS only, and at one without."""

import asyncio
import queue
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

import antiphon
import antiphon.aio
from antiphon.client.addresses import parse_address
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.tls import tls_of, trusting_text
from antiphon.errors import (
    AccessDeniedError,
    AntiphonError,
    InvalidRequestError,
    UnauthenticatedError,
    UnreachableError,
)
from antiphon.model.requests import AlterUser, AppendBatch, Appended, Fetch, Fetched
from antiphon.security.passwords import credentials
from antiphon.security.settings import Security, Tls
from antiphon.security.tls import nodes_client_context
from antiphon.server.epoch_finisher import start_epoch_finisher
from antiphon.spark.staging import housekeeper
from antiphon.spark.staging.housekeeper import Housekeeper, Look
from tests.coroutines import on_a_loop
from tests.kafka.raw import batch
from tests.security.certificates import authority, client_files, server_files
from tests.security.test_secure_listeners import Secure

if TYPE_CHECKING:
    from antiphon.client.tls import TlsChoice

BIG = 3_000_000
VALUES = [bytes([number]) * 10_000 for number in range(100)]
Failing = Callable[[str, "bool | Path | None"], object]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    made = Secure(tmp_path_factory.mktemp("secure"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    made = Secure(tmp_path_factory.mktemp("plain"), encrypts=False)
    yield made
    made.stop()


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    file = tmp_path / "other.pem"
    file.write_bytes(authority("another authority").certificate)
    return file


def use(servers: str, tls: "TlsChoice", name: str) -> None:
    with antiphon.connect(servers, tls=tls) as db:
        table = db.create_table(f"{name}-table")
        table.put("key", b"v" * 500_000)
        row = table.get("key")
        assert row is not None
        assert row.value == b"v" * 500_000
        topic = db.create_topic(f"{name}-topic")
        topic.append_batch(VALUES, shard=0)
        assert [record.value for record in topic.read()] == VALUES


def test_the_synchronous_client_speaks_tls(secure: Secure) -> None:
    use(secure.native, secure.authority, "path")
    use(secure.native, str(secure.authority), "text")
    use(secure.native, ssl.create_default_context(cafile=str(secure.authority)), "context")


@on_a_loop
async def test_the_asynchronous_client_speaks_tls(secure: Secure) -> None:
    async with antiphon.aio.connect(secure.native, tls=secure.authority) as db:
        table = await db.create_table("async-table")
        await asyncio.gather(*(table.put(f"key-{number}", b"value") for number in range(100)))
        assert len([row async for row in table.scan()]) == 100
        topic = await db.create_topic("async-topic")
        await topic.append(b"x" * 900_000)
        assert [record.value async for record in topic.read()] == [b"x" * 900_000]


def test_sparks_client_speaks_tls(secure: Secure) -> None:
    with antiphon.connect(secure.native, tls=secure.authority) as db:
        db.create_topic("blocking")
        topics = {topic.name: topic for topic in db.metadata().topics}
        shard = topics["blocking"].shards[0].shard_id
    written = bytes(batch(b"a" * 400_000, b"b" * 400_000))
    with Cluster([parse_address(secure.native)], 10_000, tls=tls_of(secure.authority)) as cluster:
        halves = (written[:70], written[70:])
        appended = cluster.call(ShardCall(shard, AppendBatch(shard), halves)).body
        assert isinstance(appended, Appended)
        answers = cluster.call_all([ShardCall(shard, Fetch(shard, 0, max_bytes=BIG))])
        assert isinstance(answers[0].body, Fetched)
        assert b"a" * 400_000 in bytes(answers[0].payload)


def test_the_environment_says_whom_to_trust(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_TLS", str(secure.authority))
    use(secure.native, None, "environment")
    with Cluster([parse_address(secure.native)], 10_000) as cluster:
        assert cluster.metadata().nodes
    monkeypatch.setenv("ANTIPHON_TLS", "on")
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.authority))  # OpenSSL's: what the system trusts
    context = ssl.create_default_context()
    monkeypatch.setattr("antiphon.client.tls._system", lambda: context)
    use(secure.native, None, "system")


def test_the_program_goes_before_the_environment(plain: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_TLS", "on")
    with antiphon.connect(plain.native, tls=False) as db:
        assert db.metadata().nodes


def connect_sync(servers: str, tls: "bool | Path | None") -> None:
    antiphon.connect(servers, tls=tls, connect_timeout_s=1.5).close()


def connect_blocking(servers: str, tls: "bool | Path | None") -> None:
    with Cluster([parse_address(servers)], 1500, tls=tls_of(tls)) as cluster:
        cluster.metadata()


both = pytest.mark.parametrize("connect", [connect_sync, connect_blocking])


@both
def test_a_node_that_another_authority_signed_is_not_trusted(
    secure: Secure, stranger: Path, connect: Failing
) -> None:
    with pytest.raises(UnauthenticatedError, match=r"is not trusted.*give tls= the authority that signed it"):
        connect(secure.native, stranger)
    with pytest.raises(UnauthenticatedError, match="is not trusted"):
        connect(secure.native, True)


@both
def test_a_certificate_for_another_host_is_not_trusted(secure: Secure, connect: Failing) -> None:
    other_name = f"127.1:{parse_address(secure.native)[1]}"  # of the same address
    with pytest.raises(UnauthenticatedError, match="connect to a name that it is for"):
        connect(other_name, secure.authority)


@both
def test_a_client_without_tls_is_told(secure: Secure, connect: Failing) -> None:
    with pytest.raises(
        UnreachableError, match="if it takes TLS only, connect with tls=, or set ANTIPHON_TLS"
    ):
        connect(secure.native, None)


@both
def test_a_client_with_tls_is_told_of_a_node_without(plain: Secure, connect: Failing, stranger: Path) -> None:
    with pytest.raises(AntiphonError, match=r"speaks no TLS|does it speak TLS"):
        connect(plain.native, stranger)


def test_a_file_that_holds_no_authorities_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot read"):
        antiphon.connect("127.0.0.1:1", tls=tmp_path / "none.pem")
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(InvalidRequestError, match="holds no certificates"):
        antiphon.connect("127.0.0.1:1", tls=str(tmp_path / "empty.pem"))


@pytest.mark.parametrize(("client_auth", "encrypts"), [("none", True), ("required", True), ("none", False)])
def test_the_thread_that_finishes_epochs_reaches_its_own_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client_auth: str, encrypts: bool
) -> None:
    looks: queue.Queue[object] = queue.Queue()
    look = Housekeeper.look

    def told(keeper: Housekeeper, cluster: Cluster) -> Look:
        try:
            found = look(keeper, cluster)
        except Exception as error:
            looks.put(error)
            raise
        looks.put(found)
        return found

    monkeypatch.setattr(Housekeeper, "look", told)
    monkeypatch.setattr(housekeeper, "TIMEOUT_MS", 1000)
    monkeypatch.setenv(housekeeper.WAIT_VARIABLE, "0.2")
    monkeypatch.setenv("ANTIPHON_TLS", "on")  # what clients on this machine use does not count
    secure = Secure(tmp_path, client_auth=client_auth, encrypts=encrypts)
    stop = start_epoch_finisher(secure.nodes.config(0), secure.native)
    try:
        assert looks.get(timeout=10) == Look()
    finally:
        stop()
        secure.stop()


def test_a_node_as_a_client_trusts_its_own_file_and_its_authority(secure: Secure, tmp_path: Path) -> None:
    port = parse_address(secure.native)[1]
    own = secure.directory / "node-0"
    files = server_files(tmp_path, signer="another authority")  # of a node that is not this one
    signed = Tls(files.certificate, files.key, str(own / "authority.pem"))
    itself = Tls(str(own / "server.pem"), files.key)

    def reach(tls: Tls, *, itself: bool, host: str = "127.0.0.1") -> None:
        context = nodes_client_context(tls, tmp_path, itself=itself)
        with Cluster([(host, port)], 1500, tls=tls_of(context)) as cluster:
            assert cluster.metadata().nodes

    reach(signed, itself=False)
    reach(itself, itself=False)
    reach(itself, itself=True, host="127.1")  # a name that the certificate does not have
    with pytest.raises(UnauthenticatedError, match="is not trusted"):
        reach(itself, itself=False, host="127.1")
    for tls, is_itself in ((signed, True), (files, False), (files, True)):
        with pytest.raises(UnauthenticatedError, match="is not trusted"):
            reach(
                msgspec.structs.replace(tls, authority=tls.authority if tls is signed else ""),
                itself=is_itself,
            )


def test_a_client_shows_its_certificate(tmp_path: Path) -> None:
    secure = Secure(tmp_path, client_auth="required")
    try:
        context = ssl.create_default_context(cafile=str(secure.authority))
        context.load_cert_chain(*client_files(tmp_path))
        use(secure.native, context, "shown")
        with Cluster([parse_address(secure.native)], 5000, tls=tls_of(context)) as cluster:
            assert cluster.metadata().nodes
        for connect in (connect_sync, connect_blocking):
            with pytest.raises(UnreachableError, match="if it wants a certificate of the client"):
                connect(secure.native, secure.authority)
    finally:
        secure.stop()


def test_paths_and_the_environment_name_a_certificate_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = Secure(tmp_path, client_auth="required")
    certificate, key = client_files(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    try:
        use(secure.native, (secure.authority, certificate, key), "paths")
        use(secure.native, (secure.authority, both), "both")
        for name, value in (("", secure.authority), ("_CERTIFICATE", certificate), ("_KEY", key)):
            monkeypatch.setenv(f"ANTIPHON_TLS{name}", str(value))
        use(secure.native, None, "environment")
        use(secure.native, str(secure.authority), "half")
        with Cluster(
            [parse_address(secure.native)], 5000, tls=trusting_text(Path(secure.authority).read_text())
        ) as cluster:
            assert cluster.metadata().nodes
    finally:
        secure.stop()


def test_a_certificate_to_show_that_is_none_is_refused(tmp_path: Path) -> None:
    certificate, key = client_files(tmp_path)
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    for files, said in (
        ((certificate, empty), "not a client's certificate and its key"),
        ((certificate, tmp_path / "none"), "cannot read"),
        ((), "give the authorities"),
        ((certificate, key, key), "give the authorities"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            tls_of((certificate, *files))


def test_a_certificate_is_a_login(tmp_path: Path) -> None:
    """Where somebody asks who is there, its subject is the answer; a user who is given as well is another one."""
    tls = server_files(tmp_path / "node-0", "required")
    secure = Secure(
        tmp_path, security=Security(tls=tls, authentication=True, super_users=["User:CN=alice", "User:bob"])
    )
    mine = (secure.authority, *client_files(tmp_path))
    try:
        with antiphon.connect(secure.native, tls=mine) as db:
            db.run(db.aio.administer(AlterUser("bob", credentials("of bob"))))
            assert db.create_topic("t").name == "t"
        with Cluster([parse_address(secure.native)], 5000, tls=tls_of(mine)) as cluster:
            assert cluster.metadata().topics
        stranger = (secure.authority, *client_files(tmp_path, "eve"))
        with (
            antiphon.connect(secure.native, tls=stranger) as db,
            pytest.raises(AccessDeniedError, match="CN=eve"),
        ):
            db.create_topic("u")
        with antiphon.connect(secure.native, tls=stranger, user="bob", password="of bob") as db:
            db.create_topic("u")
    finally:
        secure.stop()
