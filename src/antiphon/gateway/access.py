"""What each request takes: one table from its type to what is asked of the access control lists.

Rows of the cluster's own tables stand for what is done with the topics that they are about: who may write a topic writes
its rows of `__epochs` and `__archive`, who may read it reads them. `__jobs` and what is staged belong to whoever may write
anything. Everything else of what belongs to the cluster takes CLUSTER_ACTION.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from antiphon.errors import UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.model.access import Operation, Resource
from antiphon.model.attributes import IndexFind, IndexScan
from antiphon.model.backup import ConfirmHold, CopyState, DropState, HoldShard, ReadState, ReleaseHold
from antiphon.model.client_metrics import AlterSubscription, GetSubscriptions
from antiphon.model.findings import NoteAudit, StartScrub
from antiphon.model.groups import GetGroups
from antiphon.model.internal import ARCHIVE_TABLE, EPOCHS_TABLE, JOBS_TABLE, PREFIX, STAGED_TOPIC, is_internal
from antiphon.model.key_order import DeleteOrdered, OrderedFind, OrderedScan
from antiphon.model.loads import LoadRows
from antiphon.model.metadata import CLUSTER_SHARD_ID, ClusterMeta, Kind, TopicMeta
from antiphon.model.node_settings import AlterNodeSettings, GetNodeSettings
from antiphon.model.placement import PlaceReplicas, RecoverShard
from antiphon.model.requests import (
    AlterAcls,
    AlterQuota,
    AlterTopic,
    AlterUser,
    AlterVoters,
    AppendBatch,
    CreateTopic,
    DeleteRange,
    DeleteTopic,
    DrainNode,
    ElectLeader,
    Fetch,
    GetAccess,
    GetMetadata,
    GetStatus,
    ListOffset,
    MoveReplica,
    NewProducerId,
    Rebalance,
    RemoveNode,
    SplitShard,
    TableGet,
    TableScan,
    TableWrite,
    TrimShard,
)
from antiphon.model.results import STORED
from antiphon.model.sessions import CloseSession, KeepSession, ListSessions, OpenSession
from antiphon.model.table_transactions import CheckReads, PrepareWrite, ReadKeys
from antiphon.model.transactions import (
    AbortTransaction,
    FindCoordinator,
    FinishTransaction,
    GetOffsets,
    InitProducer,
    JoinTransaction,
    ListTransactions,
    SendOffsets,
)
from antiphon.security.authorizer import Rights

Check = Callable[[Gateway, Rights, Any], None]
"""Raises AccessDeniedError, or UnknownShardError and UnknownTopicError for what this node does not know."""

ID_DIGITS: Final = 32  # of a topic's id in hexadecimal
OF_JOBS: Final = (STAGED_TOPIC, EPOCHS_TABLE, JOBS_TABLE, ARCHIVE_TABLE)


def check(gateway: Gateway, rights: Rights, body: Any) -> None:
    """Raise AccessDeniedError unless the client may ask for this."""
    if rights.limited:
        ACCESS[type(body)](gateway, rights, body)


def shown(meta: ClusterMeta, rights: Rights) -> ClusterMeta:
    """The metadata without the topics that the client may not describe. Names of the cluster's own are no secret."""
    if not rights.limited:
        return meta
    seen = tuple(
        topic
        for topic in meta.topics
        if is_internal(topic) or rights.sees(Operation.DESCRIBE, _resource(topic.kind), topic.name)
    )
    return msgspec.structs.replace(meta, topics=seen)


def _resource(kind: Kind) -> Resource:
    return Resource.TABLE if kind is Kind.TABLE else Resource.TOPIC


def _require(rights: Rights, operation: Operation, topic: TopicMeta) -> None:
    if is_internal(topic):
        rights.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)
    rights.require(operation, _resource(topic.kind), topic.name)


def _may_write_anything(rights: Rights) -> bool:
    return rights.may_any(Operation.WRITE, Resource.TOPIC) or rights.may_any(Operation.WRITE, Resource.TABLE)


def _writes_something(rights: Rights) -> None:
    if not _may_write_anything(rights):
        rights.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)


# -- rows of the cluster's own tables -----------------------------------------------------------------------------


def _target(table: str, key: bytes) -> bytes:
    """The beginning of a key up to and with the topic that it is about; empty: none."""
    if table == EPOCHS_TABLE:
        kind, slash, rest = key.partition(b"/")
        return kind + slash + rest[:ID_DIGITS] if slash and len(rest) >= ID_DIGITS else b""
    return key[:ID_DIGITS] if len(key) >= ID_DIGITS else b""


def _ranges(body: TableWrite | TableGet | TableScan) -> Iterator[tuple[bytes, bytes]]:
    """The keys that a request is about, as [first, last); a single one has no last."""
    match body:
        case TableGet():
            yield from ((key, b"") for key in body.keys)
        case TableScan():
            yield body.start, body.end or b"\xff"
        case TableWrite():
            for op in body.ops:
                if isinstance(op, DeleteOrdered):
                    yield b"", b"\xff"  # its bounds say nothing of the keys' bytes
                else:
                    yield (op.start, op.end or b"\xff") if isinstance(op, DeleteRange) else (op.key, b"")


FINDERS: Final = (IndexFind, IndexScan, OrderedFind, OrderedScan)
"""They find other keys than they name."""


def _own_rows(
    gateway: Gateway,
    rights: Rights,
    operation: Operation,
    name: str,
    body: TableWrite | TableGet | TableScan | IndexFind | IndexScan | OrderedFind | OrderedScan,
) -> None:
    if isinstance(body, FINDERS) or (isinstance(body, TableGet) and body.comparison):
        rights.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)  # it finds other keys than it names
        return
    for first, end in _ranges(body):
        target = _target(name, first)
        if not target or (end and end > target + b"\xff"):
            rights.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)
            return
        try:
            topic = gateway.topic_by_id(bytes.fromhex(target[-ID_DIGITS:].decode()))
        except (UnknownTopicError, ValueError):
            rights.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)
            return
        _require(rights, operation, topic)


def _table(operation: Operation) -> Check:
    def look(gateway: Gateway, rights: Rights, body: Any) -> None:
        topic, _ = gateway.shard(body.shard_id)
        if topic.name in {EPOCHS_TABLE, ARCHIVE_TABLE}:
            _own_rows(gateway, rights, operation, topic.name, body)
        elif topic.name == JOBS_TABLE:
            _writes_something(rights)
        else:
            _require(rights, operation, topic)

    return look


# -- the others ---------------------------------------------------------------------------------------------------


def _nothing(_gateway: Gateway, _rights: Rights, _body: Any) -> None:
    """Whoever has logged in may ask; the answer shows what may be seen."""


def _cluster(operation: Operation) -> Check:
    def look(_gateway: Gateway, rights: Rights, _body: Any) -> None:
        rights.require(operation, Resource.CLUSTER)

    return look


def _shard(operation: Operation) -> Check:
    def look(gateway: Gateway, rights: Rights, body: Any) -> None:
        if body.shard_id == CLUSTER_SHARD_ID and operation in {Operation.READ, Operation.DESCRIBE}:
            rights.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)  # an audit compares the nodes' copies
            return
        topic, _ = gateway.shard(body.shard_id)
        if topic.name == STAGED_TOPIC and operation in {Operation.WRITE, Operation.DESCRIBE}:
            _writes_something(rights)
        elif topic.name == STAGED_TOPIC and rights.sees(operation, Resource.TOPIC, STAGED_TOPIC):
            return  # an entry that names it: what others have staged can be read
        else:
            _require(rights, operation, topic)

    return look


def _create(_gateway: Gateway, rights: Rights, body: CreateTopic) -> None:
    if body.name in OF_JOBS:
        _writes_something(rights)
    elif body.name.startswith(PREFIX):
        rights.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)
    elif not rights.sees(Operation.CREATE, Resource.CLUSTER):
        rights.require(Operation.CREATE, _resource(body.kind), body.name)


def _delete(gateway: Gateway, rights: Rights, body: DeleteTopic) -> None:
    _require(rights, Operation.DELETE, _named(gateway, rights, body.name))


def _alter(gateway: Gateway, rights: Rights, body: AlterTopic) -> None:
    topic = _named(gateway, rights, body.name)
    if body.config:
        _require(rights, Operation.ALTER_CONFIGS, topic)
    if body.shards is not None or body.replicas is not None or not body.config:
        _require(rights, Operation.ALTER, topic)


def _named(gateway: Gateway, rights: Rights, name: str) -> TopicMeta:
    """A topic by name; who may not describe one is not told whether it is there."""
    try:
        return gateway.topic(name)
    except UnknownTopicError:
        rights.require(Operation.DESCRIBE, Resource.TOPIC, name)
        raise


def _producer_id(_gateway: Gateway, rights: Rights, _body: NewProducerId) -> None:
    if not rights.sees(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER) and not _may_write_anything(rights):
        rights.require(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER)


def _fetch(gateway: Gateway, rights: Rights, body: Fetch) -> None:
    _SHARD_READ(gateway, rights, body)
    if body.isolation == STORED:
        _require_backup(rights)  # what was deleted is still in a batch with what was not


def _backs_up(_gateway: Gateway, rights: Rights, _body: CopyState | ReadState) -> None:
    _require_backup(rights)


def _require_backup(rights: Rights) -> None:
    rights.require(Operation.ALTER, Resource.CLUSTER)
    rights.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)  # a state has all rows, whoever may read them


# -- transactions -------------------------------------------------------------------------------------------------


def _append(gateway: Gateway, rights: Rights, body: AppendBatch) -> None:
    _SHARD_WRITE(gateway, rights, body)
    if body.transactional_id:
        rights.require(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)


def _prepare(gateway: Gateway, rights: Rights, body: PrepareWrite) -> None:
    _SHARD_WRITE(gateway, rights, body)
    rights.require(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)


def _find(_gateway: Gateway, rights: Rights, body: FindCoordinator) -> None:
    kind = Resource.GROUP if body.is_group else Resource.TRANSACTIONAL_ID
    rights.require(Operation.DESCRIBE, kind, body.name)


def _transacts(_gateway: Gateway, rights: Rights, body: InitProducer | FinishTransaction) -> None:
    rights.require(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)


def _join(gateway: Gateway, rights: Rights, body: JoinTransaction) -> None:
    rights.require(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
    for shard_id in body.shards:
        _require(rights, Operation.WRITE, gateway.shard(shard_id)[0])
    for group in body.groups:
        rights.require(Operation.READ, Resource.GROUP, group)


def _send_offsets(gateway: Gateway, rights: Rights, body: SendOffsets) -> None:
    rights.require(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
    rights.require(Operation.READ, Resource.GROUP, body.group)
    for name in {one.topic for one in body.offsets}:
        _require(rights, Operation.READ, _named(gateway, rights, name))


def _get_offsets(_gateway: Gateway, rights: Rights, body: GetOffsets) -> None:
    rights.require(Operation.DESCRIBE, Resource.GROUP, body.group)
    for name, _ in body.positions:
        rights.require(Operation.DESCRIBE, Resource.TOPIC, name)


def _get_groups(_gateway: Gateway, rights: Rights, body: GetGroups) -> None:
    """One group, with the names of topics that it reads, or all of them."""
    if body.group and not rights.sees(Operation.DESCRIBE, Resource.CLUSTER):
        rights.require(Operation.DESCRIBE, Resource.GROUP, body.group)
    else:
        rights.require(Operation.DESCRIBE, Resource.CLUSTER)


_SHARD_READ: Final = _shard(Operation.READ)
_SHARD_WRITE: Final = _shard(Operation.WRITE)

ACCESS: Final[dict[type, Check]] = {
    GetMetadata: _nothing,
    GetStatus: _cluster(Operation.DESCRIBE),
    StartScrub: _cluster(Operation.ALTER),
    NoteAudit: _cluster(Operation.ALTER),
    GetGroups: _get_groups,
    ListTransactions: _cluster(Operation.DESCRIBE),
    AbortTransaction: _cluster(Operation.ALTER),
    FindCoordinator: _find,
    InitProducer: _transacts,
    JoinTransaction: _join,
    FinishTransaction: _transacts,
    SendOffsets: _send_offsets,
    GetOffsets: _get_offsets,
    GetAccess: _cluster(Operation.DESCRIBE),
    CreateTopic: _create,
    DeleteTopic: _delete,
    AlterTopic: _alter,
    ElectLeader: _cluster(Operation.ALTER),
    MoveReplica: _cluster(Operation.ALTER),
    PlaceReplicas: _cluster(Operation.ALTER),
    RecoverShard: _cluster(Operation.ALTER),
    DrainNode: _cluster(Operation.ALTER),
    RemoveNode: _cluster(Operation.ALTER),
    AlterVoters: _cluster(Operation.ALTER),
    Rebalance: _cluster(Operation.ALTER),
    SplitShard: _cluster(Operation.ALTER),
    AlterUser: _cluster(Operation.ALTER),
    AlterAcls: _cluster(Operation.ALTER),
    AlterQuota: _cluster(Operation.ALTER),
    GetNodeSettings: _cluster(Operation.DESCRIBE_CONFIGS),
    AlterNodeSettings: _cluster(Operation.ALTER_CONFIGS),
    GetSubscriptions: _cluster(Operation.DESCRIBE_CONFIGS),
    AlterSubscription: _cluster(Operation.ALTER_CONFIGS),
    NewProducerId: _producer_id,
    AppendBatch: _append,
    Fetch: _fetch,
    ListOffset: _shard(Operation.DESCRIBE),
    TrimShard: _shard(Operation.DELETE),
    TableWrite: _table(Operation.WRITE),
    LoadRows: _shard(Operation.WRITE),
    TableGet: _table(Operation.READ),
    TableScan: _table(Operation.READ),
    IndexFind: _table(Operation.READ),
    IndexScan: _table(Operation.READ),
    OrderedFind: _table(Operation.READ),
    OrderedScan: _table(Operation.READ),
    ReadKeys: _shard(Operation.READ),
    CheckReads: _shard(Operation.READ),
    PrepareWrite: _prepare,
    OpenSession: _shard(Operation.WRITE),
    KeepSession: _shard(Operation.WRITE),
    CloseSession: _shard(Operation.WRITE),
    ListSessions: _shard(Operation.DESCRIBE),
    HoldShard: _cluster(Operation.ALTER),
    ConfirmHold: _cluster(Operation.ALTER),
    ReleaseHold: _cluster(Operation.ALTER),
    CopyState: _backs_up,
    ReadState: _backs_up,
    DropState: _cluster(Operation.ALTER),
}
