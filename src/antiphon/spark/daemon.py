"""The process that forks Spark's Python workers, with what Antiphon's tasks need imported before the first fork.

Spark starts `python -m DAEMON WORKER`, where the setting `spark.python.daemon.module` names DAEMON. It has one such process
for tasks (WORKER is `pyspark.worker`) and some for planning, which need less and import nothing here.
"""

import contextlib
import gc
import importlib
import sys
from typing import Final

from pyspark import daemon

from antiphon.spark.starting import told_when_slow

TASKS: Final = "pyspark.worker"

# None of these may start a thread: a fork has the thread that forked, and none of the others. NumPy (OpenBLAS) and Arrow
# (jemalloc) have some, which these libraries stop and start around a fork by themselves.
IMPORTED: Final = (
    TASKS,
    "antiphon.spark.read.columns",
    "antiphon.spark.read.log_reader",
    "antiphon.spark.read.ranges",
    "antiphon.spark.read.snapshot",
    "antiphon.spark.write.sink",
    "antiphon.spark.write.topic_rows",
)
KERNELS: Final = "antiphon.records.arrow_encode"


def prepare() -> None:
    """Import it, and have the garbage collector pass over it in every worker.

    What cannot be imported is left to the tasks, which say why: Spark would only tell that its daemon ended.
    """
    for name in IMPORTED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        importlib.import_module(KERNELS).compile_kernels()
    gc.freeze()


def main() -> None:
    """Serve as Spark's own daemon does."""
    if sys.argv[1:] == [TASKS]:
        with told_when_slow():
            prepare()
    daemon.manager()


if __name__ == "__main__":
    main()
