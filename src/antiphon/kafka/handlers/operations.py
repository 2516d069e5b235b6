"""What a client may do with a thing, as the number in which each bit is an operation (KIP-430)."""

from typing import Final

from antiphon.gateway.interface import Gateway
from antiphon.kafka.handlers.access import OPERATIONS
from antiphon.kafka.handlers.rights import protected
from antiphon.model.access import CLUSTER_NAME, Operation, Resource
from antiphon.security.authorizer import Rights

_CONFIGS: Final = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS})
OF_TOPICS: Final = _CONFIGS | {
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
}
OF_GROUPS: Final = frozenset({Operation.READ, Operation.DELETE, Operation.DESCRIBE})
OF_CLUSTERS: Final = _CONFIGS | {
    Operation.CREATE,
    Operation.CLUSTER_ACTION,
    Operation.IDEMPOTENT_WRITE,
    Operation.ALTER,
    Operation.DESCRIBE,
}


def with_topic(gateway: Gateway, rights: Rights, name: str) -> int:
    """What the client may do with a topic, or with a table that it reads as one."""
    return _bits(rights, {operation: protected(gateway, operation, name) for operation in OF_TOPICS})


def with_group(rights: Rights, name: str) -> int:
    """What the client may do with a consumer group."""
    return _bits(rights, {operation: (operation, Resource.GROUP, name) for operation in OF_GROUPS})


def with_cluster(rights: Rights) -> int:
    """What the client may do with the cluster; nothing is said to who may not describe it."""
    if not rights.sees(Operation.DESCRIBE, Resource.CLUSTER):
        return 0
    asked = {operation: (operation, Resource.CLUSTER, CLUSTER_NAME) for operation in OF_CLUSTERS}
    return _bits(rights, asked)


def _bits(rights: Rights, questions: dict[Operation, tuple[Operation, Resource, str]]) -> int:
    found = 0
    for number, operation in OPERATIONS.items():
        if operation in questions and rights.sees(*questions[operation]):
            found |= 1 << number
    return found
