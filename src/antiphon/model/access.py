"""Users, access control lists and quotas: what the cluster's metadata says of who may do what.

The names are Kafka's. Clients never receive these records with the rest of the metadata: only nodes do, in deltas.
"""

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from antiphon.model.quotas import Quota

ANY: Final = "*"  # of a literal resource name, of a host, of the name of a user: all of them
CLUSTER_NAME: Final = "kafka-cluster"  # the one resource of type cluster
USERS_MAX: Final = 10_000
ACLS_MAX: Final = 10_000
QUOTAS_MAX: Final = 10_000


class Resource(StrEnum):
    """What access control lists protect."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional_id"
    TABLE = "table"


class Operation(StrEnum):
    """What a principal may want to do. ALL stands for every other one."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster_action"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"
    IDEMPOTENT_WRITE = "idempotent_write"


class Pattern(StrEnum):
    """How the name of an access control list matches that of a resource."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class Permission(StrEnum):
    """What an access control list says; DENY wins."""

    ALLOW = "allow"
    DENY = "deny"


class Credential(msgspec.Struct, frozen=True, array_like=True):
    """What a node keeps of a password for one SCRAM mechanism (RFC 5802): it proves one, and does not reveal it."""

    mechanism: str  # SCRAM-SHA-256 or SCRAM-SHA-512
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Credential({self.mechanism}, {self.iterations} iterations)"


class User(msgspec.Struct, frozen=True, array_like=True):
    """A user and its credentials, at most one of each mechanism."""

    name: str
    credentials: tuple[Credential, ...] = ()

    def credential(self, mechanism: str) -> Credential | None:
        """The credential for a mechanism, or None."""
        return next((one for one in self.credentials if one.mechanism == mechanism), None)


class Acl(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One entry of the access control lists: Kafka's AccessControlEntry with its ResourcePattern."""

    principal: str  # User:alice, or User:*
    resource: Resource
    name: str
    operation: Operation
    pattern: Pattern = Pattern.LITERAL
    permission: Permission = Permission.ALLOW
    host: str = ANY

    @property
    def key(self) -> str:
        """What it is recorded under: a digest of all of its fields."""
        whole = "\0".join(msgspec.structs.astuple(self)).encode()
        return hashlib.blake2b(whole, digest_size=16).hexdigest()


class AccessDelta(msgspec.Struct, frozen=True, array_like=True):
    """What changed of users, lists and quotas since a version of the metadata."""

    users: tuple[User, ...] = ()
    gone_users: tuple[str, ...] = ()
    acls: tuple[Acl, ...] = ()
    gone_acls: tuple[str, ...] = ()  # keys
    quotas: tuple[Quota, ...] = ()
    gone_quotas: tuple[str, ...] = ()  # keys


NO_CHANGE: Final = AccessDelta()


class AccessBook:
    """A copy of all users, lists and quotas, kept up to date. `version` rises with each change.

    `is_known` is False at a node that was just started, until it hears of any metadata: there may be more than is in it.
    """

    def __init__(self) -> None:
        self.version = 0
        self.is_known = True
        self.users: dict[str, User] = {}
        self.acls: dict[str, Acl] = {}
        self.quotas: dict[str, Quota] = {}
        self._iterations: dict[str, tuple[int, list[int]]] = {}  # by mechanism: as of which version

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """All three by the kind of what is in them."""
        return {"user": self.users, "acl": self.acls, "quota": self.quotas}

    def iterations(self, mechanism: str) -> list[int]:
        """With how many iterations users' passwords are kept, in order; looked for once in each version."""
        version, found = self._iterations.get(mechanism, (-1, []))
        if version != self.version:
            kept = (one for user in self.users.values() for one in user.credentials)
            found = sorted({one.iterations for one in kept if one.mechanism == mechanism})
            self._iterations[mechanism] = self.version, found
        return found

    def apply(self, delta: AccessDelta, *, whole: bool) -> None:
        """Take over a delta; a `whole` one replaces everything."""
        if not whole and delta == NO_CHANGE:
            return
        self.is_known |= whole
        if whole:
            for table in self.tables.values():
                table.clear()
        for name in delta.gone_users:
            self.users.pop(name, None)
        for key in delta.gone_acls:
            self.acls.pop(key, None)
        for name in delta.gone_quotas:
            self.quotas.pop(name, None)
        self.users.update((user.name, user) for user in delta.users)
        self.acls.update((acl.key, acl) for acl in delta.acls)
        self.quotas.update((quota.key, quota) for quota in delta.quotas)
        self.version += 1

    def copy(self) -> "AccessBook":
        """An independent copy."""
        other = AccessBook()
        other.version = self.version
        for kind, table in self.tables.items():
            other.tables[kind].update(table)
        return other

    def changes(self, names: Mapping[str, Iterable[str]]) -> AccessDelta:
        """The delta of these users, lists and quotas (both by key), named under `user`, `acl` and `quota`."""
        users, acls, quotas = names.get("user", ()), names.get("acl", ()), names.get("quota", ())
        return AccessDelta(
            users=tuple(self.users[name] for name in users if name in self.users),
            gone_users=tuple(name for name in users if name not in self.users),
            acls=tuple(self.acls[key] for key in acls if key in self.acls),
            gone_acls=tuple(key for key in acls if key not in self.acls),
            quotas=tuple(self.quotas[key] for key in quotas if key in self.quotas),
            gone_quotas=tuple(key for key in quotas if key not in self.quotas),
        )

    def get(self, kind: str, name: str) -> Any:
        """One `user`, `acl` or `quota` (both by their keys), or None."""
        return self.tables[kind].get(name)

    def put(self, kind: str, name: str, value: Any) -> bool:
        """Set one `user`, `acl` or `quota` (both by their keys); None removes it. False: it was so already."""
        table = self.tables[kind]
        if value is None:
            table.pop(name, None)
        elif table.get(name) == value:
            return False
        else:
            table[name] = value
        self.version += 1
        return True
