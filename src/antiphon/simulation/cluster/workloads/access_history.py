"""What the cluster's own log says of users, access control lists and quotas, version by version: what nodes are held to.

A node that knows the metadata up to one version when a request begins knows no version after the log's end when the answer
comes. Whatever it decided must be right by one of the versions in between.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.model.access import Acl, Operation, Pattern, Permission, Resource
from antiphon.model.quotas import Quota
from antiphon.simulation.cluster.workloads.cluster_log import ClusterLog

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster


DESCRIBED_BY: Final = frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER})
"""Who may do one of these may describe."""
Entity = tuple[str | None, str | None, str | None]


class Known(NamedTuple):
    """As of one version of the metadata."""

    version: int
    users: frozenset[str]
    acls: frozenset[Acl]
    quotas: frozenset[str]  # users with one
    keys: frozenset[tuple[str, bytes]] = frozenset()  # users, and what their passwords are known by
    limits: Mapping[Entity, Quota] = {}

    def limit(self, name: str, *entities: Entity) -> float | None:
        """What the first of these entities that says something of a limit says; None: none of them does."""
        quotas = (self.limits.get(entity) for entity in entities)
        found = (None if quota is None else quota.limits.get(name) for quota in quotas)
        return next((limit for limit in found if limit is not None), None)


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

    def quota_changes(self, since: Moment) -> int:
        """How often the quotas have changed since then. Each time frees those who wait, for one request each."""
        self._follow()
        later = [known.limits for known in self._known if known.version > since.version]
        before = [known.limits for known in self._known if known.version <= since.version][-1:]
        return sum(one != other for one, other in pairwise([*before, *later]))

    def first_quota_change(self, since: Moment) -> int | None:
        """The version of the first change of the quotas after that; None: they have not changed."""
        self._follow()
        before = [known.limits for known in self._known if known.version <= since.version][-1]
        later = (known for known in self._known if known.version > since.version)
        return next((known.version for known in later if known.limits != before), None)

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
        limits = {quota.entity: quota for quota in book.quotas.values()}
        return Known(version, frozenset(book.users), frozenset(book.acls.values()), limited, keys, limits)


def allowed(
    known: Known, user: str, operation: Operation, name: str, resource: Resource = Resource.TOPIC
) -> bool:
    """Kafka's rule, for READ, WRITE and DESCRIBE: DENY wins, and what no entry allows is denied."""
    forbids = {operation, Operation.ALL}
    lets = forbids | DESCRIBED_BY if operation is Operation.DESCRIBE else forbids
    found = [acl for acl in known.acls if acl.resource is resource and _is_about(acl, user, name)]
    denied = any(acl.permission is Permission.DENY and acl.operation in forbids for acl in found)
    return not denied and any(acl.permission is Permission.ALLOW and acl.operation in lets for acl in found)


def _is_about(acl: Acl, user: str, name: str) -> bool:
    if acl.principal not in {f"User:{user}", "User:*"}:
        return False
    if acl.pattern is Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in {name, "*"}
