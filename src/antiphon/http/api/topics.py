"""Topics, tables and shards."""

from antiphon.coordination.profiles import PROFILES
from antiphon.coordination.topic_settings import TOPIC_SETTINGS
from antiphon.http.access import may_see
from antiphon.http.api.answers import Page, ReplicaInfo, SettingInfo, ShardInfo, TopicDetail, TopicInfo
from antiphon.http.api.asked import Listed, ListShards, ListTables, ListTopics, OneTopic
from antiphon.http.api.call import Call, cut, page, told
from antiphon.http.pages.asking import leaders_of, sizes_of, topic_for
from antiphon.model.access import Operation, Resource
from antiphon.model.internal import is_internal
from antiphon.model.metadata import ABSENT_NODE, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.requests import ReplicaStatus, StatusReply

Place = tuple[TopicMeta, ShardMeta]


async def list_topics(call: Call, asked: ListTopics) -> Page[TopicInfo]:
    """Topics and tables that you may describe, by name."""
    return await _listed(call, asked, asked.kind)


async def list_tables(call: Call, asked: ListTables) -> Page[TopicInfo]:
    """Tables that you may describe, by name."""
    return await _listed(call, asked, "table")


async def _listed(call: Call, asked: ListTopics | ListTables, kind: str) -> Page[TopicInfo]:
    wanted = asked.q.lower()
    found = [
        topic
        for topic in call.gateway.metadata.topics
        if wanted in topic.name.lower()
        and (not kind or topic.kind == kind)
        and (asked.internal or not is_internal(topic))
        and may_see(call.rights, topic)
    ]
    found.sort(key=lambda one: one.name)
    sizes = await sizes_of(call.asker, call.rights, cut(found, asked))
    return page(found, asked, lambda one: _topic(one, sizes.get(one.name)))


def _topic(topic: TopicMeta, sizes: tuple[int, int] | None) -> TopicInfo:
    return told(
        TopicInfo,
        topic,
        id=topic.topic_id.hex(),
        shards=len(topic.shards),
        shards_led=sum(shard.status is ShardStatus.ONLINE for shard in topic.shards),
        is_internal=is_internal(topic),
        records=None if sizes is None else sizes[0],
        size_bytes=None if sizes is None else sizes[1],
    )


async def get_topic(call: Call, asked: OneTopic) -> TopicDetail:
    """One topic or table: its settings and where each comes from, and its shards from `start` on."""
    topic = topic_for(call.gateway, call.rights, asked.topic)
    sizes = await sizes_of(call.asker, call.rights, [topic])
    return TopicDetail(
        topic=_topic(topic, sizes.get(topic.name)),
        settings=_settings(topic),
        shards=await _shards(call, [(topic, shard) for shard in topic.shards], asked),
    )


def _settings(topic: TopicMeta) -> list[SettingInfo]:
    of_profile = PROFILES.get(topic.profile, {})
    found = []
    for one in TOPIC_SETTINGS.values():
        source = "topic" if one.name in topic.config else "profile" if one.name in of_profile else "default"
        value = topic.config.get(one.name, of_profile.get(one.name, one.default))
        found.append(told(SettingInfo, one, value=value, source=source, about=one.documentation))
    return found


async def list_shards(call: Call, asked: ListShards) -> Page[ShardInfo]:
    """Shards of topics that you may describe: filtered by topic, node, state, and what is in their names."""
    wanted = asked.q.lower()
    found = [
        (topic, shard)
        for topic in sorted(call.gateway.metadata.topics, key=lambda one: one.name)
        if (not asked.topic or topic.name == asked.topic)
        and (asked.internal or asked.topic or not is_internal(topic))
        and may_see(call.rights, topic)
        for shard in topic.shards
        if wanted in f"{topic.name.lower()}/{shard.index}"
        and (asked.node is None or asked.node in shard.everybody)
        and _is_so(shard, asked.state)
    ]
    return await _shards(call, found, asked)


def _is_so(shard: ShardMeta, state: str) -> bool:
    match state:
        case "online":
            return shard.status is ShardStatus.ONLINE
        case "offline":
            return shard.status is not ShardStatus.ONLINE
        case "thin":
            return len(shard.live) < len(shard.ensemble)
        case "moving":
            return bool(shard.goal or shard.outgoing or shard.learners)
        case _:
            return True


async def _shards(call: Call, places: list[Place], asked: Listed) -> Page[ShardInfo]:
    statuses: dict[int, StatusReply] = {}
    some = [shard.shard_id for _, shard in cut(places, asked)]
    if some and call.rights.sees(Operation.DESCRIBE, Resource.CLUSTER):
        statuses = await call.asker.statuses(some)
    leaders = leaders_of(statuses)
    ends = {(node, one.shard_id): one for node, status in statuses.items() for one in status.replicas}
    return page(
        places,
        asked,
        lambda one: _shard(*one, leaders.get(one[1].shard_id), ends if statuses else None),
    )


def _shard(
    topic: TopicMeta,
    shard: ShardMeta,
    leads: ReplicaStatus | None,
    replicas: dict[tuple[int, int], ReplicaStatus] | None,
) -> ShardInfo:
    log = ("log_start", "high_watermark", "log_end", "size_bytes")
    return told(
        ShardInfo,
        shard,
        topic=topic.name,
        shard=shard.index,
        state=shard.status.value,
        leader=None if shard.leader == ABSENT_NODE else shard.leader,
        **{name: None if leads is None else getattr(leads, name) for name in log},
        replicas=[]
        if replicas is None
        else [_replica(shard, node, replicas.get((node, shard.shard_id)), leads) for node in shard.everybody],
    )


def _replica(
    shard: ShardMeta, node: int, status: ReplicaStatus | None, leads: ReplicaStatus | None
) -> ReplicaInfo:
    role = "leader" if node == shard.leader else "learner" if node in shard.learners else "follower"
    behind = None if status is None or leads is None else max(0, leads.log_end - status.log_end)
    return ReplicaInfo(
        node=node,
        role=role,
        is_live=node in shard.live or node == shard.leader,
        state=None if status is None else status.state,
        log_end=None if status is None else status.log_end,
        behind=behind,
    )
