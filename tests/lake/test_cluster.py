"""Mirrors of a real cluster, killed with their whole driver, and a table that changes all the while."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import antiphon
from antiphon.errors import KeyNotFoundError
from antiphon.lake.targets.target import open_target
from antiphon.spark import jobs
from antiphon.tools.local_cluster import LocalCluster
from tests.spark.quick_java import QUICK_DRIVER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(300)]

RECORDS = 4_000
BAD_EVERY = 400

PIPELINE = """
servers = "SERVERS"
[[job]]
name = "delta"
source = { topic = "events" }
value = { format = "json", schema = "n bigint" }
target = { kind = "delta", path = "delta" }
dead_letters = { topic = "dead-delta" }
trigger = { every = "0 seconds", max_offsets = 200 }
[[job]]
name = "iceberg"
source = { topic = "events" }
value = { format = "json", schema = "n bigint" }
target = { kind = "iceberg", path = "iceberg", table = "db.t" }
dead_letters = { topic = "dead-iceberg" }
trigger = { every = "0 seconds", max_offsets = 200 }
[[job]]
name = "parquet"
source = { topic = "events" }
value = { format = "json", schema = "n bigint" }
target = { kind = "parquet", path = "parquet" }
dead_letters = { topic = "dead-parquet" }
trigger = { every = "0 seconds", max_offsets = 200 }
[[job]]
kind = "compact"
target = { kind = "parquet", path = "parquet" }
trigger = { every = "5 seconds" }
"""


def targets(folder: Path) -> dict[str, str]:
    return {
        "delta": f"delta:{folder}/delta",
        "iceberg": f"iceberg:{folder}/iceberg#db.t",
        "parquet": f"parquet:{folder}/parquet",
    }


def commits(folder: Path) -> list[int]:
    """How many there are, by what each kind of table keeps of them."""
    patterns = ("delta/_delta_log/*.json", "iceberg/db/t/metadata/*.json", "parquet/_antiphon/log/*.json")
    return [len(list(folder.glob(pattern))) for pattern in patterns]


def test_a_killed_pipeline_leaves_each_row_once(
    cluster: LocalCluster,
    db: antiphon.Client,
    spark: "SparkSession",
    tmp_path: Path,
    warm_python: dict[str, str],
) -> None:
    events = db.create_topic("events", shards=2)
    dead = {kind: db.create_topic(f"dead-{kind}") for kind in targets(tmp_path)}
    values = [b"bad %d" % n if n % BAD_EVERY == 0 else b'{"n": %d}' % n for n in range(RECORDS)]
    for shard in (0, 1):
        events.append_batch([(None, value) for value in values[shard::2]], shard=shard)
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.replace("SERVERS", cluster.native))
    temporary = tmp_path / "temporary"  # what a killed driver leaves behind goes with the test's folder
    temporary.mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-m", "antiphon.cli.main", "pipeline", "run", str(file)],
        env={
            **os.environ,
            **warm_python,
            "TMPDIR": str(temporary),
            "JDK_JAVA_OPTIONS": QUICK_DRIVER,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 200
        while min(commits(tmp_path)) < 5:
            assert driver.poll() is None, "the driver ended before it was killed"
            assert time.monotonic() < deadline, "the driver does nothing"
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    good = Counter(n for n in range(RECORDS) if n % BAD_EVERY)
    poison = Counter(value for value in values if value.startswith(b"bad"))
    for kind, target in targets(tmp_path).items():
        jobs.mirror_topic(
            spark,
            cluster.native,
            "events",
            target,
            format="json",
            schema="n bigint",
            dead_letters=f"dead-{kind}",
        )
        assert Counter(row["n"] for row in open_target(target).read(spark).collect()) == good, kind
        assert Counter(record.value for record in dead[kind].read(shard=0, start=0)) == poison, kind


def test_a_table_that_changes_under_the_mirror(
    cluster: LocalCluster, db: antiphon.Client, spark: "SparkSession", tmp_path: Path
) -> None:
    table = db.create_table("state", shards=2)
    for n in range(200):
        table.put(f"k{n}", b"%d" % n)
    done = threading.Event()

    def change() -> None:
        with antiphon.connect(cluster.native) as other:
            mine = other.table("state")
            for n in range(400):
                key = f"k{n % 250}"
                if n % 3:
                    mine.put(key, b"again %d" % n)
                else:
                    with contextlib.suppress(KeyNotFoundError):
                        mine.delete(key)
            done.set()

    writer = threading.Thread(target=change)
    writer.start()
    target = f"delta:{tmp_path}/state"
    try:
        first: Any = jobs.mirror_table(spark, cluster.native, "state", target, max_offsets=100).progress
        assert first.rows >= 150
    finally:
        writer.join(60)
    assert done.is_set()
    jobs.mirror_table(spark, cluster.native, "state", target)
    expected = {row.key: (row.value, row.version.id) for row in table.scan()}
    found = open_target(target).read(spark).collect()
    assert {bytes(row["_key"]): (bytes(row["value"]), row["_version"]) for row in found} == expected
    assert len(found) == len(expected)
