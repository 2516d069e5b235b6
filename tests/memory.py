"""How much memory a piece of a test may take."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def allocated_at_most(limit_bytes: int) -> Iterator[None]:
    """What is allocated at any moment inside, beyond what was before, stays below the limit."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        yield
        assert tracemalloc.get_traced_memory()[1] - before < limit_bytes
    finally:
        tracemalloc.stop()
