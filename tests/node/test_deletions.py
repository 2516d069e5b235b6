"""Records are deleted to the very offset: on the leader that answers, and on every later one, whatever becomes of it."""

import pytest

from antiphon.errors import InvalidRequestError, OffsetOutOfRangeError
from antiphon.model.requests import CreateTopic, Fetch, ListOffset, MoveReplica, OffsetReply, TrimShard
from antiphon.model.results import STORED
from antiphon.node.node import Node
from antiphon.partition.reads import EARLIEST, MAX_TIMESTAMP
from antiphon.records.batch import iter_batches, read_header
from antiphon.records.builder import RecordInput, build_batch
from tests.node.in_process import Nodes, cluster_of, connected, eventually, in_virtual_time
from tests.node.test_commit_rules import deafen, listen

THREE = 3  # records per batch
MODES = pytest.mark.parametrize("profile", ["oxia", "fluvio", "raft"])


async def new_shard(
    nodes: Nodes,
    profile: str = "oxia",
    replicas: int = 3,
    config: dict[str, str] | None = None,
    name: str = "t",
) -> int:
    request = CreateTopic(name, profile=profile, replicas=replicas, config=config or {})
    topic = await nodes.nodes[0].gateway.create_topic(request)
    return topic.shards[0].shard_id


async def append(nodes: Nodes, shard_id: int, count: int = 6) -> int:
    """So many batches of three records, whose times are their offsets; returns the end."""
    for _ in range(count):
        leader = await nodes.leader(shard_id)
        base = leader.log.log_end
        records: list[RecordInput] = [(None, b"r", (), base + place) for place in range(THREE)]
        await nodes.nodes[leader.services.node_id].gateway.append(shard_id, build_batch(records))
    return (await nodes.leader(shard_id)).state.high_watermark


async def delete(nodes: Nodes, shard_id: int, before: int) -> int:
    leader = await nodes.leader(shard_id)
    return await nodes.nodes[leader.services.node_id].gateway.trim(shard_id, before, 10.0)


async def says(node: Node, shard_id: int, start: int) -> bool:
    """Does all that this leader says begin exactly there?"""
    gateway = node.gateway
    with pytest.raises(OffsetOutOfRangeError) as refused:
        await gateway.fetch(shard_id, start - 1, 1 << 20, "read_uncommitted")
    assert refused.value.details["start"] == start
    found = await gateway.fetch(shard_id, start, 1, "read_uncommitted")
    first = read_header(found.batches[0])
    assert first.base_offset <= start < first.next_offset
    said = gateway.list_offset(shard_id, EARLIEST)
    status = node.hosts[shard_id].status()
    assert (said.offset, said.log_start, found.log_start, status.log_start) == (start,) * 4
    by_time = gateway.list_offset(shard_id, 0)
    assert by_time.offset >= start
    return True


@MODES
@in_virtual_time
async def test_every_later_leader_begins_there(profile: str) -> None:
    """Over fail-overs, restarts of all nodes by loss of power, and a follower that was away when it was answered."""
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, profile)
        end = await append(nodes, shard_id)
        leader = (await nodes.leader(shard_id)).services.node_id
        away = (leader + 1) % 3
        if profile != "fluvio":  # by its live set, whoever was away does not lead
            nodes.kill(away)
        wanted = end - THREE - 1  # inside of a batch
        assert await delete(nodes, shard_id, wanted) == wanted
        assert await says(nodes.nodes[leader], shard_id, wanted)
        if away not in nodes.nodes:
            await nodes.start(away)
        await eventually(lambda: shard_id in nodes.nodes[away].hosts)
        await eventually(lambda: nodes.nodes[away].hosts[shard_id].state.log_start == wanted)
        for _ in range(3):
            await append(nodes, shard_id, 1)
            leads = (await nodes.leader(shard_id)).services.node_id
            nodes.kill(leads)
            heir = (await nodes.leader(shard_id)).services.node_id
            assert heir != leads
            assert await says(nodes.nodes[heir], shard_id, wanted)
            await nodes.start(leads)
            await eventually(lambda: all(shard_id in node.hosts for node in nodes.nodes.values()))
        await nodes.restart_all()
        leads = (await nodes.leader(shard_id)).services.node_id
        assert await says(nodes.nodes[leads], shard_id, wanted)


@MODES
@in_virtual_time
async def test_no_offset_is_taken_where_leaders_are_appointed_and_all_may_go(profile: str) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, profile)
        end = await append(nodes, shard_id)
        assert await delete(nodes, shard_id, -1) == end
        leader = await nodes.leader(shard_id)
        node = nodes.nodes[leader.services.node_id]
        said = node.gateway.list_offset(shard_id, EARLIEST)
        assert (said.offset, said.high_watermark) == (end, end + (profile == "raft"))
        assert await delete(nodes, shard_id, 2) == end  # never back
        with pytest.raises(OffsetOutOfRangeError):
            await delete(nodes, shard_id, end + 2)
        await append(nodes, shard_id, 1)
        assert (await node.gateway.fetch(shard_id, end, 1 << 20, "read_uncommitted")).log_start == end


@in_virtual_time
async def test_what_is_before_counts_for_no_time() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await new_shard(nodes, replicas=1)
        node = nodes.nodes[0]
        late: list[RecordInput] = [(None, b"r", (), time_ms) for time_ms in (9_000, 50, 60)]
        await node.gateway.append(shard_id, build_batch(late))
        await append(nodes, shard_id, 1)
        for from_disk in (False, True):
            if from_disk:
                node.hosts[shard_id].log.release_memory()
            at = node.gateway.list_offset(shard_id, MAX_TIMESTAMP)
            assert (at.offset, at.timestamp_ms) == ((0, 9_000) if not from_disk else (2, 60))
            assert await delete(nodes, shard_id, 1 + from_disk) == 1 + from_disk
            at = node.gateway.list_offset(shard_id, MAX_TIMESTAMP)
            assert (at.offset, at.timestamp_ms) == (2, 60)
            assert node.gateway.list_offset(shard_id, 50).offset == 1 + from_disk
            assert node.gateway.list_offset(shard_id, 5_000).offset == -1


@in_virtual_time
async def test_only_a_backup_is_given_the_batch_from_its_beginning() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await new_shard(nodes, replicas=1)
        end = await append(nodes, shard_id)
        await delete(nodes, shard_id, end - 1)
        async with connected(nodes.members[0].native) as client:
            reply, payload = await client.request(Fetch(shard_id, end - THREE, 1 << 20, isolation=STORED))
            assert [header.base_offset for header, _ in iter_batches(payload)] == [end - THREE]
            assert reply.log_start == end - 1
            for isolation in ("", "committed", "uncommitted", "replica", "follower"):
                with pytest.raises(OffsetOutOfRangeError):
                    await client.request(Fetch(shard_id, end - THREE, 1 << 20, isolation=isolation))
            found, _ = await client.request(ListOffset(shard_id, EARLIEST))
            assert isinstance(found, OffsetReply)
            assert found.log_start == end - 1
            assert (await client.request(TrimShard(shard_id, 1)))[0].log_start == end - 1


@MODES
@in_virtual_time
async def test_while_a_node_knows_nothing_of_it_a_log_begins_at_a_batch(profile: str) -> None:
    nodes = Nodes(3)
    nodes.told_reads[2] = 5
    try:
        await nodes.start_all()
        shard_id = await new_shard(nodes, profile)
        end = await append(nodes, shard_id)
        assert await delete(nodes, shard_id, end - 1) == end - THREE
        assert all(node.hosts[shard_id].state.deleted_before == 0 for node in nodes.nodes.values())
        await nodes.stop(2)
        nodes.told_reads.clear()
        await nodes.start(2)
        await eventually(lambda: nodes.nodes[0].view.all_read(6))
        assert await delete(nodes, shard_id, end - 1) == end - 1
    finally:
        await nodes.close()


@MODES
@in_virtual_time
async def test_a_replica_that_moves_in_learns_of_it(profile: str) -> None:
    """Its log begins with a snapshot, or with the batch; what it is shown from is the offset."""
    async with cluster_of(4) as nodes:
        shard_id = await new_shard(nodes, profile)
        end = await append(nodes, shard_id)
        await delete(nodes, shard_id, end - 1)
        shard = nodes.nodes[0].view.shard(shard_id)
        assert shard is not None
        (new,) = set(range(4)) - set(shard[1].ensemble)
        gone = shard[1].ensemble[0]
        await nodes.nodes[0].gateway.administer(MoveReplica(shard_id, gone, new))

        def moved() -> bool:
            found = nodes.nodes[new].view.shard(shard_id)
            return found is not None and not found[1].goal and new in found[1].ensemble

        await eventually(moved)
        await eventually(lambda: nodes.nodes[new].hosts[shard_id].state.log_start == end - 1)
        leads = (await nodes.leader(shard_id)).services.node_id
        assert await says(nodes.nodes[leads], shard_id, end - 1)


@in_virtual_time
async def test_segments_that_hold_only_what_is_deleted_go_with_retention() -> None:
    """On a follower, too, that was away when it was asked."""
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, config={"segment.bytes": "4096"})
        leader = (await nodes.leader(shard_id)).services.node_id
        away = (leader + 1) % 3
        for _ in range(20):
            await nodes.nodes[leader].gateway.append(shard_id, build_batch([(None, bytes(1_000), (), 1)] * 2))
        end = (await nodes.leader(shard_id)).state.high_watermark
        await eventually(lambda: nodes.nodes[away].hosts[shard_id].mode.settled == end)
        nodes.kill(away)
        await delete(nodes, shard_id, end - 1)
        node = await nodes.start(away)
        await eventually(lambda: shard_id in node.hosts)
        host = node.hosts[shard_id]
        await eventually(lambda: host.mode.settled >= end and host.state.log_start == end - 1)
        assert host.log.log_start == 0
        node.shards.apply_retention()
        await eventually(lambda: host.log.log_start > 0)
        assert host.state.log_start == end - 1


@in_virtual_time
async def test_an_unclean_leader_writes_other_records_where_the_deleted_ones_were() -> None:
    """They are not deleted: the new leader has never had those that were, and nobody asked for these to go."""
    async with cluster_of(4) as nodes:
        config = {"live.lag.ms": "100", "unclean.leader.election.enable": "true"}
        made = [await new_shard(nodes, "fluvio", config=config, name=f"t{number}") for number in range(8)]
        (shard_id, *_) = [one for one in made if (await nodes.leader(one)).services.node_id == 3]
        await append(nodes, shard_id, 1)
        leader = await nodes.leader(shard_id)
        others = [node.hosts[shard_id] for node in nodes.nodes.values() if shard_id in node.hosts]
        others.remove(leader)
        for host in others:
            deafen(host)
        end = await append(nodes, shard_id, 3)
        assert leader.mode.live == (3,)
        assert await delete(nodes, shard_id, end) == end
        deafen(leader)
        await nodes.stop(3)
        for host in others:
            listen(host)
        await eventually(lambda: any(host.state.is_serving for host in others))
        heir = await nodes.leader(shard_id)
        assert heir.state.log_start <= THREE
        after = await append(nodes, shard_id, 1)
        assert after < end
        await eventually(lambda: all(host.state.deleted_before <= THREE for host in others))
        gateway = nodes.nodes[heir.services.node_id].gateway
        assert (await gateway.fetch(shard_id, after - THREE, 1, "read_uncommitted")).batches


@in_virtual_time
async def test_where_every_replica_writes_nothing_is_deleted() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, config={"writers": "multi"})
        await eventually(lambda: shard_id in nodes.nodes[0].hosts)
        with pytest.raises(InvalidRequestError):
            await nodes.nodes[0].gateway.trim(shard_id, 0, 1.0)
