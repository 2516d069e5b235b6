"""Oxia's clients: their messages, HTTP/2, and the listener of a whole node, of which another client asks as always."""

import inspect
from random import Random
from typing import Final

from antiphon.gateway.protobuf import INNER_FIELDS_MAX, BadMessageError, Decoding, Message, decode, encode
from antiphon.model.metadata import Kind
from antiphon.oxia import frames as f
from antiphon.oxia import messages as m
from antiphon.oxia.events import Event, Opened
from antiphon.oxia.http2 import ConnectionFailedError, Http2
from antiphon.security.settings import Security
from antiphon.simulation.cluster.oxia_client import SERVICES, OxiaClient
from tests.fuzz.target import MIB, Target, check
from tests.fuzz.targets.large import enlarged, large_input, split
from tests.fuzz.targets.nodes import Listener, World, input_of
from tests.kafka.kafka_nodes import create

PORT: Final = 6648
PIECES_BYTES: Final = 64 * 1024  # more fields than are read at a time
KINDS: Final = [
    kind
    for _, kind in inspect.getmembers(m, inspect.isclass)
    if issubclass(kind, Message) and kind is not Message
]
REQUESTS: Final = {
    "Write": m.WriteRequest(
        shard=4,
        puts=[
            m.PutRequest(key=b"a", value=b"1", expected_version_id=-1, client_identity="c"),
            m.PutRequest(key=b"s", partition_key=b"p", sequence_key_delta=[1, 2]),
            m.PutRequest(key=b"i", secondary_indexes=[m.SecondaryIndex(index_name="i", secondary_key="x")]),
            m.PutRequest(key=b"e", session_id=5),
        ],
        deletes=[m.DeleteRequest(key=b"a")],
        delete_ranges=[m.DeleteRangeRequest(start_inclusive=b"a", end_exclusive=b"b")],
    ),
    "Read": m.ReadRequest(
        shard=4,
        gets=[
            m.GetRequest(key=b"a", include_value=True, comparison_type=1),
            m.GetRequest(key=b"x", secondary_index_name="i", comparison_type=4),
        ],
    ),
    "List": m.RangeRequest(shard=4, start_inclusive=b"a", secondary_index_name="i"),
    "RangeScan": m.RangeRequest(shard=4, end_exclusive=b"z"),
    "GetShardAssignments": m.ShardAssignmentsRequest(namespace="t"),
    "GetNotifications": m.NotificationsRequest(shard=4, start_offset_exclusive=0),
    "GetSequenceUpdates": m.GetSequenceUpdatesRequest(shard=4, key=b"s"),
    "CreateSession": m.CreateSessionRequest(shard=4, session_timeout_ms=2_000),
    "KeepAlive": m.SessionRequest(shard=4, session_id=5),
    "WriteStream": m.WriteRequest(puts=[m.PutRequest(key=b"a")]),
}
HELLO: Final = f.PREFACE + f.settings_frame([(f.INITIAL_WINDOW_SIZE, 65_535)])


def call_of(stream_id: int, method: str, message: Message) -> bytes:
    """A whole request on a stream."""
    told = {
        ":method": "POST",
        ":path": SERVICES[0] + method,
        ":authority": "a",
        "content-type": "application/grpc",
        "shard-id": "4",
    }
    block = b"".join(f.literal(name.encode(), value.encode()) for name, value in told.items())
    data = bytes(encode(message))
    body = b"\x00" + len(data).to_bytes(4, "big") + data
    return f.frame(f.HEADERS, f.END_HEADERS, stream_id, block) + f.frame(
        f.DATA, f.END_STREAM, stream_id, body
    )


class OxiaMessages(Target):
    """The bytes of a message as each kind that it might be."""

    slow_s = 0.5

    def seeds(self) -> list[bytes]:
        return [bytes(encode(message)) for message in REQUESTS.values()]

    def run(self, data: bytes) -> None:
        for kind in KINDS:
            try:
                found = decode(kind, data)
            except BadMessageError:
                continue
            again = decode(kind, bytes(encode(found)))
            check(again == found, f"{kind.__name__} is another one after it was written")


class OxiaLarge(Target):
    """Messages of which a piece is repeated, up to 64 KiB, read at once and in pieces as the listener does."""

    slow_s = 4.0
    memory_bytes = 128 * MIB

    def seeds(self) -> list[bytes]:
        found = []
        for message in (REQUESTS["Write"], REQUESTS["Read"], m.ShardAssignmentsRequest(namespace="t")):
            data = bytes(encode(message))
            found += [large_input(0, data, times, 2, len(data) - 2) for times in (3, 200_000)]
        deltas = bytes(encode(m.WriteRequest(puts=[m.PutRequest(key=b"s", sequence_key_delta=[1, 2, 3])])))
        return [
            *found,
            large_input(0, deltas, 500_000, len(deltas) - 1, 1),
            large_input(0, b"\x78\x01", 900_000, 0, 2),
        ]

    def run(self, data: bytes) -> None:
        rest, (times, start, size) = split(b"\x04" + data[1:])
        large = enlarged(rest[2:], (min(times, PIECES_BYTES // max(1, size)), start, size))
        for kind in (m.WriteRequest, m.ReadRequest, m.RangeRequest):
            told = self._whole(kind, large)
            pieces = self._in_pieces(kind, large)
            check(told == pieces, f"{kind.__name__} depends on how many fields are read at a time")

    def _whole(self, kind: type[Message], data: bytes) -> Message | str:
        try:
            return decode(kind, data, INNER_FIELDS_MAX)
        except BadMessageError as error:
            return str(error)

    def _in_pieces(self, kind: type[Message], data: bytes) -> Message | str:
        reading = Decoding(kind, data)
        try:
            while not reading.step():
                pass
        except BadMessageError as error:
            return str(error)
        return reading.message


class OxiaFrames(Target):
    """A connection's bytes in one piece and byte by byte: the same calls, answered or refused at the same place."""

    slow_s = 1.0

    def seeds(self) -> list[bytes]:
        return [HELLO + call_of(1, name, message) for name, message in REQUESTS.items()]

    def run(self, data: bytes) -> None:
        whole = self._heard([data])
        if len(data) < 4_096:
            pieces = self._heard([data[at : at + 1] for at in range(len(data))])
            check(whole == pieces, "what is understood depends on how the bytes come")
        self._heard([data], answers=True)

    def _heard(self, pieces: list[bytes], *, answers: bool = False) -> tuple[list[Event], str]:
        """What is understood, unless it is refused, and why it is."""
        one, found = Http2(), []
        for piece in pieces:
            try:
                events = one.receive(piece)
                while one.is_interrupted:
                    events += one.receive(b"")
            except ConnectionFailedError as error:
                return [], str(error)
            found += events
            for event in events:
                if isinstance(event, Opened) and answers:
                    one.send_data(event.stream_id, b"answer")
                    one.send_end(event.stream_id, b"")
        return found, ""


class Oxia(Listener):
    """The listener of a whole node."""

    port = PORT
    security = Security()

    def make(self) -> World:
        """See Listener; with a port for Oxia's clients."""
        world = World(self.security, oxia_port=PORT)
        with world.heard():
            world.call(self._furnish(world))
        return world

    async def _furnish(self, world: World) -> None:
        await create(world.nodes.nodes[0], "t", 1, kind=Kind.TABLE)

    def seeds(self) -> list[bytes]:
        calls = [HELLO + call_of(1, name, message) for name, message in REQUESTS.items()]
        return [input_of(0, one) for one in calls] + [
            input_of(0, HELLO, *(call_of(2 * n + 1, *one) for n, one in enumerate(REQUESTS.items())))
        ]

    async def witness(self, world: World) -> None:
        at = OxiaClient([("node-0", PORT)], Random(1), "witness", SERVICES[1])
        shard = world.nodes.nodes[0].gateway.topic("t").shards[0].shard_id
        put = m.WriteRequest(shard=shard, puts=[m.PutRequest(key=b"witness", value=b"w")])
        check(
            (await at.call("Write", put, m.WriteResponse)).puts[0].status == 0,
            "the other client's put failed",
        )
        at.hang_up()
