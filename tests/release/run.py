"""`make release`: everything that a release has, in `dist/`, the same bytes from one commit each time.

python -m tests.release.run [--tree FOLDER]
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.release.lock import read_lock, scopes
from tests.release.sbom import bill_of_materials

ROOT: Final = Path(__file__).parent.parent.parent
NOT_FOR_USERS: Final = ("dev", "fuzz", "site")


class RefusedError(Exception):
    """There can be no release of this tree; says why and what to do."""


def changes_of(changelog: str, version: str) -> str:
    """The section of one version. Raises RefusedError where there is none, or an empty one."""
    sections = re.split(r"^## +", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        heading, _, text = section.partition("\n")
        if heading.split() and heading.split()[0] == version and text.strip():
            return f"# Antiphon {heading.strip()}\n\n{text.strip()}\n"
    raise RefusedError(
        f"CHANGELOG.md has no section `## {version}` with text: give the heading `## Unreleased` this name and a date, "
        "or set `version` in pyproject.toml"
    )


def release(tree: Path) -> list[Path]:
    """Build `dist/` of a tree anew; returns its files. Raises RefusedError."""
    changed = _git(tree, "status", "--porcelain")
    if changed:
        raise RefusedError(f"the tree has changes that are not committed:\n{changed}")
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    version = project["version"]
    changes = changes_of((tree / "CHANGELOG.md").read_text(), version)
    time_s = int(os.environ.get("SOURCE_DATE_EPOCH") or _git(tree, "log", "-1", "--format=%ct"))
    place = tree / "dist"
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(place)],
        cwd=tree,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(time_s)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (wheel,) = place.glob("*.whl")
    locked = read_lock((tree / "requirements.lock").read_text())
    bill = bill_of_materials(version, _sha256(wheel), locked, scopes(locked, project, NOT_FOR_USERS), time_s)
    (place / "sbom.cdx.json").write_text(bill)
    (place / "CHANGES.md").write_text(changes)
    files = sorted(place.iterdir())
    (place / "SHA256SUMS").write_text("".join(f"{_sha256(file)}  {file.name}\n" for file in files))
    return [*files, place / "SHA256SUMS"]


def _git(tree: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(tree), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RefusedError(f"{tree} is no work tree of git: {done.stderr.strip()}")
    return done.stdout.strip()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Build it, or say why not; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.run", description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the work tree; this one by default")
    try:
        files = release(parser.parse_args(arguments).tree)
    except RefusedError as refused:
        sys.stderr.write(f"no release: {refused}\n")
        return 1
    for file in files:
        sys.stdout.write(f"{file.stat().st_size:>10,}  {file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
