"""What the handlers of groups share: what a heartbeat comes to, which group is described, and the answers of many."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import Beaten, Refused
from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.consumer_groups import ConsumerGroups
from antiphon.kafka.groups.refusals import code_of_refused
from antiphon.kafka.handlers.operations import with_group
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.handlers.rights import sees
from antiphon.model.access import Operation, Resource
from antiphon.security.authorizer import Rights


class Described(Protocol):
    """A group in an answer."""

    error_code: int
    authorized_operations: int


DescribedT = TypeVar("DescribedT", bound=Described)


async def beaten(work: Awaitable[Beaten | Refused]) -> Beaten:
    """What a heartbeat comes to. Raises RefusedError with the reason where it is refused, by whom ever."""
    try:
        found = await work
    except AntiphonError as error:
        raise RefusedError(code.coordinator_code_of(error), error.message) from error
    if isinstance(found, Refused):
        raise RefusedError(code_of_refused(found), found.value)
    return found


def check_reads(rights: Rights, group_id: str) -> None:
    """Raise RefusedError where the client may not take part in the group."""
    if not rights.may(Operation.READ, Resource.GROUP, group_id):
        raise RefusedError(code.GROUP_AUTHORIZATION_FAILED, f"{rights.principal} may not read this group")


async def group_for(
    gateway: Gateway, groups: ConsumerGroups, group_id: str, rights: Rights, missing: str
) -> ConsumerGroup:
    """A group that the client may see. Raises RefusedError; `missing`: where there is none."""
    try:
        await groups.ready(group_id)
        group = groups.find(group_id)
    except UnknownTopicError:
        group = None  # there was no group ever
    except AntiphonError as error:
        raise RefusedError(code.coordinator_code_of(error), error.message) from error
    if group is None:
        raise RefusedError(code.GROUP_ID_NOT_FOUND, missing)
    if not all(sees(gateway, rights, name) for name in group.subscribed):
        raise RefusedError(
            code.TOPIC_AUTHORIZATION_FAILED, "the group reads topics that the client may not describe"
        )
    return group


async def each_described(
    group_ids: Iterable[str],
    describe: Callable[[str, RequestContext], Awaitable[DescribedT]],
    context: RequestContext,
    *,
    with_operations: bool,
) -> list[DescribedT]:
    """Each of these groups; one that is named more than once is described once."""
    groups = []
    for group_id in dict.fromkeys(group_ids):
        found = await describe(group_id, context)
        if with_operations and found.error_code == code.NONE:
            found.authorized_operations = with_group(context.rights, group_id)
        groups.append(found)
        await asyncio.sleep(0)  # others first
    return groups
