"""One cluster for all of it, as `antiphon up` makes it, and commands that find it by ANTIPHON_SERVERS."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.shell import antiphon


class Up(NamedTuple):
    """A cluster that runs, and what `antiphon up --json` said of it."""

    directory: Path
    said: dict[str, Any]

    @property
    def servers(self) -> str:
        """The native address of every node."""
        return ",".join(node["native"] for node in self.said["nodes"])

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command that finds the cluster by its environment, in an empty directory."""
        environment = os.environ | {"ANTIPHON_SERVERS": self.servers}
        return antiphon(*words, environment=environment, stdin=stdin)

    def ok(self, *words: str, stdin: str = "") -> str:
        """What it prints; it must succeed."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def json(self, *words: str, stdin: str = "") -> Any:
        """The one JSON document that it prints."""
        return json.loads(self.ok(*words, "--json", stdin=stdin))

    def refused(self, *words: str, code: int = 1, stdin: str = "") -> str:
        """The one line that says what to do; for wrong usage also how it is used."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert code == 2 or len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done.stderr


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Three nodes on free ports."""
    directory = tmp_path_factory.mktemp("surface") / "cluster"
    ports = [word for name in ("kafka", "oxia", "native", "http") for word in (f"--{name}-port", "0")]
    done = antiphon("up", "--nodes", "3", "--dir", str(directory), *ports, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, "one line when it is ready"
    try:
        yield Up(directory, json.loads(done.stdout))
    finally:
        stopped = antiphon("down", "--dir", str(directory))
        assert stopped.returncode == 0, stopped.stderr
        assert "Stopped 3 of 3 nodes" in stopped.stdout
