"""A release is complete, the same from one commit each time, and refused where it would not be what it says."""

import hashlib
import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.packaging.environments import needed
from tests.release.lock import read_lock, scopes
from tests.release.run import NOT_FOR_USERS, ROOT, RefusedError, changes_of, main

pytestmark = [pytest.mark.slow, pytest.mark.packaging]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
LOCK = read_lock((ROOT / "requirements.lock").read_text())
CHANGELOG = (
    f"# Changelog\n\n## Unreleased\n\n- Later.\n\n## {VERSION} (2026-01-02)\n\n- New.\n\n## 0.0.1\n\n- Old.\n"
)


def git(tree: Path, *words: str) -> None:
    name = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")
    subprocess.run(["git", "-C", str(tree), *name, *words], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A work tree like this one, as far as a release looks at it, with a changelog of this version."""
    made = tmp_path / "tree"
    shutil.copytree(ROOT / "src", made / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "requirements.lock", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, made / name)
    (made / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet", str(made))
    git(made, "add", "--all")
    git(made, "commit", "--quiet", "--message=all")
    return made


def test_a_release_is_complete_and_reproducible(tree: Path) -> None:
    assert main(["--tree", str(tree)]) == 0
    first = {file.name: file.read_bytes() for file in (tree / "dist").iterdir()}
    assert set(first) == {
        f"antiphon-{VERSION}-py3-none-any.whl",
        f"antiphon-{VERSION}.tar.gz",
        "sbom.cdx.json",
        "CHANGES.md",
        "SHA256SUMS",
    }
    sums = dict(line.split("  ")[::-1] for line in first["SHA256SUMS"].decode().splitlines())
    assert sums == {name: hashlib.sha256(first[name]).hexdigest() for name in first if name != "SHA256SUMS"}
    assert first["CHANGES.md"].decode() == f"# Antiphon {VERSION} (2026-01-02)\n\n- New.\n"
    bill = json.loads(first["sbom.cdx.json"])
    wheel = sums[f"antiphon-{VERSION}-py3-none-any.whl"]
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": wheel}]
    assert len(bill["components"]) == len(LOCK)
    assert main(["--tree", str(tree)]) == 0
    assert {file.name: file.read_bytes() for file in (tree / "dist").iterdir()} == first


def test_a_tree_with_changes_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "README.md").write_text("other\n")
    assert main(["--tree", str(tree)]) == 1
    assert "not committed" in capsys.readouterr().err
    assert not (tree / "dist").exists()


def test_a_version_without_changes_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"no section `## 7\.0`"):
        changes_of(CHANGELOG, "7.0")
    with pytest.raises(RefusedError):
        changes_of(f"## {VERSION}\n\n## 0.0.1\n\n- Old.\n", VERSION)
    with pytest.raises(RefusedError):
        changes_of(f"## {VERSION}.1\n\n- Other.\n", VERSION)


def test_every_pin_of_the_lock_is_read_whole() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert len(LOCK) == sum("==" in line and not line.startswith(" ") for line in text.splitlines())
    assert sum(len(one.hashes) for one in LOCK) == text.count("--hash=sha256:")
    assert all(one.needed_by for one in LOCK)


def test_scopes_are_those_of_an_installation() -> None:
    found = scopes(LOCK, PROJECT, NOT_FOR_USERS)
    required = {name for name, scope in found.items() if scope == "required"}
    assert required >= set(needed())
    assert found["pyspark"] == "optional"
    assert found["pytest"] == found["mkdocs"] == "excluded"
