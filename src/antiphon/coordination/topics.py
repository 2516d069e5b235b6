"""Creates, changes and deletes topics and tables: checked against the decided state, then written to the ledger.

All functions raise an `AntiphonError` before they change anything.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from antiphon.coordination import topic_rules
from antiphon.coordination.balance import check_nodes
from antiphon.coordination.capacity import Capacity
from antiphon.coordination.cluster_records import (
    ORDER_FORMAT,
    SHARD_COUNTER,
    TOPIC_COUNTER,
    ShardRecord,
    options_in,
)
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.placement import NodeLoad, place
from antiphon.coordination.profiles import FIXED, Replication, normal_name, replication_of
from antiphon.coordination.profiles import check as check_replication
from antiphon.coordination.state import ClusterState
from antiphon.errors import (
    InvalidRequestError,
    TopicExistsError,
    UnavailableError,
    UnknownTopicError,
)
from antiphon.model.metadata import Kind, ShardMeta, TopicMeta
from antiphon.model.placement import Placement
from antiphon.model.requests import AlterTopic, CreateTopic
from antiphon.records.key_order import HIERARCHICAL, NATURAL
from antiphon.records.key_order import SETTING as KEY_SORTING

DEFAULT_TABLE: Final = "default"
DEFAULT_TABLE_SHARDS: Final = 4


class NewTopic(NamedTuple):
    """What a request to create comes to: the topic's settings by their usual names, and where its shards are placed."""

    config: dict[str, str]
    replicas: int
    ensembles: list[tuple[int, ...]]


class AlteredTopic(NamedTuple):
    """What a request to alter comes to. `ensembles`: of the shards that are added to the `has` that there are."""

    topic: TopicMeta
    config: dict[str, str]
    has: int
    ensembles: list[tuple[int, ...]]


def check_create(state: ClusterState, request: CreateTopic, capacity: Capacity) -> NewTopic:
    """Whatever may keep a topic from being made, raised as an error; nothing is changed."""
    topic_rules.check_name(request.name)
    topic_rules.check_owner(request.kind, request.internal, request.name)
    topic_rules.check_internal_kind(request.kind, request.name)
    topic_rules.check_profile(request.profile)
    config = {normal_name(name): value for name, value in request.config.items()}
    topic_rules.check_shards(request.shards)
    old = state.topics.get(request.name)
    if old is not None:
        raise TopicExistsError(
            f"{old.kind.value} {request.name!r} is there already", kind=old.kind.value, name=request.name
        )
    wanted = len(request.placement[0]) if request.placement else request.replicas
    loads, replicas = _choose_nodes(state, wanted, may_be_away=request.internal)
    topic_rules.check_settings(request.profile, config, replicas, request.kind)
    check_all_read(state, config)
    if not request.internal:
        capacity.check_topic(state)
        capacity.check_shards(state, request.shards)
    ensembles = _placed(state, request.placement, request.shards, replicas) or place(
        loads, request.shards, replicas
    )
    if not request.internal:
        capacity.check_nodes(state, ensembles)
    return NewTopic(config, replicas, ensembles)


def create(
    ledger: Ledger, cluster_id: str, request: CreateTopic, capacity: Capacity
) -> tuple[TopicMeta, list[int]]:
    """Write a new topic or table with placed shards; returns it and its shards' ids, which have no leaders yet."""
    made = check_create(ledger.model, request, capacity)
    topic = TopicMeta(
        name=request.name,
        topic_id=_topic_id(cluster_id, ledger.take(TOPIC_COUNTER)),
        kind=request.kind,
        replicas=made.replicas,
        profile=request.profile,
        shards=(),
        config=dict(sorted(made.config.items())),
        internal=request.internal,
    )
    ledger.put_topic(topic)
    return topic, _add_shards(ledger, topic, made.ensembles, 0)


def check_alter(state: ClusterState, request: AlterTopic, capacity: Capacity) -> AlteredTopic:
    """Whatever may keep a topic's settings or number of shards from being changed, raised as an error."""
    topic = find(state, request.name)
    if topic.internal and (request.config or request.shards is not None):
        raise InvalidRequestError(
            f"{topic.kind.value} {topic.name!r} belongs to the cluster: only the number of its replicas can be changed"
        )
    config = {normal_name(name): value for name, value in topic.config.items()}
    for name, value in request.config.items():
        if value is None:
            config.pop(normal_name(name), None)
        else:
            config[normal_name(name)] = value
    wanted = topic_rules.check_settings(topic.profile, config, topic.replicas, topic.kind)
    _check_fixed(topic, wanted)
    _check_sorting(topic, config)
    check_all_read(state, config)
    for voters in _voters_now(state, topic) - {topic.replicas}:
        check_replication(topic.profile, config, voters, topic.kind)
    count = len(state.shards_of[topic.topic_id])
    ensembles: list[tuple[int, ...]] = []
    if request.shards is not None:
        _check_more_shards(topic, count, request.shards)
        capacity.check_shards(state, request.shards - count)
        loads, _ = _choose_nodes(state, topic.replicas, may_be_away=True)
        more = request.shards - count
        ensembles = _placed(state, request.placement, more, topic.replicas) or place(
            loads, more, topic.replicas
        )
        capacity.check_nodes(state, ensembles)
    return AlteredTopic(topic, config, count, ensembles)


def alter(ledger: Ledger, request: AlterTopic, capacity: Capacity) -> tuple[TopicMeta, list[int]]:
    """Write changed settings and added shards; returns the topic and the ids of the added shards."""
    topic, config, has, ensembles = check_alter(ledger.model, request, capacity)
    if config != topic.config:
        topic = msgspec.structs.replace(topic, config=dict(sorted(config.items())))
        ledger.put_topic(topic)
    return topic, _add_shards(ledger, topic, ensembles, has) if ensembles else []


def first_table(state: ClusterState, alive: int, profile: str) -> CreateTopic:
    """A fresh cluster's first table. Oxia's clients find there what Oxia gives them, if all nodes know of it."""
    knows = all(node.reads >= ORDER_FORMAT for node in state.nodes.values())
    return CreateTopic(
        DEFAULT_TABLE,
        kind=Kind.TABLE,
        shards=DEFAULT_TABLE_SHARDS,
        replicas=min(topic_rules.REPLICAS_DEFAULT, alive),
        profile=profile,
        config={KEY_SORTING: HIERARCHICAL} if knows else {},
    )


def check_delete(state: ClusterState, name: str) -> TopicMeta:
    """The topic that may be deleted."""
    topic = find(state, name)
    if topic.internal:
        raise InvalidRequestError(f"{topic.kind.value} {name!r} belongs to the cluster and cannot be deleted")
    return topic


def find(state: ClusterState, name: str) -> TopicMeta:
    """A topic by name (without its shards)."""
    topic = state.topics.get(name)
    if topic is None:
        raise UnknownTopicError(f"there is no topic or table {name!r}", name=name)
    return topic


def _check_fixed(topic: TopicMeta, wanted: Replication) -> None:
    """The rules for elections and writers determine how each replica keeps its log, so they cannot change while it is
    in use.

    Nor can the rule that merges several writers: replicas that have merged by different rules never agree again.
    """
    now = replication_of(topic.profile, topic.config)
    for name in (*FIXED, "conflict") if now.is_multi else FIXED:
        old, new = getattr(now, name), getattr(wanted, name)
        if old != new:
            raise InvalidRequestError(
                f"{name} is decided when a {topic.kind.value} is made: {topic.name!r} has {name}={old}, which cannot become "
                f"{new}; create a new one and copy"
            )


def _check_sorting(topic: TopicMeta, config: Mapping[str, str]) -> None:
    """Clients that are in the middle of a list would go on in another order."""
    old, new = (one.get(KEY_SORTING, NATURAL) for one in (topic.config, config))
    if old != new:
        raise InvalidRequestError(
            f"{KEY_SORTING} is decided when a table is made: {topic.name!r} has {KEY_SORTING}={old}, which cannot become "
            f"{new}; create a new one and copy"
        )


def check_all_read(state: ClusterState, config: Mapping[str, str]) -> None:
    """Refuse settings that a node of the cluster does not know, whether it is up or not: it could hold a replica."""
    for option in options_in(config):
        old = sorted((node.node_id, node.reads) for node in state.nodes.values() if node.reads < option.reads)
        if old:
            raise InvalidRequestError(
                f"{option} takes nodes that read format {option.reads} of the cluster's records: "
                + ", ".join(f"node {node_id} reads up to {reads}" for node_id, reads in old)
                + f". A node of such a version {option.earlier}. Upgrade these nodes first (`antiphon upgrade --check` "
                "tells the version of each), or leave the setting out"
            )


def _voters_now(state: ClusterState, topic: TopicMeta) -> set[int]:
    """How many voters its shards have, or had, while they are on their way to as many as the topic is to have."""
    metas = [state.shards[shard_id].meta for shard_id in state.shards_of[topic.topic_id]]
    return {len(voters) for meta in metas for voters in (meta.ensemble, meta.outgoing, meta.goal) if voters}


def _check_more_shards(topic: TopicMeta, count: int, wanted: int) -> None:
    topic_rules.check_shards(wanted)
    if wanted <= count:
        raise InvalidRequestError(f"{topic.name!r} has {count} shards already; their number can only grow")
    if topic.kind is Kind.TABLE:
        raise InvalidRequestError(
            f"table {topic.name!r} cannot get more shards: its keys are placed by their number"
        )


def _choose_nodes(
    state: ClusterState, replicas: int, *, may_be_away: bool = False
) -> tuple[list[NodeLoad], int]:
    """The nodes to place on, with their loads, and the number of replicas (0 asks for the default).

    A number that a person asked for comes from nodes that are alive, or is an error. The default depends on the number
    of nodes that exist: a node that is away for a moment still gets its replicas, as long as a majority of each ensemble
    is alive. `may_be_away`: so it is with the number too. New shards of a topic have its number, and internal topics are
    made by whoever needs them first: neither can choose another number, and both are as safe as with the default.
    """
    staying = [node for node in state.nodes.values() if not node.draining]
    alive = [node.node_id for node in staying if node.alive]
    if replicas < 0 or replicas > topic_rules.REPLICAS_MAX:
        raise InvalidRequestError(f"a shard has 1 to {topic_rules.REPLICAS_MAX} replicas, not {replicas}")
    if not alive:
        raise UnavailableError("no node is alive (and not draining) to hold a replica")
    if replicas == 0:
        may_be_away, replicas = True, min(topic_rules.REPLICAS_DEFAULT, len(staying))
    chosen = alive
    if replicas > len(alive):
        enough = may_be_away and len(alive) > replicas // 2 and replicas <= len(staying)
        if not enough:
            raise InvalidRequestError(
                f"{replicas} replicas need {replicas} nodes that are alive; {len(alive)} of {len(staying)} are: "
                f"start more nodes or ask for at most {len(alive)} replicas",
                replicas=replicas,
                alive=len(alive),
                staying=len(staying),
                lacking="nodes",
            )
        away = sorted({node.node_id for node in staying} - set(alive))
        chosen = alive + away[: replicas - len(alive)]
    return [_load(state, node) for node in sorted(chosen)], replicas


def _placed(state: ClusterState, placement: Placement, shards: int, replicas: int) -> list[tuple[int, ...]]:
    """The ensembles that were asked for; none: nobody asked. Raises InvalidRequestError."""
    if placement and len(placement) != shards:
        raise InvalidRequestError(f"nodes are named for {len(placement)} shards, {shards} are to be made")
    for at, nodes in enumerate(placement):
        what = f"new shard {at}"
        if len(nodes) != replicas:
            raise InvalidRequestError(f"{what} is placed on {list(nodes)}, and each has {replicas} replicas")
        check_nodes(state, nodes, (), what)
    return list(placement)


def _load(state: ClusterState, node: int) -> NodeLoad:
    return NodeLoad(node, state.aimed_at.get(node, 0), state.preferred_on.get(node, 0))


def _add_shards(ledger: Ledger, topic: TopicMeta, ensembles: list[tuple[int, ...]], have: int) -> list[int]:
    first = ledger.take(SHARD_COUNTER, len(ensembles))
    for at, ensemble in enumerate(ensembles):
        meta = ShardMeta(shard_id=first + at, index=have + at, ensemble=ensemble)
        ledger.put_shard(ShardRecord(topic.topic_id, meta))
    return list(range(first, first + len(ensembles)))


def _topic_id(cluster_id: str, number: int) -> bytes:
    """16 bytes that no other topic of any cluster has, the same for whoever folds the same log."""
    return hashlib.blake2b(f"{cluster_id}/{number}".encode(), digest_size=16).digest()
