"""kafka-python's own integration tests: producer, consumer, admin. They come with its source distribution."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

from tests.interop.suite import Outcome, source_of
from tests.peers.servers.peer import UnavailableError

VERSION: Final = "3.0.12"
SHA256: Final = "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
BROKER: Final = "4.2.0"  # what the tests are told that they talk to
TEST_S: Final = 60
RUN_S: Final = 900.0
# Their source distribution leaves out what starts brokers, of which only this is needed: the broker runs already.
SERVICE: Final = '''"""A broker that somebody else starts."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    def __init__(self, *_args, **_options):
        raise NotImplementedError("no broker is started here")
'''


class KafkaPython:
    """See the module's text."""

    name = "kafka-python"
    title = f"kafka-python {VERSION}, its integration tests"
    differences: dict[str, str] = {
        "test_delete_records": "DeleteRecords does not cut a batch: the log begins with the batch that holds the offset",
        "test_alter_replica_log_dirs": "a node has one directory, so AlterReplicaLogDirs is not served",
        "test_kafka_version_infer": "it infers Kafka 4.0 from the versions of the APIs, not 4.2",
    }

    def __init__(self) -> None:
        self._source = Path()

    def get(self, folder: Path) -> None:
        """See Suite."""
        self._source = source_of("kafka-python", VERSION, SHA256, folder)
        tests = self._source / "test"
        if not (tests / "integration").is_dir():
            raise UnavailableError(f"{self._source} has no integration tests")
        (tests / "__init__.py").touch()
        (tests / "service.py").write_text(SERVICE)
        (self._source / "servers" / BROKER / "kafka-bin").mkdir(parents=True, exist_ok=True)

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite."""
        told, settings = where / "kafka-python.xml", where / "kafka-python.ini"
        settings.write_text("[pytest]\n")
        files = [f"test/integration/test_{name}_integration.py" for name in ("producer", "consumer", "admin")]
        command = [
            sys.executable, "-m", "pytest", "-q", "-c", str(settings), "--rootdir", ".", f"--junitxml={told}",
            "-p", "no:cacheprovider", "--timeout", str(TEST_S), "--timeout-method", "signal", *files,
        ]  # fmt: skip
        beside = {
            "KAFKA_URI": f"kafka://{kafka.split(',', maxsplit=1)[0]}",
            "KAFKA_VERSION": BROKER,
            "PYTHONPATH": str(self._source),
        }
        try:
            subprocess.run(
                command,
                cwd=self._source,
                env=os.environ | beside,
                capture_output=True,
                check=False,
                timeout=RUN_S,
            )
        except subprocess.TimeoutExpired:
            return [Outcome("all of it", "failed", f"it did not end within {RUN_S:.0f} s")]
        if not told.is_file():
            return [Outcome("all of it", "failed", "it did not begin")]
        return [_outcome(case) for case in ET.parse(told).getroot().iter("testcase")]


def _outcome(case: ET.Element) -> Outcome:
    name = case.get("name", "")
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            return Outcome(name, "failed", found.get("message", "")[:300])
    if (found := case.find("skipped")) is not None:
        return Outcome(name, "skipped", found.get("message", "")[:300])
    return Outcome(name, "passed")
