"""A client's knowledge of leaders, and what a failed try at a shard leads to.

It has the newest metadata that any node returned, and later hints of nodes.
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto
from logging import INFO
from typing import Final, TypeVar

from antiphon.client.log import logger
from antiphon.errors import (
    AntiphonError,
    ForeignDirectoryError,
    InvalidRequestError,
    NotLeaderError,
    ProtocolViolationError,
    UnauthenticatedError,
    UnavailableError,
    UnknownShardError,
    WrongShardError,
)
from antiphon.model.cluster import mark_of
from antiphon.model.metadata import ABSENT_NODE, ClusterMeta, ShardMeta, TopicMeta

LED: Final = "shard %d is led by node %d, term %d"
LAG_S_MAX: Final = 5.0  # how long a node may not know a shard that the metadata names
NOBODY_HELPS: Final = (
    InvalidRequestError,
    ForeignDirectoryError,
    ProtocolViolationError,
    UnauthenticatedError,
)
"""What a client that looks for metadata is told by one node, and need not ask the next one for."""

PlaceT = TypeVar("PlaceT")


class Next(Enum):
    """What to do before the next try."""

    FOLLOW = auto()
    """Pause: another leader is known now."""
    LEARN = auto()
    """Pause, and ask for newer metadata."""
    WAIT = auto()
    """Pause."""


class Routes:
    """Leaders and addresses. Neither thread-safe nor bound to a clock."""

    def __init__(self) -> None:
        self.meta: ClusterMeta | None = None
        self.topics: dict[str, TopicMeta] = {}
        self.addresses: dict[int, str] = {}  # node id -> native address
        self._leaders: dict[
            int, int
        ] = {}  # shard id -> node id; hints overwrite it until newer metadata comes
        self._terms: dict[int, int] = {}  # shard id -> term of the leader that is known

    # -- learning -----------------------------------------------------------------------------------------------

    def adopt(self, meta: ClusterMeta) -> None:
        """Take over what a node knows, if it is newer."""
        before = self.meta
        if before is not None and (mark_of(meta.recovery), meta.version) <= (
            mark_of(before.recovery),
            before.version,
        ):
            self._learn_leaders(meta)
            return  # a node that lags, or nothing new: hints stay
        self.meta = meta
        leaders = {shard.shard_id: shard.leader for topic in meta.topics for shard in topic.shards}
        self._log_new_leaders(meta)
        self.topics = {topic.name: topic for topic in meta.topics}
        self._leaders = leaders
        self.addresses = {node.node_id: node.native for node in meta.nodes if node.native}
        self._terms = {shard.shard_id: shard.term for topic in meta.topics for shard in topic.shards}

    def _learn_leaders(self, meta: ClusterMeta) -> None:
        """Where replicas vote, a node may know of a newer leader than the coordinator has told anybody."""
        for topic in meta.topics:
            for shard in topic.shards:
                if shard.leader != ABSENT_NODE and shard.term > self._terms.get(shard.shard_id, shard.term):
                    self._terms[shard.shard_id] = shard.term
                    self._leaders[shard.shard_id] = shard.leader
                    logger.info(LED, shard.shard_id, shard.leader, shard.term)

    def _log_new_leaders(self, meta: ClusterMeta) -> None:
        """Shards that this client knew with another leader."""
        if not logger.isEnabledFor(INFO):
            return
        for topic in meta.topics:
            for shard in topic.shards:
                if self._leaders.get(shard.shard_id, shard.leader) == shard.leader:
                    continue
                if shard.leader == ABSENT_NODE:
                    logger.info("shard %d (%s) has no leader now", shard.shard_id, topic.name)
                else:
                    logger.info(LED, shard.shard_id, shard.leader, shard.term)

    def _forget_hint(self, shard_id: int) -> None:
        """Whoever was hinted at does not lead, and knows of nobody: back to the leader by metadata, and its term."""
        shard = self.shard(shard_id)
        if shard is not None:
            self._leaders[shard_id], self._terms[shard_id] = shard.leader, shard.term

    def after(self, shard_id: int, error: AntiphonError, elapsed_s: float) -> Next:
        """What to do after a try at a shard failed, `elapsed_s` after the first try. Raises what ends the tries."""
        if isinstance(error, NotLeaderError):
            hint = error.details.get("leader")
            if isinstance(hint, int) and hint in self.addresses and self._leaders.get(shard_id) != hint:
                self._leaders[shard_id] = hint
                logger.info("shard %d is led by node %d, says another node", shard_id, hint)
                return Next.FOLLOW
            if hint is None:
                self._forget_hint(shard_id)
            return Next.LEARN
        if isinstance(error, UnknownShardError):
            if shard_id not in self._leaders or elapsed_s > LAG_S_MAX:
                raise error
            return Next.LEARN
        if isinstance(error, WrongShardError):
            return Next.LEARN
        if not error.retriable:
            raise error
        return Next.LEARN if isinstance(error, UnavailableError) else Next.WAIT

    # -- asking -------------------------------------------------------------------------------------------------

    def leader(self, shard_id: int) -> int | None:
        """Node that leads the shard, as far as is known; None where the shard is in no topic."""
        return self._leaders.get(shard_id)

    def known_address(self, shard_id: int) -> str | None:
        """Where the shard's leader is, if there is one as far as is known."""
        return self.addresses.get(self._leaders.get(shard_id, ABSENT_NODE))

    def leader_address(self, shard_id: int) -> str:
        """Where the shard's leader is, as far as is known.

        Raises UnknownShardError when the shard is in no topic, UnavailableError when it has no leader.
        """
        if shard_id not in self._leaders:
            raise UnknownShardError(f"shard {shard_id} is gone: its topic was deleted", shard=shard_id)
        address = self.known_address(shard_id)
        if address is None:
            raise UnavailableError(
                f"shard {shard_id} has no leader right now; `antiphon shard list` shows why", shard=shard_id
            )
        return address

    def shard(self, shard_id: int) -> ShardMeta | None:
        """Metadata of a shard; None where it is in no topic."""
        for topic in self.meta.topics if self.meta is not None else ():
            for shard in topic.shards:
                if shard.shard_id == shard_id:
                    return shard
        return None


def mends(error: AntiphonError) -> bool:
    """May the same request succeed later, at this leader or another?"""
    return error.retriable or isinstance(error, UnknownShardError)


def places_to_ask(
    connected: Iterable[PlaceT],
    known: Iterable[PlaceT],
    servers: Iterable[PlaceT],
    shuffle: Callable[[list[PlaceT]], object],
    avoid: PlaceT | None = None,
) -> list[PlaceT]:
    """Places to ask for metadata, in this order: connected ones, others that are known, those that the program named; the
    one to avoid is the last. Clients that ask at the same time do not all ask the same node.
    """
    have = list(connected)
    others = [place for place in known if place not in have]
    shuffle(others)
    shuffle(have)
    places = list(dict.fromkeys([*have, *others, *servers]))
    if avoid is not None and avoid in places:
        places.remove(avoid)
        places.append(avoid)
    return places
