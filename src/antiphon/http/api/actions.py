"""What operators decide: each goes to the coordinator, as from any other client. A dry run says what that would decide."""

import msgspec
import structlog

from antiphon.errors import InvalidRequestError, TimedOutError
from antiphon.gateway import changes
from antiphon.gateway.access import check
from antiphon.gateway.mutations import partitions_of
from antiphon.http.api.answers import Outcome
from antiphon.http.api.asked import (
    AclEntry,
    AclsBody,
    Action,
    DrainBody,
    ElectBody,
    MoveBody,
    NewTopic,
    NoBody,
    NodeSettingsBody,
    OfNode,
    OfShard,
    OfSubscription,
    OfTopic,
    OfUser,
    PasswordBody,
    PlaceBody,
    QuotaBody,
    RebalanceBody,
    ScrubBody,
    SplitBody,
    SubscriptionBody,
    TopicChange,
)
from antiphon.http.api.call import Call
from antiphon.http.api.logs import find_shard
from antiphon.http.pages.asking import off_loop, topic_for
from antiphon.model.access import CLUSTER_NAME, Acl, Credential, Resource
from antiphon.model.client_metrics import AlterSubscription, Subscription, removal, replaced
from antiphon.model.client_metrics import changed as subscription_after
from antiphon.model.findings import StartScrub
from antiphon.model.internal import PREFIX
from antiphon.model.metadata import Kind
from antiphon.model.node_settings import ALL_NODES, AlterNodeSettings, NodeSettings, by_own_names, changed
from antiphon.model.placement import PlaceReplicas
from antiphon.model.plans import Plan
from antiphon.model.quotas import LIMITS, Quota, address
from antiphon.model.requests import (
    AdminRequest,
    AlterAcls,
    AlterQuota,
    AlterTopic,
    AlterUser,
    CreateTopic,
    DeleteTopic,
    DrainNode,
    ElectLeader,
    MoveReplica,
    Rebalance,
    RemoveNode,
    SplitShard,
)
from antiphon.security.passwords import MECHANISMS, credential

DECIDED_S = 8.0  # a request is answered before its time is over
GOES_ON = (SplitShard,)  # what is decided at once, and takes long


async def create_topic(call: Call, asked: Action, body: NewTopic) -> Outcome:
    """Make a topic or table; answered when each shard has a leader."""
    _check_not_own(body.name)
    request = CreateTopic(
        body.name, Kind(body.kind), body.shards, body.replicas, profile=body.profile, config=body.config
    )
    return await _carry_out(call, request, dry_run=asked.dry_run)


async def alter_topic(call: Call, asked: OfTopic, body: TopicChange) -> Outcome:
    """Change settings, add shards to a topic, or change how many replicas each shard has."""
    topic_for(call.gateway, call.rights, asked.topic)
    request = AlterTopic(asked.topic, body.config, body.shards, body.replicas)
    return await _carry_out(call, request, dry_run=asked.dry_run)


async def delete_topic(call: Call, asked: OfTopic, _body: NoBody) -> Outcome:
    """Delete a topic or table with its data."""
    topic_for(call.gateway, call.rights, asked.topic)
    _check_not_own(asked.topic)
    return await _carry_out(call, DeleteTopic(asked.topic), dry_run=asked.dry_run)


async def elect_leader(call: Call, asked: OfShard, body: ElectBody) -> Outcome:
    """Elect the leader of a shard anew, or have a node lead it."""
    return await _carry_out(call, ElectLeader(_shard_id(call, asked), body.node), dry_run=asked.dry_run)


async def move_replica(call: Call, asked: OfShard, body: MoveBody) -> Outcome:
    """Put a replica on another node; answered when it is decided, before the replica has moved."""
    request = MoveReplica(_shard_id(call, asked), body.from_node, body.to_node)
    return await _carry_out(call, request, dry_run=asked.dry_run)


async def place_replicas(call: Call, asked: OfShard, body: PlaceBody) -> Outcome:
    """Put a shard on these nodes; answered when it is decided."""
    request = PlaceReplicas(_shard_id(call, asked), tuple(body.nodes))
    return await _carry_out(call, request, dry_run=asked.dry_run)


async def split_shard(call: Call, asked: OfShard, body: SplitBody) -> Outcome:
    """Split a shard of a table in two; goes on by itself where it takes longer than an answer may."""
    return await _carry_out(call, SplitShard(_shard_id(call, asked), body.at), dry_run=asked.dry_run)


async def drain_node(call: Call, asked: OfNode, body: DrainBody) -> Outcome:
    """Move everything that a node holds elsewhere, or take that back; answered when it is decided."""
    return await _carry_out(call, DrainNode(asked.node, body.cancel), dry_run=asked.dry_run)


async def remove_node(call: Call, asked: OfNode, _body: NoBody) -> Outcome:
    """Forget a node that is drained and stopped."""
    return await _carry_out(call, RemoveNode(asked.node), dry_run=asked.dry_run)


async def rebalance(call: Call, asked: Action, body: RebalanceBody) -> Outcome:
    """Spread replicas and leaderships evenly; answered when it is decided."""
    return await _carry_out(call, Rebalance(body.leaders_only), dry_run=asked.dry_run)


async def scrub_node(call: Call, asked: OfNode, body: ScrubBody) -> Outcome:
    """Have a node read what is on its disk now. A dry run only asks whether you may."""
    request = StartScrub(body.shard_id)
    check(call.gateway, call.rights, request)
    _log_change(call, request, dry_run=asked.dry_run)
    if not asked.dry_run:
        await call.asker.scrub(asked.node, request)
    return Outcome(done=not asked.dry_run, dry_run=asked.dry_run)


async def alter_node_settings(call: Call, asked: OfNode, body: NodeSettingsBody) -> Outcome:
    """Set or take away values of a node's settings while it runs; a plan has what is set for it alone, afterwards."""
    return await _set_values(call, asked.node, body, dry_run=asked.dry_run)


async def alter_settings(call: Call, asked: Action, body: NodeSettingsBody) -> Outcome:
    """Set or take away values of settings of all nodes, also those to come. What is set for one node goes before them."""
    return await _set_values(call, ALL_NODES, body, dry_run=asked.dry_run)


async def put_subscription(call: Call, asked: OfSubscription, body: SubscriptionBody) -> Outcome:
    """Subscribe to metrics of Kafka's clients: the subscription says this then, and nothing of what it said before."""
    request = replaced(asked.subscription, body.metrics, body.interval_ms, body.match)
    return await _subscribe(call, request, dry_run=asked.dry_run)


async def delete_subscription(call: Call, asked: OfSubscription, _body: NoBody) -> Outcome:
    """Delete a subscription to metrics of Kafka's clients. Clients stop with what nobody else has subscribed to."""
    request = removal(asked.subscription)
    check(call.gateway, call.rights, request)
    if asked.subscription not in call.gateway.subscriptions:
        raise InvalidRequestError(
            f"there is no subscription {asked.subscription[:100]!r} to clients' metrics"
        )
    return await _subscribe(call, request, dry_run=asked.dry_run)


async def set_password(call: Call, asked: OfUser, body: PasswordBody) -> Outcome:
    """Add a user, or set the password of one."""
    check(call.gateway, call.rights, AlterUser(asked.user))  # before any work is done for who may not
    made = await off_loop(_credentials, body)
    known = call.gateway.access.users.get(asked.user)
    before = () if known is None else known.credentials
    # A mechanism that is not wanted would go on taking the password that was.
    gone = tuple(one.mechanism for one in before if one.mechanism not in mechanisms_of(body))
    return await _carry_out(call, AlterUser(asked.user, made, gone), dry_run=asked.dry_run)


async def remove_user(call: Call, asked: OfUser, _body: NoBody) -> Outcome:
    """Remove a user. Its connections end within seconds; entries that name it stay."""
    return await _carry_out(call, AlterUser(asked.user, remove=True), dry_run=asked.dry_run)


async def alter_acls(call: Call, asked: Action, body: AclsBody) -> Outcome:
    """Add entries of the access control lists, and remove entries that say exactly this."""
    request = AlterAcls(tuple(map(acl_of, body.add)), tuple(map(acl_of, body.remove)))
    return await _carry_out(call, request, dry_run=asked.dry_run)


async def alter_quota(call: Call, asked: Action, body: QuotaBody) -> Outcome:
    """Set limits of a user, client id or address, and take limits away."""
    unknown = sorted(body.limits.keys() - set(LIMITS))
    if unknown:
        raise InvalidRequestError(f"there is no limit {unknown[0]!r}: there are {', '.join(LIMITS)}")
    return await _carry_out(call, AlterQuota(*quota_of(body)), dry_run=asked.dry_run)


async def _set_values(call: Call, node: int, body: NodeSettingsBody, *, dry_run: bool) -> Outcome:
    changes = by_own_names(body.settings)
    outcome = await _carry_out(call, AlterNodeSettings(node, changes), dry_run=dry_run)
    if outcome.plan is None:
        return outcome
    before = call.gateway.settings.entries.get(node, NodeSettings(node, {}))
    plan = msgspec.structs.replace(outcome.plan, settings=changed(before, changes).values)
    return msgspec.structs.replace(outcome, plan=plan)


async def _subscribe(call: Call, request: AlterSubscription, *, dry_run: bool) -> Outcome:
    if not dry_run:
        return await _carry_out(call, request, dry_run=False)
    check(call.gateway, call.rights, request)
    _log_change(call, request, dry_run=True)
    asked = msgspec.structs.replace(request, validate_only=True)
    await call.gateway.administer(asked, DECIDED_S)
    after = subscription_after(Subscription(request.name, {}), request.config).values
    plan = Plan(metadata_version=call.gateway.metadata_version, changed=0, shards=(), settings=after)
    return Outcome(done=False, dry_run=True, plan=plan)


def mechanisms_of(body: PasswordBody) -> list[str]:
    """What the user logs in with then."""
    return sorted(set(body.mechanisms or MECHANISMS))


def _credentials(body: PasswordBody) -> tuple[Credential, ...]:
    return tuple(credential(name, body.password) for name in mechanisms_of(body))


def quota_of(body: QuotaBody) -> tuple[Quota, tuple[str, ...]]:
    """What is to be set, and which limits are to be taken away."""
    set_now = {name: limit for name, limit in body.limits.items() if limit is not None}
    gone = tuple(name for name, limit in body.limits.items() if limit is None)
    ip = address(body.ip) or body.ip if body.ip else body.ip
    return Quota(body.user, body.client_id, ip, **set_now), gone


def acl_of(one: AclEntry) -> Acl:
    """The entry as the cluster has it."""
    name = CLUSTER_NAME if one.resource is Resource.CLUSTER else one.name
    return Acl(one.principal, one.resource, name, one.operation, one.pattern, one.permission, one.host)


def _shard_id(call: Call, asked: OfShard) -> int:
    return find_shard(topic_for(call.gateway, call.rights, asked.topic), asked.shard).shard_id


def _check_not_own(name: str) -> None:
    if name.startswith(PREFIX):
        raise InvalidRequestError(
            f"{name!r} belongs to the cluster: topics and tables whose names begin with {PREFIX!r} are made and deleted by "
            "its nodes and jobs only"
        )


async def _carry_out(call: Call, request: AdminRequest, *, dry_run: bool) -> Outcome:
    check(call.gateway, call.rights, request)
    _log_change(call, request, dry_run=dry_run)
    if dry_run:
        if isinstance(request, AlterUser | AlterAcls | AlterQuota):
            call.gateway.rehearse_access(request)
            return Outcome(done=False, dry_run=True)
        plan = await off_loop(call.gateway.rehearse, call.gateway.metadata, request)
        return Outcome(done=False, dry_run=True, plan=plan)
    call.mutates(partitions_of(call.gateway, request))
    try:
        match request:
            case CreateTopic():
                await call.gateway.create_topic(request, DECIDED_S)
            case AlterTopic():
                await call.gateway.alter_topic(request, DECIDED_S)
            case _:
                await changes.administer(call.gateway, request, call.rights, call.host, "http", DECIDED_S)
    except TimedOutError:
        if not isinstance(request, GOES_ON):
            raise
        return Outcome(done=False, dry_run=False)
    return Outcome(done=True, dry_run=False)


def _log_change(call: Call, request: AdminRequest | StartScrub, *, dry_run: bool) -> None:
    """Who wanted what: for those who ask afterwards."""
    what = type(request).__name__
    structlog.get_logger().info(
        "http_action",
        principal=str(call.rights.principal),
        request=what,
        what=repr(request)[:500],
        dry_run=dry_run,
    )
