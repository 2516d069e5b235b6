"""The asynchronous client: `antiphon.aio.connect(...)` is `antiphon.connect(...)`, awaitable."""

from antiphon.client.aio import AsyncClient, AsyncTable, AsyncTopic, connect
from antiphon.client.log_backed_store_aio import Applied, AsyncLogBackedStore
from antiphon.client.table import ABSENT
from antiphon.client.topic_writer import Position
from antiphon.client.watch import Change, Watch

__all__ = [
    "ABSENT",
    "Applied",
    "AsyncClient",
    "AsyncLogBackedStore",
    "AsyncTable",
    "AsyncTopic",
    "Change",
    "Position",
    "Watch",
    "connect",
]
