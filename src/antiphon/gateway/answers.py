"""How who asks the gateway is answered, where it does not wait in a coroutine."""

import asyncio
from collections.abc import Callable
from typing import Any

Done = Callable[[Any], None]
"""Called once with the result that the awaitable form returns, or with the AntiphonError that it raises."""

Admit = Callable[[Callable[[], None]], None]
"""Called with what reads the rows of an answer, once they may be read: it reads now, or when there is room for them."""

AnsweredWithBulk = Callable[[Any, memoryview], None]
"""Called once with the reply's body and its bulk bytes, or with an AntiphonError and none."""


def awaited() -> "tuple[asyncio.Future[Any], Done]":
    """A future, and the callback that settles it: for who does wait, and may give up before the answer is there."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any) -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    return future, done
