"""A pytest plug-in for aiokafka's tests: where they start a container with Kafka, nodes of Antiphon start.

It takes the place of the package `docker`. The container that makes certificates runs their script here; the one with the
broker is a process of `tests.interop.aiokafka_nodes`. What they run in it, Kafka's tools for access control lists and for
users, is read from the command and done through Kafka's protocol.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, Final

import pytest

PYTHON, PATH, NODES = "ANTIPHON_PYTHON", "ANTIPHON_PATH", "ANTIPHON_NODES"
KINDS: Final = {"--topic": "TOPIC", "--group": "GROUP", "--transactional-id": "TRANSACTIONAL_ID"}


def acl_of(words: list[str]) -> list[str]:
    """Kind and name of the resource, user, operation and permission in the words of `kafka-acls.sh`."""
    kind, name, user, operation, permission = "BROKER", "kafka-cluster", "", "ALL", "ALLOW"
    for word, value in itertools.pairwise(words):
        if word in KINDS:
            kind, name = KINDS[word], value
        elif word in ("--allow-principal", "--deny-principal"):
            user, permission = value.removeprefix("User:"), word.split("-")[2].upper()
        elif word == "--operation":
            operation = value.upper()
    return [kind, name, user, operation, permission]


class Script:
    """The container in which certificates are made: one folder of this machine."""

    def __init__(self, volumes: dict[Any, dict[str, str]]) -> None:
        self._place = {bound["bind"]: str(here) for here, bound in volumes.items()}

    def exec_run(self, command: list[str], **_: object) -> tuple[int, bytes]:
        """Run a command in the folder."""
        here = [self._place.get(word, word) for word in command]
        done = subprocess.run(here, cwd=self._place["/ssl_cert"], capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def stop(self) -> None:
        """Nothing runs."""


class Broker:
    """The container with the broker."""

    def __init__(self, environment: dict[str, Any], certificates: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="antiphon-aiokafka-")
        order = {
            "folder": self._folder.name,
            "certificates": str(certificates),
            "partitions": environment["NUM_PARTITIONS"],
            "nodes": int(os.environ[NODES]),
            "plain": environment["ADVERTISED_PORT"],
            "tls": environment["ADVERTISED_SSL_PORT"],
            "sasl": environment["ADVERTISED_SASL_PLAINTEXT_PORT"],
        }
        self._nodes = subprocess.Popen(
            (os.environ[PYTHON], "-m", "tests.interop.aiokafka_nodes", json.dumps(order)),
            env=os.environ | {"PYTHONPATH": os.environ[PATH]},
            cwd=self._folder.name,  # here are another aiokafka, which is not built, and other tests
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._nodes.stdout is not None
        assert self._nodes.stdout.readline() == "ready\n", "the nodes did not start"

    def exec_run(self, command: str) -> tuple[int, bytes]:
        """Do what one of Kafka's tools would do."""
        tool, *words = command.split()
        if tool.endswith("kafka-acls.sh"):
            if "--list" in words:
                return 0, b""  # nobody reads it
            return self._order("grant" if "--add" in words else "revoke", *acl_of(words))
        user = words[words.index("--entity-name") + 1]
        password = words[words.index("--add-config") + 1].partition("password=")[2].partition("]")[0]
        return self._order("user", user, password)

    def _order(self, *words: str) -> tuple[int, bytes]:
        assert self._nodes.stdin is not None
        assert self._nodes.stdout is not None
        self._nodes.stdin.write(json.dumps(words) + "\n")
        self._nodes.stdin.flush()
        said = json.loads(self._nodes.stdout.readline())
        return (0, b"") if said == "done" else (1, said.encode())

    def stop(self) -> None:
        """Stop the nodes."""
        self._nodes.communicate()
        self._folder.cleanup()


class Containers:
    """What starts containers."""

    def run(self, volumes: dict[Any, dict[str, str]], **options: Any) -> Script | Broker:
        """Start one."""
        if "environment" not in options:
            return Script(volumes)
        certificates = next(here for here, bound in volumes.items() if bound["bind"] == "/ssl_cert")
        return Broker(options["environment"], Path(certificates))


class Client:
    """What talks to Docker."""

    containers = Containers()

    def close(self) -> None:
        """Nothing is open."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before their fixtures import the package."""
    module: Any = types.ModuleType("docker")
    module.from_env = Client
    module.models = types.SimpleNamespace(containers=types.SimpleNamespace(Container=Broker))
    sys.modules[module.__name__] = module
