"""Kafka's clients, unchanged, read records that left the log for the archive."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

import antiphon
from antiphon.archive.catalog import Catalog
from antiphon.archive.job.run import addresses
from antiphon.client.blocking import Cluster
from tests.archive.archiving import archive
from tests.kafka.kafka_nodes import listener_of
from tests.spark.nodes_in_thread import LiveNodes, live_nodes

ROOT = Path(__file__).parent.parent.parent

Told = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path_factory.mktemp("archived-kafka"), 2, kafka=True) as running:
        yield running


@pytest.fixture(scope="module")
def db(live: LiveNodes) -> Iterator[antiphon.Client]:
    with antiphon.connect(live.servers, timeout_s=20) as client:
        yield client


def topic_of(db: antiphon.Client, name: str, records: int = 600, **config: str) -> antiphon.Topic:
    db.create_topic(name, config={"retention.ms": "-1", **config})  # the records are of 1970
    log = db.topic(name)
    for first in range(0, records, 5):
        log.append_batch(
            [
                (None if number % 3 else b"k", b"%d" % number, (("h", b"x"), ("none", None)))
                for number in range(first, first + 5)
            ],
            shard=0,
            timestamp_ms=1_000_000 + first,
        )
    return log


def consumer(live: LiveNodes, group: str, **settings: Any) -> Any:
    return Consumer({
        "bootstrap.servers": live.kafka,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        **settings,
    })  # fmt: skip


def by_confluent(
    live: LiveNodes, topic: str, count: int, start: int | None = None, **settings: Any
) -> list[Told]:
    client = consumer(live, f"confluent-{topic}", **settings)
    if start is None:
        client.subscribe([topic])
    else:
        client.assign([TopicPartition(topic, 0, start)])
    found: list[Told] = []
    for _ in range(400):
        for one in client.consume(500, 0.1):
            assert one.error() is None
            found.append(
                (one.offset(), one.timestamp()[1], one.key(), one.value(), list(one.headers() or []))
            )
        if len(found) >= count:
            break
    client.close()
    return found


def by_aiokafka(live: LiveNodes, topic: str, count: int) -> list[Told]:
    async def main() -> list[Told]:
        client = AIOKafkaConsumer(
            topic, bootstrap_servers=live.kafka, auto_offset_reset="earliest", group_id=f"aio-{topic}"
        )
        await client.start()
        found: list[Told] = []
        for _ in range(400):
            for some in (await client.getmany(timeout_ms=100)).values():
                found += [(one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in some]
            if len(found) >= count:
                break
        await client.stop()
        return found

    return asyncio.run(main())


def test_consumers_read_from_the_beginning_of_the_archive_into_the_log(
    live: LiveNodes, db: antiphon.Client, tmp_path: Path
) -> None:
    log = topic_of(db, "t")
    before = by_confluent(live, "t", 600, 0)
    assert [one[0] for one in before] == list(range(600))
    archive(live, "t", tmp_path, up_to=500)
    assert log.offsets()[0] == 500
    assert by_confluent(live, "t", 600) == before
    told = (sys.executable, "-m", "tests.kafka.kafka_python_scenarios", "archived", live.kafka)
    subprocess.run(told, cwd=ROOT, check=True, timeout=170)
    assert by_aiokafka(live, "t", 600) == before
    assert by_confluent(live, "t", 258, 342) == before[342:]
    small = {"fetch.message.max.bytes": 1000, "message.max.bytes": 2000, "fetch.max.bytes": 2000}
    assert by_confluent(live, "t", 600, 0, **small) == before
    assert by_confluent(live, "t", 600, 0, **{"isolation.level": "read_committed"}) == before
    served = [listener_of(server).archive for server in live.nodes.servers.values()]
    assert sum(one.fetched_bytes for one in served) > 0
    assert all(0 <= one.held_bytes <= one.limit_bytes for one in served)


def test_positions_by_name_and_by_time_are_found_in_the_archive(
    live: LiveNodes, db: antiphon.Client, tmp_path: Path
) -> None:
    topic_of(db, "timed")
    archive(live, "timed", tmp_path, up_to=500)
    client = consumer(live, "timed")

    def at(time_ms: int) -> int:
        return int(client.offsets_for_times([TopicPartition("timed", 0, time_ms)], timeout=10)[0].offset)

    assert client.get_watermark_offsets(TopicPartition("timed", 0), timeout=10) == (0, 600)
    assert at(0) == 0
    assert at(1_000_000 + 300) == 300
    assert at(1_000_000 + 301) == 305
    assert at(1_000_000 + 497) == 500
    assert at(1_000_000 + 555) == 555
    assert at(2_000_000) == -1
    client.close()


def test_nobody_is_given_what_was_deleted_on_request(
    live: LiveNodes, db: antiphon.Client, tmp_path: Path
) -> None:
    topic_of(db, "deleted")
    archive(live, "deleted", tmp_path, up_to=300)
    admin = AdminClient({"bootstrap.servers": live.kafka})
    (done,) = admin.delete_records([TopicPartition("deleted", 0, 120)]).values()
    assert done.result(10).low_watermark >= 120
    for start in (None, 50):
        assert [one[0] for one in by_confluent(live, "deleted", 480, start)] == list(range(120, 600))


def test_a_missing_file_stops_its_readers_and_loses_nothing(
    live: LiveNodes, db: antiphon.Client, tmp_path: Path
) -> None:
    """A consumer that were told that its offset is out of range would begin anew elsewhere."""
    topic_of(db, "missing")
    archive(live, "missing", tmp_path, up_to=400)
    with Cluster(addresses(live.servers), 10_000) as cluster:
        topic = next(one for one in cluster.metadata().topics if one.name == "missing")
        file = Catalog(cluster).of_shard(topic, 0)[1]
    path = Path(file.uri.removeprefix("file://"))
    shutil.move(path, tmp_path / "aside")
    client = consumer(live, "missing")
    client.subscribe(["missing"])
    found = [one.offset() for _ in range(30) for one in client.consume(500, 0.1)]
    assert found == list(range(file.start))
    assert sum(listener_of(server).archive.failures for server in live.nodes.servers.values()) > 0
    shutil.move(tmp_path / "aside", path)
    for _ in range(200):
        found += [one.offset() for one in client.consume(500, 0.1)]
        if len(found) >= 600:
            break
    client.close()
    assert found == list(range(600))
