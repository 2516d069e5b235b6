"""The wheel installs with its base dependencies alone and works; each extra alone brings what it is for."""

import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.packaging.environments import ROOT, bare, build, linked, needed, with_extra
from tests.packaging.extras import INSTALLATIONS, Installation, cannot_import
from tests.packaging.first_steps import Follower, Shell, take_first_steps
from tests.pages.blocks import Block
from tests.release.run import NOT_FOR_USERS

pytestmark = [pytest.mark.slow, pytest.mark.packaging, pytest.mark.cluster, pytest.mark.timeout(600)]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE_PACKAGES_MAX = 25  # beside Antiphon
FOR_USERS = set(PROJECT["optional-dependencies"]) - set(NOT_FOR_USERS)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare(tmp_path_factory.mktemp("base") / "environment", wheel)


def test_first_steps_with_the_base_dependencies_alone(wheel: Path, tmp_path: Path) -> None:
    python = bare(tmp_path / "environment", wheel)  # one of its own: the page adds a package
    assert take_first_steps(python, tmp_path, PROJECT["version"], linked) == []


def test_what_is_not_to_be_had_is_left_out(base: Path, tmp_path: Path) -> None:
    page = "pip install no-such-package\n", "import no_such_package\n", "print(6 * 7)\n"
    blocks = [
        Block("page", line, language, text, None)
        for line, (language, text) in enumerate(zip(("sh", "python", "python"), page, strict=True))
    ]
    follower = Follower(base, tmp_path, lambda python, name: False)
    try:
        follower.follow([*blocks[:2], blocks[2]._replace(said="42\n")])
        assert follower.left_out == ["no-such-package"]
        with pytest.raises(AssertionError, match="and not"):
            follower.follow([blocks[2]._replace(said="43\n")])
        follower.follow([Block("page", 4, "sh", "export ANSWER=42\n", None)])
        follower.follow([Block("page", 5, "sh", 'echo "it is $ANSWER"\n', "it is 42\n")])
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            follower.follow([Block("page", 6, "python", "1 / 0\n", None)])
    finally:
        follower.end()


def test_the_simulator_keeps_its_promises_with_the_base_dependencies_alone(
    base: Path, tmp_path: Path
) -> None:
    said = Shell(base, tmp_path).run("antiphon", "simulate", "--seeds", "8", "--jobs", "2", "--no-shrink")
    assert "every promise kept" in said


@pytest.mark.parametrize("one", INSTALLATIONS, ids=lambda one: one.extra or "base")
def test_what_an_extra_is_for_can_be_imported(one: Installation, base: Path, tmp_path: Path) -> None:
    python = with_extra(tmp_path / "environment", base, one.extra) if one.extra else base
    assert cannot_import(python, one) == {}


def test_every_extra_for_users_is_in_the_table() -> None:
    assert {one.extra for one in INSTALLATIONS} == FOR_USERS | {""}


def test_an_import_that_fails_is_told(base: Path) -> None:
    found = cannot_import(base, Installation("", ("antiphon.http",), ("numpy",)))
    assert found["numpy"] == "numpy"
    assert found["antiphon.http.pages.site"] == "jinja2"


def test_the_docs_say_how_many_packages_a_base_installation_has() -> None:
    said = re.search(r"brings (\d+) other packages", (ROOT / "docs" / "install.md").read_text())
    assert said is not None
    assert int(said[1]) == len(needed())


def test_a_base_installation_is_small() -> None:
    assert len(needed()) <= BASE_PACKAGES_MAX, sorted(needed())


def test_a_wheel_from_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as packed:
        packed.extractall(tmp_path, filter="data")
    (tree,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert build("wheel", tmp_path / "again", tree).read_bytes() == wheel.read_bytes()


def test_the_wheel_has_nothing_but_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"antiphon", "pyspark_antiphon.py", f"antiphon-{PROJECT['version']}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]
    assert {
        "antiphon/py.typed",
        "antiphon/cli/pipeline_example.toml",
        "antiphon/http/templates/base.html",
    } <= set(names)
