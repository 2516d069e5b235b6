"""How who asks the gateway is answered, where it does not wait in a coroutine."""

from collections.abc import Callable
from typing import Any

Done = Callable[[Any], None]
"""Called once with the result that the awaitable form returns, or with the AntiphonError that it raises."""

Admit = Callable[[Callable[[], None]], None]
"""Called with what reads the rows of an answer, once they may be read: it reads now, or when there is room for them."""

AnsweredWithBulk = Callable[[Any, memoryview], None]
"""Called once with the reply's body and its bulk bytes, or with an AntiphonError and none."""
