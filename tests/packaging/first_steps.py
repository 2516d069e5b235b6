"""What somebody types first, with an installed `antiphon` that knows nothing of a source tree."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.pages.blocks import Block, blocks_of

PAGE: Final = "docs/five-minutes.md"
COMMAND_S: Final = 1200  # for a machine with other work: who hangs is found by it, who is slow is not
ANY_PORT: Final = "--kafka-port 0 --oxia-port 0 --native-port 0 --http-port 0"
# Executes one block after the other, each a line of JSON, with the names of those before; answers what it printed.
_PYTHON: Final = """
import contextlib, io, json, sys
names = {"__name__": "__page__"}
for line in sys.stdin:
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        exec(compile(json.loads(line), "page", "exec"), names)
    print(json.dumps(written.getvalue()), flush=True)
"""
# Adds a package to an environment, given its Python; False where that cannot be had.
Add = Callable[[Path, str], bool]


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
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def python(self, program: str, *words: str) -> str:
        """What a program says."""
        return self.run(str(self._python), "-c", program, *words)


class Follower:
    """Somebody who follows the page in one terminal and one Python, with a cluster whose ports and folder are free ones."""

    def __init__(self, python: Path, folder: Path, add: Add) -> None:
        self._shell = Shell(python, folder)
        self._python = python
        self._add = add
        self._cluster = folder / "cluster"
        self._kept = folder / "environment.sh"  # what was exported
        self.left_out: list[str] = []
        self._interpreter = subprocess.Popen(
            [python, "-c", _PYTHON],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=self._shell.environment,
        )

    def follow(self, blocks: list[Block]) -> None:
        """All of them, in order. Raises AssertionError."""
        missing: set[str] = set()
        for block in blocks:
            if any(re.search(rf"^(from|import) {name}\b", block.text, re.MULTILINE) for name in missing):
                continue
            for name in re.findall(r"^pip install (\S+)$", block.text, re.MULTILINE):
                if name != "antiphon" and not self._add(self._python, name):  # which is the wheel, and here
                    missing.add(name.replace("-", "_"))
                    self.left_out.append(name)
            text = self._with_places(re.sub(r"^pip install .*\n", "", block.text, flags=re.MULTILINE))
            block.check(self._in_python(text) if block.language == "python" else self._in_shell(text))

    def end(self) -> None:
        """End Python, and the nodes if the page did not come that far."""
        self._interpreter.kill()
        self._interpreter.communicate()
        if (self._cluster / "cluster.json").exists():
            self._shell.run("antiphon", "down", "--dir", str(self._cluster))

    def _with_places(self, text: str) -> str:
        text = text.replace("/tmp/antiphon", str(self._cluster)).replace(
            "antiphon up ", f"antiphon up {ANY_PORT} "
        )
        file = self._cluster / "cluster.json"
        nodes = json.loads(file.read_text())["nodes"] if file.exists() else []
        for number, node in enumerate(nodes):
            for port, listener in ((7400, "native"), (9092, "kafka")):
                text = text.replace(f"127.0.0.1:{port + number}", node[listener])
        return text

    def _in_shell(self, text: str) -> str:
        kept = shlex.quote(str(self._kept))
        return self._shell.run(
            "/bin/sh", "-e", "-c", f"if [ -e {kept} ]; then . {kept}; fi\n{text}\nexport -p > {kept}\n"
        )

    def _in_python(self, text: str) -> str:
        asked, told, wrong = self._interpreter.stdin, self._interpreter.stdout, self._interpreter.stderr
        assert asked is not None
        assert told is not None
        assert wrong is not None
        asked.write(f"{json.dumps(text)}\n")
        asked.flush()
        line = told.readline()
        assert line, wrong.read()
        return str(json.loads(line))


def take_first_steps(python: Path, folder: Path, version: str, add: Add) -> list[str]:
    """Help and version, then the page of the first five minutes. Raises AssertionError.

    Returns what the page installs that was not to be had; the blocks that import it were left out.
    """
    shell = Shell(python, folder)
    assert "antiphon up --nodes 3" in shell.run("antiphon", "--help")
    assert shell.run(str(python), "-m", "antiphon", "--version") == f"antiphon {version}\n"
    assert shell.python("import antiphon; print(antiphon.__version__)") == f"{version}\n"
    follower = Follower(python, folder, add)
    try:
        follower.follow(blocks_of(PAGE))
    finally:
        follower.end()
    return follower.left_out
