"""Who sends a request: a principal as Kafka names them, `User:alice`."""

from typing import Final, NamedTuple

NAME_BYTES_MAX: Final = 255


class Principal(NamedTuple):
    """A type and a name. Users are the only type that access control lists name today."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""Everybody who connects to a listener that asks for no authentication."""

NODE: Final = Principal("Node", "cluster")
"""Another node of the cluster, and what this node does for itself."""
