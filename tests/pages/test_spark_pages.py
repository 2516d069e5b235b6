"""The pages with Spark, in the session of the run: `antiphon.spark.session()` gives it to them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import antiphon
import antiphon.spark
from antiphon.tools.local_cluster import LocalCluster
from tests.pages.blocks import Reader, blocks_of
from tests.pages.not_run import PAGES, runs, wants_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(3) as started:
        yield started


@pytest.fixture(autouse=True)
def tables_that_all_replicas_write(cluster: LocalCluster) -> Iterator[None]:
    """They go with their page: a backup of the whole cluster cannot have them, and says so."""
    yield
    with antiphon.connect(cluster.native) as db:
        for topic in db.metadata().topics:
            if topic.config.get("writers") == "multi":
                db.delete_table(topic.name)


@pytest.mark.parametrize("page", [page for page in PAGES if wants_spark(page)])
def test_the_code_of_a_page(
    page: str, cluster: LocalCluster, tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(antiphon.spark, "session", lambda: spark)
    with Reader(cluster, tmp_path) as reader:
        for block in filter(runs, blocks_of(page)):
            reader.follow(block)
