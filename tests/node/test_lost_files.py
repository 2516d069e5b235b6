"""A node that lost a replica's files is no evidence for an election: what the others acknowledged with it is not lost."""

import asyncio
from collections.abc import Callable

import pytest

from antiphon.errors import AntiphonError
from antiphon.log.hard_state import HARD_STATE_NAME
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.requests import CreateTopic
from antiphon.node import findings
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.records.decode import decode_records
from tests.node.in_process import DIRECTORY, Nodes, cluster_of, eventually, in_virtual_time

FULL, EMPTIED, OLD = 1, 2, 0  # has everything; loses its files; was away
LOOK_S = 2.5


def no_segments(disk: SimulatedDisk, shard_id: int) -> None:
    directory = f"{DIRECTORY}/shards/{shard_id}"
    segments = [name for name in disk.listdir(directory) if name.endswith(".log")]
    assert segments
    for name in segments:
        disk.lose(f"{directory}/{name}")


def no_replica(disk: SimulatedDisk, shard_id: int) -> None:
    disk.lose(f"{DIRECTORY}/shards/{shard_id}")


def no_replicas(disk: SimulatedDisk, _shard_id: int) -> None:
    disk.lose(f"{DIRECTORY}/shards")


def only_identity(disk: SimulatedDisk, _shard_id: int) -> None:
    for name in disk.listdir(DIRECTORY):
        if name != "identity.json":
            disk.lose(f"{DIRECTORY}/{name}")


LOSSES: list[Callable[[SimulatedDisk, int], None]] = [no_segments, no_replica, no_replicas, only_identity]


async def without(nodes: Nodes, shard_id: int) -> list[bytes]:
    """Writes with all three nodes, then without one of them; then all are stopped. The values."""
    values = [b"%d" % i for i in range(40)]
    for value in values[:10]:
        await nodes.append(shard_id, value)
    await nodes.stop(OLD)
    for value in values[10:]:
        await nodes.append(shard_id, value)
    await nodes.stop(EMPTIED)
    await nodes.stop(FULL)
    return values


async def nobody_serves(nodes: Nodes, shard_id: int) -> None:
    for _ in range(int(LOOK_S / 0.05)):
        await asyncio.sleep(0.05)
        for node in nodes.nodes.values():
            host = node.hosts.get(shard_id)
            assert host is None or not host.state.is_serving


async def values_of(nodes: Nodes, shard_id: int) -> list[bytes]:
    host = await nodes.leader(shard_id)
    await eventually(lambda: host.state.high_watermark == host.log.log_end)
    found: list[bytes] = []
    at = host.log.log_start
    while at < host.log.log_end:
        for batch in host.log.read(at, 1 << 20, host.log.log_end):
            for record in decode_records(batch, include_control=True):
                at = record.offset + 1
                if record.value is not None and record.value.isdigit():
                    found.append(record.value)
    return found


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
@pytest.mark.parametrize("profile", ["oxia", "raft"])
@in_virtual_time
async def test_acknowledged_writes_outlive_the_loss_of_a_replicas_files(
    profile: str, lose: Callable[[SimulatedDisk, int], None]
) -> None:
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(profile=profile, replicas=3)
        values = await without(nodes, shard_id)
        lose(nodes.disks[EMPTIED], shard_id)
        await nodes.start(EMPTIED)
        await nodes.start(OLD)
        await nobody_serves(nodes, shard_id)
        await nodes.start(FULL)
        assert await values_of(nodes, shard_id) == values
        await eventually(
            lambda: all(
                shard_id in node.hosts
                and node.hosts[shard_id].status().state == "ok"
                and node.hosts[shard_id].log.log_end >= len(values)
                for node in nodes.nodes.values()
            )
        )
        if (
            lose is not only_identity
        ):  # another disk: the coordinator has to hear first that it was brought up to date
            await nodes.stop(FULL)  # what was refetched counts again
            assert await values_of(nodes, shard_id) == values


@in_virtual_time
async def test_a_replica_that_has_more_than_its_leader_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three came back as of an earlier time, everything with them: what is lost is not theirs to know."""
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(replicas=3)
        for i in range(10):
            await nodes.append(shard_id, b"%d" % i)
        await nodes.stop(OLD)
        await nodes.stop(EMPTIED)
        earlier = nodes.disks[EMPTIED].copy(DIRECTORY)
        await nodes.start(EMPTIED)
        for i in range(10, 40):
            await nodes.append(shard_id, b"%d" % i)
        await eventually(lambda: nodes.nodes[FULL].hosts[shard_id].state.high_watermark >= 40)
        await nodes.stop(EMPTIED)
        await nodes.stop(FULL)
        nodes.disks[EMPTIED].restore(DIRECTORY, earlier)
        await nodes.start(EMPTIED)
        await nodes.start(OLD)
        await nodes.append(shard_id, b"new")
        await nodes.start(FULL)
        hosts = nodes.nodes[FULL].hosts

        def says_so() -> bool:
            return shard_id in hosts and hosts[shard_id].status().state == "ahead_of_leader"

        monkeypatch.setattr(findings, "OTHERS", 0)  # nobody finds it by chance
        await eventually(says_so)
        await eventually(
            lambda: "ahead_of_leader" in [one.kind for one in nodes.nodes[FULL].care.findings.now]
        )
        assert hosts[shard_id].log.log_end >= 40, "nothing of it is cut"


@pytest.mark.parametrize("lose", LOSSES[:2], ids=lambda lose: lose.__name__)
@in_virtual_time
async def test_the_metadata_outlives_the_loss_of_a_voters_files(
    lose: Callable[[SimulatedDisk, int], None],
) -> None:
    async with cluster_of(3) as nodes:
        await nodes.stop(OLD)
        await nodes.leader(CLUSTER_SHARD_ID)
        await nodes.nodes[FULL].gateway.create_topic(CreateTopic("t", replicas=1))
        await nodes.stop(EMPTIED)
        await nodes.stop(FULL)
        lose(nodes.disks[EMPTIED], CLUSTER_SHARD_ID)
        await nodes.start(EMPTIED)
        await nodes.start(OLD)
        await nobody_serves(nodes, CLUSTER_SHARD_ID)
        await nodes.start(FULL)
        await nodes.leader(CLUSTER_SHARD_ID)
        await eventually(lambda: all("t" in node.view.topics for node in nodes.nodes.values()))
        host = nodes.nodes[EMPTIED].hosts[CLUSTER_SHARD_ID]
        await eventually(lambda: host.log.damaged is None)


@pytest.mark.parametrize("lose", LOSSES[:2], ids=lambda lose: lose.__name__)
@in_virtual_time
async def test_a_replica_that_everybody_writes_regains_what_it_wrote(
    lose: Callable[[SimulatedDisk, int], None],
) -> None:
    """Nothing is numbered a second time: it writes again when the others have said what they have of it."""
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(profile="tarantool", replicas=3, config={"writers": "multi"})
        writer = await _writable(nodes, EMPTIED, shard_id)
        for i in range(20):
            await nodes.append(shard_id, b"%d" % i)
        await eventually(lambda: all(node.hosts[shard_id].log.log_end == 20 for node in nodes.nodes.values()))
        clock = writer.replica.vclock
        await nodes.stop(EMPTIED)
        await nodes.stop(FULL)
        lose(nodes.disks[EMPTIED], shard_id)
        await nodes.start(EMPTIED)
        host = nodes.nodes[EMPTIED].hosts
        await eventually(lambda: shard_id in host)
        await asyncio.sleep(1)
        with pytest.raises(AntiphonError):
            host[shard_id].state.check_writable()
        assert host[shard_id].status().state == "damaged"
        await nodes.start(FULL)
        writer = await _writable(nodes, EMPTIED, shard_id)
        assert writer.replica.vclock == clock


async def _writable(nodes: Nodes, node_id: int, shard_id: int) -> MultiWriterPartition:
    def writable() -> bool:
        try:
            nodes.nodes[node_id].replicas.host(shard_id).state.check_writable()
        except AntiphonError:
            return False
        return True

    await eventually(writable)
    host = nodes.nodes[node_id].hosts[shard_id]
    assert isinstance(host, MultiWriterPartition)
    return host


@pytest.mark.parametrize("profile", ["oxia", "raft"])
@in_virtual_time
async def test_lost_promises_are_proven_anew_also_where_the_log_is_empty(profile: str) -> None:
    """Nobody has written anything that could prove it, so the leader writes an entry of its term."""
    async with cluster_of(3) as nodes:
        shard_id = await nodes.new_shard(replicas=3, profile=profile)
        leader = (await nodes.leader(shard_id)).services.node_id
        victim = (leader + 1) % 3
        await nodes.stop(victim)
        nodes.disks[victim].flip_bit(f"{DIRECTORY}/shards/{shard_id}/{HARD_STATE_NAME}", 200)
        node = await nodes.start(victim)

        def state() -> str:
            host = node.hosts.get(shard_id)
            return "" if host is None else host.status().state

        await eventually(lambda: state() == "ok")
        assert node.hosts[shard_id].log.log_end > 0
        await nodes.append(shard_id, b"first")
