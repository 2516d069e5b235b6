"""Who sends requests, as far as those who carry them out need to know."""

from typing import Protocol


class Sender(Protocol):
    """One connection of a client. Its requests are carried out in their order."""

    @property
    def is_gone(self) -> bool:
        """Has it hung up? What has not begun is then for nobody."""
