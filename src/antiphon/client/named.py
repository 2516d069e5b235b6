"""What calls of transactions are given: topics and tables by name or as handles, offsets of a group in two shapes."""

from collections.abc import Mapping
from typing import Any

from antiphon.client.cluster import Cluster
from antiphon.client.handles import Handle
from antiphon.client.table import AsyncTable
from antiphon.client.topic import AsyncTopic
from antiphon.errors import InvalidRequestError

AnyTable = str | AsyncTable[Any]
AnyTopic = str | AsyncTopic[Any]
Offsets = Mapping[Any, int | Mapping[int, int]]
"""`{(topic, shard): next offset}`, or `{topic: {shard: next offset}}`, or both in one."""


def name_of(what: object, cluster: Cluster) -> str:
    """The name of a topic or table. Raises InvalidRequestError for what is neither, and for a handle of another client."""
    if isinstance(what, str):
        return what
    if not isinstance(what, Handle):
        raise InvalidRequestError(
            f"a transaction takes the name of a topic or table, or what topic() or table() of its client gave, not {what!r}"
        )
    if not what.belongs_to(cluster):
        raise InvalidRequestError(
            f"{what!r} is of another client: a transaction takes what belongs to its own"
        )
    return what.name


def flat_offsets(offsets: Offsets, cluster: Cluster) -> dict[tuple[str, int], int]:
    """The next offsets by (topic, shard). Raises InvalidRequestError for another shape, and for one place named twice."""
    found: dict[tuple[str, int], int] = {}
    for key, value in offsets.items():
        of_shards = value if isinstance(value, Mapping) else None
        if of_shards is None and not (isinstance(key, tuple) and len(key) == 2):
            raise _shape(key, value)
        topic: object = key if of_shards is not None else key[0]
        for shard, offset in of_shards.items() if of_shards is not None else ((key[1], value),):
            if type(shard) is not int or type(offset) is not int or offset < 0:
                raise _shape((topic, shard), offset)
            place = (name_of(topic, cluster), shard)
            if place in found:
                raise InvalidRequestError(f"the offsets name shard {shard} of {place[0]!r} twice")
            found[place] = offset
    return found


def _shape(key: object, value: object) -> InvalidRequestError:
    return InvalidRequestError(
        "offsets are {(topic, shard): next offset} or {topic: {shard: next offset}}, with numbers from 0 on, "
        f"not {key!r}: {value!r}"
    )
