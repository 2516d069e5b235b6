"""`antiphon.local()`: a cluster of this process's own, and a client of it; both end together."""

import weakref
from pathlib import Path
from typing import Final

from antiphon.client.sync import Client
from antiphon.tools.local_cluster import LocalCluster

TIMEOUT_S: Final = 30.0


class LocalClient(Client):
    """A client whose `close` also stops the nodes, as the end of `with` and of the process do.

    Attributes:
        cluster: the nodes: their addresses are `cluster.kafka`, `cluster.native` and `cluster.http`.
    """

    def __init__(self, cluster: LocalCluster, timeout_s: float) -> None:
        self.cluster = cluster
        self._stops = weakref.finalize(self, cluster.stop)  # first, so that the client is closed before
        super().__init__(cluster.native, timeout_s=timeout_s)

    def __repr__(self) -> str:
        count, state = len(self.cluster.nodes), "running" if self._stops.alive else "stopped"
        return f"<antiphon.local: {count} node{'s' * (count > 1)} in {self.cluster.dir}, {state}>"

    def close(self) -> None:
        """Close the client and stop the nodes. A second close does nothing."""
        super().close()
        self._stops()


def local(
    nodes: int = 1, *, directory: Path | str | None = None, timeout_s: float = TIMEOUT_S
) -> LocalClient:
    """Start nodes on free ports of this machine and connect to them; they end with the client, or with the process.

        with antiphon.local() as db:
            db.create_topic("clicks").append(b"first")

    Where this process is killed with SIGKILL, its nodes go on; `antiphon down --dir DIR` stops them.

    Args:
        nodes: how many, 1 to 64. A directory that was used before keeps those that it has.
        directory: where their data is, and stays afterwards; by default a temporary one, which is removed.
        timeout_s: default limit of a call of the client.

    Raises:
        AntiphonError: with what `antiphon up` said when it could not start.
    """
    cluster = LocalCluster.start(nodes, None if directory is None else Path(directory))
    try:
        client = LocalClient(cluster, timeout_s)
        client.connect()
    except BaseException:
        cluster.stop()
        raise
    return client
