"""Requests about the cluster: metadata, topics, administration, producer ids, a node's status."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog

from antiphon.errors import InvalidRequestError, NotReadyError, OverloadedError
from antiphon.gateway import changes
from antiphon.gateway.settings_reply import settings_reply
from antiphon.gateway.shares import asking
from antiphon.model.client_metrics import AlterSubscription, GetSubscriptions, SubscriptionsReply
from antiphon.model.events import TOLD_MAX
from antiphon.model.findings import NoteAudit, StartScrub
from antiphon.model.groups import GetGroups
from antiphon.model.internal import NODES_ONLY
from antiphon.model.node_settings import (
    NODE_SETTINGS,
    AlterNodeSettings,
    GetNodeSettings,
)
from antiphon.model.placement import PlaceReplicas, RecoverShard
from antiphon.model.requests import (
    AdminRequest,
    AlterAcls,
    AlterQuota,
    AlterTopic,
    AlterUser,
    AlterVoters,
    CreateTopic,
    DeleteTopic,
    Done,
    DrainNode,
    ElectLeader,
    GetAccess,
    GetMetadata,
    GetStatus,
    MoveReplica,
    NewProducerId,
    ProducerId,
    Rebalance,
    RemoveNode,
    SplitShard,
    StatusReply,
)
from antiphon.model.transactions import (
    AbortTransaction,
    FindCoordinator,
    FinishTransaction,
    GetOffsets,
    InitProducer,
    JoinTransaction,
    ListTransactions,
    SendOffsets,
    TransactionRequest,
)
from antiphon.native.exchange import Exchange

SIGN_OF_LIFE: Final = 1 << 62  # no such version will be: the client wants to know that somebody is there
WAIT_MS_MAX: Final = 60_000
NEWS_MAX: Final = 8  # requests of one connection that wait for newer metadata
TRANSACTIONS_S: Final = 10.0
REPLICA_BYTES: Final = 64  # of a node's status, about
SETTING_BYTES: Final = 64  # of one setting of a node, about


def get_metadata(exchange: Exchange, request_id: int, body: GetMetadata, _payload: memoryview) -> None:
    """Answer with the metadata, or once there is newer metadata than the client has."""
    gateway = exchange.gateway
    if gateway.metadata_version < 0:
        raise NotReadyError(
            f"node {gateway.node_id} was just started and knows no metadata yet; ask another, or again"
        )
    if body.known_version >= SIGN_OF_LIFE:
        exchange.reply(request_id, Done())
        return
    if body.known_version < gateway.metadata_version or body.wait_ms <= 0:
        _answer_when_there_is_room(exchange, request_id)
        return
    if exchange.waiting >= NEWS_MAX:
        raise OverloadedError(
            f"{NEWS_MAX} requests of this connection wait for newer metadata: let those be answered"
        )
    wait_s = min(body.wait_ms, WAIT_MS_MAX) / 1000

    async def wait() -> None:
        try:
            await gateway.wait_metadata(body.known_version, wait_s)
        finally:
            exchange.end()
        _answer_when_there_is_room(exchange, request_id)

    exchange.begin(request_id)
    exchange.wait(wait())


def _answer_when_there_is_room(exchange: Exchange, request_id: int) -> None:
    """Answer with the metadata that there is when there is room for it."""

    def now() -> msgspec.Raw:
        return exchange.metadata_answers.now(exchange.session.rights)

    exchange.answer(request_id, now, lambda: len(memoryview(now())))


def get_status(exchange: Exchange, request_id: int, body: GetStatus, _payload: memoryview) -> None:
    """Answer with the state of this node and its replicas when there is room for it."""
    gateway = exchange.gateway

    def now() -> StatusReply:
        found = gateway.status(body.shards)
        last = list(gateway.events)[-min(body.events, TOLD_MAX) :] if body.events else ()
        told = tuple((one.at_ms, str(one.kind), one.subject, one.what) for one in last)
        return msgspec.structs.replace(found, events=told)

    def size() -> int:
        count = gateway.count_replicas()
        return REPLICA_BYTES * (count if body.shards is None else min(count, len(body.shards)))

    exchange.answer(request_id, now, size)


def start_scrub(exchange: Exchange, request_id: int, body: StartScrub, _payload: memoryview) -> None:
    """Have what is on this node's disk read now."""
    exchange.gateway.start_scrub(body.shard_id)
    exchange.reply(request_id, Done())


def note_audit(exchange: Exchange, request_id: int, body: NoteAudit, _payload: memoryview) -> None:
    """Keep what an audit has found here."""

    async def run() -> Done:
        await exchange.gateway.note_audit(body.shards, body.found)
        return Done()

    exchange.later(request_id, run())


def of_transactions(
    exchange: Exchange, request_id: int, body: TransactionRequest | GetGroups, _payload: memoryview
) -> None:
    """Have the coordinator of transactions, or of groups, on this node answer."""
    gateway = exchange.gateway

    async def run() -> Any:
        asking.set(exchange.session.client(exchange.host))
        return await gateway.questions.ask(gateway.node_id, body, TRANSACTIONS_S)

    exchange.later(request_id, run())


def get_access(exchange: Exchange, request_id: int, _body: GetAccess, _payload: memoryview) -> None:
    """Answer with users, lists and quotas when there is room for them."""
    now = exchange.metadata_answers.access
    exchange.answer(request_id, now, lambda: len(memoryview(now())))


def get_node_settings(
    exchange: Exchange, request_id: int, _body: GetNodeSettings, _payload: memoryview
) -> None:
    """Answer with this node's settings that can be changed while it runs, and with what is set for all nodes."""
    gateway = exchange.gateway
    exchange.answer(
        request_id,
        lambda: settings_reply(gateway),
        lambda: SETTING_BYTES * len(NODE_SETTINGS) * (1 + len(gateway.settings.entries)),
    )


def get_subscriptions(
    exchange: Exchange, request_id: int, _body: GetSubscriptions, _payload: memoryview
) -> None:
    """Answer with the subscriptions to clients' metrics."""
    known = exchange.gateway.subscriptions
    exchange.answer(
        request_id,
        lambda: SubscriptionsReply(tuple(known[name] for name in sorted(known))),
        lambda: sum(
            SETTING_BYTES + len(name) + sum(map(len, one.values.values())) for name, one in known.items()
        ),
    )


def create_topic(exchange: Exchange, request_id: int, body: CreateTopic, _payload: memoryview) -> None:
    """Create a topic or table; answered when every shard has a leader."""
    if body.name in NODES_ONLY:
        raise InvalidRequestError(f"{body.name!r} belongs to the cluster: only its nodes make it")

    async def run() -> Done:
        await exchange.gateway.create_topic(body)
        return Done()

    exchange.later(request_id, run())


def delete_topic(exchange: Exchange, request_id: int, body: DeleteTopic, _payload: memoryview) -> None:
    """Delete a topic or table."""

    async def run() -> Done:
        await exchange.gateway.delete_topic(body.name)
        return Done()

    exchange.later(request_id, run())


def alter_topic(exchange: Exchange, request_id: int, body: AlterTopic, _payload: memoryview) -> None:
    """Change a topic's settings."""

    async def run() -> Done:
        await exchange.gateway.alter_topic(body)
        return Done()

    exchange.later(request_id, run())


def administer(exchange: Exchange, request_id: int, body: AdminRequest, _payload: memoryview) -> None:
    """Have the coordinator carry out what an operator wants."""
    rights, host = exchange.session.rights, exchange.host

    async def run() -> Done:
        await changes.administer(exchange.gateway, body, rights, host, "native")
        return Done()

    exchange.later(request_id, run())


def recover_shard(exchange: Exchange, request_id: int, body: RecoverShard, payload: memoryview) -> None:
    """The same. This node's log keeps who asked for it; what becomes of it is in the log of the node that coordinates."""
    rights = exchange.session.rights
    structlog.get_logger().warning(
        "shard_recovery_asked",
        shard=body.shard_id,
        node=body.node,
        by=str(rights.principal),
        host=rights.host,
    )
    administer(exchange, request_id, body, payload)


def new_producer_id(exchange: Exchange, request_id: int, _body: NewProducerId, _payload: memoryview) -> None:
    """Answer with a producer id that nobody else has."""

    async def run() -> ProducerId:
        return ProducerId(await exchange.gateway.new_producer_id())

    exchange.later(request_id, run())


CLUSTER_HANDLERS: Final[dict[type, Callable[[Exchange, int, Any, memoryview], None]]] = {
    GetMetadata: get_metadata,
    GetStatus: get_status,
    StartScrub: start_scrub,
    NoteAudit: note_audit,
    GetGroups: of_transactions,
    ListTransactions: of_transactions,
    AbortTransaction: of_transactions,
    FindCoordinator: of_transactions,
    InitProducer: of_transactions,
    JoinTransaction: of_transactions,
    FinishTransaction: of_transactions,
    SendOffsets: of_transactions,
    GetOffsets: of_transactions,
    GetAccess: get_access,
    CreateTopic: create_topic,
    DeleteTopic: delete_topic,
    AlterTopic: alter_topic,
    ElectLeader: administer,
    MoveReplica: administer,
    PlaceReplicas: administer,
    RecoverShard: recover_shard,
    DrainNode: administer,
    RemoveNode: administer,
    AlterVoters: administer,
    Rebalance: administer,
    SplitShard: administer,
    AlterUser: administer,
    AlterAcls: administer,
    AlterQuota: administer,
    GetNodeSettings: get_node_settings,
    AlterNodeSettings: administer,
    GetSubscriptions: get_subscriptions,
    AlterSubscription: administer,
    NewProducerId: new_producer_id,
}
