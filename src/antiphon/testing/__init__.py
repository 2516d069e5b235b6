"""A cluster inside a test: real nodes on this machine, and every fault that a Kafka client has to live with.

    import antiphon.testing

    with antiphon.testing.cluster(nodes=3) as c:
        producer = Producer({"bootstrap.servers": c.bootstrap_servers})
        c.nodes[0].kill()

docs/testing.md has all of it. The fixtures `antiphon_cluster` and `antiphon_topic` come from the pytest plug-in.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.testing.faults import Fault
    from antiphon.testing.running import Cluster, Node

__all__ = ["Cluster", "Fault", "Node", "cluster"]


def cluster(nodes: int = 3, *, directory: Path | str | None = None) -> "Cluster":
    """A cluster for `with` or `async with`: started at its beginning, stopped at its end.

    Topics are made when they are first used, and listeners take any free port.

    Args:
        nodes: how many, 1 to 64.
        directory: where their data is, and stays afterwards; by default a temporary one, which is removed.

    Raises:
        AntiphonError: at the beginning, with what `antiphon up` said when it could not start.
    """
    from antiphon.testing.running import Cluster

    return Cluster(nodes, None if directory is None else Path(directory))


def __getattr__(name: str) -> object:
    if name in ("Cluster", "Fault", "Node"):
        from antiphon.testing import running

        return getattr(running, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
