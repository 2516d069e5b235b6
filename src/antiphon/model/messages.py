"""All messages of the native protocol, as its decoders know them."""

from antiphon.model.attributes import IndexFind, IndexRows, IndexScan
from antiphon.model.backup import BackupReply, BackupRequest
from antiphon.model.client_metrics import GetSubscriptions, SubscriptionsReply
from antiphon.model.findings import NoteAudit, StartScrub
from antiphon.model.groups import GetGroups, GroupsReply
from antiphon.model.key_order import OrderedFind, OrderedKeys, OrderedScan
from antiphon.model.loads import LoadRows
from antiphon.model.node_settings import GetNodeSettings, NodeSettingsReply
from antiphon.model.requests import (
    AccessReply,
    AdminRequest,
    AppendBatch,
    Appended,
    Authenticate,
    AuthenticateReply,
    Done,
    Failure,
    Fetch,
    Fetched,
    GetAccess,
    GetMetadata,
    GetStatus,
    Hello,
    HelloReply,
    ListOffset,
    MetadataReply,
    NewProducerId,
    OffsetReply,
    ProducerId,
    StatusReply,
    TableGet,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
    Trimmed,
    TrimShard,
)
from antiphon.model.sessions import ListSessions, SessionRequest, SessionsReply
from antiphon.model.table_transactions import TableTransactionReply, TableTransactionRequest
from antiphon.model.transactions import TransactionReply, TransactionRequest

Request = (
    Hello | Authenticate | GetAccess | GetMetadata | AdminRequest | NewProducerId | GetStatus | AppendBatch | Fetch
    | ListOffset | TrimShard | TableWrite | TableGet | TableScan | StartScrub | TransactionRequest | SessionRequest
    | TableTransactionRequest | BackupRequest | NoteAudit | ListSessions | IndexFind | IndexScan
    | OrderedFind | OrderedScan | GetGroups | GetNodeSettings | GetSubscriptions | LoadRows
)  # fmt: skip
Reply = (
    Failure | Done | HelloReply | AuthenticateReply | AccessReply | MetadataReply | ProducerId | StatusReply | Appended
    | Fetched | OffsetReply | Trimmed | TableWritten | TableRows | TransactionReply | TableTransactionReply
    | BackupReply | SessionsReply | IndexRows | OrderedKeys | GroupsReply
    | NodeSettingsReply | SubscriptionsReply
)  # fmt: skip
