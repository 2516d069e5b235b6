"""Origin ids in the metadata of shards that every replica writes (S4.22)."""

import msgspec

from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.origins import with_origins
from antiphon.coordination.state import ClusterState
from antiphon.model.metadata import Kind, NodeMeta, ShardMeta, TopicMeta

TOPIC = b"0123456789abcdef"


def node(node_id: int, disk: str) -> NodeMeta:
    return NodeMeta(node_id, "host:1", incarnation="i", disk_id=disk)


def ledger(writers: str = "multi") -> Ledger:
    found = Ledger(ClusterState())
    for node_id in (1, 2, 3):
        found.put_node(node(node_id, f"disk-{node_id}"), joined=True)
    topic = TopicMeta("t", TOPIC, Kind.TABLE, 3, "tarantool", (), {"writers": writers})
    found.put_topic(topic)
    found.put_shard(ShardRecord(TOPIC, ShardMeta(5, 0, (2, 1))))
    return found


def test_s4_22_each_member_gets_the_next_id_on_its_disk() -> None:
    one = ledger()
    assert list(one.model.shards[5].meta.origins) == [(2, "disk-2"), (1, "disk-1")]
    record = one.model.shards[5]
    one.put_shard(msgspec.structs.replace(record, meta=msgspec.structs.replace(record.meta, ensemble=(2, 3))))
    assert list(one.model.shards[5].meta.origins) == [(2, "disk-2"), (1, "disk-1"), (3, "disk-3")]
    assert with_origins(one.model, one.model.shards[5]) is one.model.shards[5]


def test_s4_22_another_disk_is_another_origin_as_soon_as_it_registers() -> None:
    one = ledger()
    one.put_node(node(1, "new"), joined=True)
    assert one.model.shards[5].meta.origins[2:] == ((1, "new"),)
    one.put_node(node(1, "new"), joined=True)
    assert len(one.model.shards[5].meta.origins) == 3


def test_shards_with_a_single_writer_have_no_origins() -> None:
    assert ledger("single").model.shards[5].meta.origins == ()
