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
TEST_S: Final = 180
RUN_S: Final = 2_400.0
ROOT: Final = Path(__file__).parents[2]
NOTHING: Final = (
    "#!/bin/sh\nexit 0\n"  # in the place of `ktutil`, which each test class starts, whatever it tests
)


class AioKafka:
    """See the module's text."""

    name = "aiokafka"
    title = f"aiokafka {VERSION}, its tests against a broker"
    differences: dict[str, str] = {}
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
        return self.chosen([f"tests/test_{name}.py" for name in FILES], where)

    def chosen(self, tests: Sequence[str], where: Path) -> list[Outcome]:
        """Run some of the tests, by their names."""
        told = where / "aiokafka.xml"
        command = [
            str(self._python), "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "aiokafka_plugin",
            "--import-mode=append", f"--junitxml={told}", f"--docker-image={IMAGE}", "--no-pull",
            "--timeout", str(TEST_S), *tests,
        ]  # fmt: skip
        environment = os.environ | {
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parent),
            "ANTIPHON_PYTHON": sys.executable,
            "ANTIPHON_PATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        try:
            done = subprocess.run(
                command, cwd=self._source, env=environment, capture_output=True, check=False, timeout=RUN_S
            )
        except subprocess.TimeoutExpired:
            return [Outcome("all", "failed", f"it did not end within {RUN_S:.0f} s")]
        (where / "aiokafka.log").write_bytes(done.stdout + done.stderr)
        return outcomes_in(told, "all")
