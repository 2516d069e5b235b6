"""Origin ids of shards with `writers=multi`, assigned when shards are written to the ledger (S4.22).

The table in `ShardMeta.origins` gets a row for each member on its present disk. It only grows, and a row is committed
before any node can see it. So no two disks ever write as the same origin, whichever node coordinates. A node that
registers with another disk gets another row at once. Its old id, under which it may have numbered entries that it has
lost, is not used again.
"""

import msgspec

from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.profiles import PROFILES
from antiphon.coordination.state import ClusterState
from antiphon.model.metadata import TopicMeta
from antiphon.replication.origins import assign


def is_multi(topic: TopicMeta) -> bool:
    """Does every replica of the topic's shards write? A look-up, for it is asked at every change of every shard."""
    bundle = PROFILES.get(topic.profile, {})
    return topic.config.get("writers", bundle.get("writers")) == "multi"


def with_origins(state: ClusterState, record: ShardRecord) -> ShardRecord:
    """The record with a row for every member, if its topic has `writers=multi`."""
    topic = state.topics.get(state.names.get(record.topic_id, ""))
    if topic is None or not is_multi(topic):
        return record
    meta = record.meta
    disks = {node: state.nodes[node].disk_id for node in meta.everybody if node in state.nodes}
    origins = assign(meta.origins, meta.everybody, disks)
    if origins == meta.origins:
        return record
    return msgspec.structs.replace(record, meta=msgspec.structs.replace(meta, origins=origins))
