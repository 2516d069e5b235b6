"""The tests of Oxia's Python client, each against nodes of its own. They come with its repository, not with its package.

The client wants older releases of what it needs than it says, and than Antiphon has, so it gets an environment of its own.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

from tests.interop.suite import Outcome, outcome_of
from tests.peers.servers.peer import UnavailableError, run_tool

REPOSITORY: Final = "https://github.com/oxia-db/oxia-client-python"
COMMIT: Final = "eb275b3"
PINS: Final = ("oxia==0.2.1", "betterproto2==0.9.1", "xxhash==3.8.2", "pytest", "pytest-timeout")
NODES: Final = 3
TEST_S: Final = 60
RUN_S: Final = 1_200.0
ROOT: Final = Path(__file__).parents[2]


class OxiaPython:
    """See the module's text."""

    name = "oxia-python"
    title = "oxia 0.2.1 (Python), its tests against a server"
    differences: dict[str, str] = {}

    def __init__(self) -> None:
        self._source = self._python = Path()

    def get(self, folder: Path) -> None:
        """See Suite."""
        self._source = folder / "oxia-client-python"
        if not (self._source / "tests" / "client_test.py").is_file():
            folder.mkdir(parents=True, exist_ok=True)
            run_tool(("git", "clone", "--quiet", REPOSITORY, str(self._source)), folder)
            run_tool(("git", "checkout", "--quiet", COMMIT), self._source)
        self._python = folder / "oxia-python" / "bin" / "python"
        if not self._python.is_file():
            run_tool((sys.executable, "-m", "venv", str(self._python.parents[1])), folder)
            pip = (str(self._python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            run_tool((*pip, *PINS), folder)
        if not self._python.is_file():
            raise UnavailableError("the client's environment was not made")

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite."""
        told = where / "oxia-python.xml"
        command = [
            str(self._python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "oxia_plugin",
            f"--junitxml={told}", "--rootdir", str(self._source), "-o", "addopts=", "--timeout", str(TEST_S),
            "tests/client_test.py",
        ]  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parent),
            "ANTIPHON_PYTHON": sys.executable,
            "ANTIPHON_PATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "ANTIPHON_NODES": str(NODES),
        }
        try:
            subprocess.run(
                command, cwd=self._source, env=environment, capture_output=True, check=False, timeout=RUN_S
            )
        except subprocess.TimeoutExpired:
            return [Outcome("all", "failed", f"it did not end within {RUN_S:.0f} s")]
        if not told.is_file():
            return [Outcome("all", "failed", "it did not begin")]
        return [outcome_of(case) for case in ET.parse(told).getroot().iter("testcase")]
