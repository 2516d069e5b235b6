"""The blocking client against peers that dribble, hang, lie or are not there."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.blocking_link import Link
from antiphon.client.blocking_topics import created
from antiphon.client.routing import tries
from antiphon.errors import (
    FrameTooLargeError,
    InvalidRequestError,
    ProtocolViolationError,
    TimedOutError,
    UnreachableError,
    WrongKindError,
    WrongShardError,
)
from antiphon.model.metadata import Kind
from antiphon.model.requests import AppendBatch, CreateTopic, Fetch, Fetched, Hello, HelloReply, ListOffset
from antiphon.records.builder import build_batch
from antiphon.wire.frames import PREFIX, FrameDecoder, decode_request, encode_message
from tests.spark.native_server import NativeServer

Answering = Callable[[socket.socket, int, Any], None]


class Peer:
    """Listens, greets, and answers the rest as the test says."""

    def __init__(self, answer: Answering) -> None:
        self.accepted = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted += 1
                self._open.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder()
        with suppress(OSError):
            while data := connection.recv(1 << 16):
                for frame in decoder.feed(data):
                    request_id, request = decode_request(frame.header)
                    if isinstance(request, Hello):
                        connection.sendall(b"".join(encode_message(request_id, HelloReply(1, "test", 0))))
                    else:
                        self._answer(connection, request_id, request)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for one in self._open:
            one.close()


@pytest.fixture
def peer() -> Iterator[Callable[[Answering], Peer]]:
    made: list[Peer] = []

    def make(answer: Answering) -> Peer:
        made.append(Peer(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


FETCHED = Fetched(10, 0, 10, 1)


def test_answers_in_any_pieces(peer: Callable[[Answering], Peer]) -> None:
    payloads = [b"", b"x", bytes(range(256)) * 3]

    def dribble(connection: socket.socket, request_id: int, request: Fetch) -> None:
        if (
            request_id == 2
        ):  # the answers to the second request and the next two come as one stream of small pieces
            whole = b"".join(
                b"".join(encode_message(request_id + at, FETCHED, [payload]))
                for at, payload in enumerate(payloads)
            )
            for at in range(0, len(whole), request.max_bytes):
                connection.sendall(whole[at : at + request.max_bytes])

    for size in (1, 7, 64, 5000):
        with closing(Link(peer(dribble).address)) as link:
            sent = [link.send(Fetch(1, 0, size)) for _ in payloads]
            got = [link.receive(5) for _ in payloads]
            assert [answer_id for answer_id, _ in got] == sent
            assert [bytes(answer.payload) for _, answer in got] == payloads


def test_a_large_answer_is_copied_once(peer: Callable[[Answering], Peer]) -> None:
    payload = bytes(48 * 1024 * 1024)

    def answer(connection: socket.socket, request_id: int, _: Any) -> None:
        connection.sendall(b"".join(encode_message(request_id, FETCHED, [payload])))

    with closing(Link(peer(answer).address)) as link:
        link.call(Fetch(1, 0))
        began_s = time.process_time()
        assert len(link.call(Fetch(1, 0)).payload) == len(payload)
        # The peer is in this process, too. Joining pieces over and over would take tens of seconds.
        assert time.process_time() - began_s < 3


LIES = [
    (PREFIX.pack(1 << 30, 10), FrameTooLargeError, "1073741824 bytes"),
    (PREFIX.pack(20, 30), ProtocolViolationError, "cannot hold a header of 30 bytes"),
    (b"HTTP/1.1 400 Bad Request\r\n", FrameTooLargeError, "is the most that is accepted"),
]


@pytest.mark.parametrize(("bytes_", "error", "message"), LIES)
def test_nothing_is_kept_for_a_frame_that_cannot_be(
    peer: Callable[[Answering], Peer], bytes_: bytes, error: type[Exception], message: str
) -> None:
    lying = peer(lambda connection, _id, _request: connection.sendall(bytes_))
    with closing(Link(lying.address)) as link, pytest.raises(error, match=message):
        link.call(Fetch(1, 0))


def test_a_silent_peer_takes_no_longer_than_allowed(peer: Callable[[Answering], Peer]) -> None:
    silent = peer(lambda *_: None)
    began_s = time.monotonic()
    with Cluster([silent.address], 300) as cluster, pytest.raises(UnreachableError, match="no answer from"):
        cluster.metadata()
    assert time.monotonic() - began_s < 2


def test_a_cut_in_the_middle_of_an_answer(server: NativeServer, peer: Callable[[Answering], Peer]) -> None:
    server.create("t")
    host, _, port = server.address.rpartition(":")

    def half(connection: socket.socket, request_id: int, _: Any) -> None:
        connection.sendall(b"".join(encode_message(request_id, FETCHED, [b"x" * 100]))[:50])
        connection.shutdown(socket.SHUT_RDWR)

    cut = peer(half)
    with Cluster([cut.address, (host, int(port))], 5_000) as cluster:
        assert [topic.name for topic in cluster.metadata().topics] == ["t"]
        shard_id = cluster.topic("t", table=False).shards[0].shard_id
        assert cluster.call(ShardCall(shard_id, ListOffset(shard_id, -1))).body.high_watermark == 1
    assert cut.accepted >= 1


def test_an_address_that_refuses_is_not_stormed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    tried: list[float] = []
    real = socket.create_connection

    def counted(*arguments: Any, **named: Any) -> socket.socket:
        tried.append(time.monotonic())
        return real(*arguments, **named)

    monkeypatch.setattr(socket, "create_connection", counted)
    monkeypatch.setattr(tries, "PAUSE_S_MAX", 0.02)  # whoever asks comes back at once
    with Cluster([address], 1_500) as cluster, pytest.raises(UnreachableError, match="refused"):
        cluster.metadata()
    assert len(tried) <= 10, "pauses between tries grow"


def test_a_node_of_another_cluster_is_named(server: NativeServer, peer: Callable[[Answering], Peer]) -> None:
    server.create("t")
    host, _, port = server.address.rpartition(":")
    cluster = Cluster([(host, int(port))], 1_000)
    with cluster:
        cluster.metadata()
        cluster._cluster_id = "mine"
        other = peer(lambda *_: None)
        with pytest.raises(InvalidRequestError, match="belongs to cluster test, the others to mine"):
            cluster._link(other.address)


def test_requests_without_a_leader_end(server: NativeServer) -> None:
    server.create("t")
    server.faults.deny_leadership = 1_000_000
    host, _, port = server.address.rpartition(":")
    began_s = time.monotonic()
    with Cluster([(host, int(port))], 300) as cluster, pytest.raises(TimedOutError, match="not_leader"):
        cluster.call(ShardCall(1, ListOffset(1, -1)))
    assert time.monotonic() - began_s < 2


def test_the_outcome_of_a_write_that_has_no_answer_is_not_known(server: NativeServer) -> None:
    (shard,) = server.create("t")
    batch = build_batch([(None, b"x", (), 5)], producer_id=7, producer_epoch=0, base_sequence=0)
    with Cluster([_address(server)], 400) as cluster:
        server.faults.drop_after_append = 1_000_000
        with pytest.raises(TimedOutError, match="1 of 1 requests had no answer in time") as caught:
            cluster.call(ShardCall(1, AppendBatch(1), [batch]))
        assert (caught.value.outcome_unknown, caught.value.retriable, shard.end) == (True, False, 2)
        server.faults.away = True
        with pytest.raises(TimedOutError) as caught:
            cluster.call(ShardCall(1, ListOffset(1, -1)))
        assert (caught.value.outcome_unknown, caught.value.retriable) == (False, True)


def test_a_topic_that_is_made_and_waited_for(server: NativeServer) -> None:
    with Cluster([_address(server)], 2_000) as cluster:
        cluster.metadata()
        server.faults.forgetful = 1
        made = [created(cluster, CreateTopic("t", shards=2)) for _ in range(2)]
        assert [len(topic.shards) for topic in made] == [2, 2]
        with pytest.raises(WrongKindError):
            created(cluster, CreateTopic("t", Kind.TABLE))
        server.faults.away = True
        with pytest.raises(TimedOutError) as caught:
            created(cluster, CreateTopic("other"))
        assert caught.value.outcome_unknown


def test_a_split_that_is_not_known_yet(server: NativeServer) -> None:
    """What is done by what is known of the shards is done again with newer metadata, however long a try takes."""
    server.create("t")
    seen: list[int] = []

    def attempt() -> int:
        seen.append(len(cluster.topic("t", table=False, refresh=False).shards))
        time.sleep(0.15)
        if seen[-1] < 3:
            server.add_shard("t")
            raise WrongShardError("it was split")
        return seen[-1]

    with Cluster([_address(server)], 200) as cluster:
        assert cluster.across_splits(attempt) == 3
    assert seen == [1, 2, 3]


def _address(server: NativeServer) -> tuple[str, int]:
    host, _, port = server.address.rpartition(":")
    return host, int(port)


def _socket_pair(link: Link) -> socket.socket:
    """Put one end of a pair in the place of the link's socket; returns the other one."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    link.close()
    link._socket = ours
    return theirs


def test_a_request_of_many_parts_arrives_whole(server: NativeServer) -> None:
    link = Link(_address(server))
    parts = [b"", *(bytes([n % 251]) * (n % 700) for n in range(1500)), b""]
    taken = bytearray()
    with closing(_socket_pair(link)) as other, closing(link):

        def take() -> None:
            while data := other.recv(3000):
                taken.extend(data)

        reader = threading.Thread(target=take)
        reader.start()
        request_id = link.send(ListOffset(1, -1), parts)
        link.close()
        reader.join(10)
    assert bytes(taken) == b"".join(encode_message(request_id, ListOffset(1, -1), parts))


def test_a_peer_that_takes_a_byte_now_and_then_does_not_hold_a_request_up(server: NativeServer) -> None:
    link = Link(_address(server))
    with closing(_socket_pair(link)) as other, closing(link):
        stop = threading.Event()

        def dribble() -> None:
            while not stop.wait(0.02):
                other.recv(4096)

        reader = threading.Thread(target=dribble)
        reader.start()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            link.send(ListOffset(1, -1), [bytes(8_000_000)], timeout_s=0.3)
        took_s = time.monotonic() - began
        stop.set()
        reader.join(10)
    assert took_s < 2
