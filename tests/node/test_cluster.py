"""Three real processes: they form a cluster, take appends and puts, and lose nothing when a leader is killed."""

import json
import socket
import urllib.request
from collections.abc import Iterator

import pytest

from antiphon.errors import (
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownShardError,
    WrongKindError,
)
from antiphon.model.metadata import Kind, ShardStatus
from antiphon.model.requests import (
    AppendBatch,
    Appended,
    CreateTopic,
    Delete,
    DeleteTopic,
    Done,
    ElectLeader,
    Fetch,
    Fetched,
    ListOffset,
    NewProducerId,
    OpStatus,
    Put,
    TableGet,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
)
from antiphon.node.config import split_address
from antiphon.records.builder import build_batch
from tests.node.processes import NativeClient, Processes, eventually

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


def new_shard(cluster: Processes, name: str, kind: Kind = Kind.TOPIC, **config: str) -> int:
    """A new topic of one shard, known to all nodes; returns the shard's id."""
    assert cluster.ask(0, CreateTopic(name, kind=kind, config=config)) == Done()
    for node_id in cluster.alive():
        eventually(lambda n=node_id: any(one.name == name for one in cluster.metadata(n).topics))  # type: ignore[misc]
    return cluster.shard(0, name).shard_id


def same_everywhere(cluster: Processes, shard_id: int) -> bool:
    """Do all nodes have the same committed log? One that was just started may still be opening its replica."""
    try:
        return len({cluster.read(node_id, shard_id) for node_id in cluster.alive()}) == 1
    except NotReadyError:
        return False


def test_appends_land_one_after_the_other_and_every_replica_has_them(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "plain")
    first = cluster.append(shard_id, b"zero")
    second = cluster.append(shard_id, b"one")
    assert (second.base_offset, second.next_offset) == (first.next_offset, first.next_offset + 1)
    eventually(lambda: same_everywhere(cluster, shard_id))
    assert b"one" in cluster.read(0, shard_id)


def test_who_does_not_lead_points_to_who_does(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "pointed")
    leader = cluster.shard(0, "pointed").leader
    other = (leader + 1) % 3
    with pytest.raises(NotLeaderError) as caught:
        cluster.ask(other, AppendBatch(shard_id), [build_batch([(None, b"x", [], 1)])])
    assert caught.value.details["leader"] == leader


def test_a_conditional_append_lands_there_or_nowhere(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "conditional")
    at = cluster.append(shard_id, b"a").next_offset
    assert cluster.append(shard_id, b"b", expected_offset=at).base_offset == at
    with pytest.raises(OffsetMismatchError) as caught:
        cluster.append(shard_id, b"c", expected_offset=at)
    assert (caught.value.expected, caught.value.actual) == (at, at + 1)


def test_a_repeated_batch_of_a_producer_is_answered_with_its_first_place(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "idempotent")
    producer = cluster.ask(1, NewProducerId()).producer_id
    batch = build_batch([(None, b"once", [], 1)], producer_id=producer, producer_epoch=0, base_sequence=0)
    first = cluster.on_leader(shard_id, AppendBatch(shard_id), [batch])
    again = cluster.on_leader(shard_id, AppendBatch(shard_id), [batch])
    assert isinstance(again, Appended)
    assert (again.base_offset, again.duplicate) == (first.base_offset, True)


def test_fetches_wait_for_data_and_know_the_bounds(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "fetched")
    leader = cluster.shard(0, "fetched").leader
    end = cluster.append(shard_id, b"first").next_offset
    with NativeClient(cluster.native[leader]) as client:
        nothing = client.ask(Fetch(shard_id, end, wait_ms=20))
        assert isinstance(nothing, Fetched)
        assert (client.payload, nothing.high_watermark) == (b"", end)
        with pytest.raises(OffsetOutOfRangeError):
            client.ask(Fetch(shard_id, end + 1))
        assert client.ask(ListOffset(shard_id, -1)).offset == end
        assert client.ask(ListOffset(shard_id, -2)).offset == 0
        late_ms = 1 << 42
        late = client.ask(AppendBatch(shard_id), [build_batch([(None, b"late", [], late_ms)])])
        assert client.ask(ListOffset(shard_id, late_ms)).offset == late.base_offset
        assert client.ask(ListOffset(shard_id, late_ms + 1)).offset == -1
        with pytest.raises(InvalidRequestError):
            client.ask(Fetch(shard_id, 0, isolation="wishful"))
        with pytest.raises(UnknownShardError):
            client.ask(Fetch(999_999, 0))


def test_topics_come_and_go(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "short-lived")
    with pytest.raises(TopicExistsError):
        cluster.ask(2, CreateTopic("short-lived"))
    cluster.append(shard_id, b"x")
    assert cluster.ask(1, DeleteTopic("short-lived")) == Done()
    for node_id in cluster.ids:
        eventually(lambda n=node_id: shard_id not in cluster.statuses(n))  # type: ignore[misc]
        gone = cluster.dir(node_id) / "shards" / str(shard_id)
        eventually(lambda path=gone: not path.exists())  # type: ignore[misc]


def test_tables_judge_conditions_and_remember_their_answers(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "rows", Kind.TABLE)
    producer = (1 << 61) + 5
    write = TableWrite(shard_id, (Put(b"k", b"v1", -1), Put(b"k", b"v2", 7), Delete(b"none")), producer, 0, 1)
    written = cluster.on_leader(shard_id, write)
    assert isinstance(written, TableWritten)
    assert [one.status for one in written.results] == [
        OpStatus.OK,
        OpStatus.UNEXPECTED_VERSION,
        OpStatus.KEY_NOT_FOUND,
    ]
    assert cluster.on_leader(shard_id, write) == written
    refused = cluster.on_leader(shard_id, TableWrite(shard_id, (Put(b"k", b"v3", -1),)))
    assert (refused.results[0].status, refused.offset) == (OpStatus.UNEXPECTED_VERSION, -1)
    rows = cluster.on_leader(shard_id, TableGet(shard_id, (b"k", b"none")))
    assert isinstance(rows, TableRows)
    assert rows.rows[0] is not None
    assert (rows.rows[0].value, rows.rows[1]) == (b"v1", None)
    assert len(cluster.on_leader(shard_id, TableScan(shard_id, b"", b"")).rows) == 1
    with pytest.raises(WrongKindError):
        cluster.append(shard_id, b"x")


def test_a_manual_election_raises_the_term(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "elected")
    before = cluster.append(shard_id, b"a")
    assert cluster.ask(0, ElectLeader(shard_id)) == Done()
    after = cluster.append(shard_id, b"b")
    assert after.term > before.term
    eventually(lambda: same_everywhere(cluster, shard_id))


@pytest.mark.parametrize(
    "bytes_", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xff" * 100, b"\x00\x00\x00\x08" * 2]
)
def test_a_stranger_s_bytes_hurt_nobody(cluster: Processes, bytes_: bytes) -> None:
    with socket.create_connection(split_address(cluster.native[0]), timeout=10) as stranger:
        stranger.sendall(bytes_)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1000) == b""
    assert cluster.metadata(0).version > 0


def test_the_http_listener_shows_health_and_metrics(cluster: Processes) -> None:
    with urllib.request.urlopen(f"http://{cluster.http[1]}/healthz", timeout=10) as answer:
        assert json.load(answer)["healthy"]
    with urllib.request.urlopen(f"http://{cluster.http[1]}/metrics", timeout=10) as answer:
        assert b"antiphon_commit_seconds_bucket" in answer.read()
    with urllib.request.urlopen(f"http://{cluster.http[1]}/status", timeout=10) as answer:
        assert json.load(answer)["node"]["node_id"] == 1


def test_nothing_acknowledged_is_lost_when_leaders_are_killed(cluster: Processes) -> None:
    """S0.17, S1.17: kill the shard's leader, then the coordinator's node; what was acknowledged is there."""
    shard_id = new_shard(cluster, "survivor")
    table_id = new_shard(cluster, "survivor-rows", Kind.TABLE)
    acknowledged = [b"<%d>" % number for number in range(5)]
    for value in acknowledged:
        cluster.append(shard_id, value)
    cluster.on_leader(table_id, TableWrite(table_id, (Put(b"k", b"kept"),)))
    for victim in (cluster.shard(0, "survivor").leader, cluster.metadata(0).controller):
        cluster.kill(victim)
        value = b"<after end %d, of node %d>" % (
            len(acknowledged),
            victim,
        )  # it may be the same node both times
        cluster.append(shard_id, value)
        acknowledged.append(value)
        rows = cluster.on_leader(table_id, TableGet(table_id, (b"k",)))
        assert rows.rows[0].value == b"kept"
        cluster.start(victim)
    eventually(lambda: same_everywhere(cluster, shard_id) and same_everywhere(cluster, table_id))
    stored = cluster.read(0, shard_id)
    counts = {value: stored.count(value) for value in acknowledged}
    assert set(counts.values()) == {1}, counts
    applied = [cluster.statuses(node_id)[table_id] for node_id in cluster.ids]
    assert {(one.applied, one.state) for one in applied} == {(applied[0].log_end, "ok")}


def test_a_paused_leader_is_replaced_and_steps_down_when_it_wakes(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "paused")
    old = cluster.append(shard_id, b"a")
    leader = cluster.shard(0, "paused").leader
    other = (leader + 1) % 3
    cluster.pause(leader)
    try:
        eventually(lambda: cluster.shard(other, "paused").leader not in {leader, -1})
        new_leader = cluster.shard(other, "paused").leader
        reply = cluster.ask(new_leader, AppendBatch(shard_id), [build_batch([(None, b"b", [], 1)])])
        assert reply.term > old.term
    finally:
        cluster.resume(leader)
    eventually(lambda: cluster.statuses(leader)[shard_id].role == "follower")
    eventually(lambda: same_everywhere(cluster, shard_id))


def test_all_stop_cleanly_and_come_back_with_everything(cluster: Processes) -> None:
    shard_id = new_shard(cluster, "kept")
    cluster.append(shard_id, b"before the stop")
    assert [cluster.stop(node_id) for node_id in cluster.ids] == [0, 0, 0]
    for node_id in cluster.ids:
        cluster._begin(node_id)
    for node_id in cluster.ids:
        cluster._await_ready(node_id)
    cluster.append(shard_id, b"after it")
    eventually(lambda: same_everywhere(cluster, shard_id))
    assert b"before the stop" in cluster.read(2, shard_id)
    assert all(
        shard.status is ShardStatus.ONLINE for topic in cluster.metadata(1).topics for shard in topic.shards
    )
