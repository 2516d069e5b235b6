"""The answer to a request that is refused as a whole: its own parts with an error code where a Kafka broker puts it.

Brokers put an error at the top of a response, or beside each thing that was asked for: a topic, a partition, a group. So
an answer is made from its request: `answer_part` is a part of an answer for a part of a request, down to the smallest. The
functions behind it are for what depends on the version. Metadata is not among these: it also tells the brokers.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_origin

import msgspec

from antiphon.kafka.api import Api
from antiphon.kafka.handlers.group_offsets import fetched_alike
from antiphon.kafka.handlers.metadata import served_versions
from antiphon.kafka.handlers.refusals import alike
from antiphon.kafka.messages import admin, cluster, groups, security, transactions
from antiphon.kafka.schema import Message

_M = TypeVar("_M", bound=Message)
Answered = Callable[[Any, int, int, str | None], Message]
"""Of a request, its version, an error code and the reason."""


def refused(api: Api, request: Message, version: int, error: int, reason: str | None) -> Message:
    """The response to a request of an API with a plain response. Raises KeyError for another API."""
    if (answer := _BY_VERSION.get(api.name)) is not None:
        return answer(request, version, error, reason)
    if api.response is None:
        raise KeyError(f"{api.name} has no answer with an error")
    return answer_part(api.response, request, error, reason)


def answer_part(kind: type[_M], asked: Any, error: int, reason: str | None) -> _M:
    """An answer, or a part of one, for what was asked: the error, and what both call alike.

    Fields that may be left out are. A list that has to be there has a part for each thing in the list that was asked for.
    What was asked for by its name or number only (a group, a partition) is called that.
    """
    told = {"error_code": error, "error_message": reason}
    values: dict[str, Any] = {name: told[name] for name in kind.__struct_fields__ if name in told}
    for name, part in _required(kind):
        if part is not None:
            things = _things(asked, name)
            values[name] = [
                one if isinstance(one, part) else answer_part(part, one, error, reason) for one in things
            ]
        elif name not in told:
            values[name] = getattr(asked, name) if isinstance(asked, Message) else asked
    return kind(**values)


@cache
def _required(kind: type[Message]) -> list[tuple[str, type[Message] | None]]:
    """The fields that have no default, and the parts in each that is a list of them."""
    found: list[tuple[str, type[Message] | None]] = []
    for field in msgspec.structs.fields(kind):
        if field.required:
            (part,) = get_args(field.type) if get_origin(field.type) is list else (None,)
            is_part = isinstance(part, type) and issubclass(part, Message)
            found.append((field.name, part if is_part else None))
    return found


def _things(asked: Any, name: str) -> list[Any]:
    """The list of this name in what was asked; the first one where none is called so."""
    fields = {field: getattr(asked, field) for field in asked.__struct_fields__}
    lists = {field: value for field, value in fields.items() if isinstance(value, list)}
    return lists[name] if name in lists else next(iter(lists.values()), [])


def _api_versions(_: Any, __: int, error: int, ___: str | None) -> Message:
    return served_versions([], 0, error)


def _find_coordinator(request: Any, version: int, error: int, reason: str | None) -> Message:
    if version < 4:
        return cluster.FindCoordinatorResponse(error_code=error, error_message=reason)
    return cluster.FindCoordinatorResponse(
        coordinators=[
            cluster.FoundCoordinator(key=key, error_code=error, error_message=reason)
            for key in request.coordinator_keys
        ]
    )


def _add_partitions(request: Any, version: int, error: int, _: str | None) -> Message:
    if version < 4:
        return transactions.AddPartitionsToTxnResponse(results_by_topic=alike(request.topics, error))
    return transactions.AddPartitionsToTxnResponse(error_code=error)


def _join_group(request: Any, version: int, error: int, _: str | None) -> Message:
    name = None if version >= 7 else ""
    return groups.JoinGroupResponse(error_code=error, protocol_name=name, member_id=request.member_id)


def _offset_fetch(request: Any, version: int, error: int, _: str | None) -> Message:
    if version >= 8:
        return groups.OffsetFetchResponse(
            groups=[
                groups.FetchedOffsetsGroup(group_id=group.group_id, error_code=error)
                for group in request.groups
            ]
        )
    if version >= 2:
        return groups.OffsetFetchResponse(error_code=error)
    topics = [fetched_alike(topic, error) for topic in request.topics or []]
    return groups.OffsetFetchResponse(topics=topics)


def _delete_topics(request: Any, version: int, error: int, reason: str | None) -> Message:
    named = (
        request.topics if version >= 6 else [admin.DeletableTopic(name=name) for name in request.topic_names]
    )
    return admin.DeleteTopicsResponse(
        responses=[
            admin.DeletedTopic(name=one.name, topic_id=one.topic_id, error_code=error, error_message=reason)
            for one in named
        ]
    )


def _elect_leaders(request: Any, version: int, error: int, reason: str | None) -> Message:
    results = [
        answer_part(admin.ElectedTopic, topic, error, reason) for topic in request.topic_partitions or []
    ]
    top = error if version >= 1 else 0
    return admin.ElectLeadersResponse(error_code=top, replica_election_results=results)


def _alter_users(request: Any, _: int, error: int, reason: str | None) -> Message:
    names = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
    return security.AlterUserScramCredentialsResponse(
        results=[security.AlteredUser(user=name, error_code=error, error_message=reason) for name in names]
    )


_BY_VERSION: Final[dict[str, Answered]] = {
    "AddPartitionsToTxn": _add_partitions,
    "AlterUserScramCredentials": _alter_users,
    "ApiVersions": _api_versions,
    "DeleteTopics": _delete_topics,
    "ElectLeaders": _elect_leaders,
    "FindCoordinator": _find_coordinator,
    "JoinGroup": _join_group,
    "OffsetFetch": _offset_fetch,
}
