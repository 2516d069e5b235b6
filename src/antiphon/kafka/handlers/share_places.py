"""Where a share-partition is led, and what a member is told where it is not to be had."""

from typing import NamedTuple

from antiphon.errors import AntiphonError, NotLeaderError, StaleTermError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.share_partitions import Place, Share, SharePartitions
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.handlers.rights import may
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.kafka.share_fetch_codec import NO_LEADER
from antiphon.model.access import Operation
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind
from antiphon.security.authorizer import Rights


class Failed(NamedTuple):
    """Why, and who leads the partition, where this node does not."""

    error_code: int
    message: str | None
    leader: tuple[int, int] = NO_LEADER


class SharePlaces:
    """Finds share-partitions for one node's listener."""

    def __init__(self, gateway: Gateway, cache: MetadataCache, shares: SharePartitions) -> None:
        self._gateway = gateway
        self._cache = cache
        self._shares = shares

    async def find(self, rights: Rights, place: Place) -> Share | Failed:
        """The share-partition, if the client may read its topic and this node leads it."""
        try:
            return await self._shares.at(place, self._shard_of(rights, place))
        except RefusedError as refused:
            return Failed(refused.error_code, refused.reason)
        except AntiphonError as error:
            return self.failed(place, error)

    def _shard_of(self, rights: Rights, place: Place) -> int:
        try:
            topic = self._gateway.topic_by_id(place.topic_id)
        except UnknownTopicError as error:
            raise RefusedError(code.UNKNOWN_TOPIC_ID, error.message) from error
        if not may(self._gateway, rights, Operation.READ, topic.name):
            raise RefusedError(
                code.TOPIC_AUTHORIZATION_FAILED, f"{rights.principal} may not read topic {topic.name!r}"
            )
        shard = self._cache.shard_at(topic, place.partition)
        if topic.kind is not Kind.TOPIC or is_internal(topic) or shard is None:
            raise RefusedError(
                code.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic.name!r} has no partition {place.partition} that share groups may read",
            )
        return shard.shard_id

    def failed(self, place: Place, error: AntiphonError, *, stored: bool = False) -> Failed:
        """In codes that members of share groups know. `stored`: the state was to be stored."""
        if isinstance(error, UnknownTopicError):
            return Failed(code.UNKNOWN_TOPIC_OR_PARTITION, error.message)
        if isinstance(error, NotLeaderError | StaleTermError) or (error.retriable and not stored):
            return Failed(code.NOT_LEADER_OR_FOLLOWER, error.message, self._leader_of(place))
        if error.retriable:
            return Failed(code.COORDINATOR_NOT_AVAILABLE, error.message)
        found = code.code_of(error)
        known = found in {code.CORRUPT_MESSAGE, code.KAFKA_STORAGE_ERROR}
        return Failed(found if known else code.UNKNOWN_SERVER_ERROR, error.message)

    def _leader_of(self, place: Place) -> tuple[int, int]:
        try:
            name = self._gateway.topic_by_id(place.topic_id).name
        except UnknownTopicError:
            return NO_LEADER
        return self._cache.hint(name, place.partition) or NO_LEADER
