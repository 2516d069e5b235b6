"""Servers and nodes for tests of Spark; the session itself is the run's (`tests/conftest.py`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import antiphon
from antiphon.tools.local_cluster import LocalCluster
from tests.spark.native_server import NativeServer, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def server() -> Iterator[NativeServer]:
    """An empty native server in this process."""
    with running() as server:
        yield server


class Reader:
    """`spark.read` and `spark.readStream` of the server at hand."""

    def __init__(self, spark: "SparkSession", servers: str) -> None:
        self.spark = spark
        self.servers = servers

    def batch(self, **options: Any) -> Any:
        return self._set(self.spark.read.format("antiphon"), options).load()

    def stream(self, **options: Any) -> Any:
        return self._set(self.spark.readStream.format("antiphon"), options).load()

    def _set(self, reader: Any, options: dict[str, Any]) -> Any:
        return reader.options(
            servers=self.servers, timeoutMs="10000", **{k: str(v) for k, v in options.items()}
        )

    def write(self, frame: Any, **options: Any) -> None:
        """Append a batch DataFrame."""
        self._set(frame.write.format("antiphon").mode("append"), options).save()

    def run(self, frame: Any, checkpoint: Path, **options: Any) -> Any:
        """Write a streaming DataFrame until what is there now is through; returns the query."""
        query = (
            self._set(frame.writeStream.format("antiphon"), options)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(50), "the query hangs"
        return query


@pytest.fixture
def antiphon_reader(spark: "SparkSession", server: NativeServer) -> Reader:
    """Reads from and writes to `server`."""
    return Reader(spark, server.address)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three node processes for the tests of a module; who wants others has a fixture of this name."""
    with LocalCluster.start(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def db(cluster: LocalCluster) -> Iterator[antiphon.Client]:
    """A client of `cluster`."""
    with antiphon.connect(cluster.native) as db:
        yield db


@pytest.fixture
def reader(spark: "SparkSession", cluster: LocalCluster) -> Reader:
    """Reads from and writes to `cluster`."""
    return Reader(spark, cluster.native)
