"""What somebody types first, with an installed `antiphon` that knows nothing of a source tree."""

import json
import os
import subprocess
from pathlib import Path

PROGRAM = """
import sys
import antiphon
with antiphon.connect(sys.argv[1]) as db:
    at = db.create_topic("flights").append(b"EWR-IAH", key=b"N14228")
    print([record.value for record in db.topic("flights").read(at.shard)])
"""


class Shell:
    """Runs commands of one environment in a folder that holds nothing of ours."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python = python
        self._folder = folder
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        self.environment = {**kept, "PATH": f"{python.parent}:/usr/bin:/bin"}

    def run(self, *words: str, stdin: str = "") -> str:
        """What the command says; it has to succeed."""
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=self.environment,
            timeout=300,  # for a machine with other work
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def python(self, program: str, *words: str) -> str:
        """What a program says."""
        return self.run(str(self._python), "-c", program, *words)


def take_first_steps(python: Path, folder: Path, version: str) -> None:
    """Help, version, a cluster, a row, a record, and the end of the cluster. Raises AssertionError."""
    shell = Shell(python, folder)
    assert "antiphon up --nodes 3" in shell.run("antiphon", "--help")
    assert shell.run(str(python), "-m", "antiphon", "--version") == f"antiphon {version}\n"
    assert shell.python("import antiphon; print(antiphon.__version__)") == f"{version}\n"
    ports = ("--kafka-port", "0", "--oxia-port", "0", "--native-port", "0", "--http-port", "0")
    where = ("--dir", str(folder / "cluster"))
    started = json.loads(shell.run("antiphon", "up", *where, "--nodes", "3", *ports, "--detach", "--json"))
    try:
        shell.environment["ANTIPHON_SERVERS"] = started["native"]
        shell.run("antiphon", "produce", "greetings", stdin="hello world\n")
        assert "hello world\n" in shell.run("antiphon", "consume", "greetings")
        shell.run("antiphon", "kv", "default", "put", "answer", "42", "--if-absent")
        assert shell.run("antiphon", "kv", "default", "get", "answer") == "42\n"
        assert "healthy" in shell.run("antiphon", "status")
        assert shell.python(PROGRAM, started["native"]) == "[b'EWR-IAH']\n"
    finally:
        ended = shell.run("antiphon", "down", *where)
    assert ended.startswith("Stopped 3 of 3 nodes")
