"""Environments with a wheel and only what it says that it needs: linked here in a second, or installed as by a user."""

import os
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = "bin"


def build(target: str, folder: Path, source: Path = ROOT) -> Path:
    """Build `wheel` or `sdist` of a source tree into a folder; returns the file."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "1700000000")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[target])
    return made


def needed(extra: str = "") -> dict[str, Distribution]:
    """The distributions that `pip install antiphon[extra]` brings to this Python, beside antiphon, by their names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    return _found([Requirement(text) for text in asked])


def needed_by(wheel: Path) -> dict[str, Distribution]:
    """The same for a wheel, of this version or of an earlier one, without an extra."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(packed.read(name))
    asked = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    return _found([_plain(one) for one in asked if _holds(one, "")])


def _found(waiting: list[Requirement]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    while waiting:
        need = waiting.pop()
        for wanted in ("", *need.extras):
            if _holds(need, "") and (key := (canonicalize_name(need.name), wanted)) not in seen:
                seen.add(key)
                found[key[0]] = distribution(need.name)
                needs = [Requirement(text) for text in found[key[0]].requires or []]
                waiting += [_plain(one) for one in needs if _holds(one, wanted)]
    return found


def _holds(need: Requirement, extra: str) -> bool:
    return need.marker is None or need.marker.evaluate({"extra": extra})


def _plain(need: Requirement) -> Requirement:
    """Its marker was looked at."""
    need.marker = None
    return need


def bare(folder: Path, wheel: Path) -> Path:
    """A new environment with the wheel, and links to what this one has of its base dependencies; returns its Python."""
    python = _with_links(folder, needed_by(wheel))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    _install(*pip, str(wheel))
    return python


def with_extra(folder: Path, base: Path, extra: str) -> Path:
    """Another environment with what `base` has of the wheel, and what an extra of it needs; returns its Python."""
    python = _with_links(folder, needed(extra))
    for one in packages(base).glob("*antiphon*"):
        (packages(python) / one.name).symlink_to(one)
    return python


def linked(python: Path, name: str) -> bool:
    """Give an environment a distribution that this one has."""
    found = distribution(name)
    for file in found.files or []:
        _link(Path(str(found.locate_file(""))), packages(python), file.parts[:1])
    return True


def added(python: Path, name: str) -> bool:
    """Install a package from the registry into an environment; False where it has none for this Python, or no answer."""
    try:
        _install(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), name)
    except AssertionError:
        return False
    return True


def packages(python: Path) -> Path:
    """The `site-packages` of an environment."""
    (found,) = python.parent.parent.glob("lib/python*/site-packages")
    return found


def _with_links(folder: Path, needed_ones: dict[str, Distribution]) -> Path:
    python = _new(folder, sys.executable)
    needs = list(needed_ones.values())
    sharing = Counter(top for one in needs for top in {file.parts[0] for file in one.files or []})
    for one in needs:
        for file in one.files or []:
            depth = 2 if sharing[file.parts[0]] > 1 else 1
            _link(Path(str(one.locate_file(""))), packages(python), file.parts[:depth])
    return python


def _link(source: Path, target: Path, parts: tuple[str, ...]) -> None:
    if parts[0] in {"..", "__pycache__"} or not (source.joinpath(*parts)).exists():
        return
    place = target.joinpath(*parts)
    place.parent.mkdir(exist_ok=True)
    if not place.is_symlink():
        place.symlink_to(source.joinpath(*parts))


def installed(folder: Path, wheel: Path, python: str, extra: str = "") -> Path:
    """A new environment of some Python into which the wheel was installed with what the registry has; its Python."""
    made = _new(folder, python)
    what = f"antiphon[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    _install(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(made), what)
    return made


def _new(folder: Path, python: str) -> Path:
    _install(python, "-m", "venv", "--without-pip", str(folder))
    return folder / SCRIPTS / "python"


def _install(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
