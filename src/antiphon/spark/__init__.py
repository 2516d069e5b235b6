"""Antiphon as a Spark source and sink: `format("antiphon")`, and a session to use it with.

`antiphon.spark.session()` starts a local SparkSession that needs nothing installed by hand. On any session whose workers
have this package the format is found by itself, through the top-level module `pyspark_antiphon`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from antiphon.spark.foreach_batch import upserts
from antiphon.spark.java import Java, JavaNotFoundError, find_java
from antiphon.spark.progress import job_progress
from antiphon.spark.servers import servers
from antiphon.spark.spark_session import environment, session

if TYPE_CHECKING:
    from antiphon.spark.lag import watch
    from antiphon.spark.source import AntiphonDataSource

__all__ = [
    "AntiphonDataSource",
    "Java",
    "JavaNotFoundError",
    "environment",
    "find_java",
    "job_progress",
    "servers",
    "session",
    "upserts",
    "watch",
]

# These need pyspark, which the rest here does without until it is used.
_WITH_PYSPARK: Final = {"AntiphonDataSource": "source", "watch": "lag"}


def __getattr__(name: str) -> Any:
    module = _WITH_PYSPARK.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
