"""What the commands that are Spark jobs share: the session, started with a sign of life and stopped at the end."""

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli.output import progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="A Spark master, such as spark://host:7077; default: this machine.",
        show_default=False,
    ),
]


@contextmanager
def spark_job(
    name: str, master: str | None = None, config: dict[str, Any] | None = None
) -> "Iterator[SparkSession]":
    """A SparkSession for one command. Raises AntiphonError where Spark or Java is missing."""
    import antiphon.spark

    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-Dlog4j2.level=error")
    with progress("starting Spark"):
        session = antiphon.spark.session(name, master=master, config=config)
    try:
        yield session
    finally:
        session.stop()
