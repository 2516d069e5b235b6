"""One blocking connection to one node: frames in and out of a socket, within a time."""

import socket
import time
from collections import deque
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon import tracing
from antiphon.client.addresses import Address, address_text
from antiphon.client.greeting import CONNECT_TIMEOUT_S, LOGIN_TIMEOUT_S, Greeting
from antiphon.client.tls import HUNG_UP, HUNG_UP_ON_TLS, context_for, why_no_tls
from antiphon.errors import AntiphonError, ProtocolViolationError
from antiphon.model.requests import Failure, Hello
from antiphon.security.account import Account
from antiphon.wire.frames import (
    LENGTH_BYTES,
    PREFIX,
    Frame,
    check_prefix,
    decode_reply,
    encode_message,
    traced_frame,
)

if TYPE_CHECKING:
    import ssl

    from antiphon.client.tls import Dialing

Buffer = bytes | bytearray | memoryview

ANSWER_TIMEOUT_S: Final = 10.0  # for one try; a node that is paused is given up on and asked again
SEND_PARTS_MAX: Final = 512  # in one call; systems allow 1,024
RECEIVE_BYTES: Final = 64 * 1024  # at once, while nothing is known of what comes
KEEPALIVE_S: Final = 15  # an idle connection is probed after this long
UNACKNOWLEDGED_MS_MAX: Final = 15_000  # a node that takes none of our bytes for this long is gone


class Answer(NamedTuple):
    """A reply and its bulk bytes; of a refusal the error that it stands for."""

    body: Any
    payload: memoryview


class Link:
    """One connection to one node. Requests may be sent ahead; answers come in any order and are matched by id."""

    def __init__(
        self,
        address: Address,
        timeout_s: float = CONNECT_TIMEOUT_S,
        account: Account | None = None,
        tls: "Dialing | None" = None,
    ) -> None:
        """Connect and greet; raises OSError or an AntiphonError."""
        self.address = address
        self._where = address_text(address)
        context = context_for(tls, *address)
        self._encrypts = context is not None
        self._socket = socket.create_connection(address, timeout=timeout_s)
        _set_options(self._socket)
        if context is not None:
            self._socket = _encrypted(self._socket, address, context)
        self._rest = memoryview(b"")  # what came after the last frame
        self._next_id = 1
        greeting = Greeting(self._where, _who(), account)
        try:
            reply = self._hello(greeting.first(), timeout_s)
            while (request := greeting.next(reply)) is not None:
                reply = self.call(request, LOGIN_TIMEOUT_S).body
        except BaseException:
            self.close()
            raise
        self.cluster_id = greeting.cluster_id

    def _hello(self, hello: Hello, timeout_s: float) -> Any:
        try:
            return self.call(hello, timeout_s).body
        except TimeoutError:
            raise
        except OSError as error:
            hint = HUNG_UP_ON_TLS if self._encrypts else HUNG_UP
            raise ConnectionResetError(f"{error} {hint}") from error

    def send(self, body: Any, payload: Sequence[Buffer] = (), timeout_s: float | None = None) -> int:
        """Send a request; returns its id. After an error the connection is of no more use."""
        request_id = self._next_id
        self._next_id += 1
        timeout_s = ANSWER_TIMEOUT_S if timeout_s is None else timeout_s
        frame = encode_message(request_id, body, payload)
        if tracing.tracer is not None and (trace := tracing.tracer.parent()) is not None:
            frame = traced_frame(frame, trace)
        self._send_all(frame, timeout_s)
        return request_id

    def _send_all(self, parts: Sequence[Buffer], timeout_s: float) -> None:
        """Send the parts as they are, one after the other: record bytes are not copied together."""
        deadline = time.monotonic() + timeout_s
        waiting = deque(memoryview(part).cast("B") for part in parts)
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self._where} did not accept a request within {timeout_s:.1f} s")
            self._socket.settimeout(left)
            if self._encrypts:  # such sockets take one part at a time
                sent = self._socket.send(waiting[0])
            else:
                sent = self._socket.sendmsg(list(islice(waiting, SEND_PARTS_MAX)))
            while waiting and sent >= len(waiting[0]):
                sent -= len(waiting.popleft())
            if sent:
                waiting[0] = waiting[0][sent:]

    def receive(self, timeout_s: float) -> tuple[int, Answer]:
        """The next answer, with the id of its request; raises OSError (TimeoutError among them). A refusal is not raised.

        After an error the connection is of no more use: part of an answer may have been taken.
        """
        frame = self._frame(time.monotonic() + timeout_s, timeout_s)
        request_id, body = decode_reply(frame.header)
        if isinstance(body, Failure):
            body = body.error()
        return request_id, Answer(body, frame.payload)

    def _frame(self, deadline: float, timeout_s: float) -> Frame:
        """The next frame. A large one is received into the buffer that it stays in."""
        while True:
            have = len(self._rest)
            if have >= PREFIX.size:
                length, header_bytes = PREFIX.unpack_from(self._rest)
                check_prefix(length, header_bytes)
                size = LENGTH_BYTES + length
                if have >= size:
                    whole, self._rest = self._rest[:size], self._rest[size:]
                else:
                    whole = memoryview(bytearray(size))
                    whole[:have] = self._rest
                    self._rest = memoryview(b"")
                    while have < size:
                        have += self._receive_into(whole[have:], deadline, timeout_s)
                body = PREFIX.size + header_bytes
                return Frame(whole[PREFIX.size : body], whole[body:])
            chunk = memoryview(bytearray(have + RECEIVE_BYTES))
            chunk[:have] = self._rest
            self._rest = chunk[: have + self._receive_into(chunk[have:], deadline, timeout_s)]

    def _receive_into(self, view: memoryview, deadline: float, timeout_s: float) -> int:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer from {self._where} within {timeout_s:.1f} s")
        self._socket.settimeout(left)
        try:
            count = self._socket.recv_into(view)
        except TimeoutError:
            raise TimeoutError(f"no answer from {self._where} within {timeout_s:.1f} s") from None
        if not count:
            raise ConnectionResetError(f"{self._where} closed the connection")
        return count

    def call(self, body: Any, timeout_s: float | None = None) -> Answer:
        """One request and its answer; a refusal is raised."""
        return self.answer_to(self.send(body, (), timeout_s), timeout_s)

    def answer_to(self, request_id: int, timeout_s: float | None = None) -> Answer:
        """The answer to a request that was sent; late ones to requests that were given up are passed over."""
        timeout_s = ANSWER_TIMEOUT_S if timeout_s is None else timeout_s
        answer_id, answer = self.receive(timeout_s)
        while answer_id < request_id:  # late, for a request that was given up
            answer_id, answer = self.receive(timeout_s)
        if answer_id != request_id:
            raise ProtocolViolationError(f"answer {answer_id} to request {request_id}")
        if isinstance(answer.body, AntiphonError):
            raise answer.body
        return answer

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _encrypted(plain: socket.socket, address: Address, context: "ssl.SSLContext") -> "ssl.SSLSocket":
    """Shake hands within the socket's time; raises OSError and AntiphonError, and closes it then."""
    try:
        return context.wrap_socket(plain, server_hostname=address[0])
    except OSError as error:
        plain.close()
        problem = why_no_tls(address_text(address), error)
        if isinstance(problem, AntiphonError):
            raise problem from error
        raise ConnectionError(problem) from error


def _set_options(connection: socket.socket) -> None:
    """Send at once; notice a peer that vanished without a word (a machine that lost its power, a cable that was pulled)."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_S // 3),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS_MAX),
    ):
        option = getattr(socket, name, None)  # not every system has them
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


@cache
def _who() -> str:
    try:
        return f"antiphon-spark/{version('antiphon')}"
    except PackageNotFoundError:
        return "antiphon-spark"
