"""What a topic is to access control lists: by its name, as what it is."""

from typing import Final

from antiphon.errors import UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.model.access import CLUSTER_NAME, Operation, Resource
from antiphon.model.internal import PREFIX
from antiphon.model.metadata import Kind
from antiphon.security.authorizer import Rights

_DENIED: Final = {
    Resource.CLUSTER: code.CLUSTER_AUTHORIZATION_FAILED,
    Resource.GROUP: code.GROUP_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def protected(gateway: Gateway, operation: Operation, name: str) -> tuple[Operation, Resource, str]:
    """What is asked of the lists: a table is no topic, and what belongs to the cluster takes CLUSTER_ACTION."""
    if name.startswith(PREFIX):
        return Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME
    try:
        kind = gateway.topic(name).kind
    except UnknownTopicError:
        kind = Kind.TOPIC
    return operation, Resource.TABLE if kind is Kind.TABLE else Resource.TOPIC, name


def may(gateway: Gateway, rights: Rights, operation: Operation, name: str) -> bool:
    """May the client do this with a topic (or table) that it names?"""
    return not rights.limited or rights.may(*protected(gateway, operation, name))


def check(
    rights: Rights,
    operation: Operation,
    resource: Resource,
    name: str = CLUSTER_NAME,
    reason: str | None = None,
) -> None:
    """Raise RefusedError where the client may not do this."""
    if not rights.may(operation, resource, name):
        raise RefusedError(_DENIED[resource], reason)


def check_topic(
    gateway: Gateway, rights: Rights, operation: Operation, name: str, reason: str | None = None
) -> None:
    """The same with a topic (or table) that it names."""
    if not may(gateway, rights, operation, name):
        raise RefusedError(code.TOPIC_AUTHORIZATION_FAILED, reason)


def sees(gateway: Gateway, rights: Rights, name: str, operation: Operation = Operation.DESCRIBE) -> bool:
    """Is a topic shown among all? A refusal is not counted."""
    return not rights.limited or rights.sees(*protected(gateway, operation, name))


def may_create(gateway: Gateway, rights: Rights, name: str) -> bool:
    """May the client make this topic? CREATE on the cluster allows every one."""
    if not rights.limited or rights.sees(Operation.CREATE, Resource.CLUSTER):
        return True
    return may(gateway, rights, Operation.CREATE, name)
