"""A driver that is killed between the decision of an epoch and its first row: the cluster finishes it, the next goes on."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import antiphon
from antiphon.tools.local_cluster import LocalCluster
from tests.spark.quick_java import QUICK_DRIVER

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.driver, pytest.mark.cluster]

EVENTS = 3_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_ROLL_FORWARD_S", "1")
        with LocalCluster.start(3) as cluster:
            yield cluster


DRIVER = """
import os
import sys
os.environ["DRIVER_GROUP"] = str(os.getpgid(0))
import antiphon.spark
from tests.spark.failing_sink import FailingSource
servers, checkpoint, faults, epoch_offsets = sys.argv[1:]
spark = antiphon.spark.session("driver", cores=2)
spark.dataSource.register(FailingSource)
rows = (spark.readStream.format("antiphon").options(servers=servers, topic="long", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", epoch_offsets).load().select("key", "value"))
query = (rows.writeStream.format("failing").options(servers=servers, topic="copy", faults=faults)
         .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination()
spark.stop()
"""


def _driver(
    cluster: LocalCluster, folder: Path, epoch_offsets: int, python: dict[str, str]
) -> "subprocess.Popen[bytes]":
    env = {
        **os.environ,
        **python,
        "JDK_JAVA_OPTIONS": QUICK_DRIVER,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            DRIVER,
            cluster.native,
            str(folder / "checkpoint"),
            str(folder),
            str(epoch_offsets),
        ],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _read(topic: antiphon.Topic) -> list[Counter[int]]:
    """What the Python client reads: the numbers in each of two shards."""
    return [Counter(int(record.value or b"-1") for record in topic.read(shard=shard)) for shard in range(2)]


@pytest.mark.timeout(300)
def test_a_killed_driver_goes_on(
    cluster: LocalCluster, db: antiphon.Client, tmp_path: Path, warm_python: dict[str, str]
) -> None:
    db.create_topic("long", shards=2).append_batch([(None, str(n).encode()) for n in range(EVENTS)], shard=0)
    copy = db.create_topic("copy", shards=2)
    driver = _driver(cluster, tmp_path, 300, warm_python)
    deadline = time.monotonic() + 90
    while copy.offsets(0)[1] < EVENTS // 6:
        assert driver.poll() is None, "the driver ended before it was killed"
        assert time.monotonic() < deadline, "the driver does nothing"
        time.sleep(0.02)
    # It dies between the decision and the first row; the cluster goes on by itself to the end of that epoch.
    (tmp_path / "die-apply").touch()
    driver.wait(60)
    assert not (tmp_path / "die-apply").exists()
    newest = max(
        int(file.name) for file in (tmp_path / "checkpoint" / "offsets").iterdir() if file.name.isdigit()
    )
    deadline = time.monotonic() + 60
    # Rows without a key go to the shards in turn: each shard has its half of an epoch, or nothing of it.
    while sum(found := [rows.total() for rows in _read(copy)]) < 300 * (newest + 1):
        assert all(count > 0 and count % 150 == 0 for count in found)
        assert time.monotonic() < deadline, "nobody finishes the epoch"
        time.sleep(0.2)
    assert _driver(cluster, tmp_path, EVENTS, warm_python).wait(120) == 0
    assert sum(_read(copy), Counter()) == Counter(range(EVENTS))
