"""The pytest plug-in, in pytest processes of its own."""

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from antiphon.testing import plugin

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "testing.md"

SUITE = """
    import pytest

    def test_first(antiphon_cluster, antiphon_topic):
        print(f"\\ncluster {len(antiphon_cluster.nodes)} in {antiphon_cluster.directory}")
        print("topic", antiphon_topic)
        antiphon_cluster.nodes[0].fill_disk()
        antiphon_cluster.cap("Fetch", 5)
        antiphon_cluster.nodes[0].pause()

    @pytest.mark.parametrize("why", ["the next test, gets it whole!"])
    def test_second(antiphon_cluster, antiphon_topic, why):
        print(f"\\ncluster {len(antiphon_cluster.nodes)} in {antiphon_cluster.directory}")
        print("topic", antiphon_topic)
        assert not antiphon_cluster.is_hurt
"""

# Loading the plug-in may not bring in anything heavy; nor may a test that asks for a name only.
LIGHT = """
    import sys

    def test_a_name(antiphon_topic):
        assert antiphon_topic.startswith("test-a-name-")
        ours = {name for name in sys.modules if name.startswith("antiphon")}
        assert ours == {"antiphon", "antiphon.testing", "antiphon.testing.plugin"}
"""


# Clusters that only say where they are: who shares one is the plug-in's business, not theirs.
STAND_IN = """
    import contextlib, itertools
    import antiphon.testing

    numbers = itertools.count(1)

    class Whole:
        is_hurt = False

    @contextlib.contextmanager
    def cluster(nodes):
        it = Whole()
        it.number = next(numbers)
        yield it
        print(f"\\nended {it.number}")

    antiphon.testing.cluster = cluster
"""

ASKING = """
    def test_a(FIXTURE):
        print(f"\\ngot {FIXTURE.number}")

    class TestMore:
        def test_b(self, FIXTURE):
            print(f"\\ngot {FIXTURE.number}")

        def test_c(self, FIXTURE):
            print(f"\\ngot {FIXTURE.number}")
"""


def run(folder: Path, *options: str, code: int = 0) -> str:
    """What pytest says about a suite in which everything passes."""
    # Only what is named here is loaded: the plug-in may be installed in this environment or not.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        plugin.__name__,
        "-p",
        "no:cacheprovider",
        "-s",
        *options,
    ]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr if code else done.stdout


def shared(folder: Path, fixture: str, *options: str) -> str:
    """Which cluster each of six tests in two modules got, and when clusters ended."""
    (folder / "conftest.py").write_text(textwrap.dedent(STAND_IN))
    for name in ("one", "two"):
        (folder / f"test_{name}.py").write_text(textwrap.dedent(ASKING).replace("FIXTURE", fixture))
    said = re.findall(r"^(got|ended) (\d)", run(folder, *options), re.MULTILINE)
    return " ".join(number if what == "got" else f"-{number}" for what, number in said)


@pytest.mark.cluster
def test_one_cluster_for_the_session_whole_for_each_test_and_gone_at_the_end(tmp_path: Path) -> None:
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "pyproject.toml").write_text(settings.replace('"3"', '"1"'))
    (tmp_path / "test_suite.py").write_text(textwrap.dedent(SUITE))
    said = run(tmp_path)
    assert "2 passed" in said
    first, second = re.findall(r"^cluster (\d+) in (\S+)", said, re.MULTILINE)
    assert first == second
    assert first[0] == "1"
    assert not Path(first[1]).exists()
    topics = re.findall(r"^topic (\S+)", said, re.MULTILINE)
    assert [name[:-9] for name in topics] == ["test-first", "test-second-the-next-test-gets-it-whole"]


@pytest.mark.cluster
def test_applications_among_the_examples_are_tested_as_their_authors_would() -> None:
    said = run(ROOT / "examples", "-c", os.devnull, "--rootdir", ".", "-o", "antiphon_nodes=1")
    assert "5 passed" in said


def test_loading_it_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_light.py").write_text(textwrap.dedent(LIGHT))
    run(tmp_path)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("session", "1 1 1 1 1 1 -1"),
        ("module", "1 1 1 -1 2 2 2 -2"),
        ("class", "1 -1 2 2 -2 3 -3 4 4 -4"),
        ("function", "1 -1 2 -2 3 -3 4 -4 5 -5 6 -6"),
    ],
)
def test_who_shares_a_cluster_can_be_chosen(tmp_path: Path, scope: str, expected: str) -> None:
    assert shared(tmp_path, "antiphon_cluster", "--antiphon-scope", scope) == expected
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nantiphon_scope = {scope}\n")
    assert shared(tmp_path, "antiphon_cluster") == expected


def test_a_module_or_a_test_may_have_a_cluster_of_its_own(tmp_path: Path) -> None:
    assert shared(tmp_path, "antiphon_module_cluster") == "1 1 1 -1 2 2 2 -2"
    assert shared(tmp_path, "antiphon_own_cluster") == "1 -1 2 -2 3 -3 4 -4 5 -5 6 -6"


def test_a_scope_that_there_is_not_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nantiphon_scope = universe\n")
    (tmp_path / "test_one.py").write_text("def test_it(antiphon_cluster):\n    pass\n")
    said = run(tmp_path, code=4)
    assert "antiphon_scope is one of session, package, module, class, function, not 'universe'" in said


def test_it_is_an_entry_point_with_the_name_of_its_module() -> None:
    """Under another name pytest would refuse `-p antiphon.testing.plugin` where the package is installed."""
    project = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {plugin.__name__: plugin.__name__}
