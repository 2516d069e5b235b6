"""A listener as the node sees it: what reads requests from sockets, and can be told to read no more."""

from typing import Protocol


class Intake(Protocol):
    """Where the node stops reading while it has too much in hand. A hold that is released twice does no harm."""

    def hold_clients(self) -> None:
        """Read no more requests of clients: the node has too many bytes appended that are not committed."""

    def release_clients(self) -> None:
        """Read requests of clients again."""

    def hold_disk(self) -> None:
        """Read nothing, from nodes either: too many bytes wait for the disk."""

    def release_disk(self) -> None:
        """The disk has caught up."""
