"""Frames: every split of the stream gives the same frames, and hostile bytes give an error, not memory."""

import contextlib
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import FrameTooLargeError, ProtocolViolationError
from antiphon.model.access import ACLS_MAX, Acl, Operation, Resource
from antiphon.model.loads import LoadRows
from antiphon.model.requests import (
    FRAME_BYTES_MAX,
    GET_KEYS_MAX,
    OPS_MAX,
    SETTINGS_MAX,
    AlterAcls,
    AlterTopic,
    AppendBatch,
    Check,
    CreateTopic,
    Delete,
    Done,
    Failure,
    Hello,
    Put,
    TableGet,
    TableScan,
    TableWrite,
    TableWritten,
)
from antiphon.model.rows import Row, Version
from antiphon.model.sessions import (
    HASHES_MAX,
    CloseSession,
    KeepSession,
    ListSessions,
    OpenSession,
    PutEphemeral,
    SessionsReply,
    SessionState,
)
from antiphon.model.table_transactions import (
    CheckReads,
    KeysRead,
    PrepareWrite,
    ReadKey,
    ReadKeys,
    ReadsChecked,
)
from antiphon.records import packed_rows
from antiphon.wire.frames import (
    Frame,
    FrameDecoder,
    decode_reply,
    decode_request,
    encode_frame,
    encode_message,
    request_id_of,
)
from tests.memory import allocated_at_most


def joined(frames: list[Frame]) -> list[tuple[bytes, bytes]]:
    return [(bytes(frame.header), bytes(frame.payload)) for frame in frames]


def test_golden_bytes() -> None:
    assert b"".join(encode_message(7, Done())) == b"\x00\x00\x00\x0c\x00\x00\x00\x08\x92\x07\x91\xa4Done"
    assert b"".join(encode_frame(b"hh", [b"pay", memoryview(b"load")])) == (
        b"\x00\x00\x00\x0d\x00\x00\x00\x02hhpayload"
    )


def test_golden_bytes_of_sessions() -> None:
    for body, packed in (
        (OpenSession(3, 7, 10_000, (0, 9)), "920796ab4f70656e53657373696f6e0307cd2710920009cd2710"),
        (KeepSession(3, 7), "920795ab4b65657053657373696f6e030790cd2710"),
        (CloseSession(3, 7), "920795ac436c6f736553657373696f6e030790cd2710"),
        (ListSessions(3, 7, 9), "920794ac4c69737453657373696f6e73030709"),
    ):
        frame = b"".join(encode_message(7, body))
        assert frame[8:].hex() == packed
        assert decode_request.decode(frame[8:]) == (7, body)
    told = SessionsReply((SessionState(7, 10_000, 2, 5, 9_000),), 3, more=True)
    frame = b"".join(encode_message(7, told))
    assert frame[8:].hex() == "920794ad53657373696f6e735265706c79919507cd27100205cd232803c3"
    op = PutEphemeral(b"k", b"v", 7, -1)
    assert msgspec.msgpack.encode(op).hex() == "9504c4016bc4017607ff"
    row = Row(b"k", b"v", Version(5, 0, 1, 2), 7)
    assert msgspec.msgpack.encode(row).hex() == "95c4016bc40176940500010207c0"  # fmt: skip


def test_golden_bytes_of_transactions_over_tables() -> None:
    ops = (Put(b"k", b"v", 5), Delete(b"l"), Check(b"m", -1))
    reads = (ReadKey(b"k", 5), ReadKey(b"l", -1, 9))
    for request, packed in (
        (ReadKeys(3, (b"k",)), "920793a8526561644b6579730391c4016b"),
        (CheckReads(3, reads), "920793aa436865636b5265616473039293c4016b05ff93c4016cff09"),
        (
            PrepareWrite(3, "x", 7, 1, 2, ops, 1000, (0, 9)),
            "920799ac50726570617265577269746503a178070102939400c4016bc40176059301c4016cc09303c4016dffcd03e8920009",
        ),
    ):
        frame = b"".join(encode_message(7, request))
        assert frame[8:].hex() == packed
        assert decode_request.decode(frame[8:]) == (7, request)
    for bad in (
        PrepareWrite(3, "x", -1, 1, 2, ops),
        PrepareWrite(3, "x", 7, 1 << 15, 2, ops),
        PrepareWrite(3, "x", 7, 1, -2, ops),
    ):
        with pytest.raises(msgspec.ValidationError):
            decode_request.decode(b"".join(encode_message(7, bad))[8:])
    rows = (Row(b"k", b"v", Version(5, 0, 1, 2)), None)
    for reply, packed in (
        (KeysRead(rows, 9), "920793a84b657973526561649295c4016bc401769405000102c0c0c009"),
        (ReadsChecked(((1, -1),)), "920792ac5265616473436865636b6564919201ff"),
    ):
        frame = b"".join(encode_message(7, reply))
        assert frame[8:].hex() == packed
        assert decode_reply.decode(frame[8:]) == (7, reply)


@settings(max_examples=60)
@given(
    frames=st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300)), max_size=6),
    cuts=st.lists(st.integers(min_value=1, max_value=50), min_size=1, max_size=12),
)
def test_any_split_of_the_stream_gives_the_same_frames(
    frames: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(b"".join(encode_frame(header, [payload])) for header, payload in frames)
    decoder = FrameDecoder()
    seen: list[tuple[bytes, bytes]] = []
    at = turn = 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        seen += joined(decoder.feed(stream[at : at + step]))
        at, turn = at + step, turn + 1
    assert seen == frames
    assert decoder.buffered_bytes == 0


def test_a_whole_frame_is_not_copied() -> None:
    chunk = b"".join(encode_frame(b"h", [b"x" * 100]))
    (frame,) = FrameDecoder().feed(chunk)
    assert frame.payload.obj is chunk


def test_requests_and_replies_round_trip() -> None:
    request = AppendBatch(shard_id=3, expected_offset=17)
    (frame,) = FrameDecoder().feed(b"".join(encode_message(9, request, [b"batch"])))
    assert decode_request(frame.header) == (9, request)
    assert bytes(frame.payload) == b"batch"
    reply = Failure("not_leader", "ask node 2", {"leader": 2})
    (frame,) = FrameDecoder().feed(b"".join(encode_message(9, reply)))
    assert decode_reply(frame.header) == (9, reply)


def test_a_frame_that_is_too_large_is_refused_before_it_is_buffered() -> None:
    decoder = FrameDecoder(limit_bytes=1000)
    with pytest.raises(FrameTooLargeError) as caught:
        decoder.feed(b"\x00\x00\x03\xe9\x00\x00\x00\x01")
    assert caught.value.details == {"size_bytes": 1001, "limit_bytes": 1000}
    assert decoder.buffered_bytes == 0
    with pytest.raises(FrameTooLargeError):
        decoder.feed(b"more")


def test_our_own_side_refuses_to_send_what_the_peer_would_refuse() -> None:
    with pytest.raises(FrameTooLargeError):
        encode_frame(b"h", [bytes(FRAME_BYTES_MAX)])


@pytest.mark.parametrize(
    "stream", [b"GET / HTTP/1.1\r\n", bytes(8), b"\x00\x00\x00\x04\x00\x00\x00\x01", b"\xff" * 8]
)
def test_a_stranger_s_bytes_are_a_violation(stream: bytes) -> None:
    with pytest.raises((ProtocolViolationError, FrameTooLargeError)):
        FrameDecoder().feed(stream)


@settings(max_examples=200)
@given(chunks=st.lists(st.binary(max_size=64), max_size=8))
def test_fuzz_never_raises_anything_else(chunks: list[bytes]) -> None:
    decoder = FrameDecoder(limit_bytes=4096)
    try:
        for chunk in chunks:
            for frame in decoder.feed(chunk):
                decode_request(frame.header)
    except (ProtocolViolationError, FrameTooLargeError):
        pass
    assert decoder.buffered_bytes <= 4096 + 64


@settings(max_examples=200)
@given(header=st.binary(max_size=80))
def test_fuzz_of_headers(header: bytes) -> None:
    for decode in (decode_request, decode_reply, request_id_of):
        with contextlib.suppress(ProtocolViolationError):
            decode(header)


def test_an_unknown_body_still_tells_its_request_id() -> None:
    (frame,) = FrameDecoder().feed(b"".join(encode_message(41, ["FromTheFuture", 1])))
    with pytest.raises(ProtocolViolationError):
        decode_request(frame.header)
    assert request_id_of(frame.header) == 41


def test_deeply_nested_headers_are_refused() -> None:
    with pytest.raises(ProtocolViolationError):
        decode_request(b"\x92\x01" + b"\x91" * 100_000)


def test_the_first_frames_of_a_connection() -> None:
    hello = Hello(1, "test", "cluster", 2, "abc")
    assert decode_request(encode_message(1, hello)[0][8:]) == (1, hello)
    written = TableWritten((), 4)
    assert decode_reply(encode_message(1, written)[0][8:]) == (1, written)
    write = TableWrite(1, ())
    assert decode_request(encode_message(2, write)[0][8:]) == (2, write)


def test_the_bytes_of_a_load() -> None:
    rows = packed_rows.packed([(b"ab", b"cde"), (b"f", None)])
    assert rows == bytes.fromhex("000000020000000300000001ffffffff") + b"abcdef"
    load = LoadRows(3, 2, 5, 1, 9, 100)
    frame = b"".join(encode_message(7, load, [rows]))
    header = b"\x92\x07\x98\xa8LoadRows\x03\x02\x05\x01\x09\x64\xc3"
    assert frame == struct.pack(">II", 4 + len(header) + len(rows), len(header)) + header + rows
    assert decode_request(header) == (7, load)


@pytest.mark.parametrize(
    "body",
    [
        TableGet(1, (b"k",) * (GET_KEYS_MAX + 1)),
        TableWrite(1, (Delete(b"k"),) * (OPS_MAX + 1)),
        TableScan(1, b"", b"", hashes=(1,) * (HASHES_MAX + 1)),
        CreateTopic("t", config={f"{n}": "" for n in range(SETTINGS_MAX + 1)}),
        AlterTopic("t", config={f"{n}": "" for n in range(SETTINGS_MAX + 1)}),
        AlterAcls(remove=(Acl("User:a", Resource.TOPIC, "t", Operation.READ),) * (ACLS_MAX + 1)),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_request_with_too_many_elements_is_refused_before_they_are_decoded(body: Any) -> None:
    """Decoding holds the event loop: 64 MiB of keys would hold it for half a second."""
    header = msgspec.msgpack.encode((1, body))
    with allocated_at_most(20_000), pytest.raises(msgspec.ValidationError, match="of length <= "):
        decode_request.decode(header)
    assert request_id_of(header) == 1
