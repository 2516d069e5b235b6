"""The tests of Oxia's Python client, each against nodes of its own. They come with its repository, not with its package.
Some of our own with the same client run beside them (`oxia_children`).

The client wants older releases of what it needs than it says, and than Antiphon has, so it gets an environment of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.interop.suite import Outcome, clone_of, environment_of, outcomes_in

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
    settings: dict[str, str] = {}  # it starts nodes of its own

    def __init__(self) -> None:
        self._source = self._python = Path()

    def get(self, folder: Path) -> None:
        """See Suite."""
        self._source = clone_of(REPOSITORY, COMMIT, "oxia-client-python", folder)
        self._python = environment_of("oxia-python", PINS, folder)

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """See Suite."""
        told = where / "oxia-python.xml"
        own = where / "oxia_children.py"  # by itself: this repository's tests want other packages
        shutil.copy(Path(__file__).parent / own.name, own)
        command = [
            str(self._python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "oxia_plugin",
            f"--junitxml={told}", "--rootdir", str(self._source), "-o", "addopts=", "--timeout", str(TEST_S),
            "tests/client_test.py", str(own),
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
        return outcomes_in(told, "all")
