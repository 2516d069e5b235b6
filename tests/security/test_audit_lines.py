"""What the log says of logins that fail, at each listener, and of changes of users, lists and quotas; never a secret."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import jwt
import pytest
from structlog.testing import capture_logs

from antiphon import system
from antiphon.client import aio
from antiphon.errors import UnauthenticatedError
from antiphon.gateway import changes
from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import quotas, security
from antiphon.model.access import AccessBook, AccessDelta, Acl, Operation, Resource, User
from antiphon.model.quotas import Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser, DrainNode
from antiphon.oxia import messages as oxia
from antiphon.security import passwords
from antiphon.security.authenticator import Authenticator
from antiphon.security.authorization import log_in
from antiphon.security.authorizer import EVERYTHING
from antiphon.security.bounded_lines import TEXT_MAX, TOLD_PER_S, shown
from antiphon.security.session import Session
from antiphon.security.settings import OAuth, Security
from antiphon.simulation.cluster.oxia_client import CallError, OxiaClient
from tests.kafka.raw import RawClient
from tests.node.real_nodes import Nodes, in_real_time

SECRETS = ("s3cret-of-root", "s3cret-that-is-wrong", "s3cret-that-is-new")
ROOT, NEW = SECRETS[0], SECRETS[2]
SECURITY = Security(authentication=True, super_users=["User:root"])


class Counters:
    denied = 0
    logins_failed = 0


def authenticator(settings: Security = SECURITY) -> Authenticator:
    book = AccessBook()
    book.apply(AccessDelta(users=(User("root", passwords.credentials(ROOT)),)), whole=True)
    return Authenticator(settings, book, Counters(), b"secret" * 6)


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[Nodes]:
    nodes = Nodes(directory, 1, {}, kafka=True, http=True, oxia=True, security=SECURITY)
    try:
        await nodes.start_all()
        made = AlterUser("root", passwords.credentials(ROOT))
        await nodes.nodes[0].gateway.administer(made)
        yield nodes
    finally:
        await nodes.close()


def place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def kafka(nodes: Nodes, user: str, password: str) -> tuple[RawClient, int]:
    """A connection, and what became of its login."""
    client = RawClient(*await asyncio.open_connection(*place(nodes.nodes[0].meta().kafka)))
    await client.ask(security.SaslHandshakeRequest(mechanism="PLAIN"), 17, 1)
    said = f"\0{user}\0{password}".encode()
    answer = await client.ask(security.SaslAuthenticateRequest(auth_bytes=said), 36, 2)
    return client, answer.error_code


async def over_http(
    nodes: Nodes, user: str, password: str, what: str = "GET /status", body: bytes = b""
) -> bytes:
    reader, writer = await asyncio.open_connection(*place(nodes.nodes[0].meta().http))
    said = base64.b64encode(f"{user}:{password}".encode()).decode()
    head = f"{what} HTTP/1.1\r\nAuthorization: Basic {said}\r\nConnection: close\r\n"
    sizes = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n" if body else "\r\n"
    writer.write((head + sizes).encode() + body)
    answer = await reader.read()
    writer.close()
    return answer


async def over_oxia(nodes: Nodes, user: str, password: str) -> None:
    client = OxiaClient(
        [place(nodes.nodes[0].meta().oxia)], Random(1), "grpc-go/1", "/io.oxia.proto.v1.OxiaClient/"
    )
    said = base64.b64encode(f"{user}:{password}".encode()).decode()
    client.metadata = {"authorization": f"Basic {said}"}
    with pytest.raises(CallError):
        await client.call("Read", oxia.ReadRequest(shard=1, gets=[]), oxia.ReadResponse)
    client.hang_up()


def no_secret_in(lines: list[Any]) -> None:
    text = json.dumps(lines, default=str)
    assert not [secret for secret in SECRETS if secret in text]
    proofs = [one for secret in SECRETS for one in passwords.credentials(secret)]
    assert not [one for one in proofs if repr(one.stored_key) in text]


@in_real_time
async def test_each_listener_tells_of_logins_that_fail(tmp_path: Path) -> None:
    async with node(tmp_path) as nodes:
        with capture_logs() as lines:
            client, error_code = await kafka(nodes, "of-kafka", SECRETS[1])
            assert error_code == code.SASL_AUTHENTICATION_FAILED
            client.writer.close()
            served = RawClient(*await asyncio.open_connection(*place(nodes.nodes[0].meta().kafka)))
            answer = await served.ask(security.SaslHandshakeRequest(mechanism="GSSAPI"), 17, 1)
            assert answer.error_code == code.UNSUPPORTED_SASL_MECHANISM
            served.writer.close()
            with pytest.raises(UnauthenticatedError):
                await aio.connect(nodes.nodes[0].meta().native, user="of-native", password=SECRETS[1])
            assert b" 401 " in await over_http(nodes, "of-http", SECRETS[1])
            await over_oxia(nodes, "of-oxia", SECRETS[1])
        told = {
            (line["listener"], line["user"], line["mechanism"], line["address"])
            for line in lines
            if line["event"] == "login_failed"
        }
        assert told == {
            ("kafka", "of-kafka", "PLAIN", "127.0.0.1"),
            ("kafka", "", "GSSAPI", "127.0.0.1"),
            ("native", "of-native", "SCRAM-SHA-256", "127.0.0.1"),
            ("http", "of-http", "PLAIN", "127.0.0.1"),
            ("oxia", "of-oxia", "PLAIN", "127.0.0.1"),
        }
        assert nodes.nodes[0].metrics.logins_failed == 5
        no_secret_in(lines)
        with capture_logs() as lines:
            client, error_code = await kafka(nodes, "root", ROOT)
            assert error_code == code.NONE
            client.writer.close()
            assert b" 200 " in await over_http(nodes, "root", ROOT)
        assert not [line for line in lines if line["event"] == "login_failed"], "who may come in is no news"


@in_real_time
async def test_changes_of_users_lists_and_quotas_are_told_with_who_made_them(tmp_path: Path) -> None:
    read = Acl("User:eve", Resource.TOPIC, "t", Operation.READ)
    async with node(tmp_path) as nodes:
        with capture_logs() as lines:
            db = await aio.connect(nodes.nodes[0].meta().native, user="root", password=ROOT)
            await db.administer(AlterUser("eve", passwords.credentials(NEW)))
            await db.administer(AlterAcls(add=(read,)))
            await db.administer(AlterQuota(Quota("eve", producer_byte_rate=1000.0)))
            await db.administer(AlterUser("eve", remove=True))
            await db.close()
            client, _ = await kafka(nodes, "root", ROOT)
            part = quotas.EntityPart(entity_type="user", entity_name="eve")
            gone = quotas.QuotaOp(key="producer_byte_rate", value=0.0, remove=True)
            entry = quotas.AlteredEntry(entity=[part], ops=[gone])
            asked = quotas.AlterClientQuotasRequest(entries=[entry], validate_only=False)
            await client.ask(asked, 49, 1)
            client.writer.close()
            limits = b'{"user": "eve", "limits": {"consumer_byte_rate": 5000}}'
            assert b" 200 " in await over_http(nodes, "root", ROOT, "POST /api/quotas", limits)
        told = [line for line in lines if line["event"] == "access_changed"]
        who = [(one["by"], one["host"], one["listener"], one["what"], one["outcome"]) for one in told]
        native = ("User:root", "127.0.0.1", "native")
        assert who == [
            (*native, "user", "done"),
            (*native, "acl", "done"),
            (*native, "quota", "done"),
            (*native, "user", "done"),
            ("User:root", "127.0.0.1", "kafka", "quota", "done"),
            ("User:root", "127.0.0.1", "http", "quota", "done"),
        ]
        made, acl, quota, removed, less, more = told
        assert (made["user"], made["set"]) == ("eve", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
        assert acl["added"] == ["allow User:eve read topic literal t from *"]
        assert (quota["of"], quota["set"]) == ({"user": "eve"}, {"producer_byte_rate": 1000.0})
        assert (removed["user"], removed["removed"]) == ("eve", ["all"])
        assert (less["set"], less["removed"]) == ({}, ["producer_byte_rate"])
        assert more["set"] == {"consumer_byte_rate": 5000.0}
        no_secret_in(lines)


class Waits:
    """A gateway whose coordinator does not answer."""

    async def administer(self, request: Any, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)


@pytest.mark.parametrize(
    ("request_", "is_told"),
    [(AlterUser("u", remove=True), True), (AlterAcls(), False), (DrainNode(1), False)],
)
def test_a_change_whose_client_hangs_up_is_told_all_the_same(request_: Any, is_told: bool) -> None:
    async def test() -> None:
        gateway = cast("Any", Waits())
        asking = changes.administer(gateway, request_, EVERYTHING, "192.0.2.1", "native")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asking, 0.01)

    with capture_logs() as lines:
        asyncio.run(test())
    assert [line["outcome"] for line in lines if line["event"] == "access_changed"] == ["not known"] * is_told


def test_a_long_change_of_lists_is_told_in_several_lines() -> None:
    class Does:
        async def administer(self, request: Any, timeout_s: float) -> None:
            pass

    entries = tuple(
        Acl(f"User:u{n}", Resource.TOPIC, "t", Operation.READ) for n in range(changes.ENTRIES + 1)
    )
    with capture_logs() as lines:
        gateway = cast("Any", Does())
        asyncio.run(changes.administer(gateway, AlterAcls(entries, entries[:1]), EVERYTHING, "", "native"))
    told = [line for line in lines if line["event"] == "access_changed"]
    assert [len(line.get("added", ())) for line in told] == [changes.ENTRIES, 1, 0]
    assert told[2]["removed"] == ["allow User:u0 read topic literal t from *"]


def test_one_address_hides_no_other_and_fills_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "monotonic_s", lambda: 100.0)
    owner = authenticator()
    with capture_logs() as lines:
        for _ in range(TOLD_PER_S * 3):
            with pytest.raises(UnauthenticatedError):
                log_in(Session(owner, "192.0.2.1", listener="http"), b"Basic " + base64.b64encode(b"root:no"))
        with pytest.raises(UnauthenticatedError):
            log_in(Session(owner, "192.0.2.2", listener="http"), b"Basic " + base64.b64encode(b"root:no"))
        owner.log_left_out()
    told = [line["address"] for line in lines if line["event"] == "login_failed"]
    assert (told.count("192.0.2.1"), told.count("192.0.2.2")) == (TOLD_PER_S, 1)
    (left_out,) = (line for line in lines if line["event"] == "login_failed_left_out")
    assert (left_out["address"], left_out["logins"]) == ("192.0.2.1", TOLD_PER_S * 2)


@pytest.mark.parametrize(
    ("authorization", "user"),
    [
        (b"Basic !", ""),
        (b"s3cret-that-is-wrong", ""),
        (b"Basic " + base64.b64encode(b"\x1b[2J\n:x"), "\\x1b[2J\\n"),
        (b"Basic " + base64.b64encode(b"n" * 5000 + b":x"), "n" * TEXT_MAX + "..."),
        (b"Bearer " + jwt.encode({"sub": "alice"}, "k" * 32).encode(), "alice"),
        (b"Bearer s3cret-that-is-wrong", ""),
    ],
)
def test_what_a_stranger_calls_himself_is_cut_and_escaped(
    authorization: bytes, user: str, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").write_text('{"keys": []}')
    keys = OAuth(keys=str(tmp_path / "keys.json"))
    owner = authenticator(Security(authentication=True, oauth=keys, sasl_mechanisms=["PLAIN", "OAUTHBEARER"]))
    with capture_logs() as lines, pytest.raises(UnauthenticatedError):
        log_in(Session(owner, "192.0.2.1"), authorization)
    assert [line["user"] for line in lines if line["event"] == "login_failed"] == [user]
    no_secret_in(lines)


def test_a_text_is_shown_as_it_is_but_for_what_cannot_be_seen() -> None:
    assert shown("jürgen") == "jürgen"
    assert shown("a\nb\u202e\udcff") == "a\\nb\\u202e\\udcff"
