"""A node's listener for Oxia's clients, asked by gRPC's own library: windows, pings, large messages, TLS, logins."""

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from antiphon.gateway.protobuf import Message, decode, encode
from antiphon.model.access import Acl, Operation, Resource
from antiphon.model.metadata import Kind
from antiphon.model.requests import AlterAcls, AlterUser, CreateTopic
from antiphon.oxia import messages as m
from antiphon.security.passwords import credentials
from antiphon.security.settings import Security
from tests.node.loop_in_thread import LoopInThread
from tests.node.real_nodes import Nodes
from tests.security.certificates import client_files, server_files

SERVICE = "/io.streamnative.oxia.proto.OxiaClient/"


class Served(LoopInThread):
    """One node on a loop in a thread, with a table `t` of one shard."""

    def __init__(self, directory: Path, security: Security | None = None) -> None:
        super().__init__()
        self.call(self._start(directory, security))

    async def _start(self, directory: Path, security: Security | None) -> None:
        self.nodes = Nodes(directory, 1, {}, oxia=True, security=security)
        await self.nodes.start_all()
        self.gateway = self.nodes.nodes[0].gateway
        topic = await self.gateway.create_topic(CreateTopic("t", Kind.TABLE, 1))
        self.shard = topic.shards[0].shard_id
        self.address = self.nodes.nodes[0].meta().oxia

    def stop(self) -> None:
        self.call(self.nodes.close())
        super().stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("oxia"))
    yield made
    made.stop()


def method(channel: grpc.Channel, name: str, kind: type[Message], *, streams: str = "unary_unary") -> Any:
    return getattr(channel, streams)(
        SERVICE + name,
        request_serializer=lambda message: bytes(encode(message)),
        response_deserializer=lambda data: decode(kind, data),
    )


def put(channel: grpc.Channel, shard: int, key: bytes, value: bytes = b"", **call: Any) -> m.PutResponse:
    write = method(channel, "Write", m.WriteResponse)
    request = m.WriteRequest(shard=shard, puts=[m.PutRequest(key=key, value=value)])
    found: m.PutResponse = write(request, timeout=10, **call).puts[0]
    return found


def test_messages_larger_than_any_window_go_both_ways(served: Served) -> None:
    value = bytes(range(256)) * 3_500
    with grpc.insecure_channel(served.address) as channel:
        for number in range(8):
            assert put(channel, served.shard, b"large %d" % number, value).status == 0
        scan = method(channel, "RangeScan", m.RangeScanResponse, streams="unary_stream")
        request = m.RangeRequest(shard=served.shard, start_inclusive=b"large", end_exclusive=b"largf")
        rows = [row for page in scan(request, timeout=20) for row in page.records]
        assert [row.value == value for row in rows] == [True] * 8


def test_many_calls_share_a_connection(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        write = method(channel, "Write", m.WriteResponse)
        calls = [
            write.future(m.WriteRequest(shard=served.shard, puts=[m.PutRequest(key=b"many %d" % number)]))
            for number in range(500)
        ]
        versions = {call.result(20).puts[0].version.version_id for call in calls}
        assert len(versions) == 500


def test_pings_without_calls_are_answered(served: Served) -> None:
    options = (
        ("grpc.keepalive_time_ms", 1_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    with grpc.insecure_channel(served.address, options) as channel:
        states: list[Any] = []
        channel.subscribe(states.append, try_to_connect=True)
        put(channel, served.shard, b"k")
        threading.Event().wait(2.5)
        assert put(channel, served.shard, b"k").version.modifications_count >= 1
        assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in states


def test_what_the_client_gives_up_ends_here(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        follow = method(channel, "GetNotifications", m.NotificationBatch, streams="unary_stream")
        streams = [follow(m.NotificationsRequest(shard=served.shard)) for _ in range(20)]
        for stream in streams:
            assert not next(stream).notifications
            stream.cancel()
        put(channel, served.shard, b"k")
        listener = served.nodes.servers[0].oxia
        assert listener is not None
        for _ in range(200):
            left = sum(len(one.calls) for one in list(listener.open_connections))
            if not left:
                break
            threading.Event().wait(0.02)
        assert left == 0
        assert all(one.account.held_bytes < 64 * 1024 for one in list(listener.open_connections))


def test_compressed_messages_are_refused_in_words(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel, pytest.raises(grpc.RpcError) as error:
        put(channel, served.shard, b"k", b"x" * 5_000, compression=grpc.Compression.Gzip)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "compressed" in error.value.details()


def test_what_is_no_grpc_is_closed(served: Served) -> None:
    import socket

    host, port = served.address.rsplit(":", 1)
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
        with socket.create_connection((host, int(port)), 5) as client:
            client.sendall(data)
            client.settimeout(5)
            while client.recv(65536):
                pass
    with grpc.insecure_channel(served.address) as channel:
        put(channel, served.shard, b"k")


def test_tls_with_certificates(tmp_path: Path) -> None:
    made = Served(tmp_path, Security(tls=server_files(tmp_path / "node-0")))
    try:
        trusted = grpc.ssl_channel_credentials((tmp_path / "node-0" / "authority.pem").read_bytes())
        with grpc.secure_channel(made.address, trusted) as channel:
            assert put(channel, made.shard, b"k").status == 0
        with grpc.insecure_channel(made.address) as channel, pytest.raises(grpc.RpcError):
            put(channel, made.shard, b"k")
    finally:
        made.stop()


def test_what_a_client_with_a_certificate_says_counts(tmp_path: Path) -> None:
    """Who gives a user all the same logs in as that, and not with a wrong password."""
    directory = tmp_path / "node-0"
    security = Security(
        authentication=True, tls=server_files(directory, "requested"), super_users=["User:CN=alice"]
    )
    certificate, key = client_files(tmp_path)
    made = Served(tmp_path, security)
    try:
        made.call(made.gateway.administer(AlterUser("eve", credentials("eve's"))))
        files = (directory / "authority.pem", key, certificate)
        shown = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        codes = []
        with grpc.secure_channel(made.address, shown) as channel:
            for said in ("", "eve:wrong", "eve:eve's", "eve:wrong", ""):
                header = f"Basic {base64.b64encode(said.encode()).decode()}"
                try:
                    put(channel, made.shard, b"k", metadata=(("authorization", header),) if said else ())
                    codes.append(grpc.StatusCode.OK)
                except grpc.RpcError as error:
                    codes.append(error.code())
        unauthenticated, denied = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
        assert codes == [grpc.StatusCode.OK, unauthenticated, denied, unauthenticated, grpc.StatusCode.OK]
    finally:
        made.stop()


def test_a_stream_of_who_is_removed_ends_also_where_others_share_its_connection(tmp_path: Path) -> None:
    made = Served(tmp_path, Security(authentication=True, super_users=["User:root"]))
    try:
        for name in ("alice", "eve"):
            made.call(made.gateway.administer(AlterUser(name, credentials(name))))
            entry = Acl(f"User:{name}", Resource.TABLE, "t", Operation.WRITE)
            made.call(made.gateway.administer(AlterAcls((entry,))))
        said = {
            name: f"Basic {base64.b64encode(f'{name}:{name}'.encode()).decode()}" for name in ("alice", "eve")
        }
        goes_on = threading.Event()

        def writes() -> Iterator[m.WriteRequest]:
            yield m.WriteRequest(shard=made.shard, puts=[m.PutRequest(key=b"a", value=b"")])
            goes_on.wait(20)

        with grpc.insecure_channel(made.address) as channel:
            stream = method(channel, "WriteStream", m.WriteResponse, streams="stream_stream")
            metadata = (("authorization", said["alice"]), ("shard-id", str(made.shard)))
            answers = stream(writes(), metadata=metadata)
            assert next(answers).puts[0].status == 0
            put(channel, made.shard, b"k", metadata=(("authorization", said["eve"]),))
            made.call(made.gateway.administer(AlterUser("alice", remove=True)))
            with pytest.raises(grpc.RpcError) as error:
                next(answers)
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
            put(channel, made.shard, b"k", metadata=(("authorization", said["eve"]),))
            goes_on.set()
    finally:
        made.stop()


def test_who_may_do_what(tmp_path: Path) -> None:
    made = Served(tmp_path, Security(authentication=True, super_users=["User:root"]))
    try:
        for name in ("alice", "eve"):
            made.call(made.gateway.administer(AlterUser(name, credentials(f"{name}'s"))))
        reads = Acl("User:eve", Resource.TABLE, "t", Operation.READ)
        writes = Acl("User:alice", Resource.TABLE, "t", Operation.WRITE)
        made.call(made.gateway.administer(AlterAcls((reads, writes))))
        with grpc.insecure_channel(made.address) as channel:
            codes = []
            for user, password in (("", ""), ("alice", "wrong"), ("alice", "alice's"), ("eve", "eve's")):
                said = base64.b64encode(f"{user}:{password}".encode()).decode()
                metadata = (("authorization", f"Basic {said}"),) if user else ()
                try:
                    put(channel, made.shard, b"k", metadata=metadata)
                    codes.append(grpc.StatusCode.OK)
                except grpc.RpcError as error:
                    codes.append(error.code())
        assert codes == [
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.OK,
            grpc.StatusCode.PERMISSION_DENIED,
        ]
    finally:
        made.stop()
