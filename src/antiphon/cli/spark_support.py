"""What the commands that are Spark jobs share: the session, started with a sign of life and stopped at the end; a bar while
jobs run; and the environment of Spark's own commands.
"""

import os
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli.output import progress, reports_errors

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
    """A SparkSession for one command, and a progress bar for what it runs.

    Raises AntiphonError where Spark or Java is missing.
    """
    import antiphon.spark

    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-Dlog4j2.level=error")
    with progress("starting Spark"):
        session = antiphon.spark.session(name, master=master, config=config)
    try:
        with antiphon.spark.job_progress(session, name.removeprefix("antiphon").strip(" -") or name):
            yield session
    finally:
        with progress("stopping Spark"):
            session.stop()


@reports_errors
def spark_env() -> None:
    """Print what Spark's own commands need in their environment: Java, and the Python of this installation.

    spark-pipelines, spark-submit and pyspark look for Java in JAVA_HOME, and start the python3 of the PATH otherwise.
    """
    import antiphon.spark

    for name, value in antiphon.spark.environment().items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def mount(app: typer.Typer) -> None:
    """Add the command."""
    app.command("spark-env", epilog='Example: eval "$(antiphon spark-env)"; spark-pipelines run')(spark_env)
