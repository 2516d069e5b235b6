"""Spark's own Kafka connector, and so Kafka's Java client 3.9, from Maven's jars: batch and streaming, both ways."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.interop.suite import FOUR_PARTITIONS, Outcome
from tests.peers.servers.maven import kafka_jars
from tests.peers.servers.peer import UnavailableError

VERSION: Final = "4.2.0"  # the newest that Maven has
ARTIFACT: Final = "spark-sql-kafka-0-10_2.13"
NEEDED: Final = ("kafka", "commons-pool2")  # Spark brings the others
RUN_S: Final = 900.0
ROOT: Final = Path(__file__).parents[2]


class SparkKafka:
    """See the module's text."""

    name = "spark"
    title = f"Spark's Kafka connector {VERSION}"
    differences: dict[str, str] = {}
    settings = FOUR_PARTITIONS

    def __init__(self) -> None:
        self._jars: list[str] = []

    def get(self, folder: Path) -> None:
        """See Suite."""
        try:
            import pyspark
        except ImportError:
            raise UnavailableError("pyspark is not installed") from None
        self.title = f"Spark's Kafka connector {VERSION} in Spark {pyspark.__version__}"
        name = f"spark-kafka-{VERSION}"
        jars = kafka_jars(ARTIFACT, VERSION, folder / name, group="org.apache.spark")
        self._jars = sorted(
            str(jar) for jar in jars.glob("*.jar") if any(word in jar.name for word in NEEDED)
        )

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite."""
        told = where / "spark.json"
        command = (
            sys.executable, "-m", "tests.interop.spark_steps", kafka, ",".join(self._jars), str(where), str(told),
        )  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        try:
            done = subprocess.run(
                command, cwd=where, env=environment, capture_output=True, check=False, timeout=RUN_S
            )
        except subprocess.TimeoutExpired:
            return [Outcome("all", "failed", f"it did not end within {RUN_S:.0f} s")]
        if not told.is_file():
            return [Outcome("all", "failed", done.stderr.decode(errors="replace")[-300:])]
        return [Outcome(*one) for one in json.loads(told.read_text())]
