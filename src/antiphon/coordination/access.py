"""Commands about users, access control lists and quotas: what they may say, and how many there may be."""

from typing import Final, NamedTuple

from antiphon.coordination.ledger import Ledger
from antiphon.errors import InvalidRequestError
from antiphon.model.access import (
    ACLS_MAX,
    ANY,
    CLUSTER_NAME,
    QUOTAS_MAX,
    USERS_MAX,
    AccessBook,
    Acl,
    Credential,
    Operation,
    Pattern,
    Resource,
    User,
)
from antiphon.model.quotas import Quota, check_quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser

KEY_BYTES: Final = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
SALT_BYTES: Final = (12, 64)
ITERATIONS: Final = (4096, 1_000_000)
NAME_BYTES_MAX: Final = 255
RESOURCE_BYTES_MAX: Final = 1024
PRINCIPAL_PREFIX: Final = "User:"
RESERVED: Final = "__"  # the nodes themselves

_ANYTHING: Final = frozenset(Operation) - {Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE}
_OF_GROUPS: Final = frozenset({Operation.ALL, Operation.READ, Operation.DELETE, Operation.DESCRIBE})
_OF_CLUSTER: Final = frozenset(Operation) - {Operation.READ, Operation.WRITE, Operation.DELETE}
_OF_TRANSACTIONS: Final = frozenset({Operation.ALL, Operation.WRITE, Operation.DESCRIBE})
OPERATIONS_OF: Final[dict[Resource, frozenset[Operation]]] = {
    Resource.TOPIC: _ANYTHING,
    Resource.TABLE: _ANYTHING,
    Resource.GROUP: _OF_GROUPS,
    Resource.CLUSTER: _OF_CLUSTER,
    Resource.TRANSACTIONAL_ID: _OF_TRANSACTIONS,
}
"""What can be done with a resource of each type; a list that names anything else is refused."""


class Change(NamedTuple):
    """Of one `user`, `acl` or `quota`; `value` of None: it is gone."""

    kind: str
    name: str
    value: User | Acl | Quota | None


def carry_out(ledger: Ledger, request: AlterUser | AlterAcls | AlterQuota) -> None:
    """Write what the request changes; raises InvalidRequestError, with nothing written."""
    for change in changes(ledger.model.access, request):
        ledger.put_access(*change)


def changes(access: AccessBook, request: AlterUser | AlterAcls | AlterQuota) -> list[Change]:
    """What the request changes. Raises InvalidRequestError for what is refused."""
    match request:
        case AlterUser():
            return _alter_user(access, request)
        case AlterAcls():
            return _alter_acls(access, request)
        case AlterQuota():
            return _alter_quota(access, request)


def _alter_user(access: AccessBook, request: AlterUser) -> list[Change]:
    users = access.users
    if request.if_none and users:
        return []
    _check_user_name(request.name)
    for credential in request.credentials:
        _check_credential(credential)
    mechanisms = [one.mechanism for one in request.credentials]
    if len(set(mechanisms)) != len(mechanisms) or set(mechanisms) & set(request.gone_mechanisms):
        raise InvalidRequestError("a mechanism is named more than once for one user")
    found = users.get(request.name)
    lacking = [name for name in request.gone_mechanisms if found is None or found.credential(name) is None]
    if lacking or (request.remove and found is None):
        raise InvalidRequestError(
            f"user {request.name!r} has no such credential" if found else f"no user {request.name!r}",
            unknown="user",
        )
    replaced = {*mechanisms, *request.gone_mechanisms}
    kept = () if request.remove or found is None else found.credentials
    credentials = (*(one for one in kept if one.mechanism not in replaced), *request.credentials)
    if credentials and found is None and len(users) >= USERS_MAX:
        raise InvalidRequestError(f"there are {USERS_MAX:,} users already")
    if not credentials and found is None:
        raise InvalidRequestError("a user is made by its first credential")
    after = User(request.name, credentials) if credentials else None
    return [Change("user", request.name, after)]


def _alter_acls(access: AccessBook, request: AlterAcls) -> list[Change]:
    known = access.acls
    for acl in request.add:
        check_acl(acl)
    removed = {acl.key: acl for acl in request.remove}
    added = {acl.key: acl for acl in request.add}
    after = (known.keys() - removed.keys()) | added.keys()
    if len(after) > ACLS_MAX and len(after) > len(known):
        raise InvalidRequestError(f"there would be {len(after):,} entries; at most {ACLS_MAX:,} are kept")
    gone = sorted(removed.keys() & (known.keys() - added.keys()))
    return [
        *(Change("acl", key, None) for key in gone),
        *(Change("acl", key, acl) for key, acl in added.items() if key not in known),
    ]


def _alter_quota(access: AccessBook, request: AlterQuota) -> list[Change]:
    quota = request.quota
    check_quota(quota, request.gone)
    if set(request.gone) & quota.limits.keys():
        raise InvalidRequestError("a limit is set and taken away by one request")
    known = access.quotas
    before = known.get(quota.key)
    after = quota if before is None else before.changed(quota, request.gone)
    if after == before or (before is None and not after.limits):
        return []
    if before is None and len(known) >= QUOTAS_MAX:
        raise InvalidRequestError(f"there are {QUOTAS_MAX:,} quotas already")
    return [Change("quota", quota.key, after if after.limits else None)]


def check_acl(acl: Acl) -> None:
    """Raise InvalidRequestError for an entry that could never match, or says what does not exist."""
    if not acl.principal.startswith(PRINCIPAL_PREFIX):
        raise InvalidRequestError(f"{acl.principal!r} is no principal; write it as User:alice or User:*")
    _check_user_name(acl.principal.removeprefix(PRINCIPAL_PREFIX))
    _check_text("the name of a resource", acl.name, RESOURCE_BYTES_MAX)
    _check_text("a host", acl.host, NAME_BYTES_MAX)
    if acl.operation not in OPERATIONS_OF[acl.resource]:
        raise InvalidRequestError(f"{acl.operation} is nothing that is done with a {acl.resource}")
    if acl.pattern is Pattern.PREFIXED and acl.name == ANY:
        raise InvalidRequestError("a pattern for every resource is literal '*'")
    if acl.resource is Resource.CLUSTER and (acl.pattern, acl.name) != (Pattern.LITERAL, CLUSTER_NAME):
        raise InvalidRequestError(f"the resource of type cluster is literal {CLUSTER_NAME!r}")


def _check_credential(credential: Credential) -> None:
    size = KEY_BYTES.get(credential.mechanism)
    if size is None:
        raise InvalidRequestError(
            f"credentials are for {' or '.join(KEY_BYTES)}, not {credential.mechanism!r}"
        )
    if len(credential.stored_key) != size or len(credential.server_key) != size:
        raise InvalidRequestError(f"keys of {credential.mechanism} have {size} bytes")
    if not SALT_BYTES[0] <= len(credential.salt) <= SALT_BYTES[1]:
        raise InvalidRequestError(f"a salt has {SALT_BYTES[0]} to {SALT_BYTES[1]} bytes")
    if not ITERATIONS[0] <= credential.iterations <= ITERATIONS[1]:
        raise InvalidRequestError(f"iterations are {ITERATIONS[0]:,} to {ITERATIONS[1]:,}")


def _check_user_name(name: str) -> None:
    if name.startswith(RESERVED):
        raise InvalidRequestError(f"names of users do not begin with {RESERVED!r}")
    _check_text("the name of a user", name, NAME_BYTES_MAX)


def _check_text(what: str, text: str, bytes_max: int) -> None:
    if not 0 < len(text.encode()) <= bytes_max or not text.isprintable():
        raise InvalidRequestError(f"{what} has 1 to {bytes_max} bytes of printable characters")
