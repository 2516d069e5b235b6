"""What a session or an installation cannot do is told before anything starts: without a JVM."""

import sys
from importlib import import_module
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import antiphon.spark
from antiphon.errors import InvalidRequestError
from antiphon.lake import mirror_table, mirror_topic
from antiphon.spark import connect, source
from antiphon.spark.jobs import bulk_load_job
from antiphon.spark.source import AntiphonDataSource

NOWHERE = "127.0.0.1:1"


def _of_connect(**attributes: Any) -> Any:
    """As a session of Spark Connect looks from outside: without a context."""
    return type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", **attributes})()


# -- without numba --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["reader", "streamReader", "writer", "streamWriter"])
def test_the_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None if name == "numba" else name)
    made = AntiphonDataSource({"servers": NOWHERE, "topic": "t"})
    more = {"overwrite": False} if "riter" in use else {}
    with pytest.raises(
        InvalidRequestError, match=r"^numba is not installed .*pip install 'antiphon\[spark\]'"
    ):
        getattr(made, use)(StructType([StructField("value", BinaryType())]), **more)


def test_a_task_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "antiphon.records.arrow_memory", raising=False)
    with pytest.raises(
        InvalidRequestError, match=r"^numba is not installed in this Python .*on every executor"
    ):
        import_module("antiphon.records.arrow_memory")


# -- Spark Connect --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirror", [mirror_topic, mirror_table])
def test_a_mirror_is_refused_before_anything_is_opened(mirror: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"{mirror.__name__} cannot run with Spark Connect"):
        mirror(_of_connect(), NOWHERE, "t", "delta:/nowhere/at/all")


def test_upserts_are_refused_before_the_query_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    write = antiphon.spark.upserts(NOWHERE, "t")
    frame = type("DataFrame", (), {"sparkSession": _of_connect()})()
    with pytest.raises(InvalidRequestError, match="upserts cannot run with Spark Connect"):
        write(frame, 0)
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(InvalidRequestError, match="upserts cannot run with Spark Connect"):
        antiphon.spark.upserts(NOWHERE, "t")


def test_jobs_that_only_ask_how_many_cores_there_are_do_without() -> None:
    session = _of_connect()
    assert connect.parallelism(session) == connect.PARALLELISM
    shards = [type("Shard", (), {"index": index, "hashes": (), "own_start": 0})() for index in range(4)]
    table: Any = type("Table", (), {"shards": shards})()
    assert bulk_load_job.slices_for(session, table) == 4
    context = type("Context", (), {"defaultParallelism": 6})()
    classic: Any = type("SparkSession", (), {"sparkContext": context})()
    assert connect.parallelism(classic) == 6
