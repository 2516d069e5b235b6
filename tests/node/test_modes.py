"""Every profile and commit rule on real processes: native and Kafka clients write while each node in turn is killed."""

import asyncio
import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

import antiphon
from antiphon import aio
from antiphon.cli.main import app
from antiphon.errors import AntiphonError
from antiphon.model.metadata import Kind, ShardMeta
from antiphon.model.requests import CreateTopic
from antiphon.node.config import Timings
from antiphon.records.decode import decode_records
from tests.node.processes import Processes, eventually

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

MODES: dict[str, tuple[str, dict[str, str]]] = {
    "oxia": ("oxia", {}),
    "kip27": ("kip27", {}),
    "raft": ("raft", {}),
    "tarantool": ("tarantool", {}),
    "fluvio": ("fluvio", {"live.lag.ms": "1000"}),
    "quorum-one-in-flight": ("oxia", {"max.in.flight": "1"}),
    "at_least_2": ("oxia", {"commit": "at_least(2)"}),
    "live": ("oxia", {"commit": "live", "min.live": "2"}),
    "local": ("oxia", {"commit": "local"}),
}
LOSING = {"local"}
TABLES = ("oxia", "raft", "fluvio")  # profiles of tables, too


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    timings = Timings(tick=10, election_min=200, election_max=400, node_dead=700, heartbeat=100)
    with Processes(tmp_path_factory.mktemp("modes"), timings=timings) as processes:
        for name, (profile, config) in MODES.items():
            processes.ask(0, CreateTopic(name, profile=profile, config=config))
        for profile in TABLES:
            processes.ask(0, CreateTopic(f"table-{profile}", kind=Kind.TABLE, profile=profile))
        for node_id in processes.ids:
            eventually(lambda n=node_id: MODES.keys() <= {t.name for t in processes.metadata(n).topics})  # type: ignore[misc]
        yield processes


class NativeWriters:
    """One idempotent writer a topic, all on one event loop in a thread; notes value -> offset of what was acknowledged."""

    def __init__(self, servers: str, topics: list[str]) -> None:
        self.acknowledged: dict[str, dict[bytes, int]] = {name: {} for name in topics}
        self.put: dict[str, int] = dict.fromkeys(TABLES, -1)  # number of the last put that was acknowledged
        self.errors: list[BaseException] = []
        self._stop = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(servers)), daemon=True)
        self._thread.start()

    async def _run(self, servers: str) -> None:
        async with aio.connect(servers) as db:
            writers = [self._write(db, name) for name in self.acknowledged]
            await asyncio.gather(*writers, *(self._put(db, profile) for profile in self.put))
            for profile, last in self.put.items():
                row = await (await db.table(f"table-{profile}")).get("key")
                if row.value != b"%d" % last or row.version.modifications != last:
                    self.errors.append(AssertionError(f"{profile}: {row} instead of {last}"))

    async def _write(self, db: Any, name: str) -> None:
        topic = await db.topic(name)
        number = 0
        while not self._stop:
            value = b"n%d" % number
            try:
                self.acknowledged[name][value] = (await topic.append(value, timeout_s=20)).offset
            except AntiphonError as error:
                if name not in LOSING:
                    self.errors.append(error)
                    return
            number += 1
            await asyncio.sleep(0.002)

    async def _put(self, db: Any, profile: str) -> None:
        table = await db.table(f"table-{profile}")
        while not self._stop:
            number = self.put[profile] + 1
            try:
                await table.put("key", b"%d" % number, timeout_s=20)
            except AntiphonError as error:
                self.errors.append(error)
                return
            self.put[profile] = number
            await asyncio.sleep(0.005)

    def went_on(self, before: dict[str, int]) -> bool:
        """Was more than a few acknowledged in every topic since there were this many?"""
        return all(len(self.acknowledged[name]) > count + 5 for name, count in before.items())

    def finish(self) -> None:
        self._stop = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.errors == []


class KafkaWriter:
    """One producer for all topics in a thread. Idempotent where nothing may be lost."""

    def __init__(self, servers: str, topics: list[str], *, idempotent: bool) -> None:
        self.acknowledged: dict[str, dict[bytes, int]] = {name: {} for name in topics}
        self.failed: list[str] = []
        self._stop = False
        self._producer = Producer({
            "bootstrap.servers": servers,
            "acks": "all" if idempotent else "1",
            "enable.idempotence": idempotent,
            "linger.ms": 1,
            "retry.backoff.ms": 20,
            "message.timeout.ms": 30_000,
            "topic.metadata.refresh.interval.ms": 300,
        })  # fmt: skip
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.failed.append(str(error))
        else:
            self.acknowledged[message.topic()][bytes(message.value())] = message.offset()

    def _run(self) -> None:
        number = 0
        while not self._stop:
            for name in self.acknowledged:
                self._producer.produce(name, b"k%d" % number, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.005)

    def finish(self) -> None:
        self._stop = True
        self._thread.join(30)
        assert self._producer.flush(40) == 0


def shard_of(cluster: Processes, name: str) -> ShardMeta:
    return cluster.shard(cluster.alive()[0], name)


def all_live(cluster: Processes) -> bool:
    """Does every topic have a leader and three replicas that keep up, for all that this node knows?"""
    shards = [shard_of(cluster, name) for name in MODES]
    return all(shard.leader in cluster.alive() and len(shard.live) == 3 for shard in shards)


def committed(cluster: Processes, name: str) -> dict[int, bytes]:
    """Offset -> value of everything that the leader shows as committed."""
    shard = shard_of(cluster, name)
    data = cluster.read(shard.leader, shard.shard_id, "committed")
    return {record.offset: record.value or b"" for record in decode_records(data)}


def counter(cluster: Processes, node_id: int, name: str) -> int:
    """A counter of one node."""
    with urllib.request.urlopen(f"http://{cluster.http[node_id]}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + " "):
                return int(float(line.split()[1]))
    raise AssertionError(f"node {node_id} does not count {name}")


def copies(cluster: Processes, shard_id: int) -> set[bytes]:
    """What the replicas of a shard hold and know to be committed, each variant once."""
    return {cluster.read(node_id, shard_id) for node_id in cluster.ids}


def test_nothing_acknowledged_is_lost_in_any_mode_when_every_node_is_killed_once(cluster: Processes) -> None:
    safe = [name for name in MODES if name not in LOSING]
    kafka = ",".join(node.kafka for node in cluster.metadata(0).nodes)
    native = NativeWriters(cluster.servers, list(MODES))
    producers = [
        KafkaWriter(kafka, safe, idempotent=True),
        KafkaWriter(kafka, sorted(LOSING), idempotent=False),
    ]
    lost = 0
    for node_id in cluster.ids:
        before = {name: len(native.acknowledged[name]) for name in MODES}
        cluster.kill(node_id)
        eventually(lambda: native.went_on(before), 15)  # noqa: B023 - called here
        cluster.start(node_id)
        eventually(lambda: all_live(cluster), 15)
        lost += counter(cluster, node_id, "antiphon_lost_tail_records_total")
    native.finish()
    for producer in producers:
        producer.finish()
    assert producers[0].failed == []
    eventually(lambda: all_live(cluster), 15)
    for name in MODES:
        found = committed(cluster, name)
        acknowledged = {
            offset: value
            for each in (native.acknowledged, *(producer.acknowledged for producer in producers))
            for value, offset in each.get(name, {}).items()
        }
        assert len(acknowledged) > 100
        missing = {at for at, value in acknowledged.items() if found.get(at) != value}
        if name in LOSING:
            assert len(missing) <= lost, "S4.28: what is lost is counted"
        else:
            assert not missing
            values = sorted(found.values())
            assert len(values) == len(set(values)), "and nothing is there twice"
        shard = shard_of(cluster, name)
        eventually(lambda: len(copies(cluster, shard.shard_id)) == 1, 10)  # noqa: B023 - called here


def test_kafkas_consumers_see_what_is_committed_whatever_the_topics_default_is(cluster: Processes) -> None:
    """C7: to Kafka's clients the `fluvio` profile looks like any other; native reads that name no isolation go further."""
    servers = ",".join(node.kafka for node in cluster.metadata(0).nodes)
    with antiphon.connect(cluster.servers) as db:
        at = db.topic("fluvio").append(b"the last one")
    reader = Consumer({"bootstrap.servers": servers, "group.id": "r", "enable.auto.commit": False})
    try:
        reader.assign([TopicPartition("fluvio", 0, at.offset)])
        deadline = time.monotonic() + 15
        found = None
        while found is None and time.monotonic() < deadline:
            found = reader.poll(0.2)
        assert found is not None
        assert (found.offset(), found.value()) == (at.offset, b"the last one")
        assert reader.get_watermark_offsets(TopicPartition("fluvio", 0), timeout=10)[1] == at.offset + 1
    finally:
        reader.close()


def shown_live(cluster: Processes, asked: list[int]) -> list[int]:
    """The live replica set of `fluvio` as `antiphon shard list` shows it."""
    servers = ",".join(cluster.native[node_id] for node_id in asked)
    words = ["shard", "list", "--topic", "fluvio", "--servers", servers, "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    return sorted(row["live"])


def test_s3_06_s3_28_s3_29_the_live_set_shrinks_when_a_follower_is_paused_and_regrows(
    cluster: Processes,
) -> None:
    eventually(lambda: all_live(cluster), 15)
    shard = shard_of(cluster, "fluvio")
    paused = next(node_id for node_id in cluster.ids if node_id != shard.leader)
    others = [node_id for node_id in cluster.ids if node_id != paused]

    def live() -> tuple[int, ...]:
        return tuple(sorted(cluster.shard(others[0], "fluvio").live))

    with antiphon.connect(",".join(cluster.native[node_id] for node_id in others)) as db:
        topic = db.topic("fluvio")
        topic.append(b"before")
        cluster.pause(paused)
        try:
            began = time.monotonic()
            topic.append(b"waits until the paused one is out of the recorded set", timeout_s=20)
            waited_s = time.monotonic() - began
            assert live() == tuple(others)
            assert shown_live(cluster, others) == others, "S3.6: on the command line, too"
            assert waited_s > 0.3, "S3.24: every live replica has to have it, so it was waited for"
            began = time.monotonic()
            topic.append(b"nobody waits for it any more")
            assert time.monotonic() - began < 0.3
        finally:
            cluster.resume(paused)
        eventually(lambda: live() == tuple(cluster.ids), 15)
        end = topic.append(b"three again").offset + 1
    eventually(lambda: cluster.statuses(paused)[shard.shard_id].high_watermark == end, 10)


def test_s3_32_c7_a_read_that_names_no_isolation_follows_the_topics_default(cluster: Processes) -> None:
    eventually(lambda: all_live(cluster), 15)
    shard = shard_of(cluster, "fluvio")
    followers = [node_id for node_id in cluster.ids if node_id != shard.leader]
    with antiphon.connect(cluster.native[shard.leader]) as db:
        topic = db.topic("fluvio")
        end = topic.append(b"committed").offset + 1
        for node_id in followers:
            cluster.pause(node_id)
        try:
            with contextlib.suppress(AntiphonError):
                topic.append(b"uncommitted", timeout_s=0.3)
            assert [one.value for one in topic.read(start=end, isolation="committed")] == []
            assert [one.value for one in topic.read(start=end)] == [b"uncommitted"]
            assert [one.value for one in topic.read(start=end, isolation="uncommitted")] == [b"uncommitted"]
        finally:
            for node_id in followers:
                cluster.resume(node_id)
    eventually(lambda: all_live(cluster), 15)
