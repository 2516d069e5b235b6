"""More than one machine, and a task that runs twice: a standalone Spark cluster with workers at two addresses.

Spark never runs a second copy of a task on the host of the first, so this needs a master and two workers as processes.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

import antiphon
import antiphon.spark
from antiphon.tools.local_cluster import LocalCluster
from tests.spark import speculating_driver
from tests.spark.quick_java import QUICK_DRIVER

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.driver, pytest.mark.cluster]

EVENTS = 1_500
SHARDS = 3
HOSTS = ("127.0.0.2", "127.0.0.3")
PROTOCOLS = ("staged", "direct")


@contextmanager
def _process(log: Path, *words: str, **environment: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A process group of its own, killed at the end with all that it started."""
    env = os.environ | antiphon.spark.environment() | {"JDK_JAVA_OPTIONS": QUICK_DRIVER} | environment
    with log.open("wb") as output:
        process = subprocess.Popen(words, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _said(log: Path, pattern: str, process: "subprocess.Popen[bytes]") -> str:
    deadline = time.monotonic() + 40
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.05)
    return found.group(1)


@contextmanager
def _standalone(folder: Path) -> Iterator[str]:
    """A master and two workers; yields the master's address."""
    java = (str(Path(pyspark.__file__).parent / "bin" / "spark-class"),)
    log = folder / "master.log"
    ports = ("--port", "0", "--webui-port", "0")
    with _process(
        log, *java, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *ports
    ) as master:
        address = _said(log, r"Starting Spark master at (spark://\S+)", master)
        worker = (*java, "org.apache.spark.deploy.worker.Worker", *ports, "--cores", "2", "--memory", "600m")
        with (
            _process(
                folder / "1.log",
                *worker,
                "--host",
                HOSTS[0],
                "--work-dir",
                str(folder / "1"),
                address,
                SPARK_LOCAL_IP=HOSTS[0],
            ),
            _process(
                folder / "2.log",
                *worker,
                "--host",
                HOSTS[1],
                "--work-dir",
                str(folder / "2"),
                address,
                SPARK_LOCAL_IP=HOSTS[1],
            ),
        ):
            yield address


@pytest.mark.timeout(300)
def test_slow_tasks_run_twice_on_two_machines(tmp_path: Path, warm_python: dict[str, str]) -> None:
    with (
        LocalCluster.start(3) as cluster,
        antiphon.connect(cluster.native) as db,
        _standalone(tmp_path) as master,
    ):
        source = db.create_topic("in", shards=SHARDS)
        for shard in range(SHARDS):
            rows = [(b"%d" % (n % 7), b"%d" % n) for n in range(EVENTS) if n % SHARDS == shard]
            source.append_batch(rows, shard=shard)
        for protocol in PROTOCOLS:
            db.create_topic(f"out-{protocol}", shards=SHARDS)
        command = (
            sys.executable,
            speculating_driver.__file__,
            master,
            cluster.native,
            str(tmp_path),
            *PROTOCOLS,
        )
        log = tmp_path / "driver.log"
        with _process(log, *command, **warm_python) as driver:
            driver.wait(240)
        said = log.read_text(errors="replace")
        assert driver.returncode == 0, said[-4000:]
        books = [json.loads(line) for line in said.splitlines() if line.startswith("[{")]
        assert len(books) == len(PROTOCOLS)
        for protocol, attempts in zip(PROTOCOLS, books, strict=True):
            assert {attempt["host"] for attempt in attempts} == set(HOSTS)
            for partition in (0, 1):
                first, second = sorted(
                    (a for a in attempts if a["partition"] == partition), key=lambda a: a["attempt"]
                )
                assert (first["speculative"], second["speculative"]) == (False, True)
                assert first["host"] != second["host"]
            # That both copies wrote to the end is in the files without which the driver would not have come this far.
            out = db.topic(f"out-{protocol}")
            values = [
                int(record.value or b"-1")
                for shard in range(SHARDS)
                for record in out.read(shard=shard, start=0, end=out.offsets(shard)[1])
            ]
            assert Counter(values) == Counter(range(EVENTS)), protocol
