"""A shard that went on from one replica is restored as any other: nobody of the time before it is in the new cluster."""

from antiphon.backup.manifest import ShardBackup
from antiphon.backup.restore_cluster import _place_all
from antiphon.model.metadata import Kind, ShardMeta, ShardRecovery, TopicMeta


def test_a_restored_shard_knows_of_no_recovery() -> None:
    recovery = ShardRecovery(1_000_000, 3, (2, 3, 4), 10, done=True)
    shard = ShardMeta(1, 0, (3, 4, 5), leader=3, term=1_000_001, recovery=recovery)
    topic = TopicMeta("t", bytes(range(16)), Kind.TOPIC, 3, "oxia", (shard,))
    placed = _place_all([topic], 3, {1: ShardBackup(1, 0, 1_000_001, 0, 10, ())})[1]
    assert placed.recovery is None
    assert placed.term > shard.term
    assert set(placed.ensemble) == {0, 1, 2}
