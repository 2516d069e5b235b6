"""Who listens at an address that says no hello to this client: perhaps it is another port of a node."""

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING, Final

from antiphon.client.tls import context_for
from antiphon.errors import AntiphonError, InvalidRequestError

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing

ANSWERS_WITHIN_S: Final = 1.0
_CORRELATION: Final = 7400
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)
_START: Final = struct.Struct(">ii")
# A node answers this at once; for its first page it loads the dashboard, which takes a busy machine over a second.
_GET: Final = b"GET /livez HTTP/1.1\r\nHost: antiphon\r\nConnection: close\r\n\r\n"
_NATIVE: Final = (
    "this client takes native addresses, by default port 7400: `antiphon status` names those of a cluster, and `antiphon "
    "up` prints them"
)


async def check_port(host: str, port: int, tls: "Dialing | None" = None) -> None:
    """Raise InvalidRequestError where Kafka's protocol or HTTP is spoken; return where neither is, or nobody answers."""
    where = f"{host}:{port}"
    if _is_kafka(await _answer(host, port, _API_VERSIONS, tls)):
        raise InvalidRequestError(f"{where} is the Kafka port, for clients of Kafka's protocol: {_NATIVE}")
    if (await _answer(host, port, _GET, tls)).startswith(b"HTTP/"):
        raise InvalidRequestError(f"{where} is the HTTP port, for browsers and the HTTP API: {_NATIVE}")


def _is_kafka(answer: bytes) -> bool:
    return len(answer) >= _START.size and _START.unpack_from(answer)[1] == _CORRELATION


async def _answer(host: str, port: int, question: bytes, tls: "Dialing | None") -> bytes:
    """The first bytes of an answer; none where there is none soon."""
    writer: asyncio.StreamWriter | None = None
    try:
        context = context_for(tls, host, port)
        name = None if context is None else host
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
            writer.write(question)
            return await reader.readexactly(_START.size)
    except asyncio.IncompleteReadError as error:
        return error.partial
    except (OSError, TimeoutError, AntiphonError):
        return b""
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
