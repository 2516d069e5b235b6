"""Requests to the shards of tables. Each is handed to the gateway at once, without a task, and answered by a callback."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from antiphon.errors import AntiphonError
from antiphon.model.requests import TableGet, TableScan, TableWrite
from antiphon.model.sessions import CloseSession, KeepSession, OpenSession, SessionRequest
from antiphon.native.exchange import Exchange

KEY_BYTES: Final = 128  # as long as reading so many bytes takes, about, looking for a key does
FIND_BYTES: Final = 1024  # the same for a key next to another one


def table_write(exchange: Exchange, request_id: int, body: TableWrite, _payload: memoryview) -> None:
    """Carry out conditional operations; answered when their effects are committed."""
    exchange.gateway.check_may_write(body.shard_id, internal=body.internal)
    done = exchange.begin(request_id)
    try:
        exchange.gateway.submit_table_write(body, done, exchange)
    except BaseException:
        exchange.end()
        raise


def table_get(exchange: Exchange, request_id: int, body: TableGet, _payload: memoryview) -> None:
    """Read keys."""
    done = exchange.begin(request_id)
    try:
        cost_bytes = len(body.keys) * (FIND_BYTES if body.comparison else KEY_BYTES)
        exchange.gateway.submit_table_read(body, done, partial(_when_room, exchange, done, cost_bytes))
    except BaseException:
        exchange.end()
        raise


def table_scan(exchange: Exchange, request_id: int, body: TableScan, _payload: memoryview) -> None:
    """Read a range of keys."""
    done = exchange.begin(request_id)
    try:
        exchange.gateway.submit_table_read(body, done, partial(_when_room, exchange, done, 0))
    except BaseException:
        exchange.end()
        raise


def session(exchange: Exchange, request_id: int, body: SessionRequest, _payload: memoryview) -> None:
    """Open, keep or close a session."""
    exchange.gateway.check_may_write(body.shard_id, internal=False)
    done = exchange.begin(request_id)
    try:
        exchange.gateway.submit_session(body, done)
    except BaseException:
        exchange.end()
        raise


def _when_room(
    exchange: Exchange, done: Callable[[Any], None], cost_bytes: int, read: Callable[[], None]
) -> None:
    """Read once there is room for the answer, and its turn has come."""

    def attempt() -> None:
        exchange.costs(cost_bytes)
        try:
            read()
        except AntiphonError as error:
            done(error)
        except Exception as error:  # noqa: BLE001 - answered as a bug of this node
            done(exchange.bug(error))

    exchange.when_room(attempt)


TABLE_HANDLERS: Final[dict[type, Callable[[Exchange, int, Any, memoryview], None]]] = {
    TableWrite: table_write,
    TableGet: table_get,
    TableScan: table_scan,
    OpenSession: session,
    KeepSession: session,
    CloseSession: session,
}
