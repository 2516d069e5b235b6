"""Who may do what at the native listener and over HTTP: logins, the table of requests, rows of the cluster's own tables."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from antiphon import aio
from antiphon.client.account import use_account
from antiphon.client.connection import Connection, open_connection
from antiphon.errors import (
    AccessDeniedError,
    NotReadyError,
    UnauthenticatedError,
    UnavailableError,
    UnknownShardError,
)
from antiphon.gateway.access import ACCESS
from antiphon.model.access import Acl, Operation, Pattern, Resource
from antiphon.model.attributes import IndexFind, IndexScan
from antiphon.model.backup import ConfirmHold, CopyState, DropState, HoldShard, ReadState, ReleaseHold
from antiphon.model.client_metrics import AlterSubscription, GetSubscriptions
from antiphon.model.findings import NoteAudit, StartScrub
from antiphon.model.groups import GetGroups
from antiphon.model.key_order import DeleteOrdered, OrderedFind, OrderedScan
from antiphon.model.loads import LoadRows
from antiphon.model.messages import Request
from antiphon.model.metadata import Kind
from antiphon.model.node_settings import AlterNodeSettings, GetNodeSettings
from antiphon.model.placement import PlaceReplicas, RecoverShard
from antiphon.model.quotas import Quota
from antiphon.model.requests import (
    PROTOCOL_VERSION,
    AlterAcls,
    AlterQuota,
    AlterTopic,
    AlterUser,
    AlterVoters,
    AppendBatch,
    Authenticate,
    CreateTopic,
    Delete,
    DeleteRange,
    DeleteTopic,
    DrainNode,
    ElectLeader,
    Fetch,
    GetAccess,
    GetMetadata,
    GetStatus,
    Hello,
    ListOffset,
    MoveReplica,
    NewProducerId,
    Put,
    Rebalance,
    RemoveNode,
    SplitShard,
    TableGet,
    TableScan,
    TableWrite,
    TrimShard,
)
from antiphon.model.sessions import CloseSession, KeepSession, ListSessions, OpenSession
from antiphon.model.table_transactions import CheckReads, PrepareWrite, ReadKey, ReadKeys
from antiphon.model.transactions import (
    AbortTransaction,
    FindCoordinator,
    FinishTransaction,
    GetOffsets,
    InitProducer,
    JoinTransaction,
    ListTransactions,
    SendOffsets,
)
from antiphon.native.session import HANDLERS
from antiphon.node.config import Ports
from antiphon.security.account import NOBODY, Account
from antiphon.security.passwords import credentials
from antiphon.security.settings import Security
from antiphon.server.first_user import make_first_user, write_first_user
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

SECURITY = Security(authentication=True, super_users=["User:root"])
Op, R = Operation, Resource
ROOT, EVE = Account("root", "of root"), Account("eve", "of eve")
ID = bytes(16)
ADDRESS = "node-0:7400"


@asynccontextmanager
async def secured(count: int = 1, **config: Any) -> AsyncIterator[Nodes]:
    async with cluster_of(count, security=SECURITY, **config) as nodes:
        for account in (ROOT, EVE):
            made = AlterUser(account.user, credentials(account.password))
            await nodes.nodes[0].gateway.administer(made)
        await eventually(lambda: all("eve" in node.view.access.users for node in nodes.nodes.values()))
        yield nodes


@asynccontextmanager
async def connected(account: Account, address: str = ADDRESS) -> AsyncIterator[Connection]:
    connection = await open_connection(address, "test", None, account)
    try:
        yield connection
    finally:
        await connection.close()


async def give(nodes: Nodes, *acls: Acl) -> None:
    await nodes.nodes[0].gateway.administer(AlterAcls(acls))


def eves(resource: Resource, name: str, operation: Operation, **more: Any) -> Acl:
    return Acl("User:eve", resource, name, operation, **more)


def test_every_request_has_a_row() -> None:
    """Who adds a request says what it takes."""
    asked = {one for one in get_args(Request) if one not in {Hello, Authenticate}}
    assert set(ACCESS) == asked == set(HANDLERS)


def requests_of(topic: int, table: int) -> dict[type, Any]:
    return {
        type(one): one
        for one in (
            GetStatus(),
            GetAccess(),
            GetNodeSettings(),
            AlterNodeSettings(config={"num_partitions": "1"}),
            GetSubscriptions(),
            AlterSubscription("s", {"metrics": "*"}),
            CreateTopic("n"),
            DeleteTopic("t"),
            AlterTopic("t", {"retention.ms": "1000"}),
            ElectLeader(topic),
            MoveReplica(topic, 0, 1),
            PlaceReplicas(topic, (0,)),
            RecoverShard(topic, 0, 0, 0),
            DrainNode(0),
            RemoveNode(0),
            AlterVoters(add=0),
            Rebalance(),
            SplitShard(table),
            StartScrub(topic),
            NoteAudit((topic,)),
            GetGroups(),
            ListTransactions(),
            AbortTransaction("x"),
            FindCoordinator("x"),
            InitProducer("x", 1_000),
            JoinTransaction("x", 0, 0, (topic,)),
            FinishTransaction("x", 0, 0, commit=True),
            SendOffsets("x", 0, 0, "g", ()),
            GetOffsets("g", ()),
            AlterUser("eve", remove=True),
            AlterAcls((eves(R.TOPIC, "*", Op.ALL),)),
            AlterQuota(Quota("eve", request_percentage=1.0)),
            NewProducerId(),
            AppendBatch(topic),
            Fetch(topic, 0),
            ListOffset(topic, -1),
            TrimShard(topic, 0),
            TableWrite(table, (Put(b"k", b"v"),)),
            LoadRows(table, 1),
            TableGet(table, (b"k",)),
            TableScan(table, b"", b""),
            ReadKeys(table, (b"k",)),
            CheckReads(table, (ReadKey(b"k", -1),)),
            PrepareWrite(table, "x", 0, 0, 0, (Put(b"k", b"v"),)),
            OpenSession(table, 1, 5_000),
            KeepSession(table, 1),
            IndexFind(table, "i", b"k"),
            IndexScan(table, "i", b"", b""),
            OrderedFind(table, (b"k",), 1),
            OrderedScan(table, b"", b""),
            CloseSession(table, 1),
            ListSessions(table),
            HoldShard(topic, ID, 1),
            ConfirmHold(topic, ID, 0, 0),
            ReleaseHold(topic, ID),
            CopyState(topic),
            ReadState(topic, ID, 0, 0),
            DropState(topic, ID),
        )
    }


@in_virtual_time
async def test_each_request_is_refused_to_who_has_no_rights() -> None:
    async with secured() as nodes:
        gateway = nodes.nodes[0].gateway
        topic = (await gateway.create_topic(CreateTopic("t"))).shards[0].shard_id
        table = (await gateway.create_topic(CreateTopic("k", Kind.TABLE))).shards[0].shard_id
        version = gateway.access.version
        requests = requests_of(topic, table)
        assert {*requests, GetMetadata} == set(ACCESS)
        async with connected(EVE) as eve:
            for body in requests.values():
                with pytest.raises(AccessDeniedError, match="User:eve may not"):
                    await eve.request(body)
            reply, _ = await eve.request(GetMetadata())
            assert [one.name for one in reply.cluster.topics] == [], "what may not be described is hidden"
        assert gateway.access.version == version
        assert nodes.nodes[0].metrics.denied == len(requests)
        async with connected(ROOT) as root:
            reply, _ = await root.request(GetMetadata())
            assert {"t", "k", "default"} == {one.name for one in reply.cluster.topics}
            reply, _ = await root.request(GetAccess())
            assert [name for name, _ in reply.users] == ["eve", "root"]
            assert b"stored" not in repr(reply).encode()


@pytest.mark.parametrize(
    ("body", "operation"),
    [
        (AlterNodeSettings(config={"num_partitions": "1"}), Op.ALTER_CONFIGS),
        (AlterSubscription("s", {"metrics": "*"}), Op.ALTER_CONFIGS),
        (AlterUser("eve", remove=True), Op.ALTER),
        (AlterAcls((eves(R.TOPIC, "*", Op.ALL),)), Op.ALTER),
        (DrainNode(0), Op.ALTER),
        (NoteAudit((1,)), Op.ALTER),
        (GetAccess(), Op.DESCRIBE),
    ],
)
def test_what_a_request_of_the_cluster_takes(body: Any, operation: Operation) -> None:
    class Asked:
        def require(self, operation: Operation, resource: Resource, name: str = "") -> None:
            raise AccessDeniedError(f"{operation.name} {resource.name} {name}")

    with pytest.raises(AccessDeniedError, match=f"^{operation.name} CLUSTER "):
        ACCESS[type(body)](cast("Any", None), cast("Any", Asked()), body)


@in_virtual_time
async def test_nothing_before_a_login_and_no_login_with_what_is_wrong() -> None:
    async with secured() as nodes:
        loop = asyncio.get_running_loop()
        with pytest.raises(UnauthenticatedError, match="asks for a login"):
            await open_connection(ADDRESS, "test", None, NOBODY)
        told = []
        for account in (Account("eve", "wrong"), Account("nobody", "wrong"), Account("__node", "wrong")):
            began = loop.time()
            with pytest.raises(UnauthenticatedError) as caught:
                await open_connection(ADDRESS, "test", None, account)
            assert 0.9 < loop.time() - began < 2.0
            told.append(caught.value.message)
        assert told == ["authentication failed"] * 3
        assert nodes.nodes[0].metrics.logins_failed == 3
        silent = Connection(ADDRESS)
        await loop.create_connection(lambda: silent, "node-0", 7400)
        await silent.request(Hello(PROTOCOL_VERSION, "t"))
        for body in (GetMetadata(), NewProducerId(), Authenticate(b"x"), Authenticate(b"x", "PLAIN")):
            if silent.lost is None:
                with pytest.raises((UnauthenticatedError, UnavailableError)):
                    await silent.request(body)


@in_virtual_time
async def test_the_client_logs_in_at_every_node_and_what_it_may_not_do_is_told() -> None:
    async with secured(3) as nodes:
        await give(
            nodes,
            eves(R.TOPIC, "ev", Op.CREATE, pattern=Pattern.PREFIXED),
            eves(R.TOPIC, "ev", Op.WRITE, pattern=Pattern.PREFIXED),
            eves(R.TOPIC, "ev", Op.READ, pattern=Pattern.PREFIXED),
        )
        async with aio.connect(ADDRESS, user="eve", password="of eve") as db:
            await db.create_topic("events", shards=6)
            topic = await db.topic("events")
            for value in range(12):
                await topic.append(b"%d" % value, key=b"%d" % value)
            with pytest.raises(AccessDeniedError):
                await db.create_topic("others")
            with pytest.raises(AccessDeniedError):
                await db.delete_topic("events")
        with pytest.raises(UnauthenticatedError):
            async with aio.connect(ADDRESS, user="eve", password="wrong"):
                pass
        use_account(EVE)
        async with aio.connect(ADDRESS) as db:
            assert (await db.topic("events")).name == "events"


@in_virtual_time
async def test_transactions_over_tables_take_what_topics_take() -> None:
    async with secured(1) as nodes:
        for name in ("mine", "limits"):
            await nodes.nodes[0].gateway.create_topic(CreateTopic(name, Kind.TABLE))
        await give(
            nodes,
            eves(R.TABLE, "mine", Op.WRITE),
            eves(R.TABLE, "limits", Op.READ),
            eves(R.TRANSACTIONAL_ID, "billing", Op.WRITE),
        )
        async with (
            aio.connect(ADDRESS, user="eve", password="of eve") as db,
            db.producer("billing") as producer,
        ):
            async with producer.begin() as t:
                assert await t.find("limits", b"k") is None
                await t.check("limits", b"l", -1)
                await t.put("mine", b"k", b"v")
            t = producer.begin()
            with pytest.raises(AccessDeniedError, match="may not read"):
                await t.find("mine", b"k")
            await t.put("limits", b"k", b"v")
            with pytest.raises(AccessDeniedError, match="may not write"):
                await t.commit()
            connection = await db._cluster.connection(ADDRESS)
            shard_id = db._cluster.topics["mine"].shards[0].shard_id
            with pytest.raises(AccessDeniedError, match="others"):
                await connection.request(PrepareWrite(shard_id, "others", 0, 0, 0, (Put(b"k", b"v"),)))


@in_virtual_time
async def test_a_batch_with_deleted_records_is_whole_for_backups_only() -> None:
    async with secured() as nodes:
        shard_id = (await nodes.nodes[0].gateway.create_topic(CreateTopic("t"))).shards[0].shard_id
        await give(nodes, eves(R.TOPIC, "t", Op.READ))
        async with connected(EVE) as eve:
            await eve.request(Fetch(shard_id, 0, 1, isolation="read_uncommitted"))
            with pytest.raises(AccessDeniedError, match="User:eve may not"):
                await eve.request(Fetch(shard_id, 0, 1, isolation="stored"))
        async with connected(ROOT) as root:
            await root.request(Fetch(shard_id, 0, 1, isolation="stored"))


@in_virtual_time
async def test_a_removed_user_is_hung_up_on_and_others_stay() -> None:
    async with secured() as nodes, connected(EVE) as eve, connected(ROOT) as root:
        await nodes.nodes[0].gateway.administer(AlterUser("eve", remove=True))
        async with asyncio.timeout(3):
            await eve.closed
        await root.request(GetStatus())


@in_virtual_time
async def test_rows_of_the_clusters_own_tables_stand_for_their_topics() -> None:
    async with secured() as nodes:
        gateway = nodes.nodes[0].gateway
        mine = await gateway.create_topic(CreateTopic("mine"))
        other = await gateway.create_topic(CreateTopic("other"))
        shards = {
            name: (await gateway.create_topic(CreateTopic(name, kind, 1, internal=True))).shards[0].shard_id
            for name, kind in (
                ("__epochs", Kind.TABLE),
                ("__archive", Kind.TABLE),
                ("__jobs", Kind.TABLE),
                ("__staged", Kind.TOPIC),
                ("__groups", Kind.TABLE),
            )
        }
        await give(nodes, eves(R.TOPIC, "mine", Op.WRITE), eves(R.TOPIC, "mine", Op.READ))

        def epoch(topic: bytes, kind: bytes = b"head") -> bytes:
            return b"%s/%s/q" % (kind, topic.hex().encode())

        def write(name: str, *ops: Any) -> TableWrite:
            return TableWrite(shards[name], ops, internal=True)

        mines, others = mine.topic_id.hex().encode(), other.topic_id.hex().encode()
        epochs, archive = shards["__epochs"], shards["__archive"]
        allowed = [
            write("__epochs", Put(epoch(mine.topic_id), b"v")),
            write("__epochs", Delete(epoch(mine.topic_id))),
            write("__archive", Put(mines + b"/0/0", b"v")),
            write("__jobs", Put(b"job\0plan", b"v")),
            TableGet(epochs, (epoch(mine.topic_id),)),
            TableScan(archive, mines + b"/", mines + b"0"),
        ]
        denied = [
            write("__epochs", Put(epoch(other.topic_id), b"v")),
            write("__epochs", Put(epoch(mine.topic_id), b"v"), Put(epoch(other.topic_id), b"v")),
            write("__epochs", Put(b"head/" + b"0" * 32 + b"/q", b"v")),
            write("__epochs", Put(b"x", b"v")),
            write("__epochs", DeleteRange(b"", b"")),
            write("__epochs", DeleteOrdered(epoch(mine.topic_id), epoch(mine.topic_id) + b"0")),
            OrderedScan(epochs, epoch(mine.topic_id), epoch(mine.topic_id) + b"0"),
            OrderedFind(epochs, (epoch(mine.topic_id),), 1),
            write("__epochs", DeleteRange(epoch(mine.topic_id), b"")),
            write("__archive", Put(others + b"/0/0", b"v")),
            write("__groups", Put(b"g", b"v")),
            TableGet(epochs, (epoch(other.topic_id),)),
            TableGet(epochs, (epoch(mine.topic_id),), comparison=4),
            TableScan(epochs, b"", b""),
            TableScan(epochs, b"head/", b"head0"),
            TableScan(archive, mines, b""),
            TableGet(shards["__groups"], (b"g",)),
            Fetch(shards["__staged"], 0),
            Fetch(shards["__epochs"], 0),
            TrimShard(shards["__staged"], 0, internal=True),
        ]
        async with connected(EVE) as eve:
            for body in allowed:
                await eve.request(body)
            for body in denied:
                with pytest.raises(AccessDeniedError):
                    await eve.request(body)
            await give(nodes, eves(R.TOPIC, "__staged", Op.READ))
            await eve.request(Fetch(shards["__staged"], 0))


@in_virtual_time
async def test_the_clusters_own_log_is_read_by_who_may_act_for_the_cluster() -> None:
    """As an audit does. Nobody appends to it or trims it."""
    async with secured() as nodes:
        reads = (Fetch(0, 0, 1 << 20), ListOffset(0, -2))
        async with connected(ROOT) as root, connected(EVE) as eve:
            for read in reads:
                await root.request(read)
                with pytest.raises(AccessDeniedError, match="cluster_action"):
                    await eve.request(read)
            await give(nodes, eves(R.CLUSTER, "kafka-cluster", Op.CLUSTER_ACTION))
            for read in reads:
                await eve.request(read)
            for change in (AppendBatch(0), TrimShard(0, 1)):
                with pytest.raises(UnknownShardError):
                    await root.request(change)


@in_virtual_time
async def test_the_nodes_own_threads_may_do_everything() -> None:
    async with secured() as nodes:
        own = nodes.servers[0].authenticator.own_account
        async with connected(own) as connection:
            await connection.request(GetStatus())


@in_virtual_time
async def test_without_authentication_everything_is_as_before() -> None:
    async with cluster_of(1), connected(NOBODY) as connection:
        await connection.request(GetStatus())
        with pytest.raises(UnauthenticatedError):
            await connection.request(Authenticate(b"n,,n=eve,r=abc", "SCRAM-SHA-256"))


# -- HTTP -------------------------------------------------------------------------------------------------------------


async def get(path: str, authorization: str = "") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("node-0", 8080)
    header = f"Authorization: {authorization}\r\n" if authorization else ""
    writer.write(f"GET {path} HTTP/1.1\r\nConnection: close\r\n{header}\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split(" ")[1]), answer


def basic(account: Account) -> str:
    return "Basic " + base64.b64encode(f"{account.user}:{account.password}".encode()).decode()


@in_virtual_time
async def test_pages_want_to_know_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with secured(ports=Ports(7400, -1, -1, 8080)) as nodes:
        for path in ("/", "/metrics", "/status", "/topics"):
            status, answer = await get(path)
            assert status == 401
            assert 'Basic realm="antiphon"' in answer
        assert (await get("/healthz"))[0] == 200
        assert (await get("/status", basic(ROOT)))[0] == 401, (
            "a password that others could read is not looked at"
        )
        monkeypatch.setattr("antiphon.security.session.is_loopback", lambda _: True)
        assert (await get("/status", basic(ROOT)))[0] == 200
        assert (await get("/status", basic(EVE)))[0] == 403
        assert (await get("/status", basic(Account("root", "wrong"))))[0] == 401
        assert (await get("/status", "Basic !!"))[0] == 401
        assert (await get("/status", "Digest x"))[0] == 401
        await nodes.nodes[0].gateway.create_topic(CreateTopic("seen"))
        await give(nodes, eves(R.TOPIC, "seen", Op.DESCRIBE))
        status, answer = await get("/topics", basic(EVE))
        assert status == 200
        assert '"seen"' in answer
        assert '"default"' not in answer
        assert '"default"' in (await get("/topics", basic(ROOT)))[1]


@in_virtual_time
async def test_a_node_that_knows_no_users_yet_asks_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that hears that its login failed gives up."""
    monkeypatch.setattr("antiphon.security.session.is_loopback", lambda _: True)
    async with secured(ports=Ports(7400, -1, -1, 8080)) as nodes:
        book = nodes.nodes[0].view.access
        users, book.users, book.is_known = book.users, {}, False
        with pytest.raises(NotReadyError, match="just started"):
            await open_connection(ADDRESS, "test", None, ROOT)
        assert (await get("/status", basic(ROOT)))[0] == 503
        book.users, book.is_known = users, True
        assert (await get("/status", basic(ROOT)))[0] == 200
        async with connected(EVE) as eve:
            book.is_known = False  # as for who has a certificate or a token, whatever the node knows
            with pytest.raises(NotReadyError, match="no access control lists yet"):
                await eve.request(GetStatus())
            assert (await get("/status", basic(EVE)))[0] == 503
            assert (await get("/status", basic(ROOT)))[0] == 200
            book.is_known = True
            with pytest.raises(AccessDeniedError):
                await eve.request(GetStatus())


# -- the first user, and the commands ---------------------------------------------------------------------------------


@in_virtual_time
async def test_a_cluster_without_users_gets_its_first_one(tmp_path: Path) -> None:
    file = tmp_path / "first-user"
    write_first_user(file, "root", "of root")
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"of root" not in file.read_bytes()
    async with cluster_of(1, security=SECURITY) as nodes:
        gateway = nodes.nodes[0].gateway
        await make_first_user(gateway, file)
        assert not file.exists()
        async with aio.connect(ADDRESS, user="root", password="of root") as db:
            assert [name for name, _ in (await db.access()).users] == ["root"]
            await db.administer(AlterUser("eve", credentials("of eve")))
        write_first_user(file, "intruder", "x")
        await make_first_user(gateway, file)
        await make_first_user(gateway, file)
        assert sorted(gateway.access.users) == ["eve", "root"], "only a cluster without users gets one"
