"""What comes in frames: Kafka requests, and the native protocol's messages of clients, of nodes, and of answers."""

from typing import Any, Final

from antiphon.errors import FrameTooLargeError, ProtocolViolationError
from antiphon.kafka.apis import APIS, HotHandler
from antiphon.kafka.framing import read_header
from antiphon.kafka.schema import codec, encode
from antiphon.model.loads import LoadRows
from antiphon.model.peer_handshake import PeerChallenge, PeerHello, PeerProof
from antiphon.model.requests import (
    PROTOCOL_VERSION,
    AppendBatch,
    CreateTopic,
    Fetch,
    GetMetadata,
    Hello,
    ListOffset,
    Put,
    TableGet,
    TableScan,
    TableWrite,
)
from antiphon.native.keyed_session import decode_handshake
from antiphon.node.peer_wire import (
    SnapshotBegin,
    SnapshotChunk,
    SnapshotFile,
    decode_challenge,
    decode_peer,
    decode_peer_reply,
    with_payload,
)
from antiphon.records.builder import build_batch
from antiphon.records.entry_id import EntryId
from antiphon.records.packed_rows import packed
from antiphon.replication.messages import Append
from antiphon.wire.frames import (
    FrameDecoder,
    decode_reply,
    decode_request,
    encode_frame,
    encode_message,
    request_id_of,
)
from tests.fuzz.target import Target, check


class KafkaRequests(Target):
    """A frame without its length: its header, its body, and the body again as it would be written."""

    slow_s = 0.5

    def run(self, data: bytes) -> None:
        try:
            header, reader = read_header(memoryview(data), APIS)
            if not header.supported:
                return
            handler = APIS[header.api.key].handler
            if isinstance(handler, HotHandler):
                handler.decode(reader, header.version)
                return
            kind = header.api.request
            assert kind is not None
            flexible = header.api.is_flexible(header.version)
            message = codec(kind, header.version, flexible).read(reader)
        except ProtocolViolationError:
            return
        written = encode(message, header.version, flexible=flexible)
        again = codec(kind, header.version, flexible).read(type(reader)(memoryview(written)))
        check(again == message, f"{header.api.name} {header.version} is another one after it was written")


def frames_of(chunks: list[bytes]) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The frames that a decoder cuts out of a stream that arrives in these chunks; and whether it refused the rest."""
    decoder, found = FrameDecoder(), []
    try:
        for chunk in chunks:
            found += [(bytes(frame.header), bytes(frame.payload)) for frame in decoder.feed(chunk)]
    except (ProtocolViolationError, FrameTooLargeError):
        return found, True
    return found, False


DECODERS: Final = (
    decode_request,
    decode_reply,
    decode_peer,
    decode_peer_reply,
    decode_challenge,
    decode_handshake,
)


class NativeMessages(Target):
    """A stream of frames, in one piece and byte by byte; each header as every kind of message that it might be."""

    slow_s = 0.5

    def seeds(self) -> list[bytes]:
        batch = bytes(build_batch([(b"k", b"v", [("h", b"x")], 1)]))
        bodies: list[tuple[Any, tuple[bytes, ...]]] = [
            (Hello(PROTOCOL_VERSION, "seed"), ()),
            (GetMetadata(), ()),
            (CreateTopic("t"), ()),
            (AppendBatch(1, None, 1000), (batch,)),
            (Fetch(1, 0), ()),
            (ListOffset(1, -1), ()),
            (TableWrite(2, (Put(b"k", b"v", 3),), 1 << 61, 0, 1), ()),
            (LoadRows(2, 2, 1 << 61, 0, 1), (packed([(b"k", b"v"), (b"l", None)]),)),
            (TableGet(2, (b"k",)), ()),
            (TableScan(2, b"", b"", 10), ()),
            (PeerHello(PROTOCOL_VERSION, "c", 1, 0, "i", bytes(32)), ()),
            (PeerChallenge(bytes(32), bytes(32)), ()),
            (PeerProof(bytes(32)), ()),
            (SnapshotBegin(2, 1, EntryId(1, 5), "s", (SnapshotFile("a", 3, 7),)), ()),
            (SnapshotChunk(2, "s", 0, 0, 7), (b"abc",)),
            (Append(2, 1, 1, EntryId(0, 0), 0, 1), (batch,)),
        ]
        return [
            b"".join(bytes(part) for part in encode_message(n, body, rest))
            for n, (body, rest) in enumerate(bodies)
        ]

    def run(self, data: bytes) -> None:
        whole, refused = frames_of([data])
        pieces, refused_too = frames_of([data[at : at + 7] for at in range(0, len(data), 7)])
        check(refused == refused_too, "whether a stream is refused depends on how it is cut")
        # Frames of the chunk with the bad one are lost with it: fewer of the whole chunk, never others.
        check(whole == pieces[: len(whole)], "how a stream is cut decides what is in it")
        check(refused or len(whole) == len(pieces), "a frame of a good stream is lost")
        for header, payload in pieces:
            check(
                b"".join(bytes(p) for p in encode_frame(header, (payload,))) in data,
                "a frame that was never there",
            )
            self._read(header, payload)

    def _read(self, header: bytes, payload: bytes) -> None:
        try:
            request_id_of(header)
        except ProtocolViolationError:
            return
        for decode in DECODERS:
            try:
                request_id, body = decode(header)
            except ProtocolViolationError:
                continue
            written = b"".join(bytes(part) for part in encode_message(request_id, body))[8:]
            again = b"".join(bytes(part) for part in encode_message(*decode(written)))[8:]
            check(written == again, f"{type(body).__name__} is another one after it was written")
            if decode is decode_peer:
                try:
                    with_payload(body, memoryview(payload))
                except ProtocolViolationError:
                    continue
