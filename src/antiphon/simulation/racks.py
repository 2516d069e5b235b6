"""Where the simulated nodes of a cluster stand."""

from typing import Final

RACKS: Final = 2


def rack_of(node_id: int) -> str:
    """The rack of a node."""
    return f"rack-{node_id % RACKS}"
