"""Clients and what they open, as contexts: closed at the end of a `with`."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closes(ABC):
    """For programs that block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""


class AsyncCloses(ABC):
    """On an event loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Let go of what is open."""


class StartsAndCloses(AsyncCloses):
    """The same, which begins with the `with`."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    @abstractmethod
    async def start(self) -> None:
        """Begin."""
