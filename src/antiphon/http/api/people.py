"""Users, access control lists and quotas; never a secret."""

from functools import partial

from antiphon.http.api.answers import AclInfo, Page, QuotaInfo, UserInfo
from antiphon.http.api.asked import Filtered
from antiphon.http.api.call import Call, page, told
from antiphon.model.access import Operation, Resource


async def list_users(call: Call, asked: Filtered) -> Page[UserInfo]:
    """Users, and what they log in with."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    wanted = asked.q.lower()
    found = [user for name, user in sorted(call.gateway.access.users.items()) if wanted in name.lower()]
    return page(
        found,
        asked,
        lambda one: UserInfo(name=one.name, mechanisms=[each.mechanism for each in one.credentials]),
    )


async def list_acls(call: Call, asked: Filtered) -> Page[AclInfo]:
    """Entries of the access control lists."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    wanted = asked.q.lower()
    found = [
        one
        for one in sorted(call.gateway.access.acls.values())
        if wanted in f"{one.principal} {one.resource} {one.name}".lower()
    ]
    return page(found, asked, partial(told, AclInfo))


async def list_quotas(call: Call, asked: Filtered) -> Page[QuotaInfo]:
    """Quotas of users, client ids and addresses."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    wanted = asked.q.lower()
    found = [
        one
        for _, one in sorted(call.gateway.access.quotas.items())
        if wanted in " ".join(part or "" for part in one.entity).lower()
    ]
    return page(found, asked, partial(told, QuotaInfo))
