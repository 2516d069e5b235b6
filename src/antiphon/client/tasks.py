"""Tasks that run beside a call: how they begin and end, and what came of several together."""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def begin_task(work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
    """Run `work` as a task, which is in the set until it has ended."""
    task = asyncio.get_running_loop().create_task(work)
    among.add(task)
    task.add_done_callback(among.discard)


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait until they have ended, whatever comes of them. None stands for no task."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


async def all_ended(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order, when all have ended. Raises the first error, but only then."""
    found: list[T] = []
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found
