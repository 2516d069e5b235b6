"""Which shard of a table holds what a client names, and by which hash: clients hash, and not all of them alike.

Go's and Java's clients take the low 32 bits of xxHash3, as Antiphon's tables do. Python's (0.2.1) takes those of XXH64, so
it sends what it puts to another shard of a table that has several. The server trusts the shard that a client names, as
Oxia's does, and notes in the row by which hash it stands there (its *place*), so that a split takes it to the shard where
that client looks for it.
"""

from typing import TYPE_CHECKING, Final

from xxhash import xxh64_intdigest

from antiphon.errors import UnknownTopicError
from antiphon.model.metadata import HASH_MAX, KeyRanges, ShardMeta, TopicMeta, key_hash
from antiphon.records.key_order import is_hierarchical

if TYPE_CHECKING:
    from antiphon.gateway.interface import Gateway

NOWHERE: Final = -2
PYTHON_AGENT: Final = b"grpc-python"


class Place:
    """A shard as one client sees it."""

    def __init__(self, topic: TopicMeta, shard: ShardMeta, *, is_python: bool) -> None:
        self.topic = topic
        self.shard = shard
        self._is_python = is_python
        self._ranges = KeyRanges(topic.shards) if len(topic.shards) > 1 else None
        self._range = (0, HASH_MAX) if self._ranges is None else self._ranges.range_of(shard)

    @property
    def is_hierarchical(self) -> bool:
        """Do clients see the keys in the hierarchical order?"""
        return is_hierarchical(self.topic.config)

    def at(self, shard: ShardMeta) -> "Place":
        """Another shard of the same table, as of the same metadata."""
        return Place(self.topic, shard, is_python=self._is_python)

    @property
    def hashes(self) -> tuple[int, ...]:
        """What is to be in the shard, where the table was ever split."""
        return self.shard.hashes

    def holds(self, hash32: int) -> bool:
        """Is a hash this shard's?"""
        return self._range[0] <= hash32 <= self._range[1]

    def place_of_key(self, key: bytes) -> int:
        """The place of a row that is put by its key; -1: where its hash puts it anyway; NOWHERE: not here, for the client
        does not know of a split.
        """
        if self._ranges is None or self.holds(key_hash(key)):
            return -1
        own = self.client_hash(key)
        return own if self.holds(own) else self._nowhere

    def place_of_partition(self, name: bytes) -> int:
        """The place of a row that is put by a partition key, or NOWHERE."""
        own, common = self.client_hash(name), key_hash(name)
        return own if self.holds(own) else common if self.holds(common) else self._nowhere

    @property
    def _nowhere(self) -> int:
        """The shard that a client names is trusted, unless there was a split that it may not know of."""
        return NOWHERE if self.hashes else self._range[0]

    def client_hash(self, name: bytes) -> int:
        """The hash by which the client has found the shard."""
        return xxh64_intdigest(name) & HASH_MAX if self._is_python else key_hash(name)

    def elsewhere(self, key: bytes) -> ShardMeta | None:
        """The shard in which others have put a key that the client looks for here; None: here."""
        if self._ranges is None or self.holds(key_hash(key)):
            return None
        # After a split the client may ask here only because it has not heard of it.
        is_asked_for_here = self.holds(self.client_hash(key)) or bool(self.hashes)
        return self._ranges.shard_of(key) if is_asked_for_here else None

    @property
    def others(self) -> tuple[int, ...]:
        """Shards that may have taken over from this one what its clients do not know of: all others, after a split."""
        if not self.hashes:
            return ()
        return tuple(one.shard_id for one in self.topic.shards if one.shard_id != self.shard.shard_id)


def place_in(gateway: "Gateway", shard_id: int, agent: bytes) -> Place:
    """A shard of a table, for a client that says that it is `agent`. Raises UnknownShardError, NotReadyError."""
    topic, shard = gateway.shard(shard_id)
    return Place(topic, shard, is_python=agent.startswith(PYTHON_AGENT))


def only_shard(gateway: "Gateway", table: str) -> int | None:
    """The shard of a table that has one; None where there is none, or which one is meant cannot be known."""
    try:
        shards = gateway.topic(table).shards
    except UnknownTopicError:
        return None
    return shards[0].shard_id if len(shards) == 1 else None
