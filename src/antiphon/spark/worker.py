"""What a Python worker of Spark keeps from one task to the next."""

import gc
import os
import sys
from typing import Final

# Spark sets it for Python processes that are to take one task after the other.
REUSED: Final = "SPARK_REUSE_WORKER"

_modules = 0  # how many there were when the collector was last told to pass over them


def spare_imports() -> None:
    """Have the garbage collector pass over what is imported, in a worker that takes more tasks; does nothing elsewhere.

    Spark's workers collect all garbage after each task. With the modules of pandas and pyarrow in memory that takes 40 ms:
    more than all else that a task of a small micro-batch does, and the next task waits for it. Call this when a task has
    imported what it needs. What is garbage by then is collected first, once for each set of new modules.
    """
    global _modules  # noqa: PLW0603 - a process has one collector, too
    if not os.environ.get(REUSED) or len(sys.modules) == _modules:
        return
    _modules = len(sys.modules)
    gc.collect()
    gc.freeze()
