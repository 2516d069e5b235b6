"""Makes the topic and the table that epochs are staged in before the first epoch needs them."""

from antiphon.client.blocking import Cluster
from antiphon.spark.option_values import TIMEOUT_MS_DEFAULT, parse_servers
from antiphon.spark.staging.blobs import ensure_internal


def make_staging(servers: str) -> None:
    """Make both with a replica on each node, as far as they are missing.

    A first epoch makes them as well, and is refused where a node is down then. `servers`: `host:port[,host:port...]`. Raises
    UnreachableError, TimedOutError and what the coordinator refuses with.
    """
    with Cluster(parse_servers(servers), TIMEOUT_MS_DEFAULT) as cluster:
        ensure_internal(cluster, len(cluster.metadata().nodes))
