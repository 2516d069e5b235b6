"""One end of HTTP/2: what clients may do, and where each of them is stopped."""

from typing import Any

import pytest
from hpack import Encoder

from antiphon.oxia import frames as f
from antiphon.oxia.allowance import (
    BLOCK_UNIT_BYTES,
    CRUMB_COST,
    FIELDS_A_UNIT,
    FIELDS_MAX,
    OPEN_WORK,
    WORK_MAX,
    Bounds,
)
from antiphon.oxia.events import Opened, Received, Reset, Sendable
from antiphon.oxia.http2 import HEADER_BLOCK_BYTES, WINDOW_BYTES, ConnectionFailedError, Http2

REQUEST = [(":method", "POST"), (":path", "/s/M"), ("content-type", "application/grpc")]


def connected(**bounds: int) -> Http2:
    """A connection that was greeted."""
    one = Http2(Bounds(**bounds))
    one.receive(f.PREFACE + f.settings_frame([]))
    one.outgoing.clear()
    return one


def headers(stream_id: int, flags: int = f.END_HEADERS, encoder: Encoder | None = None) -> bytes:
    block = (encoder or Encoder()).encode(REQUEST)
    return f.frame(f.HEADERS, flags, stream_id, block)


def frames_in(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(type, flags, stream, payload) of each frame."""
    found, at = [], 0
    while at < len(data):
        size, kind, flags, stream_id = f.read_frame_header(data, at)
        found.append((kind, flags, stream_id, bytes(data[at + 9 : at + 9 + size])))
        at += 9 + size
    return found


def told(one: Http2) -> int:
    """The code of the GOAWAY that ends a connection."""
    kind, _, _, payload = frames_in(bytes(one.outgoing))[-1]
    assert kind == f.GOAWAY
    return int.from_bytes(payload[4:8], "big")


def test_a_request_comes_in_pieces_of_any_size() -> None:
    data = f.PREFACE + f.settings_frame([]) + headers(1) + f.frame(f.DATA, f.END_STREAM, 1, b"abc")
    one, events = Http2(), []
    for at in range(len(data)):
        events += one.receive(data[at : at + 1])
    assert isinstance(events[0], Opened)
    assert dict(events[0].headers)[b":path"] == b"/s/M"
    assert events[1] == Received(1, b"abc", 3, ended=True)


def test_padding_and_priority_are_taken_off() -> None:
    one = connected()
    block = Encoder().encode(REQUEST)
    padded = b"\x02" + b"\x00" * 5 + block + b"\x00\x00"
    (opened,) = one.receive(f.frame(f.HEADERS, f.END_HEADERS | f.PADDED | f.HAS_PRIORITY, 1, padded))
    assert isinstance(opened, Opened)
    (data,) = one.receive(f.frame(f.DATA, f.PADDED, 1, b"\x03abc\x00\x00\x00"))
    assert data == Received(1, b"abc", 7, ended=False)


def test_answers_wait_for_windows() -> None:
    one = connected()
    one.receive(headers(1, f.END_HEADERS | f.END_STREAM))
    one.send_data(1, b"x" * 100_000)
    one.send_end(1, b"")
    sent = frames_in(bytes(one.outgoing))
    assert sum(len(payload) for kind, *_, payload in sent if kind == f.DATA) == f.WINDOW_DEFAULT
    assert max(len(payload) for *_, payload in sent) <= f.FRAME_BYTES_DEFAULT
    assert one.waiting_bytes == 100_000 - f.WINDOW_DEFAULT
    one.outgoing.clear()
    assert one.receive(f.window_update(1, 100_000)) == []  # the connection's window is still shut
    assert one.receive(f.window_update(0, 100_000)) == [Sendable()]
    sent = frames_in(bytes(one.outgoing))
    assert sum(len(payload) for kind, *_, payload in sent if kind == f.DATA) == 100_000 - f.WINDOW_DEFAULT
    assert sent[-1][:2] == (f.HEADERS, f.END_HEADERS | f.END_STREAM)
    assert one.waiting_bytes == 0
    assert len(one._streams) == 0


def test_a_smaller_window_may_become_negative() -> None:
    one = connected()
    one.receive(headers(1, f.END_HEADERS | f.END_STREAM))
    one.send_data(1, b"x" * 1_000)
    one.receive(f.settings_frame([(f.INITIAL_WINDOW_SIZE, 10)]))
    one.outgoing.clear()
    one.send_data(1, b"y" * 5)
    assert not frames_in(bytes(one.outgoing))
    one.receive(f.window_update(1, 1_000))
    assert frames_in(bytes(one.outgoing))[-1][3] == b"y" * 5


def test_windows_open_when_bytes_are_consumed_only() -> None:
    one = connected()
    one.receive(headers(1))
    piece = f.frame(f.DATA, 0, 1, b"x" * 16_384)
    for _ in range(WINDOW_BYTES // 16_384):
        one.receive(piece)
    assert not [1 for kind, *_ in frames_in(bytes(one.outgoing)) if kind == f.WINDOW_UPDATE]
    one.consumed(1, WINDOW_BYTES)
    opened = {stream: int.from_bytes(p, "big") for kind, _, stream, p in frames_in(bytes(one.outgoing))}
    assert opened == {0: WINDOW_BYTES, 1: WINDOW_BYTES}
    for _ in range(WINDOW_BYTES // 16_384):
        one.receive(piece)
    with pytest.raises(ConnectionFailedError, match="window"):
        one.receive(piece)
    assert told(one) == f.FLOW_CONTROL_ERROR


def _flood(one: Http2, data: bytes, times: int = 100_000) -> None:
    for _ in range(times):
        one.receive(data)
        one.outgoing.clear()


@pytest.mark.parametrize(
    "data",
    [
        f.frame(f.PING, 0, 0, b"12345678"),
        f.settings_frame([(f.INITIAL_WINDOW_SIZE, 65_535)]),
        f.frame(f.PRIORITY, 0, 3, b"\x00" * 5),
        f.window_update(0, 1),
        f.frame(f.DATA, 0, 1, b""),
        f.frame(0x77, 0, 0, b"nobody knows"),
    ],
    ids=["pings", "settings", "priorities", "windows", "empty data", "unknown"],
)
def test_floods_end_the_connection(data: bytes) -> None:
    one = connected(idle_frames=100)
    one.receive(headers(1))
    with pytest.raises(ConnectionFailedError, match="ask for nothing"):
        _flood(one, data)
    assert told(one) == f.ENHANCE_YOUR_CALM


def test_rapid_resets_end_the_connection() -> None:
    one, encoder, number = connected(), Encoder(), 1
    with pytest.raises(ConnectionFailedError, match="ask for nothing"):  # noqa: PT012 - as long as it takes
        while number < 20_000:
            one.receive(headers(number, encoder=encoder) + f.rst_stream(number, f.CANCEL))
            number += 2
    assert told(one) == f.ENHANCE_YOUR_CALM
    assert number < 1_000


def test_time_gives_tokens_back_and_work_does() -> None:
    one = connected(idle_frames=100, idle_frames_s=50)
    ping = f.frame(f.PING, 0, 0, b"12345678")
    for _ in range(1_000):
        one.refill(0.02)
        one.receive(ping)
    encoder = Encoder()
    for number in range(1, 2_001, 2):  # each call is paid for by itself
        one.receive(headers(number, encoder=encoder) + f.frame(f.DATA, f.END_STREAM, number, b"abc"))
        one.completed(1)
        one.receive(f.window_update(0, 8) + ping)
        one.send_end(number, b"")


def test_blocks_of_headers_are_bounded() -> None:
    one = connected()
    one.receive(f.frame(f.HEADERS, 0, 1, b"x" * 100))
    with pytest.raises(ConnectionFailedError, match="bytes at most"):
        _flood(one, f.frame(f.CONTINUATION, 0, 1, b"x" * 1_000), 100)
    assert told(one) == f.ENHANCE_YOUR_CALM
    one = connected()
    big = Encoder().encode([("a", "b" * (HEADER_BLOCK_BYTES - 100))], huffman=False)
    again = bytes([0x80 | 62]) * 50  # the same field, from the table
    with pytest.raises(ConnectionFailedError, match="headers"):
        one.receive(f.frame(f.HEADERS, f.END_HEADERS, 1, big + again))
    assert told(one) == f.COMPRESSION_ERROR


def test_streams_are_bounded_one_by_one() -> None:
    one, encoder = connected(streams=2), Encoder()
    for number in (1, 3, 5):
        one.receive(headers(number, encoder=encoder))
    assert len(one._streams) == 2
    assert frames_in(bytes(one.outgoing))[-1] == (
        f.RST_STREAM,
        0,
        5,
        f.REFUSED_STREAM.to_bytes(4, "big"),
    )
    assert one.receive(f.rst_stream(1, f.CANCEL)) == [Reset(1)]
    assert isinstance(one.receive(headers(7, encoder=encoder))[0], Opened)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (f.frame(f.CONTINUATION, 0, 1, b""), f.PROTOCOL_ERROR),
        (f.frame(f.HEADERS, 0, 1, b"") + f.frame(f.PING, 0, 0, b"12345678"), f.PROTOCOL_ERROR),
        (headers(2), f.PROTOCOL_ERROR),
        (f.frame(f.DATA, 0, 9, b"x"), f.PROTOCOL_ERROR),
        (f.rst_stream(9, 0), f.PROTOCOL_ERROR),
        (f.frame(f.PUSH_PROMISE, 0, 1, b""), f.PROTOCOL_ERROR),
        (f.frame(f.PING, 0, 0, b"1"), f.FRAME_SIZE_ERROR),
        (f.frame(f.SETTINGS, 0, 0, b"12345"), f.FRAME_SIZE_ERROR),
        (f.frame(f.WINDOW_UPDATE, 0, 0, b"\x00\x00\x00\x00"), f.PROTOCOL_ERROR),
        (f.window_update(0, f.WINDOW_MAX), f.FLOW_CONTROL_ERROR),
        (f.settings_frame([(f.INITIAL_WINDOW_SIZE, 1 << 31)]), f.FLOW_CONTROL_ERROR),
        (f.settings_frame([(f.MAX_FRAME_SIZE, 1)]), f.PROTOCOL_ERROR),
        (f.frame_header(f.DATA, 0, 1, f.FRAME_BYTES_DEFAULT + 1), f.FRAME_SIZE_ERROR),
        (headers(1) + f.frame(f.DATA, f.PADDED, 1, b"\x09abc"), f.PROTOCOL_ERROR),
        (f.frame(f.HEADERS, f.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"), f.COMPRESSION_ERROR),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(data: bytes, code: int) -> None:
    one = connected()
    with pytest.raises(ConnectionFailedError):
        one.receive(data)
    assert told(one) == code


def test_who_does_not_speak_http2_is_told() -> None:
    one = Http2()
    with pytest.raises(ConnectionFailedError, match="HTTP/2"):
        one.receive(b"GET / HTTP/1.1\r\n")


def _opened(count: int, waiting: bytes = b"") -> Http2:
    """A connection with so many calls, of each of which so much waits."""
    one, encoder = connected(), Encoder()
    for number in range(count):
        one.receive(headers(2 * number + 1, f.END_HEADERS | f.END_STREAM, encoder))
        one.send_data(2 * number + 1, waiting)
    one.outgoing.clear()
    return one


def _all(one: Http2, data: bytes) -> None:
    one.receive(data)
    while one.is_interrupted:
        one.receive(b"")


def test_settings_cost_as_many_as_they_are_and_the_streams_that_they_change() -> None:
    windows = f.settings_frame([(f.INITIAL_WINDOW_SIZE, 70_000 + number) for number in range(2_000)])
    one = connected()
    one.receive(windows)
    with pytest.raises(ConnectionFailedError, match="ask for nothing"):
        one.receive(windows)
    changes = [f.settings_frame([(f.INITIAL_WINDOW_SIZE, 70_000 + number)]) for number in range(100)]
    one = _opened(1_000)
    with pytest.raises(ConnectionFailedError, match="ask for nothing"):
        _all(one, b"".join(changes))


def test_windows_look_at_no_stream_that_cannot_send() -> None:
    one = _opened(1_000, bytes(100))
    asked = 0

    class Counted(dict[int, Any]):
        def items(self) -> Any:
            nonlocal asked
            asked += 1
            return super().items()

    one._streams = Counted(one._streams)
    for _ in range(500):
        one.receive(f.window_update(0, 100))
    assert not asked
    sent = [stream for kind, _, stream, data in frames_in(bytes(one.outgoing)) if kind == f.DATA and data]
    assert len(set(sent)) >= 300  # 65,535 bytes were sent before; each in its turn


def test_answers_of_many_streams_share_a_window() -> None:
    one = _opened(10, bytes(50_000))
    assert one.waiting_bytes == 500_000 - f.WINDOW_DEFAULT
    for _ in range(100):
        one.receive(f.window_update(0, 10_000))
    assert one.waiting_bytes == 0
    assert sum(len(data) for kind, *_, data in frames_in(bytes(one.outgoing)) if kind == f.DATA) == (
        500_000 - f.WINDOW_DEFAULT
    )


@pytest.mark.parametrize(
    "block",
    [Encoder().encode([("a", "b" * 12_000)], huffman=True), b"\x82" * FIELDS_MAX],
    ids=["large", "many fields"],
)
def test_blocks_of_headers_that_cost_much_are_paid_for(block: bytes) -> None:
    one, number = connected(), 1
    with pytest.raises(ConnectionFailedError, match="ask for nothing"):  # noqa: PT012 - as long as it takes
        while number < 20_000:
            _all(one, f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, number, block))
            one.send_end(number, b"")
            number += 2
    assert number < 200


def test_headers_have_few_fields() -> None:
    one = connected()
    one.receive(f.frame(f.HEADERS, f.END_HEADERS, 1, b"\x82" * FIELDS_MAX))
    with pytest.raises(ConnectionFailedError, match="fields at most"):
        one.receive(f.frame(f.HEADERS, f.END_HEADERS, 3, b"\x82" * (FIELDS_MAX + 1)))
    assert told(one) == f.ENHANCE_YOUR_CALM


def pieces_of(one: Http2, data: bytes) -> list[int]:
    """How many events each turn has, until all is read."""
    found = [len(one.receive(data))]
    while one.is_interrupted:
        found.append(len(one.receive(b"")))
    return found


@pytest.mark.parametrize(
    ("more", "calls"),
    [
        (b"", WORK_MAX // (1 + OPEN_WORK)),  # to begin one takes longer than to read its frame
        (b"\x82" * (FIELDS_MAX - 10), WORK_MAX // (FIELDS_MAX // FIELDS_A_UNIT)),
        (Encoder().encode([("a", "b" * 2_000)], huffman=True), WORK_MAX // (1_250 // BLOCK_UNIT_BYTES)),
    ],
    ids=["small", "many fields", "Huffman's code"],
)
def test_a_turn_has_as_many_calls_as_take_about_as_long(more: bytes, calls: int) -> None:
    one, block = connected(), Encoder().encode(REQUEST) + more
    flood = b"".join(f.frame(f.HEADERS, f.END_HEADERS, 2 * n + 1, block) for n in range(3 * calls))
    sizes = pieces_of(one, flood)
    assert sum(sizes) == 3 * calls
    assert max(sizes) <= calls + 1
    assert len(sizes) >= 3


def test_crumbs_cost_tokens_unless_they_complete_messages() -> None:
    one = connected()
    one.receive(headers(1))
    crumbs = 0
    with pytest.raises(ConnectionFailedError, match="ask for nothing"):  # noqa: PT012 - as long as it takes
        while crumbs < 20_000:
            one.receive(f.frame(f.DATA, 0, 1, b"x"))
            crumbs += 1
    assert crumbs <= Bounds().idle_frames // CRUMB_COST + 2
    one = connected()
    one.receive(headers(1))
    for _ in range(20_000):  # what a stream of small writes looks like
        one.receive(f.frame(f.DATA, 0, 1, b"small"))
        one.consumed(1, 5)
        one.completed(1)


def test_padding_is_taken_and_told_to_nobody() -> None:
    one = connected(idle_frames=10_000)
    one.receive(headers(1))
    padded = f.frame(f.DATA, f.PADDED, 1, b"\xff" + bytes(255))
    assert (
        _flood_events(one, padded * 8_000) == []
    )  # 2 MB: twice what the windows allow without being opened again


def _flood_events(one: Http2, data: bytes) -> list[Any]:
    events = list(one.receive(data))
    while one.is_interrupted:
        events += one.receive(b"")
    return events


def test_the_size_of_the_table_of_headers_is_set_twice_at_most() -> None:
    block = Encoder().encode(REQUEST)
    one = connected()
    (opened,) = one.receive(f.frame(f.HEADERS, f.END_HEADERS, 1, b"\x20\x3f\xe1\x1f" + block))
    assert isinstance(opened, Opened)
    with pytest.raises(ConnectionFailedError, match="cannot be read"):
        one.receive(f.frame(f.HEADERS, f.END_HEADERS, 3, b"\x20" * 3 + block))
    assert told(one) == f.COMPRESSION_ERROR


def test_so_much_is_read_at_a_time() -> None:
    one = connected()
    assert one.receive(headers(1)) != []
    one.receive(f.frame(f.DATA, 0, 1, b"x") * (WORK_MAX + 10))
    assert one.is_interrupted
    assert one.held_bytes == 10 * 10
    one.receive_later(f.frame(f.DATA, 0, 1, b"y"))
    found = one.receive(b"")
    assert one.held_bytes == 0
    assert [event.data for event in found if isinstance(event, Received)] == [b"x"] * 10 + [b"y"]
