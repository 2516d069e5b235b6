"""The audit of real nodes in this process, without a JVM: what a plan makes of splits, trims, absences and a steady load."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import antiphon.aio
from antiphon.cli.main import app
from antiphon.client.aio import AsyncClient
from antiphon.client.blocking import Cluster
from antiphon.errors import InvalidRequestError, UnknownTopicError, UnreachableError, WrongKindError
from antiphon.model.metadata import ClusterMeta
from antiphon.model.requests import TrimShard
from antiphon.partition.table_shard import TableShard
from antiphon.records.batch import read_header, stamp
from antiphon.records.builder import seal
from antiphon.records.changes import VERSION
from antiphon.spark.jobs.audit_plan import Scope, plan_audit
from antiphon.spark.jobs.audit_report import AuditReport
from antiphon.spark.option_values import parse_servers
from tests.node.real_nodes import Nodes, cluster_of, eventually, in_real_time
from tests.spark.audit_replicas import audit_without_spark

pytestmark = pytest.mark.cluster


class Running(NamedTuple):
    nodes: Nodes
    db: AsyncClient
    servers: str

    async def audit(self, scope: Scope | None = None, timeout_ms: int = 5_000, step: int = 64) -> AuditReport:
        """The nodes go on meanwhile: they share this loop, the audit has a thread."""
        return await asyncio.to_thread(
            audit_without_spark, self.servers, scope, timeout_ms=timeout_ms, block_offsets=step
        )

    def store(self, node_id: int, shard_id: int) -> TableShard:
        return self.nodes.nodes[node_id].hosts[shard_id].state.require_table()

    async def follower(self, shard_id: int) -> int:
        leader = (await self.nodes.leader(shard_id)).services.node_id
        return next(node for node in self.nodes.nodes if node != leader)


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Running]:
    async with cluster_of(path, 3) as nodes:
        servers = ",".join(member.native for member in nodes.members)
        async with antiphon.aio.connect(servers) as db:
            yield Running(nodes, db, servers)


def put_behind_its_log(table: TableShard, key: bytes, value: bytes | None, version: int = 0) -> None:
    """Change a store as no log says."""
    state = table.state
    effect = (key, value, VERSION.pack(version, 0, 1, 1))
    state.apply_effects([effect], state.applied_offset, state.next_version_id)


def said(report: AuditReport) -> set[tuple[str, str, int, int | None, bytes | None]]:
    return {(p.kind, p.topic, p.shard, p.node, p.key) for p in report.problems}


@in_real_time
async def test_under_load_everything_agrees_and_a_diverged_store_is_found(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        topic = await cluster.db.create_topic("log", shards=2, replicas=3)
        many = await cluster.db.create_topic("many", replicas=3, config={"writers": "multi"})
        table = await cluster.db.create_table("state", shards=2, replicas=3)
        merged = await cluster.db.create_table("merged", replicas=3, config={"writers": "multi"})
        stop = False

        async def write(number: int) -> None:
            n = 0
            while not stop:
                n += 1
                await topic.append_batch([b"v" * 100] * 20, shard=number % 2)
                await table.put(f"k{n * (number + 1) % 50}", b"%d" % n)
                await merged.put(f"k{n * (number + 1) % 50}", b"%d" % n)
                if n % 5 == 0:
                    await table.delete(f"k{n * (number + 1) % 50}", timeout_s=10)
                    await many.append(b"v")

        async def write_on(number: int) -> None:
            while not stop:
                try:
                    await write(number)
                except antiphon.errors.KeyNotFoundError:
                    continue

        await table.put("rarely", b"1")
        await merged.put("rarely", b"1")
        work = [asyncio.create_task(write_on(number)) for number in range(3)]
        try:
            for _ in range(3):
                report = await cluster.audit()
                assert not report.problems
                assert report.verdict == "agree"
            rows = {t.name: t.rows for t in report.topics}
            assert rows["state"] > 0
            assert rows["merged"] > 0
            assert {"log", "many", "state", "merged", "__cluster"} <= {t.name for t in report.topics}
            meta = (await cluster.db.metadata()).topics
            shard_ids = {(t.name, shard.index): shard.shard_id for t in meta for shard in t.shards}
            homes = [cluster.store(1, shard_ids["state", index]) for index in range(2)]
            (home,) = [store for store in homes if store.state.get(b"rarely") is not None]
            put_behind_its_log(home, b"rarely", b"2")
            put_behind_its_log(cluster.store(2, shard_ids["merged", 0]), b"rarely", None)
            report = await cluster.audit()
        finally:
            stop = True
            await asyncio.gather(*work)
        assert report.verdict == "differs"
        found = {(kind, name, node, key) for kind, name, _, node, key in said(report)}
        assert found == {
            ("row_differs", "state", 1, b"rarely"),
            ("row_missing", "merged", 2, b"rarely"),
        }


@in_real_time
async def test_split_tables_and_trimmed_logs(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        table = await cluster.db.create_table("state", shards=1, replicas=3)
        await asyncio.gather(*(table.put(f"k{n}", b"1") for n in range(400)))
        await cluster.db.split_shard("state", 0)
        await asyncio.gather(*(table.put(f"k{n}", b"2") for n in range(0, 400, 3)))
        report = await cluster.audit(Scope(tables=["state"]))
        assert not report.problems
        (figures,) = report.topics
        assert (figures.shards, figures.rows) == (2, 1_200)
        # What no log tells any more is compared between replicas.
        (meta,) = [topic for topic in (await cluster.db.metadata()).topics if topic.name == "state"]
        parent = meta.shards[0].shard_id
        key = cluster.store(0, parent).state.scan(b"", b"", 1)[0][0].key
        cut = (await cluster.nodes.leader(parent)).state.high_watermark

        def trim() -> None:
            with Cluster(parse_servers(cluster.servers), 5_000) as native:
                for node in range(3):
                    native.ask(node, TrimShard(parent, cut))

        await asyncio.to_thread(trim)
        report = await cluster.audit(Scope(tables=["state"]))
        assert not report.problems
        victim = await cluster.follower(parent)
        put_behind_its_log(cluster.store(victim, parent), key, b"3")
        report = await cluster.audit(Scope(tables=["state"]))
        assert said(report) == {("row_differs", "state", 0, victim, key)}


@in_real_time
async def test_replicas_that_are_away_or_lag_are_told_of(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        topic = await cluster.db.create_topic("log", shards=1, replicas=3)
        table = await cluster.db.create_table("state", shards=1, replicas=3)
        for _ in range(5):
            await topic.append_batch([b"v"] * 10)
        await table.put("k", b"v")
        (shard,) = shard_ids_of(await cluster.db.metadata(), "log")
        follower = await cluster.follower(shard)
        host = cluster.nodes.nodes[follower].hosts[shard]
        await eventually(lambda: host.state.high_watermark == 50)
        host.state.high_watermark = 20  # it has not heard of the rest
        report = await cluster.audit(Scope(topics=["log"]), timeout_ms=300)
        host.state.high_watermark = 50
        assert report.verdict == "incomplete"
        assert said(report) == {("lagging", "log", 0, follower, None)}
        await cluster.nodes.stop(follower)
        await topic.append_batch([b"w"] * 50)
        report = await cluster.audit(Scope(["log"], ["state"]), timeout_ms=1_000)
        assert report.verdict == "incomplete"
        assert {(kind, node) for kind, _, _, node, _ in said(report)} == {("unreachable", follower)}
        assert {name for _, name, *_ in said(report)} == {"", "log", "state"}
        (log,) = [one for one in report.topics if one.name == "log"]
        assert log.offsets >= 100, "the others are compared all the same"
        await cluster.nodes.start(follower)
        hosts = cluster.nodes.nodes[follower].hosts
        await eventually(lambda: shard in hosts and hosts[shard].state.high_watermark >= 100)
        assert (await cluster.audit(Scope(["log"], ["state"]))).verdict == "agree"


Served = list[memoryview]


def without(served: Served) -> Served:
    return [batch for batch in served if read_header(batch).base_offset != 12]


def flipped(served: Served) -> Served:
    return [
        changed(batch, -2, sealed=False) if read_header(batch).base_offset == 12 else batch
        for batch in served
    ]


def rewritten(served: Served) -> Served:
    return [
        changed(batch, -2, sealed=True) if read_header(batch).base_offset == 12 else batch for batch in served
    ]


def of_an_old_term(served: Served) -> Served:
    return [
        changed(batch, 15, sealed=True) if read_header(batch).base_offset == 12 else batch for batch in served
    ]


def twice(served: Served) -> Served:
    """The batch at 12 stands at 16 once more, in the place of another one."""
    again = next((batch for batch in served if read_header(batch).base_offset == 12), None)
    if again is None:
        return served
    moved = bytearray(again)
    stamp(moved, 16, read_header(again).leader_epoch)
    return [memoryview(moved) if read_header(batch).base_offset == 16 else batch for batch in served]


def changed(batch: memoryview, at: int, *, sealed: bool) -> memoryview:
    made = bytearray(batch)
    made[at] ^= 1
    if sealed:
        seal(made)
    return memoryview(made)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (without, {("gap", 12)}),
        (flipped, {("bad_crc", 12)}),
        (rewritten, {("differs", 12)}),
        (of_an_old_term, {("falling_term", 12)}),
        (twice, {("doubled_marker", 16)}),
    ],
)
@in_real_time
async def test_a_node_whose_replica_is_wrong_is_named_over_the_wire(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Served], Served],
    found: set[tuple[str, int]],
) -> None:
    async with running(tmp_path) as cluster:
        topic = await cluster.db.create_topic("log", shards=1, replicas=3)
        for number in range(10):
            await topic.append_batch([b"%d" % number] * 4)
        (shard,) = shard_ids_of(await cluster.db.metadata(), "log")
        victim = await cluster.follower(shard)
        host = cluster.nodes.nodes[victim].hosts[shard]
        memory, disk = host.reads.read, host.reads.read_in_thread

        def from_memory(*args: Any, **named: Any) -> Served:
            return fault(memory(*args, **named))

        async def from_disk(*args: Any, **named: Any) -> Served:
            return fault(await disk(*args, **named))

        monkeypatch.setattr(host.reads, "read", from_memory)
        monkeypatch.setattr(host.reads, "read_in_thread", from_disk)
        report = await cluster.audit(Scope(topics=["log"]), step=8)
        assert report.verdict == "differs"
        assert {(p.kind, p.offset) for p in report.problems} >= found
        assert {p.node for p in report.problems} == {victim}
        assert min(p.offset or 0 for p in report.problems) == min(at for _, at in found)
        for node_id in cluster.nodes.nodes:
            told = (await cluster.db.node_status(node_id)).findings
            wanted = [("audit_differs", shard)] if node_id == victim else []
            assert [(one.kind, one.shard_id) for one in told if not one.mended_ms] == wanted
        monkeypatch.undo()
        assert (await cluster.audit(Scope(topics=["log"]), step=8)).verdict == "agree"
        told = (await cluster.db.node_status(victim)).findings
        assert [one.kind for one in told if one.mended_ms] == ["audit_differs"]


def shard_ids_of(meta: ClusterMeta, name: str) -> list[int]:
    return [shard.shard_id for topic in meta.topics if topic.name == name for shard in topic.shards]


@in_real_time
async def test_names_that_are_not_there_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        await cluster.db.create_topic("flights", shards=1)
        servers = parse_servers(cluster.servers)

        def refused(scope: Scope, step: int = 10) -> Exception:
            with pytest.raises((UnknownTopicError, WrongKindError, InvalidRequestError)) as caught:
                plan_audit(servers, scope, block_offsets=step)
            return caught.value

        def ask() -> None:
            assert "is it 'flights'" in str(refused(Scope(topics=["flight"])))
            assert "among the topics" in str(refused(Scope(tables=["flights"])))
            assert "at least one offset" in str(refused(Scope(), 0))
            assert {s.topic for s in plan_audit(servers, Scope(topics=["__cluster"])).shards} == {"__cluster"}
            names = {shard.topic for shard in plan_audit(servers, Scope(internal=False)).shards}
            assert "flights" in names
            assert not any(name.startswith("__") for name in names)

        await asyncio.to_thread(ask)


def test_no_node_at_all() -> None:
    with pytest.raises(UnreachableError):
        plan_audit([("127.0.0.1", 1)], Scope(), timeout_ms=100)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--replica-timeout", "0"], 2, "more than 0 seconds"),
        (["--servers", "nowhere"], 1, "is not HOST:PORT"),
        (["--servers", "127.0.0.1:1", "--replica-timeout", "0.1"], 1, "is the cluster up"),
    ],
)
def test_the_command_says_what_is_wrong_before_it_starts_spark(
    words: list[str], code: int, said: str
) -> None:
    done = CliRunner().invoke(app, ["audit", *words])
    assert done.exit_code == code
    assert said in done.stderr
