"""All scripts of etcd's Raft on our replicas, against what docs/simulation.md says of each: `make raft-scripts`.

    python -m tests.simulation.raft_scripts [FOLDER]

FOLDER has the scripts; without it the module of that version is had with `go`. Exits 1 where a script comes out otherwise
than the page says, better ones too, and 2 where the scripts cannot be had.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from antiphon.simulation.public_scripts import judge_script

MODULE: Final = "go.etcd.io/raft/v3@v3.6.0"
PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "simulation.md"
_ROW: Final = re.compile(r"^\| `(\w+)`[^|]* \| (\d+/\d+) \| (\d+/\d+) \|", re.MULTILINE)
_TOTAL: Final = re.compile(r"(\d+) of the (\d+) scripts pass completely")

Figures = dict[str, tuple[str, str]]
"""By script: stanzas that pass of those that are compared, with liberties and without."""


def page_says() -> tuple[Figures, tuple[int, int]]:
    """The page's table, and how many scripts pass of how many."""
    text = PAGE.read_text()
    passed, total = map(int, _TOTAL.search(text).groups())  # type: ignore[union-attr]
    return {name: (free, as_is) for name, free, as_is in _ROW.findall(text)}, (passed, total)


def figures_of(script: Path) -> tuple[str, str]:
    """What comes out of one script."""
    found = (judge_script(script, as_is=as_is) for as_is in (False, True))
    free, strict = (f"{one.passed}/{one.compared}" for one in found)
    return free, strict


def is_whole(figures: tuple[str, str]) -> bool:
    """Do all stanzas pass, with liberties?"""
    passed, _, compared = figures[0].partition("/")
    return passed == compared


def _downloaded() -> Path:
    if shutil.which("go") is None:
        sys.exit("there is no `go` to get the scripts with: give a folder that has them")
    told = subprocess.run(
        ("go", "mod", "download", "-json", MODULE), capture_output=True, text=True, check=False
    )
    if told.returncode:
        print(f"{MODULE} cannot be had: {told.stdout}{told.stderr}", file=sys.stderr)
        sys.exit(2)
    return Path(json.loads(told.stdout)["Dir"]) / "testdata"


def main() -> int:
    """See the module's text; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.raft_scripts", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", nargs="?", type=Path)
    where = parser.parse_args().folder or _downloaded()
    expected, total = page_says()
    found = {script.stem: figures_of(script) for script in sorted(where.glob("*.txt"))}
    wrong = 0
    for name in sorted(found.keys() | expected.keys()):
        says, is_so = expected.get(name), found.get(name)
        wrong += says != is_so
        print(f"{name}: {is_so}" + ("" if says == is_so else f", and the page says {says}"))
    whole = sum(map(is_whole, found.values()))
    print(
        f"{whole} of {len(found)} scripts pass completely, as the page says: {(whole, len(found)) == total}"
    )
    return 1 if wrong or (whole, len(found)) != total else 0


if __name__ == "__main__":
    sys.exit(main())
