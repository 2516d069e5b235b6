"""Runs jobs one after the other or on several processes, and gives their results in the order of the jobs."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol, TypeVar

J = TypeVar("J")


class Outcome(Protocol):
    """What a run comes to: `failure` is None where every promise was kept."""

    @property
    def failure(self) -> Any:
        """The broken promise, if any."""


A = TypeVar("A")
R = TypeVar("R", bound=Outcome)


def run_all(work: Callable[[J], A], jobs: Iterable[J], workers: int) -> Iterator[A]:
    """Results in the order of the jobs; with more than one worker they are spread over processes."""
    if workers <= 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(workers, initializer=_end_with_parent) as pool:
        try:
            yield from pool.map(work, jobs)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Have this worker end when the process that started it has: it would wait for jobs for ever after a `kill -9`."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="watches-parent", daemon=True).start()


def _end_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def until_failure(
    results: Iterable[R], progress: Callable[[R], None] | None = None
) -> tuple[list[R], R | None]:
    """Take results until one has failed; returns those before it, and the failed one or None."""
    passed: list[R] = []
    for result in results:
        if result.failure is not None:
            return passed, result
        passed.append(result)
        if progress is not None:
            progress(result)
    return passed, None
