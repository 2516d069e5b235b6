"""Shards that every replica writes, on nodes: simulated ones, and real ones in processes of their own that are killed."""

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from antiphon.errors import AntiphonError, InvalidRequestError, NotLeaderError, StorageFailedError
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    AlterTopic,
    CreateTopic,
    Delete,
    Done,
    MoveReplica,
    OpStatus,
    Put,
    ReplicaStatus,
    TableGet,
    TableOp,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
)
from antiphon.model.rows import Row
from antiphon.node import findings
from antiphon.partition.multi_files import ORIGINS_FILE
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from antiphon.records.decode import decode_records
from antiphon.replication.multi_writer_config import MultiWriterConfig
from tests.node.in_process import DIRECTORY, Nodes, cluster_of, eventually, in_virtual_time
from tests.node.processes import Processes
from tests.node.processes import eventually as wait_until

pytestmark = pytest.mark.cluster

MULTI = {"writers": "multi"}


SMALL = {"segment.bytes": "1048576", "retention.bytes": "1"}


async def new_shard(
    nodes: Nodes, name: str, kind: Kind = Kind.TOPIC, settings: dict[str, str] | None = None
) -> int:
    """A shard on three nodes, open and writable on all of them."""
    shard_id = await nodes.new_shard(
        name, kind=kind, replicas=3, profile="tarantool", config={**MULTI, **(settings or {})}
    )

    def writable() -> bool:
        try:
            for node in nodes.nodes.values():
                node.replicas.host(shard_id).state.check_writable()
        except AntiphonError:
            return False
        return True

    await eventually(writable)
    return shard_id


def host(nodes: Nodes, node_id: int, shard_id: int) -> MultiWriterPartition:
    return cast("MultiWriterPartition", nodes.nodes[node_id].hosts[shard_id])


async def append(nodes: Nodes, node_id: int, shard_id: int, *values: bytes, **producer: int) -> int:
    batch = build_batch([(None, value, [], 1) for value in values], **producer)  # type: ignore[arg-type]
    return (await nodes.nodes[node_id].gateway.append(shard_id, batch)).base_offset


def values(nodes: Nodes, node_id: int, shard_id: int) -> list[bytes | None]:
    reads, found, at = host(nodes, node_id, shard_id).reads, list[bytes | None](), 0
    while batches := reads.fetch(at, 1 << 24, "committed", at_least_one=True).batches:
        for batch in batches:
            found += [record.value for record in decode_records(batch)]
            at = read_header(batch).next_offset
    return found


async def write(nodes: Nodes, node_id: int, shard_id: int, *ops: TableOp) -> TableWritten:
    return await nodes.nodes[node_id].gateway.table_write(TableWrite(shard_id, ops))


def table(nodes: Nodes, node_id: int, shard_id: int) -> list[Row]:
    store = host(nodes, node_id, shard_id).table
    assert store is not None
    return store.state.scan(b"", b"", 10_000)[0]


async def converged(nodes: Nodes, shard_id: int) -> None:
    """Wait until all vector clocks are the same and nothing is outstanding."""

    def same() -> bool:
        hosts = [host(nodes, node_id, shard_id) for node_id in nodes.nodes]
        return len({one.replica.vclock for one in hosts}) == 1 and not any(
            one.replica.needs_tick for one in hosts
        )

    await eventually(same)


@in_virtual_time
async def test_s4_26_all_three_nodes_append_at_once_and_end_with_the_same_entries() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "log")
        work = [
            append(nodes, node_id, shard_id, b"%d-%d" % (node_id, number), b"and")
            for number in range(50)
            for node_id in range(3)
        ]
        await asyncio.gather(*work)
        await converged(nodes, shard_id)
        every = [values(nodes, node_id, shard_id) for node_id in range(3)]
        assert sorted(map(str, every[0])) == sorted(map(str, every[1])) == sorted(map(str, every[2]))
        for node_id in range(3):
            own = [one for one in every[0] if one is not None and one.startswith(b"%d-" % node_id)]
            assert own == [b"%d-%d" % (node_id, number) for number in range(50)]
        assert [status_of(nodes, n, shard_id).vclock for n in range(3)] == [(0, 50, 50, 50)] * 3
        assert status_of(nodes, 1, shard_id).role == "writer"


def status_of(nodes: Nodes, node_id: int, shard_id: int) -> ReplicaStatus:
    return host(nodes, node_id, shard_id).status()


@in_virtual_time
async def test_c11_three_writers_of_a_table_end_with_the_same_rows() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "t", Kind.TABLE)
        work = [
            write(nodes, node_id, shard_id, Put(b"k%d" % (number % 7), b"%d-%d" % (node_id, number)))
            for number in range(40)
            for node_id in range(3)
        ]
        done = await asyncio.gather(*work)
        assert all(one.results[0].status == OpStatus.OK for one in done)
        await write(nodes, 1, shard_id, Delete(b"k3"))
        await converged(nodes, shard_id)
        assert table(nodes, 0, shard_id) == table(nodes, 1, shard_id) == table(nodes, 2, shard_id)
        rows = await nodes.nodes[2].gateway.table_get(TableGet(shard_id, (b"k1", b"k3")))
        assert rows.rows[0] is not None
        assert rows.rows[1] is None
        ids = {one.results[0].version.id for one in done if one.results[0].version is not None}
        assert len(ids) == 120
        for node_id in range(3):
            store = host(nodes, node_id, shard_id).table
            assert store is not None
            assert store.merged.tombstones() == 1
            host(nodes, node_id, shard_id).upkeep.apply_retention(0)  # everybody has the removal
            assert store.merged.tombstones() == 0


@in_virtual_time
async def test_s4_23_duplicates_of_redundant_links_are_filtered() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "log")
        for node_id in range(3):  # everybody passes everything on
            one = host(nodes, node_id, shard_id).replica
            one._intake._config = MultiWriterConfig(first_hand=False)
            for subscription in one._intake.subscriptions.values():
                subscription.due = True
            host(nodes, node_id, shard_id).driver.call(lambda one=one: one.tick())
        await asyncio.gather(*[append(nodes, n % 3, shard_id, b"%d" % n) for n in range(90)])
        await converged(nodes, shard_id)
        every = [sorted(values(nodes, node_id, shard_id), key=str) for node_id in range(3)]
        assert every[0] == every[1] == every[2]
        assert len(every[0]) == 90
        assert sum(node.metrics.relay_duplicates for node in nodes.nodes.values()) > 0


@in_virtual_time
async def test_a_retry_at_the_same_node_is_told_from_a_new_append() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "log")
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        first = await append(nodes, 0, shard_id, b"a", **producer)
        assert await append(nodes, 0, shard_id, b"a", **producer) == first
        assert values(nodes, 0, shard_id) == [b"a"]
        await converged(nodes, shard_id)
        assert values(nodes, 2, shard_id) == [b"a"]
        await nodes.stop(0)
        await nodes.start(0)
        await eventually(lambda: shard_id in nodes.nodes[0].hosts)
        assert await append(nodes, 0, shard_id, b"a", **producer) == first  # after a clean restart too


@in_virtual_time
async def test_s4_28_a_node_that_was_away_sends_and_gets_what_was_missed() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "t", Kind.TABLE)
        await write(nodes, 2, shard_id, Put(b"a", b"1"))
        await converged(nodes, shard_id)
        await nodes.stop(2)
        for number in range(20):
            await write(nodes, 0, shard_id, Put(b"k%d" % number, b"v"))
        await nodes.start(2)
        await eventually(lambda: shard_id in nodes.nodes[2].hosts)
        assert len(table(nodes, 2, shard_id)) <= 21
        await converged(nodes, shard_id)
        assert table(nodes, 2, shard_id) == table(nodes, 0, shard_id)
        await write(nodes, 2, shard_id, Put(b"after", b"1"))
        await converged(nodes, shard_id)
        assert len(table(nodes, 0, shard_id)) == 22


@in_virtual_time
async def test_s4_22_an_emptied_directory_writes_as_a_new_origin() -> None:
    async with cluster_of(4) as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(
            CreateTopic("log", replicas=3, profile="tarantool", config=MULTI)
        )
        shard = topic.shards[0]
        victim = next(node for node in shard.ensemble if node > 2 or node == max(shard.ensemble))
        other = next(node for node in shard.ensemble if node != victim)
        await eventually(
            lambda: all(
                node in nodes.nodes
                and shard.shard_id in nodes.nodes[node].hosts
                and host(nodes, node, shard.shard_id).replica.origin
                for node in shard.ensemble
            )
        )
        await append(nodes, victim, shard.shard_id, b"before")
        old = host(nodes, victim, shard.shard_id).replica.origin
        await eventually(lambda: values(nodes, other, shard.shard_id) == [b"before"])
        await nodes.stop(victim)
        nodes.lose_directory(victim)
        await nodes.start(victim)
        await eventually(lambda: shard.shard_id in nodes.nodes[victim].hosts)
        await eventually(lambda: host(nodes, victim, shard.shard_id).replica.origin not in {0, old})
        await append(nodes, victim, shard.shard_id, b"after")
        await eventually(lambda: values(nodes, other, shard.shard_id) == [b"before", b"after"])
        await eventually(lambda: len(values(nodes, victim, shard.shard_id)) == 2)


@in_virtual_time
async def test_logs_are_trimmed_when_everybody_has_them_and_the_clocks_stay() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "log", settings=SMALL)
        for number in range(30):
            await append(nodes, number % 3, shard_id, bytes(100_000))
        await converged(nodes, shard_id)
        for node_id in range(3):
            await eventually(lambda n=node_id: is_trimmed(nodes, n, shard_id))  # type: ignore[misc]
        await nodes.stop(1)
        await nodes.start(1)
        await eventually(lambda: shard_id in nodes.nodes[1].hosts)
        assert status_of(nodes, 1, shard_id).vclock == (0, 10, 10, 10)
        await append(nodes, 1, shard_id, b"more")
        await converged(nodes, shard_id)
        assert sum(status_of(nodes, 0, shard_id).vclock) == 31
        await nodes.stop(1)
        disk, directory = nodes.shard_path(1, shard_id)
        disk.lose(f"{directory}/{ORIGINS_FILE}")  # now nobody knows what its log begins with
        await nodes.start(1)
        await eventually(lambda: shard_id in nodes.nodes[1].hosts)
        await converged(nodes, shard_id)
        assert sum(status_of(nodes, 1, shard_id).vclock) == 31
        await eventually(lambda: status_of(nodes, 1, shard_id).state == "ok")
        await append(nodes, 1, shard_id, b"and more")
        await converged(nodes, shard_id)
        assert sum(status_of(nodes, 0, shard_id).vclock) == 32


@in_virtual_time
async def test_s4_28_what_stands_behind_damage_and_on_no_other_disk_is_not_lost() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "log")
        for number in range(6):
            await append(nodes, 0, shard_id, b"shared %d" % number)
        await converged(nodes, shard_id)
        await nodes.stop(1)
        await nodes.stop(2)
        for number in range(3):
            await append(nodes, 0, shard_id, b"alone %d" % number)
        wanted = values(nodes, 0, shard_id)
        await nodes.stop(0)
        disk, directory = nodes.shard_path(0, shard_id)
        disk.flip_bit(f"{directory}/{0:020d}.log", 8 * 80)  # in the first entry, which the others have
        for node_id in range(3):
            await nodes.start(node_id)
        await eventually(lambda: all(shard_id in node.hosts for node in nodes.nodes.values()))
        await eventually(lambda: sum(status_of(nodes, 2, shard_id).vclock) == 9)
        await converged(nodes, shard_id)
        assert [sorted(values(nodes, node, shard_id)) for node in range(3)] == [sorted(wanted)] * 3  # type: ignore[type-var]
        await eventually(lambda: status_of(nodes, 0, shard_id).state == "ok")
        await append(nodes, 0, shard_id, b"after")
        await converged(nodes, shard_id)
        assert values(nodes, 1, shard_id)[-1] == b"after"


def is_trimmed(nodes: Nodes, node_id: int, shard_id: int) -> bool:
    """Is it, after a look at what everybody is known to have?"""
    host(nodes, node_id, shard_id).upkeep.apply_retention(0)
    return status_of(nodes, node_id, shard_id).log_start > 0


@in_virtual_time
async def test_c11_a_conflict_rule_is_chosen_by_name_and_an_unknown_one_is_refused() -> None:
    async with cluster_of(1) as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(
            CreateTopic(
                "t",
                kind=Kind.TABLE,
                profile="tarantool",
                config={**MULTI, "conflict": "first-writer-wins"},
            )
        )
        with pytest.raises(InvalidRequestError, match="no conflict rule 'luck'"):
            await nodes.nodes[0].gateway.create_topic(
                CreateTopic("u", kind=Kind.TABLE, config={**MULTI, "conflict": "luck"})
            )
        shard_id = topic.shards[0].shard_id
        await eventually(lambda: shard_id in nodes.nodes[0].hosts)
        await eventually(lambda: host(nodes, 0, shard_id).replica.origin == 1)
        await write(nodes, 0, shard_id, Put(b"a", b"first"))
        await write(nodes, 0, shard_id, Put(b"a", b"second"))
        assert [row.value for row in table(nodes, 0, shard_id)] == [b"first"]


@in_virtual_time
async def test_a_replica_that_stopped_sends_its_clients_to_another_one() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await new_shard(nodes, "log")
        await append(nodes, 0, shard_id, b"a")
        await converged(nodes, shard_id)
        host(nodes, 0, shard_id).driver.fail(StorageFailedError("a broken disk"))
        with pytest.raises(NotLeaderError) as caught:
            await append(nodes, 0, shard_id, b"b")
        await append(nodes, caught.value.details["leader"], shard_id, b"b")
        await eventually(lambda: values(nodes, 2, shard_id) == values(nodes, 1, shard_id) == [b"a", b"b"])


@in_virtual_time
async def test_an_old_copy_that_wrote_on_is_found_out_and_goes_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(findings, "OTHERS", 0)  # what is wrong is told, not found by chance
    async with cluster_of(5) as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("log", replicas=2, config=MULTI))
        shard = topic.shards[0]
        shard_id, (sound, copied) = shard.shard_id, sorted(shard.ensemble)
        await eventually(
            lambda: all(
                shard_id in nodes.nodes[n].hosts and host(nodes, n, shard_id).replica.origin
                for n in shard.ensemble
            )
        )
        await append(nodes, copied, shard_id, b"a")
        await eventually(lambda: values(nodes, sound, shard_id) == [b"a"])
        await nodes.stop(copied)
        copy = nodes.disks[copied].copy(DIRECTORY)  # with all that says how long its logs are
        await nodes.start(copied)
        await eventually(lambda: shard_id in nodes.nodes[copied].hosts)
        await append(nodes, copied, shard_id, b"b")
        await append(nodes, copied, shard_id, b"c")
        await eventually(lambda: values(nodes, sound, shard_id) == [b"a", b"b", b"c"])
        await nodes.stop(sound)
        await nodes.stop(copied)
        nodes.disks[copied].restore(DIRECTORY, copy)
        await nodes.start(copied)
        await eventually(lambda: shard_id in nodes.nodes[copied].hosts)
        await append(nodes, copied, shard_id, b"other")  # nobody is there to say that this is the second b
        nodes.nodes[copied].care.findings.look()  # all is well so far
        await nodes.start(sound)
        await eventually(lambda: shard_id in nodes.nodes[sound].hosts)
        for node_id in shard.ensemble:
            await eventually(lambda n=node_id: status_of(nodes, n, shard_id).state == "split_brain")  # type: ignore[misc]
            assert nodes.nodes[node_id].metrics.split_brains >= 1  # each new connection finds it again
            told = nodes.nodes[node_id].care.findings
            await eventually(lambda told=told: "split_brain" in [one.kind for one in told.now])  # type: ignore[misc]
        assert values(nodes, sound, shard_id) == [b"a", b"b", b"c"]
        assert values(nodes, copied, shard_id) == [b"a", b"other"]


@in_virtual_time
async def test_a_replica_moves_while_everybody_writes() -> None:
    async with cluster_of(4) as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("log", replicas=3, config=MULTI))
        shard = topic.shards[0]
        shard_id, old = shard.shard_id, shard.ensemble[-1]
        new = next(node for node in nodes.nodes if node not in shard.ensemble)
        await eventually(
            lambda: all(
                shard_id in nodes.nodes[n].hosts and host(nodes, n, shard_id).replica.origin
                for n in shard.ensemble
            )
        )
        for number in range(20):
            await append(nodes, shard.ensemble[number % 3], shard_id, b"before-%d" % number)
        await nodes.nodes[0].gateway.administer(MoveReplica(shard_id, old, new))
        stays = [node for node in shard.ensemble if node != old]
        for number in range(20):
            await append(nodes, stays[number % 2], shard_id, b"meanwhile-%d" % number)
        await eventually(lambda: nodes.nodes[0].gateway.shard(shard_id)[1].ensemble == (*stays, new))
        await eventually(lambda: shard_id not in nodes.nodes[old].hosts)
        await eventually(lambda: host(nodes, new, shard_id).replica.origin == 4)
        await append(nodes, new, shard_id, b"after")
        await eventually(lambda: len({host(nodes, n, shard_id).replica.vclock for n in (*stays, new)}) == 1)
        found = [sorted(map(str, values(nodes, n, shard_id))) for n in (*stays, new)]
        assert found[0] == found[1] == found[2]
        assert len(found[0]) == 41


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


def test_s4_26_writers_go_on_when_one_is_killed_and_it_catches_up(cluster: Processes) -> None:
    request = CreateTopic("shared", kind=Kind.TABLE, replicas=3, profile="tarantool", config=MULTI)
    assert cluster.ask(0, request) == Done()
    shard_id = cluster.shard(0, "shared").shard_id

    def put(node_id: int, key: bytes, value: bytes) -> None:
        written = cluster.ask(node_id, TableWrite(shard_id, (Put(key, value),)))
        assert isinstance(written, TableWritten)
        assert written.results[0].status == OpStatus.OK

    def rows(node_id: int) -> tuple[Row | None, ...]:
        found = cluster.ask(node_id, TableScan(shard_id, b"", b"", 1000))
        assert isinstance(found, TableRows)
        return found.rows

    for node_id in range(3):
        wait_until(lambda n=node_id: writes(cluster, n, shard_id))  # type: ignore[misc]
    for number in range(30):
        for node_id in range(3):
            put(node_id, b"k%d" % (number % 5), b"%d-%d" % (node_id, number))
    cluster.kill(1)
    for number in range(30):
        for node_id in (0, 2):
            put(node_id, b"k%d" % (number % 9), b"%d-again-%d" % (node_id, number))
    cluster.start(1)
    wait_until(lambda: writes(cluster, 1, shard_id))
    put(1, b"back", b"1")
    wait_until(lambda: len({clock(cluster, n, shard_id) for n in range(3)}) == 1)
    assert rows(0) == rows(1) == rows(2)
    assert clock(cluster, 0, shard_id)[1:] != ()
    assert len(rows(0)) >= 10


def writes(cluster: Processes, node_id: int, shard_id: int) -> bool:
    try:
        cluster.ask(node_id, TableWrite(shard_id, (Put(b"ready", b"%d" % node_id),)))
    except AntiphonError:
        return False
    return True


def clock(cluster: Processes, node_id: int, shard_id: int) -> tuple[int, ...]:
    return cluster.statuses(node_id)[shard_id].vclock


def test_settings_of_a_living_shard_may_change(cluster: Processes) -> None:
    request = CreateTopic("living", kind=Kind.TABLE, replicas=3, profile="tarantool", config=MULTI)
    cluster.ask(0, request)
    assert cluster.ask(0, AlterTopic("living", config={"max.message.bytes": "2000000"})) == Done()
