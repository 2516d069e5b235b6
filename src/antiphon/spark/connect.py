"""What differs with Spark Connect, whose client has no SparkContext: who needs one says so before anything starts."""

from typing import TYPE_CHECKING, Final

from antiphon.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARALLELISM: Final = 8  # where the session does not say


def is_connect(spark: object) -> bool:
    """Is it a session of Spark Connect?"""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def refuse_connect(spark: object, what: str) -> None:
    """Raise InvalidRequestError where `what` is asked of a session of Spark Connect."""
    if is_connect(spark):
        raise refusal(what)


def refusal(what: str) -> InvalidRequestError:
    """The error for what cannot be done with Spark Connect."""
    return InvalidRequestError(
        f"{what} cannot run with Spark Connect, where foreachBatch runs in the server and does not know its query: "
        "start it in a program with a session of its own, such as antiphon.spark.session()"
    )


def parallelism(spark: "SparkSession") -> int:
    """Tasks that the session runs at the same time; `PARALLELISM` with Spark Connect."""
    return PARALLELISM if is_connect(spark) else max(1, int(spark.sparkContext.defaultParallelism))
