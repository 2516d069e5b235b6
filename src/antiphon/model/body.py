"""What every request and reply of the native protocol is made of."""

from typing import TypeVar

import msgspec

from antiphon.errors import ProtocolViolationError


class Body(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all requests and replies."""


class OfShard(Body, frozen=True, array_like=True, tag=True):
    """Base of what is asked of one shard, or told of it."""

    shard_id: int


ReplyT = TypeVar("ReplyT", bound=Body)


def reply_as(kind: type[ReplyT], reply: object, asked: str) -> ReplyT:
    """The reply to what was `asked`, of the kind that answers it. Raises ProtocolViolationError."""
    if not isinstance(reply, kind):
        raise ProtocolViolationError(f"asked {asked}, got {type(reply).__name__}")
    return reply
