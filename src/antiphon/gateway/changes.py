"""Changes of users, access control lists and quotas, with a line in this node's log: who has changed what, from where.

Lines are for those who ask afterwards, so none is left out: whoever causes one has the right to change the cluster. They
never have what proves an identity, a password's keys neither.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import structlog

from antiphon.errors import AntiphonError
from antiphon.gateway.interface import Gateway
from antiphon.model.access import Acl
from antiphon.model.requests import AdminRequest, AlterAcls, AlterQuota, AlterUser
from antiphon.security.authorizer import Rights
from antiphon.security.bounded_lines import shown

EVENT: Final = "access_changed"
NAME_MAX: Final = 300  # characters of a name in a line
ENTRIES: Final = 100  # of access control lists in one line
TIMEOUT_S: Final = 30.0


async def administer(
    gateway: Gateway,
    request: AdminRequest,
    rights: Rights,
    host: str,
    listener: str,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Have the coordinator carry out a request of a client, with a line about it if it changes who may do what."""
    if not isinstance(request, AlterUser | AlterAcls | AlterQuota):
        await gateway.administer(request, timeout_s)
        return
    outcome = "not known"  # of a client that hangs up meanwhile; what it wanted may go on
    try:
        await gateway.administer(request, timeout_s)
        outcome = "done"
    except AntiphonError as error:
        outcome = error.code
        raise
    finally:
        who = {"by": str(rights.principal), "host": host, "listener": listener, "outcome": outcome}
        for facts in _facts(request):
            structlog.get_logger().info(EVENT, **who, **facts)


def _facts(request: AlterUser | AlterAcls | AlterQuota) -> Iterator[dict[str, Any]]:
    match request:
        case AlterUser():
            yield {
                "what": "user",
                "user": shown(request.name, NAME_MAX),
                "set": [one.mechanism for one in request.credentials],
                "removed": ["all"] if request.remove else [shown(one) for one in request.gone_mechanisms],
            }
        case AlterAcls():
            for field, entries in (("added", request.add), ("removed", request.remove)):
                for at in range(0, len(entries), ENTRIES):
                    yield {"what": "acl", field: _texts(entries[at : at + ENTRIES])}
        case AlterQuota():
            entity = zip(("user", "client_id", "ip"), request.quota.entity, strict=True)
            yield {
                "what": "quota",
                "of": {kind: shown(name, NAME_MAX) or "*" for kind, name in entity if name is not None},
                "set": request.quota.limits,
                "removed": [shown(one) for one in request.gone],
            }


def _texts(entries: Iterable[Acl]) -> list[str]:
    return [
        f"{one.permission} {shown(one.principal, NAME_MAX)} {one.operation} {one.resource} "
        f"{one.pattern} {shown(one.name, NAME_MAX)} from {shown(one.host)}"
        for one in entries
    ]
