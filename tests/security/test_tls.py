"""TLS of a listener, on asyncio's loop and on uvloop: what is accepted, refused, counted, told and read again."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvloop

from antiphon.errors import InvalidRequestError
from antiphon.node.metrics import NodeMetrics
from antiphon.security import listening
from antiphon.security import tls as tls_module
from antiphon.security.listening import serve
from antiphon.security.settings import Tls
from antiphon.security.tls import ServerTls, distinguished_name, is_encrypted, principal_of, server_context
from tests.security.certificates import authority, client_files, put, server_files

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


class Echo(asyncio.BufferedProtocol):
    """Answers what it hears, and keeps what it learned of the peer."""

    heard: list["Echo"] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.principal = principal_of(transport)
        self.encrypted = is_encrypted(transport)
        self.room = memoryview(bytearray(64))
        Echo.heard.append(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self.room

    def buffer_updated(self, count: int) -> None:
        self.transport.writelines([b"<", memoryview(bytes(self.room[:count])), b">"])


@asynccontextmanager
async def listener(directory: Path, settings: Tls) -> AsyncIterator[tuple[int, NodeMetrics]]:
    metrics = NodeMetrics()
    Echo.heard = []
    tls = ServerTls(settings, directory, "tls", metrics)
    server = await serve(Echo, "127.0.0.1", 0, None, 10, tls, listening.HANDSHAKES_MAX)
    try:
        yield server.sockets[0].getsockname()[1], metrics
    finally:
        server.close()
        await server.wait_closed()


def trusting(signer: str = "test authority", files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority(signer).certificate.decode())
    if files is not None:
        context.load_cert_chain(*files)
    return context


async def say(port: int, context: ssl.SSLContext, host: str = "127.0.0.1") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    writer.write(b"hello")
    try:
        return await reader.readexactly(7)
    finally:
        writer.close()


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not come true in time")


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def go(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(test, 20))

    return go


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_speaks_tls_with_who_trusts_its_authority(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        async with listener(tmp_path, server_files(tmp_path)) as (port, metrics):
            assert await say(port, trusting()) == b"<hello>"
            assert await say(port, trusting(), "localhost") == b"<hello>"
            with pytest.raises(ssl.SSLCertVerificationError):
                await say(port, trusting(), "elsewhere")
            with pytest.raises(ssl.SSLCertVerificationError):
                await say(port, trusting("another authority"))
            await eventually(lambda: metrics.tls_handshakes_failed == 2)
            assert metrics.tls_handshakes == 2
            assert [(one.encrypted, one.principal) for one in Echo.heard] == [(True, None)] * 2

    run(test())


def test_certificates_of_clients_say_who_they_are(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        async with listener(tmp_path, server_files(tmp_path, "required")) as (port, metrics):
            assert await say(port, trusting(files=client_files(tmp_path))) == b"<hello>"
            assert str(Echo.heard[0].principal) == "User:CN=alice"
            for files in (None, client_files(tmp_path, "eve", "another authority")):
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await say(port, trusting(files=files))
            await eventually(lambda: metrics.tls_handshakes_failed == 2)
            assert len(Echo.heard) == 1

    run(test())


def test_a_requested_certificate_may_be_missing(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        async with listener(tmp_path, server_files(tmp_path, "requested")) as (port, _):
            assert await say(port, trusting()) == b"<hello>"
            assert await say(port, trusting(files=client_files(tmp_path))) == b"<hello>"
            assert [str(one.principal) for one in Echo.heard] == ["None", "User:CN=alice"]

    run(test())


def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    context = server_context(server_files(tmp_path), tmp_path)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert all("GCM" in one["name"] or "CHACHA20" in one["name"] for one in context.get_ciphers())


def test_what_is_said_without_tls_is_counted_and_told_once(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        with structlog.testing.capture_logs() as told:
            async with listener(tmp_path, server_files(tmp_path)) as (port, metrics):
                for words in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x20\0\0\0\x1c" + bytes(30)):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(words)
                    await reader.read()
                    writer.close()
                await eventually(lambda: metrics.tls_handshakes_failed == 2)
                assert not Echo.heard
        assert len(told) == 1
        assert told[0]["event"] == "tls_handshake_failed"
        assert "spoke without TLS" in told[0]["reason"]
        assert told[0]["peer"].startswith("127.0.0.1:")

    run(test())


def test_plain_frames_of_the_native_protocol_are_told_as_such(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        with structlog.testing.capture_logs() as told:
            async with listener(tmp_path, server_files(tmp_path)) as (port, metrics):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"\0\0\0\x20\0\0\0\x1c" + bytes(30))
                await reader.read()
                writer.close()
                await eventually(lambda: metrics.tls_handshakes_failed == 1)
        assert "spoke without TLS" in told[0]["reason"]

    run(test())


def test_who_says_nothing_is_not_waited_for(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.security.listening.HANDSHAKE_S", 0.05)

    async def test() -> None:
        with structlog.testing.capture_logs() as told:
            async with listener(tmp_path, server_files(tmp_path)) as (port, metrics):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert await reader.read() == b""
                writer.close()
                await eventually(lambda: metrics.tls_handshakes_failed == 1)
        assert "did not finish the handshake" in told[0]["reason"]

    run(test())


def test_failed_handshakes_leave_no_descriptors(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        async with listener(tmp_path, server_files(tmp_path)) as (port, metrics):
            await say(port, trusting())
            await asyncio.sleep(0.05)
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", port)) as plain:
                    plain.sendall(b"not a handshake at all")
                    await asyncio.sleep(0.002)
            await eventually(lambda: metrics.tls_handshakes_failed == 20)
            await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)

    run(test())


def test_new_files_count_for_the_next_handshake(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        async with listener(tmp_path, server_files(tmp_path, "required")) as (port, _):
            mine = client_files(tmp_path)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(files=mine))
            server_files(tmp_path, "required", signer="another authority")
            with pytest.raises(ssl.SSLCertVerificationError):
                await say(port, trusting(files=mine))
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await say(port, trusting("another authority", mine))  # the old authority signs nobody now
            other = client_files(tmp_path, "bob", "another authority")
            assert await say(port, trusting("another authority", other)) == b"<hello>"
            writer.write(b"still")  # the connection of before stands
            assert await reader.readexactly(7) == b"<still>"
            writer.close()

    run(test())


def test_a_bad_new_file_is_told_and_the_old_one_kept(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        with structlog.testing.capture_logs() as told:
            async with listener(tmp_path, server_files(tmp_path)) as (port, _):
                (tmp_path / "server.pem").write_text("half a certifi")
                assert await say(port, trusting()) == b"<hello>"
                assert await say(port, trusting()) == b"<hello>"
                server_files(tmp_path)
                assert await say(port, trusting()) == b"<hello>"
        assert [line["event"] for line in told] == ["tls_files_not_taken", "tls_files_taken"]

    run(test())


def test_files_that_are_not_good_at_the_start_are_named(tmp_path: Path) -> None:
    good = server_files(tmp_path, "required")
    put(tmp_path, "other", authority())
    for bad, word in (
        (Tls("missing.pem", good.key), "cannot read"),
        (Tls(good.certificate, "other.key"), "not a certificate and its key"),
        (Tls(good.certificate, good.key, "server.key", "required"), "no certificates"),
    ):
        with pytest.raises(InvalidRequestError, match=word):
            server_context(bad, tmp_path)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    good = server_files(tmp_path)
    key = serialization.load_pem_private_key((tmp_path / good.key).read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / good.key).write_bytes(locked)
    with pytest.raises(InvalidRequestError, match="passphrase"):
        server_context(good, tmp_path)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (
            ((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "x"),)),
            "CN=x,O=A\\, B,C=DE",
        ),
        (((("commonName", " #a "),),), "CN=\\ #a\\ "),
        (((("commonName", "a"), ("userId", "b")),), "CN=a+UID=b"),
        (((("commonName", 'q"<;>+\\'),),), 'CN=q\\"\\<\\;\\>\\+\\\\'),
    ],
)
def test_names_are_written_as_rfc_2253_says(subject: Any, name: str) -> None:
    assert distinguished_name(subject) == name


def test_lines_of_failures_come_at_a_bounded_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ServerTls(server_files(tmp_path), tmp_path, "tls", NodeMetrics())
    clock = [100.0]
    monkeypatch.setattr("antiphon.security.tls.system.monotonic_s", lambda: clock[0])
    with structlog.testing.capture_logs() as told:
        for _ in range(5):
            made.failed("192.0.2.1:1", ConnectionResetError())
        made.failed("192.0.2.2:1", ConnectionResetError())
        clock[0] += tls_module.TELL_EVERY_S
        made.failed("192.0.2.1:2", ConnectionResetError())
    lines = [(line["address"], line["failed"]) for line in told if line["event"] == "tls_handshake_failed"]
    assert lines == [("192.0.2.1", 1), ("192.0.2.2", 6), ("192.0.2.1", 7)], "none hides another"
    (left_out,) = (line for line in told if line["event"] == "tls_handshake_failed_left_out")
    assert (left_out["address"], left_out["handshakes"]) == ("192.0.2.1", 4)


def shake_hands(
    server_side: ssl.SSLContext, client_side: ssl.SSLContext, session: ssl.SSLSession | None
) -> ssl.SSLObject:
    """A whole connection without a socket; returns the client's end of it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    waiting = [client.do_handshake, server.do_handshake]
    for _ in range(20):
        for step in tuple(waiting):
            with suppress(ssl.SSLWantReadError):
                step()
                waiting.remove(step)
    for end in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            end.unwrap()
    assert not waiting
    return client


def test_sessions_are_resumed_for_seconds_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("antiphon.security.tls.system.monotonic_s", lambda: clock[0])
    made = ServerTls(server_files(tmp_path), tmp_path, "tls", NodeMetrics())
    newest, old = trusting(), trusting()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert not shake_hands(
        made.current(), newest, shake_hands(made.current(), newest, None).session
    ).session_reused
    session = shake_hands(made.current(), old, None).session
    assert shake_hands(made.current(), old, session).session_reused, "else this test shows nothing"
    clock[0] += tls_module.RESUMED_S
    assert not shake_hands(made.current(), old, session).session_reused
    session = shake_hands(made.current(), old, None).session
    server_files(tmp_path)
    assert not shake_hands(made.current(), old, session).session_reused, "the files have changed"


def test_silent_handshakes_make_room_for_others(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More silent connections than there may be handshakes, and one client that shakes hands."""
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 4)

    async def test() -> None:
        async with listener(tmp_path, server_files(tmp_path)) as (port, _):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
            async with asyncio.timeout(tls_module.HANDSHAKE_S):
                assert await say(port, trusting()) == b"<hello>"
            for _, writer in silent:
                writer.close()

    run(test())
