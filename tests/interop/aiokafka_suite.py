"""aiokafka's own tests that need a broker. They come with its repository, not with its package.

They want newer releases of what tests need than Antiphon has, so they get an environment of their own.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.interop.suite import Outcome, clone_of, environment_of, outcomes_in
from tests.peers.servers.peer import UnavailableError

VERSION: Final = "0.14.0"
REPOSITORY: Final = "https://github.com/aio-libs/aiokafka"
COMMIT: Final = "672947af85c91b7d953f0259e69837a711d3246"
PINS: Final = (
    f"aiokafka=={VERSION}", "cramjam==2.11.0", "pytest==9.0.2", "pytest-asyncio==1.3.0", "pytest-mock==3.15.1",
    "pytest-timeout==2.4.0",
)  # fmt: skip
IMAGE: Final = "antiphon:2.13_4.2.0"  # the tests take Kafka's version from it
FILES: Final = (
    "admin", "client", "conn", "consumer", "coordinator", "pep492", "producer", "sasl", "sender",
    "transactional_consumer", "transactional_producer",
)  # fmt: skip
# These are about a cluster of one broker: how many there are, and that any one leads the topic's partition.
ALONE: Final = (
    "tests/test_admin.py::TestAdmin::test_describe_cluster",
    "tests/test_admin.py::TestAdmin::test_describe_configs_broker",
    "tests/test_client.py::TestKafkaClientIntegration::test_concurrent_send_on_different_connection_groups",
    "tests/test_admin.py::TestAdmin::test_metadata",
    "tests/test_client.py::TestKafkaClientIntegration::test_no_concurrent_send_on_connection",
)
NODES: Final = 3
TEST_S: Final = 180
RUN_S: Final = 2_400.0
ROOT: Final = Path(__file__).parents[2]
LEFT_OVER: Final = (
    "default::pytest.PytestUnraisableExceptionWarning"  # of a test that failed: no failure of the next one
)
NOTHING: Final = (
    "#!/bin/sh\nexit 0\n"  # in the place of `ktutil`, which each test class starts, whatever it tests
)


class AioKafka:
    """See the module's text."""

    name = "aiokafka"
    title = f"aiokafka {VERSION}, its tests against a broker"
    differences: dict[str, str] = {
        "test_consumer_invalid_session_timeout": "sessions of 100 ms and more are taken, Kafka takes 6 s and more",
        "test_exclude_internal_topics": "offsets are rows of the table `__groups`; there is no `__consumer_offsets`",
        "test_ssl_consume": "it wants one broker with two listeners for Kafka's clients; a node has one",
        "test_producer_ssl": "likewise",
        "test_admin_client_sasl_plaintext_gssapi": "Kerberos is not offered",
        "test_sasl_plaintext_gssapi": "likewise",
    }
    settings: dict[str, str] = {}  # it starts nodes of its own

    def __init__(self) -> None:
        self._source = self._python = self._programs = Path()

    def get(self, folder: Path) -> None:
        """See Suite."""
        self._source = clone_of(REPOSITORY, COMMIT, "aiokafka", folder)
        if not (self._source / "tests" / "test_producer.py").is_file():
            raise UnavailableError(f"{self._source} has no tests")
        self._python = environment_of("aiokafka-python", PINS, folder)
        self._programs = folder / "aiokafka-programs"
        self._programs.mkdir(exist_ok=True)
        (self._programs / "ktutil").write_text(NOTHING)
        (self._programs / "ktutil").chmod(0o700)

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite."""
        files = [f"tests/test_{name}.py" for name in FILES]
        without = [word for test in ALONE for word in ("--deselect", test)]
        return [*self.chosen([*without, *files], NODES, where), *self.chosen(ALONE, 1, where)]

    def chosen(self, tests: Sequence[str], nodes: int, where: Path) -> list[Outcome]:
        """Run some of the tests, by their names, on so many nodes."""
        told = where / f"aiokafka-{nodes}.xml"
        command = [
            str(self._python), "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "aiokafka_plugin",
            "--import-mode=append", f"--junitxml={told}", f"--docker-image={IMAGE}", "--no-pull",
            "--timeout", str(TEST_S), "-W", LEFT_OVER, *tests,
        ]  # fmt: skip
        environment = os.environ | {
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parent),
            "ANTIPHON_NODES": str(nodes),
            "ANTIPHON_PYTHON": sys.executable,
            "ANTIPHON_PATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        try:
            done = subprocess.run(
                command, cwd=self._source, env=environment, capture_output=True, check=False, timeout=RUN_S
            )
        except subprocess.TimeoutExpired:
            return [Outcome("all", "failed", f"it did not end within {RUN_S:.0f} s")]
        (where / f"aiokafka-{nodes}.log").write_bytes(done.stdout + done.stderr)
        return outcomes_in(told, "all")
