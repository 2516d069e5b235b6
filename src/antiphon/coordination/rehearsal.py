"""Finds out what a request would come to: a coordinator that nobody hears decides on it, on a copy of the metadata.

So a plan cannot differ from what the coordinator does with the same metadata, and every request has one. The copy has no
numbers that are still free, and shards that are being split off are no part of it, so ids of new shards are not told.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from antiphon.coordination.actions import Action, Answer, SendTo
from antiphon.coordination.cluster_records import SHARD_COUNTER, ClusterRecord, ShardRecord
from antiphon.coordination.coordinator import Coordinator, CoordinatorConfig
from antiphon.coordination.state import ClusterState
from antiphon.errors import AntiphonError
from antiphon.model.metadata import ABSENT_NODE, ClusterMeta, ShardMeta
from antiphon.model.plans import SHOWN_MAX, Plan, PlannedShard
from antiphon.model.requests import AdminRequest, AlterTopic, CreateTopic
from antiphon.replication.messages import TransferLeadership

TOKEN: Final = 1


def rehearse(config: CoordinatorConfig, meta: ClusterMeta, request: AdminRequest) -> Plan:
    """What the coordinator would decide. Raises what it would refuse the request with."""
    before = state_of(meta)
    if isinstance(request, CreateTopic | AlterTopic) and request.validate_only:
        request = msgspec.structs.replace(request, validate_only=False)
    if isinstance(request, CreateTopic) and not request.profile:
        request = msgspec.structs.replace(request, profile=config.default_profile)
    coordinator = Coordinator(config, before)
    actions = coordinator.command(TOKEN, request)
    for action in actions:
        if isinstance(action, Answer) and isinstance(action.result, AntiphonError):
            raise action.result
    after = coordinator.model
    found = list(_changes(before, after, _handed_over(actions)))
    settings = {}
    if isinstance(request, CreateTopic | AlterTopic):
        settings = after.topics[request.name].config
    return Plan(
        metadata_version=meta.version, changed=len(found), shards=tuple(found[:SHOWN_MAX]), settings=settings
    )


def state_of(meta: ClusterMeta) -> ClusterState:
    """The metadata as a coordinator has it."""
    state = ClusterState()
    state.version = meta.version
    state.cluster = ClusterRecord(meta.cluster_id, bootstrapped=True)
    state.nodes = {node.node_id: node for node in meta.nodes}
    last = 0
    for topic in meta.topics:
        state.put_topic(msgspec.structs.replace(topic, shards=()))
        for shard in topic.shards:
            state.put_shard(ShardRecord(topic.topic_id, shard))
            last = max(last, shard.shard_id)
    state.counters[SHARD_COUNTER] = last + 1
    return state


def _handed_over(actions: Iterable[Action]) -> dict[int, int]:
    """Shards whose leaders are asked to hand over, and to whom."""
    return {
        message.shard: message.to
        for action in actions
        if isinstance(action, SendTo)
        for message in action.messages
        if isinstance(message, TransferLeadership)
    }


def _changes(
    before: ClusterState, after: ClusterState, handed_over: dict[int, int]
) -> Iterable[PlannedShard]:
    for shard_id in sorted(before.shards.keys() | after.shards.keys()):
        old, new = before.shards.get(shard_id), after.shards.get(shard_id)
        to = handed_over.get(shard_id)
        if old == new and to is None:
            continue
        record = new or old
        if record is None:
            continue
        topic = (after if new is not None else before).names[record.topic_id]
        yield _planned(topic, None if old is None else old.meta, None if new is None else new.meta, to)


def _planned(topic: str, old: ShardMeta | None, new: ShardMeta | None, handed_to: int | None) -> PlannedShard:
    known = new or old
    if known is None:
        raise ValueError("a shard that neither was nor is to be")
    nodes = () if old is None else old.ensemble
    to_nodes = () if new is None else new.aim
    leader = ABSENT_NODE if old is None else old.leader
    what = _what(old, new)
    to_leader = leader
    if handed_to is not None:
        what, to_leader = "elected", handed_to
    elif what in {"moved", "led"}:
        to_leader = to_nodes[0]
    elif what in {"made", "removed", "elected"}:
        to_leader = ABSENT_NODE
    return PlannedShard(
        topic=topic,
        shard=known.index,
        shard_id=ABSENT_NODE if old is None else known.shard_id,
        what=what,
        nodes=nodes,
        to_nodes=to_nodes,
        leader=leader,
        to_leader=to_leader,
    )


def _what(old: ShardMeta | None, new: ShardMeta | None) -> str:
    if old is None:
        return "made"
    if new is None:
        return "removed"
    if set(new.aim) != set(old.aim):
        return "moved"
    if new.term != old.term:
        return "elected"
    return "led" if new.aim != old.aim else "changed"
