"""What the commands that are Spark jobs share: the session, started with a sign of life and stopped at the end; a bar while
jobs run; and the environment of Spark's own commands.
"""

import os
import shlex
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli.declare import JsonOption, command
from antiphon.cli.output import progress, say
from antiphon.errors import AntiphonError

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
def spark_job(name: str, master: str | None = None) -> "Iterator[SparkSession]":
    """A SparkSession for one command, and a progress bar for what it runs.

    What Spark and its workers have to say on stderr goes to a file, which stays where the command fails.

    Raises AntiphonError where Spark or Java is missing, and in place of an exception of Spark's that has one of ours within.
    """
    import antiphon.spark

    handle, log = tempfile.mkstemp(prefix="antiphon-spark-", suffix=".log")
    os.close(handle)
    keep = False
    try:
        with _children_write_to(log), progress("starting Spark"):
            session = antiphon.spark.session(name, master=master)
        try:
            with antiphon.spark.job_progress(session, name.removeprefix("antiphon").strip(" -") or name):
                yield session
        finally:
            with progress("stopping Spark"):
                session.stop()
    except (AntiphonError, typer.Exit, typer.Abort):
        raise  # they say all there is to say
    except Exception as error:
        keep = True
        from antiphon.spark.spark_errors import error_class, our_error

        ours = our_error(str(error))
        if ours is not None:
            raise error_class(ours)(f"{ours} (Spark's own log: {log})") from error
        error.add_note(f"Spark's own log: {log}")
        raise
    finally:
        if not keep:
            Path(log).unlink(missing_ok=True)


@contextmanager
def _children_write_to(log: str) -> "Iterator[None]":
    """Processes that are started within write their stderr to a file, for as long as they live; ours stays what it was."""
    sys.stderr.flush()
    before, own = sys.stderr, os.dup(2)
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        if before is sys.__stderr__:  # and not what a test has put there
            sys.stderr = os.fdopen(os.dup(own), "w", encoding="utf-8", errors="backslashreplace")
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        if sys.stderr is not before:
            sys.stderr.close()
            sys.stderr = before


@command("spark-env", 'eval "$(antiphon spark-env)"; spark-pipelines run')
def spark_env(as_json: JsonOption = False) -> None:
    """Print what Spark's own commands need in their environment: Java, and the Python of this installation.

    spark-pipelines, spark-submit and pyspark look for Java in JAVA_HOME, and start the python3 of the PATH otherwise.
    """
    import antiphon.spark

    found = antiphon.spark.environment()
    lines = (f"export {name}={shlex.quote(value)}" for name, value in found.items())
    say("\n".join(lines), found, as_json=as_json)


@command("spark-warm", "antiphon spark-warm")
def spark_warm(as_json: JsonOption = False) -> None:
    """Make Spark start in half the time on this machine: keep its classes as Java has them in memory, in a file.

    Takes half a minute and 200 MB, once for each user, Java and version of Spark. Sessions of antiphon.spark.session(), and
    commands that are Spark jobs, use the file from then on; another Java or Spark passes it over.
    """
    from antiphon.spark.classes import keep_classes

    with progress("running Spark once"):
        file = keep_classes()
    size = file.stat().st_size
    text = f"Spark's classes are kept in {file} ({size // 1_000_000} MB)"
    say(text, {"file": str(file), "bytes": size}, as_json=as_json)
