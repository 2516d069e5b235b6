"""An ASGI application behind the node's own listener: one request in, one answer out, bounded in bytes and in time.

The listener has read and bounded the request already, and it writes the answer. So nothing of the application listens, and
nothing is streamed: what an application sends is collected.
"""

import asyncio
import re
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, MutableMapping
from ipaddress import IPv6Address
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from antiphon import system
from antiphon.errors import AntiphonError, InternalError, InvalidRequestError, TimedOutError

Message = MutableMapping[str, Any]
App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Coroutine[Any, Any, None],
]
"""An ASGI 3 application."""

# RFC 9110, 7.2: a name, an IPv4 address, or an IPv6 address in brackets, and perhaps a port.
_HOST: Final = re.compile(r"(?:(?P<name>[A-Za-z0-9._~-]+)|\[(?P<address>[0-9A-Fa-f:.]+)\])(?::[0-9]{0,5})?")
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


class WebRequest(NamedTuple):
    """A request as the listener read it. `target` is path and query, `headers` have lower-case names, `client` is where it
    comes from.
    """

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""
    is_secure: bool = False
    state: MutableMapping[str, Any] | None = None
    client: str = ""

    @property
    def path(self) -> str:
        """Without the query, as it was sent."""
        return self.target.partition("?")[0]

    @property
    def host(self) -> str:
        """The header Host, without the port; "localhost" where there is none.

        Raises InvalidRequestError: applications take it for sound.
        """
        value = dict(self.headers).get(b"host", b"localhost").decode("latin-1")
        parts = _HOST.fullmatch(value)
        if parts is None or not (parts["address"] is None or _is_ipv6(parts["address"])):
            raise InvalidRequestError("the header Host is no host name or address with or without a port")
        return parts["name"] or f"[{parts['address']}]"


class WebAnswer(NamedTuple):
    """What the application said. `busy_s` is how long it held the event loop, `mutated` how many partitions it makes."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    busy_s: float = 0.0
    mutated: int = 0


class _Busy:
    """How long a coroutine ran, without the time in which it waited."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        """Await `work`, and take its time."""
        given: Any = None
        raised: BaseException | None = None
        while True:
            began_s = system.monotonic_s()
            try:
                waits = work.throw(raised) if raised is not None else work.send(given)
            except StopIteration:
                return
            finally:
                self.seconds += system.monotonic_s() - began_s
            given = raised = None
            try:
                given = yield waits
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's, as is a cancellation
                raised = error


class _Exchange:
    def __init__(self, request: WebRequest) -> None:
        self._request = request
        self._is_read = False
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()

    async def receive(self) -> Message:
        if self._is_read:
            return {"type": "http.disconnect"}
        self._is_read = True
        return {"type": "http.request", "body": self._request.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = list(_plain(message.get("headers", ())))
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
            if len(self.body) > ANSWER_BYTES_MAX:
                raise InternalError(
                    f"a page of more than {ANSWER_BYTES_MAX} bytes was made: ask for fewer rows"
                )


def _plain(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    """Headers without those that the listener sets, and without any that would begin another line."""
    for name, value in headers:
        if name.lower() in {b"content-length", b"connection", b"transfer-encoding"}:
            continue
        if b"\r" not in value and b"\n" not in value:
            yield name.decode("latin-1"), value.decode("latin-1")


def _scope(request: WebRequest) -> MutableMapping[str, Any]:
    path, _, query = request.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "https" if request.is_secure else "http",
        "path": unquote(path),
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": list(request.headers),
        "server": (request.host, None),
        "client": None,
        "state": request.state if request.state is not None else {},
    }


async def run(app: App, request: WebRequest, timeout_s: float) -> WebAnswer:
    """Have the application answer.

    Raises TimedOutError, InternalError for too large an answer, InvalidRequestError for a bad Host, and what it raises.
    """
    exchange, busy = _Exchange(request), _Busy()

    async def work() -> None:
        await busy.run(app(_scope(request), exchange.receive, exchange.send))

    try:
        await asyncio.wait_for(work(), timeout_s)
    except AntiphonError:  # some are TimeoutErrors, too
        raise
    except TimeoutError:
        raise TimedOutError(f"the page was not ready within {timeout_s:.0f} s") from None
    if not exchange.status:
        raise InternalError("the page was not answered")
    return WebAnswer(exchange.status, tuple(exchange.headers), bytes(exchange.body), busy.seconds)
