"""Archiving a log with batches that cannot be read: it fails and names the way out, or goes on, as it is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.archive.catalog import Catalog, topic_named
from antiphon.archive.files import verify
from antiphon.archive.job import tasks
from antiphon.archive.job.plan import Limits
from antiphon.archive.job.run import ArchiveReport, ArchiveRun, addresses
from antiphon.archive.job.tasks import run_task
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.model.requests import AppendBatch
from antiphon.records.arrow import to_arrow
from tests.records.test_intake import INSIDE
from tests.spark.nodes_in_thread import LiveNodes, live_nodes

GARBAGE = bytes(INSIDE[0][1])  # three records
GOOD = [0, 1, 5, 9, 10]  # offsets of what can be read


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path_factory.mktemp("archive"), 1) as running:
        yield running


@pytest.fixture(scope="module")
def db(live: LiveNodes) -> Iterator[antiphon.Client]:
    with antiphon.connect(live.servers, timeout_s=20) as client:
        yield client


@pytest.fixture
def cluster(live: LiveNodes) -> Iterator[Cluster]:
    with Cluster(addresses(live.servers), 20_000) as asked:
        yield asked


def damaged(db: antiphon.Client, cluster: Cluster, name: str) -> "antiphon.Topic[bytes]":
    """A topic whose offsets 2 to 4 and 6 to 8 are in batches that cannot be read."""
    db.create_topic(name, shards=1, config={"record.validation": "shallow"})
    log = db.topic(name)
    shard_id = topic_named(cluster, name, refresh=True).shards[0].shard_id
    log.append_batch([("k", "a"), ("k", "b")], shard=0)
    cluster.call(ShardCall(shard_id, AppendBatch(shard_id), [GARBAGE]))
    log.append("c")
    cluster.call(ShardCall(shard_id, AppendBatch(shard_id), [GARBAGE]))
    log.append_batch(["d", "e"], shard=0)
    return log


def archive(live: LiveNodes, name: str, to: Path, **how: Any) -> ArchiveReport:
    run = ArchiveRun(
        addresses(live.servers), name, str(to), Limits(), file_bytes=how.pop("file_bytes", 10_000)
    )
    return run.run(lambda tasks: [run_task(task) for task in tasks], **how)


def test_it_fails_by_default_and_names_the_option(
    live: LiveNodes, db: antiphon.Client, cluster: Cluster, tmp_path: Path
) -> None:
    log = damaged(db, cluster, "kept")
    with pytest.raises(CorruptBatchError, match=r"kept shard 0, the batch at offset 2: .*--on-corrupt"):
        archive(live, "kept", tmp_path)
    assert log.offsets() == (0, 11)
    assert not list(tmp_path.rglob("*.parquet"))
    for wrong in ("ignore", antiphon.dead_letters("kept")):
        with pytest.raises(InvalidRequestError, match=r"on_corrupt|dead letters of kept"):
            archive(live, "kept", tmp_path, on_corrupt=wrong)
    db.create_table("rows")
    with pytest.raises(InvalidRequestError, match="rows is a table"):
        archive(live, "rows", tmp_path, on_corrupt="skip")


@pytest.mark.parametrize("file_bytes", [10_000, 1], ids=["one file", "a file for each offset"])
def test_dead_letters_keep_what_the_archive_leaves_out(
    live: LiveNodes, db: antiphon.Client, cluster: Cluster, tmp_path: Path, file_bytes: int
) -> None:
    """A file for each offset: a batch is the dead letter of the file in which it begins, and the log is still trimmed."""
    name = f"moved{file_bytes}"
    log = damaged(db, cluster, name)
    db.create_topic(f"{name}-letters", shards=1)
    letters = db.topic(f"{name}-letters")
    report = archive(
        live, name, tmp_path, file_bytes=file_bytes, on_corrupt=antiphon.dead_letters(letters.name)
    )
    assert (report.rows, report.shards[0].unreadable) == (5, 2)
    assert log.offsets() == (11, 11)
    assert [record.offset for record in log.read(start=-2)] == GOOD
    sent = list(letters.read())
    assert [dict(letter.headers)["antiphon.offset"] for letter in sent] == [b"2", b"6"]
    assert {(letter.value or b"")[61:] for letter in sent} == {GARBAGE[61:]}
    files = Catalog(cluster).of_shard(topic_named(cluster, name, refresh=True), 0)
    assert sum(file.unreadable for file in files) == 2
    assert sum(file.controls for file in files) == 6
    for file in files:
        verify(file)


def test_both_ways_to_read_leave_out_the_same(
    live: LiveNodes, db: antiphon.Client, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the way of the file can read and that of the proof cannot is left out as well: the log would stay for ever."""
    damaged(db, cluster, "odd")

    def reads_more(batches: Any, **how: Any) -> Any:
        return to_arrow([bytes(batch) for batch in batches if bytes(batch)[61:] != GARBAGE[61:]], **how)

    monkeypatch.setattr(tasks, "to_arrow", reads_more)
    report = archive(live, "odd", tmp_path, on_corrupt="skip")
    assert (report.rows, report.shards[0].unreadable) == (5, 2)
    assert [record.offset for record in db.topic("odd").read(start=-2)] == GOOD


def test_blocking_reads_have_a_topic_for_dead_letters(db: antiphon.Client, cluster: Cluster) -> None:
    log = damaged(db, cluster, "read")
    letters = db.create_topic("read-letters", shards=1)
    assert [one.offset for one in log.read(on_corrupt=antiphon.dead_letters("read-letters"))] == GOOD
    assert log.to_arrow(on_corrupt="skip").column("offset").to_pylist() == GOOD
    assert sum(batch.num_rows for batch in log.to_arrow_batches(on_corrupt="skip")) == 5
    assert list(log.to_pandas(on_corrupt="skip")["offset"]) == GOOD
    how: Any = {"initial": 0, "apply": lambda state, _operation: state + 1}
    with antiphon.LogBackedStore(
        db, "read", **how, on_corrupt=antiphon.dead_letters("read-letters")
    ) as store:
        assert store.state == 5
    assert len(list(letters.read())) == 4
