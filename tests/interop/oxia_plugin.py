"""A pytest plug-in for the tests of Oxia's Python client: where they start a container, nodes of Antiphon start.

Their server takes the place of `oxia.internal.oxia_container`, which starts Oxia in Docker. Each is a cluster of its own,
in whose namespace `default` there is nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import types
from importlib import import_module
from typing import Any, Self

PYTHON, PATH, NODES = "ANTIPHON_PYTHON", "ANTIPHON_PATH", "ANTIPHON_NODES"
EMPTY = """
import sys, time, antiphon
db = antiphon.connect(sys.argv[1])
db.delete_topic("default")
for _ in range(100):
    try:
        db.create_table("default", shards=int(sys.argv[2]), config={"key.sorting": "hierarchical"})
        break
    except antiphon.AntiphonError:
        time.sleep(0.1)
"""


class OxiaContainer:
    """A server with so many shards, which runs from `start` to `stop`."""

    def __init__(self, shards: int = 1) -> None:
        self._shards = shards
        self._directory = tempfile.TemporaryDirectory(prefix="antiphon-oxia-")

    def _run(self, *arguments: str) -> "subprocess.Popen[str]":
        environment = os.environ | {"PYTHONPATH": os.environ[PATH]}
        command = (os.environ[PYTHON], *arguments)
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def start(self) -> Self:
        """Start nodes, and make the namespace anew."""
        ports = [f"--{name}-port=0" for name in ("kafka", "native", "http", "oxia")]
        nodes = ("--nodes", os.environ[NODES], "--dir", self._directory.name, "--json")
        self._nodes = self._run("-m", "antiphon.cli.main", "up", *nodes, *ports)
        assert self._nodes.stdout is not None
        self._said = json.loads(self._nodes.stdout.readline())
        made = self._run("-c", EMPTY, self._said["native"], str(self._shards))
        made.communicate()
        assert made.returncode == 0, "the namespace was not made"
        return self

    def stop(self) -> None:
        """Stop them."""
        self._nodes.terminate()
        self._nodes.communicate()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def service_url(self) -> str:
        """The last node's address, which leads some of the shards, or none."""
        address: str = self._said["nodes"][-1]["oxia"]
        return address


module: Any = types.ModuleType("oxia.internal.oxia_container")
module.OxiaContainer = OxiaContainer
sys.modules[module.__name__] = module


def pytest_configure() -> None:
    """Let the client's thread wait for the barrier that the client makes after it starts the thread.

    An answer that comes sooner ends the thread (AttributeError, once in some 400 clients), and the client times out.
    """
    discovery: Any = import_module("oxia.internal.service_discovery").ServiceDiscovery
    ask = discovery.get_assignments

    def get_assignments(self: Any) -> None:
        while not hasattr(self, "_init_barrier"):
            time.sleep(0.001)
        ask(self)

    discovery.get_assignments = get_assignments
