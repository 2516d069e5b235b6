"""The example scripts with Spark run as they are, and show what they promise."""

import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from antiphon.tools.local_cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("spark_stream.py", [r"\|QUICK *\|", r"'the': 2\b", r"'fox': 1\b"]),
        ("spark_table.py", [r"\|LGA\|closed\|modified", r"\|EWR\| *NULL\| *deleted", r"\|EWR\| *open\|"]),
    ],
)
def test_a_script(
    script: str,
    shown: list[str],
    spark: "SparkSession",
    cluster: LocalCluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The scripts stop their session at the end; here it is the one of all tests.
    monkeypatch.setattr(type(spark), "stop", lambda _session: None)
    monkeypatch.setattr(sys, "argv", [script, cluster.native])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    said = capfd.readouterr().out
    for pattern in shown:
        assert re.search(pattern, said), said
