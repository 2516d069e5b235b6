"""What seeds have found and a smaller test can show."""

from collections.abc import Iterator

import msgspec
import pytest

from antiphon.coordination.live_sets import accept, vouched_for
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ShardMeta
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from antiphon.simulation.cluster.cluster import SimulatedCluster
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.cluster.workloads.followers import FollowerWorkload
from antiphon.simulation.cluster.workloads.topic import TopicWorkload
from antiphon.simulation.violation import ViolationError
from tests.simulation.told import FOUND_BEFORE, words

META = ShardMeta(1, 0, ensemble=(3, 0), leader=3, term=2, live=(3,), live_version=4, fence="live")


def report(*live: int, learners: tuple[int, ...] = ()) -> LiveSet:
    return LiveSet(1, 2, live, (), 4, learners=learners)


def test_a_proposal_of_former_members_is_answered() -> None:
    """fluvio 5119: the leader counts whom it proposed until it is told of a newer record."""
    answered = accept(META, report(2, 3), 3, lambda _: True)
    assert answered == msgspec.structs.replace(META, live_version=5)
    returned = accept(META, report(2, 3, learners=(2,)), 3, lambda _: True)
    assert returned == answered, "one of them is back, as a learner that seems to hold what it held before"


def test_a_proposal_that_was_overtaken_vouches_for_nobody() -> None:
    """fluvio 5119: who was proposed has left since, and is back with nothing: it is not among the followers."""
    overtaken = msgspec.structs.replace(META, live_version=6)
    assert vouched_for(META, report(0, 3)) == {0, 3}
    assert vouched_for(overtaken, report(0, 3)) == {3}
    assert vouched_for(overtaken, report(0, 3, learners=(0,))) == {0, 3}, "whom it names for what it holds"
    nothing_asked = msgspec.structs.replace(report(0, 3), version=-1)
    assert vouched_for(overtaken, nothing_asked) == {0, 3}


def test_a_learner_that_has_become_a_voter_is_not_live_by_that() -> None:
    """fluvio 197: the leader names it as caught up, and does not count it yet."""
    assert accept(META, report(0, 3, learners=(0,)), 3, lambda _: True).live == (3,)
    assert accept(META, report(0, 3), 3, lambda _: True).live == (3, 0)


SHARD = 7
VALUES = (b"0:0:0", b"0:0:1", b"0:0:2")


def committed(offset: int, value: bytes) -> bytes:
    batch = bytearray(build_batch([(None, value, [], 1)]))
    batch[:8] = offset.to_bytes(8, "big")
    return bytes(batch)


@pytest.fixture
def followers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FollowerWorkload]:
    """Readers of a shard in which three records are committed, and that do not read by themselves."""
    cluster = SimulatedCluster(draw_options(1, "oxia"))
    topic = TopicWorkload(cluster)
    topic.shard_ids = [SHARD]
    topic._sent = set(VALUES)
    for offset, value in enumerate(VALUES):
        batch = committed(offset, value)
        cluster.evidence.truth(SHARD).take(read_header(batch), batch, "node 0")
    readers = FollowerWorkload(cluster, topic)
    monkeypatch.setattr(readers, "spawn", lambda *_: None)
    readers.begin()
    for reader in readers._readers:
        reader.judged = True
    yield readers
    cluster.close()


def give(followers: FollowerWorkload, offset: int) -> None:
    for reader in followers._readers:
        followers._given(reader, decode_records(committed(offset, VALUES[offset]))[0])


def test_a_reader_that_begins_behind_what_was_trimmed_waits_for_nothing(followers: FollowerWorkload) -> None:
    """fluvio 65011: one replica began where the records end, and led."""
    truth = followers.cluster.evidence.truth(SHARD)
    assert not followers.has_everything()
    truth.begins(2)
    assert not followers.has_everything(), "the last one is nowhere trimmed"
    truth.begins(3)
    truth.begins(0)
    assert followers.has_everything()
    give(followers, 0)
    assert not followers.has_everything(), "who has read something is told if it cannot go on"


def test_a_reader_that_begins_is_given_all_that_is_nowhere_trimmed(followers: FollowerWorkload) -> None:
    followers.cluster.evidence.truth(SHARD).begins(1)
    with pytest.raises(ViolationError, match="read-without-gaps"):
        give(followers, 2)
    give(followers, 1)
    give(followers, 2)
    assert followers.has_everything()


def test_a_reader_is_not_told_of_a_start_that_no_log_has(followers: FollowerWorkload) -> None:
    give(followers, 0)
    followers.cluster.evidence.truth(SHARD).begins(2)
    reader = followers._readers[0]
    followers._check_gone(reader, 2)
    for start in (1, 3):
        with pytest.raises(ViolationError, match="read-goes-on"):
            followers._check_gone(reader, start)


@pytest.mark.slow
def test_a_replica_of_a_deleted_topic_is_not_opened_again_from_what_a_node_remembers() -> None:
    """tarantool 501429: two of them came again and again, empty, and elected a leader of a term that had one."""
    result = run_cluster(draw_options(501_429, "tarantool", **FOUND_BEFORE))
    assert result.failure is None, words(result)


def test_batches_that_wait_behind_one_that_is_refused_are_refused_too() -> None:
    """multi 511642: the first four waited too long for a thread to look at their records, and the fifth did not."""
    result = run_cluster(draw_options(511_642, "multi", **FOUND_BEFORE))
    assert result.failure is None, words(result)
