"""The verdict on other projects' tests: only what fails and is known may fail."""

import json
from pathlib import Path

import pytest

from tests.interop import librdkafka
from tests.interop.librdkafka import Librdkafka
from tests.interop.run import judged, main, run_all
from tests.interop.suite import Outcome, Suite
from tests.peers.servers.peer import UnavailableError


class Told:
    """A suite with one known difference."""

    name = title = "told"
    differences = {"test_known": "we differ"}
    settings: dict[str, str] = {}

    def get(self, folder: Path) -> None:
        raise AssertionError(folder)

    def run(self, kafka: str, where: Path) -> list[Outcome]:
        raise AssertionError(kafka, where)


@pytest.mark.parametrize(
    ("outcomes", "wrong"),
    [
        ([Outcome("test_a", "passed"), Outcome("test_known", "failed", "so")], []),
        ([Outcome("test_a", "failed", "so")], ["test_a fails: so"]),
        ([Outcome("test_known", "passed")], ["test_known passes, and is listed as a difference"]),
        ([Outcome("test_known", "skipped")], []),
    ],
)
def test_only_known_differences_may_fail(outcomes: list[Outcome], wrong: list[str]) -> None:
    assert judged(Told(), outcomes) == wrong


def test_an_unknown_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nobody"])
    assert "no suite is called nobody" in capsys.readouterr().err


class Named(Told):
    """A suite that can be had, or cannot be had for a reason."""

    def __init__(self, name: str, missing: str = "") -> None:
        self.name = name
        self.title = f"The {name}"
        self._missing = missing

    def get(self, folder: Path) -> None:
        if self._missing:
            raise UnavailableError(self._missing)


def _run(suite: Suite, _where: Path) -> list[Outcome]:
    if suite.name == "broken":
        raise ConnectionError("no nodes")
    known = Outcome("test_known", "failed", "so")
    return [known, Outcome("test_a", "failed" if suite.name == "red" else "passed", "because")]


def test_suites_follow_one_another_whatever_becomes_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suites = (Named("red"), Named("broken"), Named("absent", "no compiler"), Named("green"))
    monkeypatch.setattr("tests.interop.run.SUITES", suites)
    monkeypatch.setattr("tests.interop.run.run_all", lambda these, out: run_all(these, out, _run))
    assert main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out.rpartition("\n\n")[2].splitlines() == [
        "suite       passed  known  failed  skipped  seconds",
        "The red          0      1       1        0        0  1 unexplained",
        "The broken       0      0       1        0        0  1 unexplained",
        "The absent       -      -       -        -        -  not run: no compiler",
        "The green        1      1       0        0        0",
        "The red: test_a fails: because",
        "The broken: all fails: it broke off: ConnectionError('no nodes')",
    ]
    told = json.loads((tmp_path / "interop.json").read_text())
    assert list(told) == ["red", "broken", "absent", "green"]
    assert told["absent"]["skipped"] == "no compiler"
    assert main(["green", "absent", "--out", str(tmp_path)]) == 0


def test_the_packages_that_librdkafka_is_built_with_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"bash", "make", "gcc", "java"}
    monkeypatch.setattr("shutil.which", lambda program: program if program in here else None)
    with pytest.raises(UnavailableError, match=r"apt-get install build-essential npm$"):
        Librdkafka().get(Path("never"))
    here |= {"g++", "npm"}
    monkeypatch.setattr(librdkafka, "_is_found", lambda header: header == "zlib.h")
    with pytest.raises(UnavailableError, match=r"apt-get install libssl-dev libzstd-dev rapidjson-dev$"):
        Librdkafka().get(Path("never"))
