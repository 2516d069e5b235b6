"""Antiphon: logs that several machines agree on, and the tables those logs fold into.

    import antiphon

    db = antiphon.connect("127.0.0.1:7400")
    table = db.table("default")
    version = table.put("key", b"value", expected_version=antiphon.ABSENT)

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from antiphon import aio
    from antiphon.client.changes import Changes
    from antiphon.client.codecs import Codec, JsonCodec, MsgpackCodec, TextCodec
    from antiphon.client.log_backed_store import Applied, LogBackedStore
    from antiphon.client.show import show
    from antiphon.client.sync import Client, connect
    from antiphon.client.sync_table import Table
    from antiphon.client.sync_topic import Topic
    from antiphon.client.table import ABSENT
    from antiphon.client.topic_writer import Position
    from antiphon.client.watch import Change
    from antiphon.errors import (
        AccessDeniedError,
        AntiphonError,
        BadRecordError,
        BatchTooLargeError,
        CorruptBatchError,
        DataLossError,
        DiskFullError,
        InvalidRequestError,
        InvalidTxnStateError,
        KeyLockedError,
        KeyNotFoundError,
        LimitReachedError,
        OffsetMismatchError,
        OffsetOutOfRangeError,
        OverloadedError,
        ProducerFencedError,
        SessionNotFoundError,
        TimedOutError,
        TopicExistsError,
        UnauthenticatedError,
        UnavailableError,
        UnknownShardError,
        UnknownTopicError,
        UnreachableError,
        VersionMismatchError,
        WrongKindError,
    )
    from antiphon.errors import OffsetMismatchError as OffsetMismatch
    from antiphon.model.rows import Row, Version
    from antiphon.records.changes import ChangeKind
    from antiphon.records.decode import Record
    from antiphon.records.unreadable import UnreadableBatch, dead_letters
    from antiphon.tools.local_client import local

_LAZY = {
    "ABSENT": "antiphon.client.table",
    "AccessDeniedError": "antiphon.errors",
    "AntiphonError": "antiphon.errors",
    "Applied": "antiphon.client.log_backed_store",
    "BadRecordError": "antiphon.errors",
    "BatchTooLargeError": "antiphon.errors",
    "Change": "antiphon.client.watch",
    "ChangeKind": "antiphon.records.changes",
    "Changes": "antiphon.client.changes",
    "Client": "antiphon.client.sync",
    "Codec": "antiphon.client.codecs",
    "CorruptBatchError": "antiphon.errors",
    "DataLossError": "antiphon.errors",
    "DiskFullError": "antiphon.errors",
    "InvalidRequestError": "antiphon.errors",
    "InvalidTxnStateError": "antiphon.errors",
    "JsonCodec": "antiphon.client.codecs",
    "KeyLockedError": "antiphon.errors",
    "KeyNotFoundError": "antiphon.errors",
    "LimitReachedError": "antiphon.errors",
    "LogBackedStore": "antiphon.client.log_backed_store",
    "MsgpackCodec": "antiphon.client.codecs",
    "OffsetMismatch": "antiphon.errors:OffsetMismatchError",
    "OffsetMismatchError": "antiphon.errors",
    "OffsetOutOfRangeError": "antiphon.errors",
    "OverloadedError": "antiphon.errors",
    "Position": "antiphon.client.topic_writer",
    "ProducerFencedError": "antiphon.errors",
    "Record": "antiphon.records.decode",
    "Row": "antiphon.model.rows",
    "SessionNotFoundError": "antiphon.errors",
    "Table": "antiphon.client.sync_table",
    "TextCodec": "antiphon.client.codecs",
    "TimedOutError": "antiphon.errors",
    "Topic": "antiphon.client.sync_topic",
    "TopicExistsError": "antiphon.errors",
    "UnauthenticatedError": "antiphon.errors",
    "UnavailableError": "antiphon.errors",
    "UnknownShardError": "antiphon.errors",
    "UnknownTopicError": "antiphon.errors",
    "UnreachableError": "antiphon.errors",
    "UnreadableBatch": "antiphon.records.unreadable",
    "Version": "antiphon.model.rows",
    "VersionMismatchError": "antiphon.errors",
    "WrongKindError": "antiphon.errors",
    "connect": "antiphon.client.sync",
    "dead_letters": "antiphon.records.unreadable",
    "local": "antiphon.tools.local_client",
    "show": "antiphon.client.show",
}

__all__ = [
    "ABSENT",
    "AccessDeniedError",
    "AntiphonError",
    "Applied",
    "BadRecordError",
    "BatchTooLargeError",
    "Change",
    "ChangeKind",
    "Changes",
    "Client",
    "Codec",
    "CorruptBatchError",
    "DataLossError",
    "DiskFullError",
    "InvalidRequestError",
    "InvalidTxnStateError",
    "JsonCodec",
    "KeyLockedError",
    "KeyNotFoundError",
    "LimitReachedError",
    "LogBackedStore",
    "MsgpackCodec",
    "OffsetMismatch",
    "OffsetMismatchError",
    "OffsetOutOfRangeError",
    "OverloadedError",
    "Position",
    "ProducerFencedError",
    "Record",
    "Row",
    "SessionNotFoundError",
    "Table",
    "TextCodec",
    "TimedOutError",
    "Topic",
    "TopicExistsError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownShardError",
    "UnknownTopicError",
    "UnreachableError",
    "UnreadableBatch",
    "Version",
    "VersionMismatchError",
    "WrongKindError",
    "__version__",
    "aio",
    "connect",
    "dead_letters",
    "local",
    "show",
]


def __getattr__(name: str) -> Any:
    if name == "aio":
        return import_module("antiphon.aio")
    if name == "__version__":
        return _find_version()
    place = _LAZY.get(name)
    if place is None:
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    module, _, other = place.partition(":")
    value = getattr(import_module(module), other or name)
    globals()[name] = value
    return value


def _find_version() -> str:
    from antiphon.system import installed_version

    found = installed_version()
    globals()["__version__"] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
