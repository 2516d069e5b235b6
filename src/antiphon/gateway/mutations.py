"""How many partitions a request makes or removes, by which clients are charged (`controller_mutation_rate`)."""

from typing import Any

from antiphon.errors import AntiphonError
from antiphon.gateway.interface import Gateway
from antiphon.model.requests import AlterTopic, CreateTopic, DeleteTopic, SplitShard


def partitions_of(gateway: Gateway, body: Any) -> int:
    """0 for what makes and removes none."""
    try:
        match body:
            case CreateTopic(validate_only=True) | AlterTopic(validate_only=True):
                return 0
            case CreateTopic():
                return max(1, body.shards)
            case DeleteTopic():
                return len(gateway.topic(body.name).shards)
            case AlterTopic() if body.shards is not None:
                return max(0, body.shards - len(gateway.topic(body.name).shards))
            case SplitShard():
                return 1
    except AntiphonError:
        return 0  # there is no such topic, which is what the client is told
    return 0
