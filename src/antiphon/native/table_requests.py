"""Requests to the shards of tables. Each is handed to the gateway at once, without a task, and answered by a callback."""

from collections.abc import Callable
from typing import Any, Final

from antiphon.coordination.transactions import Producer
from antiphon.errors import InvalidRequestError
from antiphon.model.attributes import IndexFind, IndexScan
from antiphon.model.key_order import OrderedFind, OrderedScan
from antiphon.model.loads import Load, LoadRows
from antiphon.model.requests import TableGet, TableScan, TableWrite
from antiphon.model.sessions import CloseSession, KeepSession, ListSessions, OpenSession, SessionRequest
from antiphon.model.table_transactions import CheckReads, PrepareWrite, ReadKeys
from antiphon.native.exchange import Exchange, expected_bytes
from antiphon.native.sized_reads import SizedRead
from antiphon.native.transaction_parts import once_joined
from antiphon.shares import asking

KEY_BYTES: Final = 128  # as long as reading so many bytes takes, about, looking for a key does
SESSION_BYTES: Final = 64  # of one in a list, about
FIND_BYTES: Final = 1024  # the same for a key next to another one
Ranged = TableScan | IndexFind | IndexScan | OrderedScan


def table_write(exchange: Exchange, request_id: int, body: TableWrite, _payload: memoryview) -> None:
    """Carry out conditional operations; answered when their effects are committed."""
    exchange.gateway.check_may_write(body.shard_id, internal=body.internal)
    done = exchange.begin(request_id)
    try:
        exchange.gateway.submit_table_write(body, done, exchange)
    except BaseException:
        exchange.end()
        raise


def load_rows(exchange: Exchange, request_id: int, body: LoadRows, payload: memoryview) -> None:
    """Put the rows of a load; answered when they are committed."""
    exchange.gateway.check_may_write(body.shard_id, internal=False)
    done = exchange.begin(request_id)
    try:
        exchange.gateway.submit_table_write(Load(body, bytes(payload)), done)
    except BaseException:
        exchange.end()
        raise


def table_get(exchange: Exchange, request_id: int, body: TableGet, _payload: memoryview) -> None:
    """Read keys."""
    cost_bytes = len(body.keys) * (FIND_BYTES if body.comparison else KEY_BYTES)
    read = SizedRead(exchange, request_id, expected_bytes(body), cost_bytes)
    with read.begun():
        exchange.gateway.submit_table_read(body, read.done, read.admit)


def table_scan(exchange: Exchange, request_id: int, body: Ranged, _payload: memoryview) -> None:
    """Read a range of keys."""
    read = SizedRead(exchange, request_id, expected_bytes(body))
    with read.begun():
        exchange.gateway.submit_table_read(body, read.done, read.admit)


def ordered_find(exchange: Exchange, request_id: int, body: OrderedFind, _payload: memoryview) -> None:
    """Find rows next to keys in the hierarchical order."""
    read = SizedRead(exchange, request_id, expected_bytes(body), len(body.keys) * FIND_BYTES)
    with read.begun():
        exchange.gateway.submit_table_read(body, read.done, read.admit)


def session(exchange: Exchange, request_id: int, body: SessionRequest, _payload: memoryview) -> None:
    """Open, keep or close a session."""
    exchange.gateway.check_may_write(body.shard_id, internal=False)
    done = exchange.begin(request_id)
    asks = asking.set(exchange.session.client(exchange.host))
    try:
        exchange.gateway.submit_session(body, done)
    except BaseException:
        exchange.end()
        raise
    finally:
        asking.reset(asks)


def list_sessions(exchange: Exchange, request_id: int, body: ListSessions, _payload: memoryview) -> None:
    """Answer with the open sessions of a shard when there is room for them."""
    size_bytes = SESSION_BYTES * body.limit
    read = SizedRead(exchange, request_id, size_bytes, size_bytes)
    with read.begun():
        read.admit(lambda: read.done(exchange.gateway.list_sessions(body)), lambda: size_bytes)


# -- transactions that span shards --------------------------------------------------------------------------------


def read_in_transaction(
    exchange: Exchange, request_id: int, body: ReadKeys | CheckReads, _payload: memoryview
) -> None:
    """Read keys, or look whether they are as they were read."""
    keys = body.keys if isinstance(body, ReadKeys) else body.reads
    read = SizedRead(exchange, request_id, expected_bytes(body), len(keys) * KEY_BYTES)
    with read.begun():
        exchange.gateway.transactions.read(body, read.done, read.admit)


def prepare(exchange: Exchange, request_id: int, body: PrepareWrite, payload: memoryview) -> None:
    """Prepare a transaction's changes; answered when they are committed as prepared."""
    asker, transactions = exchange.asker, exchange.gateway.transactions
    if asker is None:
        raise InvalidRequestError("this node takes no parts of transactions")
    exchange.gateway.check_may_write(body.shard_id, internal=False)
    transactions.check_taken(body.shard_id, tables=True)
    producer = Producer(body.producer_id, body.producer_epoch)
    asking = asker.before_append(body.transactional_id, producer, body.shard_id)
    done = exchange.begin(request_id)
    if asking is not None:
        request, carry_out = (
            (request_id, body, payload),
            lambda number: transactions.prepare(body, number, done),
        )
        exchange.spawn(once_joined(exchange, request, asking, done, carry_out))
        return
    try:
        transactions.prepare(body, None, done)
    except BaseException:
        exchange.end()
        raise


TABLE_HANDLERS: Final[dict[type, Callable[[Exchange, int, Any, memoryview], None]]] = {
    TableWrite: table_write,
    LoadRows: load_rows,
    TableGet: table_get,
    TableScan: table_scan,
    IndexFind: table_scan,
    IndexScan: table_scan,
    OrderedScan: table_scan,
    OrderedFind: ordered_find,
    OpenSession: session,
    KeepSession: session,
    CloseSession: session,
    ListSessions: list_sessions,
    ReadKeys: read_in_transaction,
    CheckReads: read_in_transaction,
    PrepareWrite: prepare,
}
