"""What the cluster's own log says of users, access control lists and quotas, version by version: what nodes are held to.

A node that knows the metadata up to one version when a request begins knows no version after the log's end when the answer
comes. Whatever it decided must be right by one of the versions in between.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from antiphon.model.access import Acl, Operation, Pattern, Permission
from antiphon.simulation.cluster.workloads.cluster_log import ClusterLog

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster


class Known(NamedTuple):
    """As of one version of the metadata."""

    version: int
    users: frozenset[str]
    acls: frozenset[Acl]
    quotas: frozenset[str]  # users with one
    keys: frozenset[tuple[str, bytes]] = frozenset()  # users, and what their passwords are known by


class Moment(NamedTuple):
    """When a request was begun at a node: which version that knew."""

    version: int


class AccessHistory:
    """See the module's text."""

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self._cluster = cluster
        self._log = ClusterLog(cluster)
        self._seen = 0  # version of the lists
        self._known = [Known(-1, frozenset(), frozenset(), frozenset())]

    def moment(self, node: int) -> Moment | None:
        """What a node knows now; None for one that does not run, or knows no metadata yet."""
        running = self._cluster.machines[node].node
        version = -1 if running is None else running.view.version
        return None if version < 0 else Moment(version)

    def now(self) -> Known:
        """What is committed."""
        self._follow()
        return self._known[-1]

    def could(self, since: Moment, holds: Callable[[Known], bool]) -> bool:
        """Was it so in any version that a node may have gone by since then?"""
        self._follow()
        for known in reversed(self._known):
            if holds(known):
                return True
            if known.version <= since.version:
                return False
        return False

    def gone_at(self, user: str, key: bytes) -> int | None:
        """The version that took a user's password away, which had been one; None: it is one, or was none yet."""
        self._follow()
        gone: int | None = None
        for known in reversed(self._known):
            if (user, key) in known.keys:
                return gone
            gone = known.version
        return None

    def _follow(self) -> None:
        for version in self._log.news():
            seen = self._log.state.access.version
            if seen != self._seen:
                self._seen = seen
                self._known.append(self._snapshot(version))

    def _snapshot(self, version: int) -> Known:
        book = self._log.state.access
        limited = frozenset(quota.user or "" for quota in book.quotas.values())
        keys = frozenset(
            (user.name, one.stored_key) for user in book.users.values() for one in user.credentials
        )
        return Known(version, frozenset(book.users), frozenset(book.acls.values()), limited, keys)


def allowed(known: Known, user: str, operation: Operation, topic: str) -> bool:
    """Kafka's rule, for READ and WRITE of topics: DENY wins, and what no entry allows is denied."""
    found = {acl.permission for acl in known.acls if _is_about(acl, user, operation, topic)}
    return Permission.DENY not in found and Permission.ALLOW in found


def _is_about(acl: Acl, user: str, operation: Operation, topic: str) -> bool:
    if acl.principal not in {f"User:{user}", "User:*"} or acl.operation not in {operation, Operation.ALL}:
        return False
    if acl.pattern is Pattern.PREFIXED:
        return topic.startswith(acl.name)
    return acl.name in {topic, "*"}
