"""`make packaging`: the wheel and each extra alone, from the registry, on every Python that is here.

python -m tests.packaging.run [--python 3.12] [EXTRA...]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from tests.packaging.environments import ROOT, added, build, installed, packages
from tests.packaging.extras import INSTALLATIONS, Installation, cannot_import
from tests.packaging.first_steps import take_first_steps

VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what was asked for, a line each; 1 if something failed, or if no Python was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.packaging.run", description=__doc__)
    parser.add_argument("extras", nargs="*", help="these extras only; `base` is the installation without one")
    parser.add_argument("--python", action="append", help="these versions only", choices=VERSIONS)
    options = parser.parse_args(arguments)
    wanted = [one for one in INSTALLATIONS if not options.extras or (one.extra or "base") in options.extras]
    failed = tried = 0
    with tempfile.TemporaryDirectory(prefix="antiphon-packaging-") as folder:
        wheel = build("wheel", Path(folder) / "wheel")
        for version in options.python or VERSIONS:
            python = _found(version)
            if python is None:
                _say(f"{version:6}not on this machine")
                continue
            for one in wanted:
                tried += 1
                failed += not _tried(version, python, wheel, one)
    _say(f"{tried - failed} passed, {failed} failed")
    return int(failed > 0 or tried == 0)


def _found(version: str) -> str | None:
    """A Python of that version: on the PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted(str(path) for path in pyenv.glob(f"versions/{version}.*/bin/python"))
    for python in [shutil.which(f"python{version}"), *kept]:
        if python is None:
            continue
        asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == version:
            return python
    return None


def _tried(version: str, python: str, wheel: Path, one: Installation) -> bool:
    name = one.extra or "base"
    started_at = time.monotonic()
    _say(f"{version:6}{name:10} installing ...")
    with tempfile.TemporaryDirectory(prefix="antiphon-packaging-") as folder:
        try:
            made = installed(Path(folder) / "environment", wheel, python, one.extra)
            missing = cannot_import(made, one)
            assert not missing, f"cannot import {missing}"
            if not one.extra:
                project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
                left_out = take_first_steps(made, Path(folder), project["version"], added)
                if left_out:
                    _say(f"{version:6}{name:10} not to be had, and left out: {', '.join(left_out)}")
        except (AssertionError, subprocess.TimeoutExpired) as error:
            _say(f"{version:6}{name:10} FAILED: {error}")
            return False
        _say(f"{version:6}{name:10} {_count(made):4} other packages, {time.monotonic() - started_at:5.1f} s")
        return True


def _count(python: Path) -> int:
    return len({one.name for one in distributions(path=[str(packages(python))])} - {"antiphon"})


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
