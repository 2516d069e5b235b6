"""The verdict on other projects' tests: only what fails and is known may fail."""

from pathlib import Path

import pytest

from tests.interop.run import judged, main
from tests.interop.suite import Outcome


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
