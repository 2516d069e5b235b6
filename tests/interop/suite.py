"""What a suite of another project is to the runner, and how its program is fetched."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from tests.peers.servers.peer import UnavailableError, run_tool

FOLDER_VARIABLE: Final = "ANTIPHON_INTEROP"
FOUR_PARTITIONS: Final = {"num_partitions": "4"}  # of a topic that is made on demand, in most suites


class Outcome(NamedTuple):
    """What became of one test: `passed`, `failed` or `skipped`, and its last words."""

    test: str
    result: str
    said: str = ""


class UnexpectedError(Exception):
    """A program did or said something else than it should."""


def carried_out(steps: Iterable[tuple[str, Callable[[], object]]]) -> list[Outcome]:
    """Each step is told, and the next ones are tried whatever became of it."""
    outcomes = []
    for name, step in steps:
        try:
            step()
        except (UnexpectedError, subprocess.TimeoutExpired) as error:
            outcomes.append(Outcome(name, "failed", str(error)[-300:]))
        else:
            outcomes.append(Outcome(name, "passed"))
    return outcomes


class Suite(Protocol):
    """Tests of another project.

    Attributes:
        name: how the command line calls it.
        title: with the version.
        differences: tests that fail, with the reason; one of them that passes is an error too.
        settings: what the nodes' `node.toml` says besides, as the suite expects of Kafka.
    """

    name: str
    title: str
    differences: dict[str, str]
    settings: dict[str, str]

    def get(self, folder: Path) -> None:
        """Have its program ready in `folder`. Raises UnavailableError."""

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        """Run all of it against the nodes at `kafka` (`host:port,...`); `where` is for its files."""


def folder() -> Path:
    """Where other projects' programs are kept, outside of the repository."""
    return Path(os.environ.get(FOLDER_VARIABLE) or Path.home() / ".cache" / "antiphon-interop")


def source_of(package: str, version: str, sha256: str, where: Path) -> Path:
    """The unpacked source distribution of a Python package, by pip, once."""
    name = f"{package.replace('-', '_')}-{version}"
    unpacked = where / name
    if unpacked.is_dir():
        return unpacked
    where.mkdir(parents=True, exist_ok=True)
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    run_tool((*pip, "--no-deps", "--no-binary", ":all:", f"{package}=={version}"), where)
    archive = where / f"{name}.tar.gz"
    found = hashlib.sha256(archive.read_bytes()).hexdigest() if archive.is_file() else "nothing"
    if found != sha256:
        raise UnavailableError(f"{archive.name} is not what it was: SHA-256 {found}")
    part = where / f"{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(archive) as files:
        files.extractall(part, filter="data")
    (part / name).rename(unpacked)
    shutil.rmtree(part)
    return unpacked


def clone_of(repository: str, commit: str, name: str, where: Path) -> Path:
    """A clone of a repository at a commit, by git, once. Raises UnavailableError."""
    clone = where / name
    if not (clone / ".git").is_dir():
        where.mkdir(parents=True, exist_ok=True)
        part = where / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        run_tool(("git", "clone", "--quiet", repository, str(part)), where)
        run_tool(("git", "checkout", "--quiet", commit), part)
        part.rename(clone)
    return clone


def environment_of(name: str, pins: Sequence[str], where: Path) -> Path:
    """The Python of an environment of its own that has the packages in `pins`, once. Raises UnavailableError."""
    made = where / name
    if not made.is_dir():
        part = where / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        run_tool((sys.executable, "-m", "venv", str(part)), where)
        pip = (str(part / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run_tool((*pip, *pins), where)
        part.rename(made)
    return made / "bin" / "python"


def outcomes_in(told: Path, what: str) -> list[Outcome]:
    """What a JUnit file says of each test; without the file the run failed as a whole."""
    if not told.is_file():
        return [Outcome(what, "failed", "it did not begin")]
    return [outcome_of(case) for case in ET.parse(told).getroot().iter("testcase")]


def outcome_of(case: ET.Element) -> Outcome:
    """What became of a test by its element of a JUnit file."""
    name = case.get("name", "")
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            return Outcome(name, "failed", found.get("message", "")[:300])
    if (found := case.find("skipped")) is not None:
        return Outcome(name, "skipped", found.get("message", "")[:300])
    return Outcome(name, "passed")
