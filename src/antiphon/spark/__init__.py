"""Antiphon as a Spark source and sink: `format("antiphon")`, and a session to use it with.

`antiphon.spark.session()` starts a local SparkSession that needs nothing installed by hand. On any session whose workers
have this package the format is found by itself, through the top-level module `pyspark_antiphon`.
"""

from typing import TYPE_CHECKING, Any

from antiphon.spark.foreach_batch import upserts
from antiphon.spark.java import Java, JavaNotFoundError, find_java
from antiphon.spark.spark_session import session

if TYPE_CHECKING:
    from antiphon.spark.source import AntiphonDataSource

__all__ = ["AntiphonDataSource", "Java", "JavaNotFoundError", "find_java", "session", "upserts"]


def __getattr__(name: str) -> Any:
    if name == "AntiphonDataSource":  # needs pyspark, which the rest here does without until it is used
        from antiphon.spark.source import AntiphonDataSource

        return AntiphonDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
