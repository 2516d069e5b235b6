"""Spark's daemon that forks Python workers, with all that they import imported once, before the first of them.

The tests start workers by the hundred, many only to kill them, and imports take most of the life of such a worker.
Run by Spark as `python -m tests.spark.warm_daemon pyspark.worker`.
"""

import pandas as pd  # noqa: F401 - for the workers; so are the others
import pyspark.worker  # noqa: F401
from pyspark import daemon

from antiphon.records.arrow_encode import compile_kernels
from antiphon.spark import source  # noqa: F401
from antiphon.spark.read import log_reader, snapshot  # noqa: F401
from antiphon.spark.write import sink, topic_rows  # noqa: F401

if __name__ == "__main__":
    compile_kernels()
    daemon.manager()
