"""Which requests change nothing: of all others a client does not know the outcome when an answer is lost."""

from typing import Any, Final

from antiphon.model.attributes import IndexFind, IndexScan
from antiphon.model.client_metrics import GetSubscriptions
from antiphon.model.groups import GetGroups
from antiphon.model.key_order import OrderedFind, OrderedScan
from antiphon.model.node_settings import GetNodeSettings
from antiphon.model.requests import (
    Fetch,
    GetAccess,
    GetMetadata,
    GetStatus,
    ListOffset,
    NewProducerId,
    TableGet,
    TableScan,
)
from antiphon.model.sessions import ListSessions
from antiphon.model.table_transactions import CheckReads, ReadKeys
from antiphon.model.transactions import FindCoordinator, GetOffsets, ListTransactions

READS: Final = (
    CheckReads, Fetch, FindCoordinator, GetAccess, GetGroups, GetMetadata, GetNodeSettings, GetOffsets, GetStatus,
    GetSubscriptions, IndexFind, IndexScan, ListOffset, ListSessions, ListTransactions, OrderedFind, OrderedScan, ReadKeys,
    TableGet, TableScan,
    NewProducerId,  # one that nobody hears of is not missed
)  # fmt: skip


def is_read(body: Any) -> bool:
    """Does a request change nothing that anybody could notice?"""
    return isinstance(body, READS)
