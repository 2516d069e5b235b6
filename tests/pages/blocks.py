"""The code blocks of a page, and how they are run: in their order, against a cluster, with what they say compared."""

import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from unittest.mock import patch

import antiphon
from antiphon.tools.local_cluster import LocalCluster
from tests.cli.script import AntiphonScript

ROOT: Final = Path(__file__).parent.parent.parent
LANGUAGES: Final = {"python": "python", "sh": "sh", "bash": "sh", "console": "console"}
DATA: Final = ("toml", "json")  # which tests/pages/test_data.py reads
# Nobody types them; and what is shown in languages, or of programs, that the tests do not have.
SHOWN: Final = ("text", "mermaid", "", "java", "py")
# Lines that the test does in its own way: it has started the cluster, and ends it.
OF_THE_TEST: Final = re.compile(
    r"^(\S*/)?antiphon (up|down) (?!.*-secure)|^pip install |^export ANTIPHON_SERVERS="
)
_BLOCK: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```\n"
    r"(?:\n*(?P=indent)```text\n(?P<said>.*?)^(?P=indent)```\n)?",
    re.DOTALL | re.MULTILINE,
)
_OF_THE_PAGES: Final = re.compile(
    r"(?<!\w)/tmp/(?P<cluster>antiphon(?![\w-]))?"
)  # their folder, and that of their cluster
_SHELL_S: Final = 120


class Block(NamedTuple):
    """A code block. `said` is what the page tells that it prints, or None; `...` there stands for anything."""

    page: str
    line: int
    language: str
    text: str
    said: str | None

    @property
    def first_line(self) -> str:
        """By which the list of those that are not run knows it, without the remark beside it."""
        return self.text.strip().splitlines()[0].partition("  ")[0]

    def check(self, said: str) -> None:
        """Raises AssertionError if the page tells something else than the block said."""
        if self.said is None:
            return
        parts = [re.escape(part) for part in self.said.strip().split("...")]
        assert re.fullmatch(".*?".join(parts), said.strip(), re.DOTALL), (
            f"{self.page}:{self.line} says\n{said}\nand not\n{self.said}"
        )


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, named from the root of the tree. `$ ` of a console is a command, the rest what it says."""
    found = []
    for block in fences_of(page):
        if block.language not in LANGUAGES:
            continue
        block = block._replace(language=LANGUAGES[block.language])
        if block.language == "console":
            lines = block.text.splitlines(keepends=True)
            commands = "".join(one[2:] for one in lines if one.startswith("$ "))
            block = block._replace(
                text=commands, said="".join(one for one in lines if not one.startswith("$ "))
            )
        found.append(block)
    return found


def fences_of(page: str) -> list[Block]:
    """Everything that is fenced on a page, with the language that is written there. One in a list stands to the right."""
    text = (ROOT / page).read_text()
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match["language"],
            textwrap.dedent(match["text"]),
            None if match["said"] is None else textwrap.dedent(match["said"]),
        )
        for match in _BLOCK.finditer(text)
    ]


class Reader:
    """Somebody who follows pages in a folder of their own, beside a cluster that runs already. A context."""

    def __init__(self, cluster: LocalCluster, folder: Path, *, servers: bool = True) -> None:
        """`servers`: the environment says where the cluster is."""
        self._folder = folder
        self._cluster = str(cluster.dir)
        self._places = {
            f"127.0.0.1:{port + number}": place
            for port, places in ((7400, cluster.native), (9092, cluster.kafka), (8080, cluster.http))
            for number, place in enumerate(places.split(","))
        }
        self._places |= {
            "s3://bucket/": f"{folder}/bucket/",  # folders in the place of object stores
            ":/lake/": f":{folder}/lake/",
            "port=9108": "port=0",
        }
        self.names: dict[str, Any] = {"__name__": "__page__"}
        (folder / "tmp").mkdir()
        self._command = AntiphonScript(folder / "bin")
        self._environment = {
            **os.environ,
            "ANTIPHON_SERVERS": cluster.native,
            "CURL_HOME": str(folder),
            "PATH": f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        (folder / ".curlrc").write_text("fail\nsilent\nshow-error\n")  # what is not found is an error
        if not servers:
            del self._environment["ANTIPHON_SERVERS"]

    def follow(self, block: Block) -> None:
        """Run a block; raises AssertionError where it fails, or says something else than the page does."""
        text = "\n".join(line for line in block.text.splitlines() if not OF_THE_TEST.match(line)) + "\n"
        for told, place in self._places.items():
            text = text.replace(told, place)
        text = _OF_THE_PAGES.sub(
            lambda found: self._cluster if found["cluster"] else f"{self._folder}/tmp/", text
        )
        place = f"{block.page}:{block.line}"
        said = self._python(text, place) if block.language == "python" else self._shell(text, place)
        block.check(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the clients that the pages left open, and end clusters that they started and did not end."""
        for value in self.names.values():
            if isinstance(value, antiphon.Client):
                value.close()
        for file in self._folder.glob("tmp/*/cluster.json"):
            self._shell(f"antiphon down --dir {file.parent}", "the end")
        self._command.__exit__()

    def _python(self, text: str, place: str) -> str:
        written = io.StringIO()
        before = Path.cwd()
        os.chdir(self._folder)
        try:
            with contextlib.redirect_stdout(written), patch.dict(os.environ, self._environment):
                exec(compile(text, place, "exec"), self.names)
        finally:
            os.chdir(before)
        return written.getvalue()

    def _shell(self, text: str, place: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", text],
            input="typed\n",  # where a command asks for a password
            start_new_session=True,  # so that it does not ask the terminal of who runs the tests
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=self._environment,
            timeout=_SHELL_S,
            check=False,
        )
        assert done.returncode == 0, f"{place}\n{done.stdout}\n{done.stderr}"
        return done.stdout
