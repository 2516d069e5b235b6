"""The pages with Spark, in the session of the run: `antiphon.spark.session()` gives it to them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import antiphon.spark
from antiphon.tools.local_cluster import LocalCluster
from tests.pages.blocks import blocks_of
from tests.pages.not_run import PAGES, runs, wants_spark
from tests.pages.scenes import scene

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(3) as started:
        yield started


@pytest.mark.parametrize("page", [page for page in PAGES if wants_spark(page)])
def test_the_code_of_a_page(
    page: str, cluster: LocalCluster, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(antiphon.spark, "session", lambda: spark)
    with scene(page, cluster, tmp_path, spark=spark) as reader:
        for block in filter(runs, blocks_of(page)):
            reader.follow(block)
