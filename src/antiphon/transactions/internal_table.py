"""An internal table whose shards' leaders coordinate something: which shard has a name, who leads it, in which term.

A name belongs to one shard, by its hash. Rows are this node's to write in a term in which its own replica of the shard
leads. That term is the replica's, not the metadata's, which may be behind it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog
from xxhash import xxh3_64_intdigest

from antiphon.errors import (
    AntiphonError,
    InternalError,
    NotLeaderError,
    NotReadyError,
    TopicExistsError,
    UnavailableError,
    UnknownTopicError,
)
from antiphon.gateway.interface import Gateway
from antiphon.model.metadata import Kind, ShardMeta, shard_of_hash
from antiphon.model.requests import CreateTopic

CREATE_WAIT_S: Final = 5.0
TRY_S: Final = 3.0
TRIES: Final = 3
PAUSE_S: Final = 0.1

AnswerT = TypeVar("AnswerT")


def shard_of_name(gateway: Gateway, table: str, name: str) -> ShardMeta:
    """The shard of the table that holds what is named; raises UnknownTopicError while there is no such table."""
    shards = gateway.topic(table).shards
    hash32 = xxh3_64_intdigest(name.encode()) & 0xFFFF_FFFF
    wanted = shard_of_hash(hash32, len(shards))
    found = next((shard for shard in shards if shard.index == wanted), None)
    if found is None:
        raise UnavailableError(f"{table} has no shard {wanted} yet")
    return found


async def with_tries(ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    """What the leader of a shard of such a table answers, or what cannot be tried again, or not any more."""
    for left in reversed(range(TRIES)):
        try:
            return await ask()
        except AntiphonError as error:
            if not left or not (error.retriable or isinstance(error, NotLeaderError)):
                raise
            await asyncio.sleep(PAUSE_S)
    raise InternalError("no try was left")


class InternalTable:
    """One such table. `what` says in errors what its rows are about."""

    def __init__(self, gateway: Gateway, table: str, shards: int, what: str) -> None:
        self._gateway = gateway
        self._table = table
        self._shards = shards
        self._what = what
        self._creating: asyncio.Task[None] | None = None

    @property
    def exists(self) -> bool:
        """Is there such a table by now?"""
        return any(topic.name == self._table for topic in self._gateway.metadata.topics)

    async def locate(self, name: str) -> ShardMeta:
        """The shard of a name, whoever leads it; makes the table when it is asked for first."""
        try:
            return shard_of_name(self._gateway, self._table, name)
        except UnknownTopicError:
            if self._gateway.metadata.version < 0:
                raise NotReadyError("this node was just started and knows no metadata yet") from None
            if self._creating is None or self._creating.done():
                work = self._create()
                self._creating = asyncio.get_running_loop().create_task(work, name=f"create {self._table}")
            await asyncio.wait([self._creating], timeout=CREATE_WAIT_S)
        return shard_of_name(self._gateway, self._table, name)

    async def _create(self) -> None:
        request = CreateTopic(self._table, Kind.TABLE, shards=self._shards, internal=True)
        try:
            await self._gateway.create_topic(request)
        except TopicExistsError:
            return
        except AntiphonError as error:
            structlog.get_logger().warning(
                "internal table not created", table=self._table, reason=error.message
            )

    def home(self, name: str) -> tuple[int, int]:
        """The shard of a name that this node coordinates, and the term in which it does; raises NotLeaderError."""
        shard = shard_of_name(self._gateway, self._table, name)
        leader = shard.leader
        if leader != self._gateway.node_id:
            raise NotLeaderError(f"node {leader} coordinates {self._what} {name!r}", leader=leader)
        term = self._gateway.term_led(shard.shard_id)
        if term is None:
            raise NotLeaderError(
                f"node {leader} was to coordinate {self._what} {name!r}, and its replica does not lead",
                leader=None,
            )
        return shard.shard_id, term

    def led_shards(self) -> list[ShardMeta]:
        """Shards of the table that this node leads; none while there is no table."""
        try:
            shards = self._gateway.topic(self._table).shards
        except UnknownTopicError:
            return []
        return [shard for shard in shards if shard.leader == self._gateway.node_id]

    async def stop(self) -> None:
        """Give up what is being made."""
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.gather(self._creating, return_exceptions=True)
