"""What the handlers of groups share: what a heartbeat comes to, which group is described, and the answers of many."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import Beaten, Refused
from antiphon.errors import UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.consumer_groups import ConsumerGroups
from antiphon.kafka.groups.refusals import code_of_refused
from antiphon.kafka.handlers.operations import with_group
from antiphon.kafka.handlers.refusals import RefusedError, coordinator_errors
from antiphon.kafka.handlers.rights import check, sees
from antiphon.kafka.messages.consumer_groups import DescribedConsumerGroup
from antiphon.kafka.messages.groups import DescribedGroup
from antiphon.kafka.messages.share_groups import DescribedShareGroup
from antiphon.model.access import Operation, Resource
from antiphon.security.authorizer import Rights

DescribedT = TypeVar("DescribedT", DescribedGroup, DescribedConsumerGroup, DescribedShareGroup)


async def beaten(work: Awaitable[Beaten | Refused]) -> Beaten:
    """What a heartbeat comes to. Raises RefusedError with the reason where it is refused, by whom ever."""
    with coordinator_errors():
        found = await work
    if isinstance(found, Refused):
        raise RefusedError(code_of_refused(found), found.value)
    return found


def check_reads(rights: Rights, group_id: str) -> None:
    """Raise RefusedError where the client may not take part in the group."""
    check(rights, Operation.READ, Resource.GROUP, group_id, f"{rights.principal} may not read this group")


async def group_for(
    gateway: Gateway, groups: ConsumerGroups, group_id: str, rights: Rights, missing: str
) -> ConsumerGroup:
    """A group that the client may see. Raises RefusedError; `missing`: where there is none."""
    group = None
    with coordinator_errors(), suppress(UnknownTopicError):  # there was no group ever
        await groups.ready(group_id)
        group = groups.find(group_id)
    if group is None:
        raise RefusedError(code.GROUP_ID_NOT_FOUND, missing)
    if not all(sees(gateway, rights, name) for name in group.subscribed):
        raise RefusedError(
            code.TOPIC_AUTHORIZATION_FAILED, "the group reads topics that the client may not describe"
        )
    return group


async def each_described(
    kind: type[DescribedT],
    group_ids: Iterable[str],
    describe: Callable[[str, RequestContext], Awaitable[DescribedT]],
    context: RequestContext,
    *,
    with_operations: bool,
) -> list[DescribedT]:
    """Each of these groups; one that is named more than once is described once."""
    groups = []
    for group_id in dict.fromkeys(group_ids):
        try:
            check(context.rights, Operation.DESCRIBE, Resource.GROUP, group_id)
            found = await describe(group_id, context)
        except RefusedError as refused:
            found = kind(group_id=group_id, error_code=refused.error_code, error_message=refused.reason)
        if with_operations and found.error_code == code.NONE:
            found.authorized_operations = with_group(context.rights, group_id)
        groups.append(found)
        await asyncio.sleep(0)  # others first
    return groups
