"""Tests that are coroutines: each way to run them is a decorator."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

CoroutineTest = Callable[..., Coroutine[Any, Any, None]]


def run_by(
    run: Callable[[CoroutineTest], None], given: int = 0
) -> Callable[[CoroutineTest], Callable[..., None]]:
    """A decorator for tests that `run` carries out; it calls the test with its first `given` arguments.

    All other arguments are fixtures and parameters, which pytest gives.
    """

    def decorate(test: CoroutineTest) -> Callable[..., None]:
        @wraps(test)
        def ran(**by_pytest: Any) -> None:
            run(lambda *first: test(*first, **by_pytest))

        shown: Any = ran
        signature = inspect.signature(test)
        shown.__signature__ = signature.replace(parameters=list(signature.parameters.values())[given:])
        return ran

    return decorate


on_a_loop = run_by(lambda test: asyncio.run(test()))
"""A test that is a coroutine, on asyncio's own loop in real time."""
